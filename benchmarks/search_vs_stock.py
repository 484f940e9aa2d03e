"""The race: our search against stock's and against uniform sampling, nothing pre-trained.

    taskset -c 1 python -m benchmarks.search_vs_stock

One core, three seeds, 128 trials; the same builder, runner and decision space for all. Every
contender's run is kept in the folder, so the command goes on where it was stopped. A task and seed
is only ever compared within one host; once compared it stays in ``results/search_vs_stock/``, so
that the race can be finished on other days and machines. The clock starts when the task is handed
over. Leave the machine alone meanwhile: how busy the other cores were is written down.

Quality is re-measured: the rivals' bests and each program that improved on ours before, 30 repeats
in alternation. A rival's time is that of its last improvement of more than 1 %. Ours is that of
its first program that is as fast as the rival's best; a run without one goes on to four times the
trials and, if it still has none, counts double the time it took.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, Neighbours, te_task, write_result
from benchmarks.contenders import CONTENDERS, Trajectory, Trial, remeasure
from tlp.host import describe_host, fingerprint
from tlp.metaschedule.imports import load_tvm
from tlp.metaschedule.targets import parse_target
from tlp.networks.prepare import MODULE_FILE, load_prepared, prepare
from tlp.networks.spec import NetworkSpec
from tlp.networks.tasks import Task, extract_tasks
from tlp.processes import run_isolated
from tlp.tuning.workdir import write_json

TASKS = ("C2D", "GMM", "DEP", "CBR", "mobilenet_v2:0", "mobilenet_v2:1", "mobilenet_v2:2")
STOCK = ("stock", "stock-warm16")
TRIALS = 128
SEEDS = 3
REPEATS = 30
EXTENSION = 4
LAST_IMPROVEMENT = 0.01


def find_task(name: str, target: dict[str, Any], folder: Path) -> Task:
    """``C2D`` or ``C2D:2`` of te_workload; ``NETWORK:n`` is a network's n-th heaviest task."""
    head, _, number = name.partition(":")
    if head.isupper():
        return te_task(head, int(number or 0))
    place = folder / "networks" / head
    if not (place / MODULE_FILE).exists():
        run_isolated(prepare, NetworkSpec(head), target, True, place, log=folder / "prepare.log")
    return extract_tasks(load_prepared(place), target)[int(number)]


def run_contender(
    name: str, task: Task, target: dict[str, Any], seed: int, trials: int, folder: Path
) -> Trajectory:
    """Run a contender in a process of its own, or read its finished run."""
    path = folder / f"{name}-{trials}.json"
    if path.exists():
        return Trajectory.from_json(json.loads(path.read_text()))
    place = folder / name
    first = not list(folder.glob(f"{name}-*.json"))
    if first and place.exists():  # a run that was cut short: its clock says nothing
        shutil.rmtree(place)
    place.mkdir(parents=True, exist_ok=True)
    neighbours = Neighbours()
    trajectory = run_isolated(
        CONTENDERS[name], task, target, seed, trials, place, start="fork", log=place / "log.txt"
    )
    trajectory = replace(trajectory, neighbours_busy=neighbours.busy)
    write_json(path, trajectory.to_json())
    return trajectory


