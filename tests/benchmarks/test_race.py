from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time

import pytest
from benchmarks.common import Neighbours
from benchmarks.contenders import Trajectory, Trial
from benchmarks.search_vs_stock import Cell, geometric_mean, summarise

from tlp.host import fingerprint


def trajectory(name: str, steps: list[tuple[float, float, str]], host: str = "here") -> Trajectory:
    trials = tuple(
        Trial(elapsed, latency, 0, ((number, 1),), program)
        for number, (elapsed, latency, program) in enumerate(steps)
    )
    return Trajectory(name, 0, host, trials, {"build": 1.0})


class Planned(Cell):
    """A cell whose runs and measurements are given."""

    def __init__(self, task, runs, quality, trials=4):
        self.task, self.seed, self.trials = task, 0, trials
        self._runs, self._qualities = runs, quality
        self.asked = []

    def _run(self, name, trials):
        self.asked.append((name, trials))
        run = self._runs[name]
        return Trajectory(run.contender, 0, run.host, run.trials[:trials], {})

    def _quality(self, trials):
        return {trial.program: self._qualities[trial.program] for trial in trials}


class NamedTask:
    name = "planned"


RIVALS = {
    # Its last improvement of more than 1 % is the second trial's: 4.98 is 0.4 % below 5.
    "stock": trajectory("stock", [(10, 9, "s0"), (20, 5, "s1"), (30, 4.98, "s2"), (40, 6, "s3")]),
    "stock-warm16": trajectory(
        "stock-warm16", [(11, 8, "w0"), (22, 7, "w1"), (33, 6, "w2"), (44, 9, "w3")]
    ),
    "uniform": trajectory(
        "uniform", [(1, 9, "u0"), (2, math.inf, ""), (3, 7.5, "u2"), (4, 8, "u3")]
    ),
}
QUALITY = {"s2": 5.0, "w2": 4.9, "u2": 7.5}


def compared(mine, quality, trials=4):
    cell = Planned(NamedTask(), {**RIVALS, "ours": mine}, {**QUALITY, **quality}, trials)
    return cell, cell._compare({name: cell._run(name, trials) for name in cell._runs})


def test_improvements_by_hand():
    run = trajectory(
        "x", [(1, math.inf, ""), (2, 10, "a"), (3, 9.95, "b"), (4, 12, "c"), (5, 8, "d")]
    )
    assert run.improvements() == [1, 2, 4]
    assert run.improvements(0.01) == [1, 4]
    assert run.best().program == "d"
    assert run.best(3).program == "b"


def test_a_run_survives_its_file():
    run = trajectory("x", [(1, math.inf, ""), (2, 10, "a")])
    text = json.dumps(run.to_json(), allow_nan=False)
    assert Trajectory.from_json(json.loads(text)) == run


def test_times_are_those_of_remeasured_quality():
    mine = trajectory("ours", [(1, 8, "o0"), (2, 5.1, "o1"), (3, 6, "o2"), (4, 4.9, "o3")])
    # Measured again, the second trial is as fast as stock's best although it looked slower.
    cell, found = compared(mine, {"o0": 8.1, "o1": 4.95, "o3": 4.8})
    assert found["better_stock"] == "stock-warm16"
    stock, warm, uniform = (found["rivals"][name] for name in RIVALS)
    assert (stock["seconds"], stock["ours_seconds"], stock["time_ratio"]) == (20, 2, 0.1)
    assert (warm["seconds"], warm["ours_seconds"]) == (33, 4)
    assert (uniform["seconds"], uniform["trials"], uniform["ours_seconds"]) == (3, 3, 2)
    assert not any(row["missed"] or row["beyond_budget"] for row in found["rivals"].values())
    assert found["ours_best_us"] == pytest.approx(4.8e6)
    assert ("ours", 6) not in cell.asked


def test_a_run_that_misses_goes_on_to_four_times_the_trials_and_counts_double():
    steps = [(float(n), 8.0, f"o{n}") for n in range(1, 17)]
    steps[8] = (9.0, 5.0, "late")
    cell, found = compared(trajectory("ours", steps), {"o1": 8.0, "late": 4.95})
    assert cell.asked[-6:] == [("ours", trials) for trials in (6, 8, 10, 12, 14, 16)]
    stock, warm = found["rivals"]["stock"], found["rivals"]["stock-warm16"]
    assert (stock["ours_seconds"], stock["missed"], stock["beyond_budget"]) == (9, False, True)
    assert (warm["ours_seconds"], warm["missed"], warm["beyond_budget"]) == (32, True, True)
    assert found["ours_best_us"] == pytest.approx(8e6)  # at equal trials


