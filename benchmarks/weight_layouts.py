"""Whether laying weights out for the tuned loops pays.

    python -m benchmarks.weight_layouts

Every task of a network that has weights is measured with and without layout-free weights: the
same random rows of decisions, in alternation, on the same workers. Compared are the best of the
rows, which is what tuning is after, and the typical row.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import write_result
from tlp.host import plan_cores
from tlp.measuring.batch import Batch, reference
from tlp.measuring.messages import Program
from tlp.measuring.place import LocalPlace
from tlp.measuring.pool import WorkerPool
from tlp.metaschedule.targets import parse_target
from tlp.networks.prepare import load_prepared, prepare
from tlp.networks.spec import NetworkSpec
from tlp.networks.tasks import Task, extract_tasks
from tlp.processes import native_output_to, run_isolated
from tlp.tuning.state import TaskState, make_states, subjects_of

PAIRS = {"with": True, "without": False}


def tasks_of(network: str, target: dict[str, Any], layouts: bool, folder: Path) -> list[Task]:
    """Tasks of a network prepared with or without layout-free weights."""
    place = folder / str(layouts)
    run_isolated(prepare, NetworkSpec(network), target, layouts, place)
    return extract_tasks(load_prepared(place), target)


def _label(task: Task) -> str:
    """Name a task the same in both forms: the functions' own names differ."""
    shapes = " ".join("x".join(map(str, shape)) for _, shape in task.arguments)
    return f"{task.anchor} ({shapes})"


def measure(
    pool: WorkerPool, pair: dict[str, TaskState], rows: int, rng: np.random.Generator
) -> dict[str, list[float]]:
    """Seconds of the same rows in both forms; rows that fail in either are left out."""
    for state in pair.values():
        reference(pool, state.task.key)
    found: dict[str, list[float]] = {name: [] for name in pair}
    for row in pair["with"].space.uniform(rng, rows):
        seconds = {}
        for name, state in pair.items():
            program = Program(state.task.key, *state.space.decisions(row))
            (measured,) = Batch(pool, [program], lambda: math.inf).results()
            if measured.run is not None and measured.run.latencies:
                seconds[name] = statistics.median(measured.run.latencies)
        if len(seconds) == len(pair):
            for name, value in seconds.items():
                found[name].append(value)
    return found


def main() -> None:
    """Run the benchmark and write its result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--tasks", type=int, default=6)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    target = parse_target("native")
    rng = np.random.default_rng(options.seed)
    rows: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        found = {
            name: {
                _label(task): task for task in tasks_of(options.network, target, layouts, folder)
            }
            for name, layouts in PAIRS.items()
        }
        chosen = [
            name for name, task in found["with"].items() if "conv2d" in name or "matmul" in name
        ]
        chosen = chosen[: options.tasks]
        with native_output_to(folder / "tvm.log"):
            states = {
                name: dict(
                    zip(chosen, make_states([tasks[c] for c in chosen], target), strict=True)
                )
                for name, tasks in found.items()
            }
            subjects = subjects_of([s for group in states.values() for s in group.values()])
        plan = plan_cores(int(target["num-cores"]))
        place = LocalPlace(plan)
        with WorkerPool(subjects, place, folder / "references", size=1, log_dir=folder) as pool:
            for task in chosen:
                pair = {name: states[name][task] for name in PAIRS}
                seconds = measure(pool, pair, options.rows, rng)
                rows[task] = {
                    "rows": len(seconds["with"]),
                    "best_with_us": 1e6 * min(seconds["with"]),
                    "best_without_us": 1e6 * min(seconds["without"]),
                    "median_ratio": statistics.median(
                        a / b for a, b in zip(seconds["with"], seconds["without"], strict=True)
                    ),
                }
                print(task, rows[task], flush=True)
    best = [row["best_with_us"] / row["best_without_us"] for row in rows.values()]
    summary = {
        "best_ratio": math.exp(statistics.fmean(map(math.log, best))),
        "median_row_ratio": math.exp(
            statistics.fmean(math.log(row["median_ratio"]) for row in rows.values())
        ),
        "tasks_won": sum(ratio < 1 for ratio in best),
        "tasks": len(rows),
    }
    settings = {"network": options.network, "rows": options.rows, "seed": options.seed}
    write_result("weight_layouts", summary, {**settings, "target": target}, by_task=rows)


if __name__ == "__main__":
    main()
