"""How many rows of a GPU's decision spaces become programs, with and without the limits.

    python -m benchmarks.cuda_spaces

No GPU is needed: a row counts as accepted when all postprocessors accept its program. Of rows
drawn uniformly from the whole space we keep which ones the limits allow (recall is the share of
the accepted ones that they allow); of rows drawn uniformly from those that the limits allow,
how many are accepted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import te_task, write_result
from tlp.metaschedule.replay import replay
from tlp.metaschedule.sketches import Design, decision_space, make_design
from tlp.metaschedule.targets import parse_target
from tlp.processes import native_output_to
from tlp.tuning.space import DecisionSpace, Rows

WORKLOADS = ("C2D", "DEP", "CBR", "GMM", "TBG")


def accepted(design: Design, space: DecisionSpace, rows: Rows) -> np.ndarray[Any, Any]:
    """Which rows become programs, ``bool [n]``."""
    result = np.zeros(len(rows), np.bool_)
    for index, row in enumerate(rows):
        try:
            result[index] = not replay(design, *space.decisions(row)).refused_by
        except Exception:  # an instruction that cannot be applied refuses the row, too
            result[index] = False
    return result


def measure(
    name: str, target: dict[str, Any], uniform: int, filtered: int, seed: int
) -> dict[str, float]:
    """Acceptance and recall on one workload."""
    design = make_design(te_task(name).mod, target)
    space = decision_space(design)
    rng = np.random.default_rng(seed)
    rows = space.uniform(rng, uniform, limited=False)
    began = time.perf_counter()
    good = accepted(design, space, rows)
    seconds = time.perf_counter() - began
    allowed = space.allowed(rows)
    began = time.perf_counter()
    chosen = space.uniform(rng, 10_000)[:filtered]
    drawing = time.perf_counter() - began
    return {
        "uniform_rows": len(rows),
        "uniform_accepted": int(good.sum()),
        "uniform_allowed": int(allowed.sum()),
        "uniform_accepted_and_allowed": int((good & allowed).sum()),
        "recall": float((good & allowed).sum() / good.sum()),
        "unfiltered_acceptance": float(good.mean()),
        "filtered_rows": len(chosen),
        "acceptance": float(accepted(design, space, chosen).mean()),
        "replay_ms": 1e3 * seconds / len(rows),
        "ten_thousand_rows_ms": 1e3 * drawing,
    }


def main() -> None:
    """Run the benchmark and write its result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="nvidia/nvidia-a100")
    parser.add_argument("--uniform", type=int, default=1500, help="rows of the whole space")
    parser.add_argument("--filtered", type=int, default=300, help="rows that the limits allow")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    target = parse_target(options.target)
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in WORKLOADS:
            with native_output_to(Path(folder) / "tvm.log"):
                rows[name] = measure(name, target, options.uniform, options.filtered, options.seed)
            print(
                f"{name}: accepted {rows[name]['acceptance']:.3f} with the limits, "
                f"{rows[name]['unfiltered_acceptance']:.3f} without; recall "
                f"{rows[name]['recall']:.3f}",
                flush=True,
            )
    summary = {
        "acceptance_min": min(row["acceptance"] for row in rows.values()),
        "recall_min": min(row["recall"] for row in rows.values()),
        "unfiltered_acceptance_max": max(row["unfiltered_acceptance"] for row in rows.values()),
    }
    settings = {"target": target, **{k: v for k, v in vars(options).items() if k != "target"}}
    write_result("cuda_spaces", summary, settings, workloads=rows)


if __name__ == "__main__":
    main()