class Cell:
    """One task and seed: all contenders on one host.

    Parameters
    ----------
    folder
        Of the contenders' runs.
    kept
        File of the comparison.
    """

    def __init__(
        self,
        task: Task,
        target: dict[str, Any],
        seed: int,
        trials: int,
        folder: Path,
        kept: Path,
    ) -> None:
        self.task, self.target, self.seed, self.trials = task, target, seed, trials
        self.folder, self.kept = folder, kept

    def result(self, order: Sequence[str]) -> dict[str, Any]:
        """Run what is missing and compare."""
        if self.kept.exists():
            known = dict(json.loads(self.kept.read_text()))
            if known["trials"] != self.trials:
                raise SystemExit(
                    f"{self.kept} is of {known['trials']} trials, not {self.trials}: remove it, or "
                    "give another folder with --kept"
                )
            return known
        hosts = {json.loads(p.read_text())["host"] for p in self.folder.glob("*-*.json")}
        if hosts - {fingerprint()}:
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        runs = {name: self._run(name, self.trials) for name in order}
        result = self._compare(runs)
        self.kept.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.kept, result)
        return result

    def _run(self, name: str, trials: int) -> Trajectory:
        return run_contender(name, self.task, self.target, self.seed, trials, self.folder)

    def _quality(self, trials: Sequence[Trial]) -> dict[str, float]:
        """Median seconds of distinct programs, all measured now, in alternation."""
        distinct = list({trial.program: trial for trial in trials}.values())
        seconds = run_isolated(
            remeasure,
            self.task,
            self.target,
            [(trial.sketch, trial.decisions) for trial in distinct],
            REPEATS,
            start="fork",
            log=self.folder / "remeasure.log",
        )
        return {
            trial.program: statistics.median(values)
            for trial, values in zip(distinct, seconds, strict=True)
        }

    def _compare(self, runs: dict[str, Trajectory]) -> dict[str, Any]:
        rivals = {name: run for name, run in runs.items() if name != "ours"}
        bests = {name: run.best() for name, run in rivals.items()}
        trials = self.trials
        while True:
            mine = runs["ours"]
            steps = [mine.trials[index] for index in mine.improvements()]
            quality = self._quality([*bests.values(), *steps])
            reached = {
                name: next(
                    (i for i in mine.improvements() if self._as_good(quality, mine, i, b)), None
                )
                for name, b in bests.items()
            }
            exhausted = len(mine.trials) < trials or trials >= EXTENSION * self.trials
            if all(index is not None for index in reached.values()) or exhausted:
                break
            trials = min(trials + self.trials // 2, EXTENSION * self.trials)
            runs["ours"] = self._run("ours", trials)
        mine = runs["ours"]
        stock = min((n for n in STOCK if n in rivals), key=lambda n: quality[bests[n].program])
        rows = {}
        for name, run in rivals.items():
            last = run.improvements(LAST_IMPROVEMENT)[-1]
            index = reached[name]
            seconds = (
                2 * mine.trials[-1].elapsed_s if index is None else mine.trials[index].elapsed_s
            )
            rows[name] = {
                "best_us": 1e6 * quality[bests[name].program],
                "seconds": run.trials[last].elapsed_s,
                "trials": last + 1,
                "total_seconds": run.trials[-1].elapsed_s,
                "ours_seconds": seconds,
                "ours_trials": None if index is None else index + 1,
                "time_ratio": seconds / run.trials[last].elapsed_s,
                "missed": index is None,
                "beyond_budget": index is None or index >= self.trials,
                "seconds_by_phase": run.seconds_by_phase,
            }
        best = mine.best(self.trials)
        return {
            "task": self.task.name,
            "seed": self.seed,
            "trials": self.trials,
            "host": fingerprint(),
            "machine": describe_host(),
            "written": time.strftime("%Y-%m-%d"),
            "neighbours_busy": max(run.neighbours_busy for run in runs.values()),
            "better_stock": stock,
            "ours_best_us": 1e6 * quality[best.program],
            "ours_seconds": mine.trials[min(self.trials, len(mine.trials)) - 1].elapsed_s,
            "ours_seconds_by_phase": mine.seconds_by_phase,
            "rivals": rows,
        }

    @staticmethod
    def _as_good(quality: dict[str, float], mine: Trajectory, index: int, rival: Trial) -> bool:
        program = mine.trials[index].program
        return program == rival.program or quality[program] <= quality[rival.program]


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean of positive numbers."""
    return math.exp(statistics.fmean(map(math.log, values)))


def summarise(cells: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The race's figures over all tasks and seeds."""
    stock = [cell["rivals"][cell["better_stock"]] for cell in cells]
    uniform = [cell["rivals"]["uniform"] for cell in cells]

    def trials(rows: Sequence[dict[str, Any]]) -> float:
        return geometric_mean(
            [row["ours_trials"] / row["trials"] for row in rows if row["ours_trials"]]
        )

    return {
        "time_ratio_stock": geometric_mean([row["time_ratio"] for row in stock]),
        "time_ratio_uniform": geometric_mean([row["time_ratio"] for row in uniform]),
        "final_latency_ratio": geometric_mean(
            [cell["ours_best_us"] / row["best_us"] for cell, row in zip(cells, stock, strict=True)]
        ),
        "final_latency_ratio_uniform": geometric_mean(
            [
                cell["ours_best_us"] / row["best_us"]
                for cell, row in zip(cells, uniform, strict=True)
            ]
        ),
        "trials_ratio_stock": trials(stock),
        "trials_ratio_uniform": trials(uniform),
        "missed": sum(row["missed"] for row in (*stock, *uniform)),
        "beyond_budget_stock": sum(row["beyond_budget"] for row in stock),
        "beyond_budget_uniform": sum(row["beyond_budget"] for row in uniform),
        "wall_ratio_equal_trials": geometric_mean(
            [
                cell["ours_seconds"] / row["total_seconds"]
                for cell, row in zip(cells, stock, strict=True)
            ]
        ),
        "neighbours_busy": max(cell["neighbours_busy"] for cell in cells),
        "runs": len(cells),
    }


def race(
    names: Sequence[str],
    seeds: int,
    trials: int,
    folder: Path,
    kept: Path,
    say: Callable[[str], None] = lambda text: print(text, flush=True),
) -> list[dict[str, Any]]:
    """All cells, seed by seed; the order of the contenders rotates."""
    target = {**parse_target("native"), "num-cores": 1}
    load_tvm()
    # Nobody's clock counts the import of the library it learns with.
    import scipy.linalg
    import scipy.optimize  # noqa: F401
    import xgboost  # noqa: F401

    folder.mkdir(parents=True, exist_ok=True)
    tasks = {name: find_task(name, target, folder) for name in names}
    contenders = list(CONTENDERS)
    cells = []
    for seed in range(seeds):
        for number, (name, task) in enumerate(tasks.items()):
            turn = (seed + number) % len(contenders)
            order = contenders[turn:] + contenders[:turn]
            plain = name.replace(":", "-")
            cell = Cell(
                task,
                target,
                seed,
                trials,
                folder / plain / str(seed),
                kept / f"{plain}-{seed}.json",
            ).result(order)
            cell["name"] = name
            cells.append(cell)
            say(
                f"{len(cells)}/{seeds * len(tasks)} {name} seed {seed}: ours "
                f"{cell['ours_best_us']:.1f} us"
                + "".join(
                    f", {rival} {row['best_us']:.1f} us x{row['time_ratio']:.2f}"
                    for rival, row in cell["rivals"].items()
                )
                + f"; other cores busy {cell['neighbours_busy']:.0%}"
            )
    return cells


def main() -> None:
    """Run the race and write its result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--folder", type=Path, default=Path("runs/search_vs_stock"))
    parser.add_argument("--name", default="search_vs_stock", help="name of the result")
    parser.add_argument("--kept", type=Path, help="folder of finished comparisons [results/NAME]")
    options = parser.parse_args()
    kept = options.kept or RESULTS / options.name
    cells = race(options.tasks, options.seeds, options.trials, options.folder, kept)
    settings = {
        "tasks": options.tasks,
        "seeds": options.seeds,
        "trials": options.trials,
        "repeats": REPEATS,
        "target": {**parse_target("native"), "num-cores": 1},
        "hosts": sorted({cell["host"] for cell in cells}),
    }
    write_result(options.name, summarise(cells), settings, cells=cells)


if __name__ == "__main__":
    main()