def test_a_run_that_has_tried_everything_does_not_go_on():
    mine = trajectory("ours", [(1, 8, "o0"), (2, 7.9, "o1")])
    cell, found = compared(mine, {"o0": 8.0, "o1": 7.9})
    assert cell.asked.count(("ours", 4)) == 1
    assert len(cell.asked) == 4
    assert found["rivals"]["uniform"]["ours_seconds"] == 4
    assert found["rivals"]["uniform"]["missed"]


def test_the_summary_takes_the_better_stock_of_each_cell():
    def row(ratio, best, missed=False):
        return {
            "time_ratio": ratio,
            "best_us": best,
            "missed": missed,
            "beyond_budget": missed,
            "trials": 100,
            "ours_trials": None if missed else 10,
            "total_seconds": 100.0,
        }

    first = {"stock": row(0.1, 2.0), "stock-warm16": row(9.0, 3.0), "uniform": row(0.4, 4.0)}
    second = {"stock": row(9.0, 3.0), "stock-warm16": row(0.4, 1.0, True), "uniform": row(0.9, 4.0)}
    cells = [
        {
            "better_stock": "stock",
            "rivals": first,
            "ours_best_us": 2.0,
            "ours_seconds": 25.0,
            "neighbours_busy": 0.01,
        },
        {
            "better_stock": "stock-warm16",
            "rivals": second,
            "ours_best_us": 1.0,
            "ours_seconds": 4.0,
            "neighbours_busy": 0.3,
        },
    ]
    found = summarise(cells)
    assert found["time_ratio_stock"] == pytest.approx(0.2)
    assert found["time_ratio_uniform"] == pytest.approx(0.6)
    assert found["final_latency_ratio"] == pytest.approx(1.0)
    assert found["trials_ratio_stock"] == pytest.approx(0.1)
    assert found["wall_ratio_equal_trials"] == pytest.approx(0.1)
    assert (found["missed"], found["runs"]) == (1, 2)
    assert found["neighbours_busy"] == 0.3


def test_work_on_other_cores_is_seen():
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    work = f"""
import os, time
os.sched_setaffinity(0, {{{cores[1]}}})
end = time.process_time() + 1
while time.process_time() < end:
    pass
"""
    try:
        os.sched_setaffinity(0, {cores[0]})
        neighbours, begin = Neighbours(), time.monotonic()
        subprocess.run([sys.executable, "-c", work], check=True)
        seconds = neighbours.busy * (os.cpu_count() - 1) * (time.monotonic() - begin)
    finally:
        os.sched_setaffinity(0, set(cores))
    assert seconds > 0.9


def test_runs_of_another_host_are_made_again(tmp_path):
    folder = tmp_path / "cell"
    folder.mkdir()
    (folder / "stock-4.json").write_text(json.dumps({"host": "another host"}))
    stale = folder / "stale"
    stale.write_text("x")
    kept = tmp_path / "kept" / "cell.json"
    cell = Cell(NamedTask(), {}, 0, 4, folder, kept)
    cell._run = lambda name, trials: trajectory(name, [(1, 1, name)], fingerprint())
    cell._quality = lambda trials: {trial.program: 1.0 for trial in trials}
    result = cell.result(["stock", "stock-warm16", "uniform", "ours"])
    assert not stale.exists()
    assert result["host"] == fingerprint()
    assert json.loads(kept.read_text()) == result


def test_a_finished_comparison_counts_on_any_host_if_its_trials_are_as_many(tmp_path):
    kept = tmp_path / "cell.json"
    kept.write_text(json.dumps({"host": "another host", "trials": 4}))
    cell = Cell(NamedTask(), {}, 0, 4, tmp_path / "runs", kept)
    assert cell.result(["stock", "ours"])["host"] == "another host"
    with pytest.raises(SystemExit, match="of 4 trials, not 8: remove it"):
        Cell(NamedTask(), {}, 0, 8, tmp_path / "runs", kept).result(["stock", "ours"])


def test_geometric_mean_by_hand():
    assert geometric_mean([1, 4, 16]) == pytest.approx(4)
