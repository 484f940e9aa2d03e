"""What a run leaves for people and scripts: the summary and the table of trials."""

from __future__ import annotations

import csv
import importlib.metadata
import json
import math
import platform as python_platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tlp import __version__
from tlp.errors import WorkDirError
from tlp.host import describe_host, fingerprint
from tlp.networks.spec import NetworkSpec
from tlp.records.store import Store
from tlp.tuning.loop import estimated_latency
from tlp.tuning.state import TaskState
from tlp.tuning.workdir import WorkDir

TOLERANCE = 1e-3
"""Largest accepted ``max|a - b| / max|f(x1) - f(x2)|`` of the tuned network."""

_COLUMNS = (
    *("trial", "elapsed_s", "task", "round", "sketch", "decisions", "status", "latency_us"),
    *("verified", "predicted", "picked_by", "replay_s", "build_s", "run_s", "cause", "host"),
    *("origin",),
)


def versions() -> dict[str, str]:
    """Versions of what decides a result."""
    found = {"tlp": __version__, "python": python_platform.python_version()}
    for package in ("apache-tvm", "apache-tvm-ffi", "torch", "onnxruntime", "numpy", "lightgbm"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def write_trials(store: Store, states: Sequence[TaskState], path: Path) -> None:
    """Write ``trials.csv``: one line a candidate, in the order in which they became known."""
    names = {state.task.key: state.task.name for state in states}
    temporary = path.with_suffix(".new")
    with temporary.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(_COLUMNS)
        for number, c in enumerate(store.candidates(), start=1):
            writer.writerow(
                [
                    number,
                    f"{c.elapsed_s:.2f}",
                    names.get(c.task, c.task),
                    c.round,
                    c.sketch,
                    "|".join(",".join(map(str, value)) for value in c.decisions),
                    c.status.value,
                    f"{c.latency * 1e6:.7g}" if c.latencies else "",
                    int(c.verified),
                    "" if c.predicted is None else f"{c.predicted:.4f}",
                    c.picked_by,
                    f"{c.replay_s:.4f}",
                    f"{c.build_s:.4f}",
                    f"{c.run_s:.4f}",
                    c.cause,
                    c.host,
                    c.origin,
                ]
            )
    temporary.replace(path)


def summarise(
    network: NetworkSpec,
    work_dir: Path,
    weight_layouts: bool,
    target: dict[str, Any],
    platform: str,
    states: Sequence[TaskState],
    store: Store,
    seconds: dict[str, list[float]],
    error: float,
) -> dict[str, Any]:
    """Everything a script or a report wants to know, as plain JSON; latencies in milliseconds."""
    framework = network.framework.key
    medians = {name: 1e3 * statistics.median(values) for name, values in seconds.items()}
    return {
        "network": network.to_json(),
        "target": target,
        "weight_layouts": weight_layouts,
        "work_dir": str(work_dir),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
        "host": describe_host(),
        "platform": platform,
        "host_fingerprint": fingerprint(),
        "trials": sum(state.trials for state in states),
        "failures": sum(state.failures for state in states),
        "reused": sum(state.reused for state in states),
        "elapsed_s": store.get_meta("elapsed_s"),
        "latency_ms": medians,
        "latency_calls": {name: len(values) for name, values in seconds.items()},
        "framework": framework,
        # Without the framework's where it cannot use the platform's device.
        **{
            f"tuned_over_{name}": medians["tuned"] / median
            for name, median in medians.items()
            if name != "tuned"
        },
        "sum_of_tasks_ms": _finite(1e3 * estimated_latency(states)),
        "output_error": error,
        "output_tolerance": TOLERANCE,
        "seconds_by_phase": store.phase_seconds(),
        "tasks": [task_summary(state, store) for state in states],
    }


def task_summary(state: TaskState, store: Store) -> dict[str, Any]:
    """One task's part of the summary."""
    best = state.best_latency
    statuses: dict[str, int] = {}
    for candidate in store.candidates(state.task.key):
        if candidate.origin:
            continue
        statuses[candidate.status.value] = statuses.get(candidate.status.value, 0) + 1
    return {
        "name": state.task.name,
        "key": state.task.key,
        "anchor": state.task.anchor,
        "weight": state.task.weight,
        "flops": state.task.flops,
        "rows": state.space.upper_bound,
        "trials": state.trials,
        "failures": state.failures,
        "reused": state.reused,
        "left_out": state.left_out,
        "best_us": _finite(1e6 * best),
        "gflops": state.task.flops / best / 1e9 if math.isfinite(best) else None,
        "start_us": _finite(1e6 * state.progress.start),
        "all_programs_measured": state.progress.done and not state.note,
        "note": state.note,
        "statuses": statuses,
    }


def _finite(value: float) -> float | None:
    """JSON knows no infinity."""
    return value if math.isfinite(value) else None


def stored_summary(work_dir: Path) -> dict[str, Any]:
    """Summary of a finished folder.

    Raises
    ------
    WorkDirError
        If the folder holds none.
    """
    path = WorkDir(work_dir).summary
    if not path.exists():
        raise WorkDirError(f"{work_dir} holds no finished run; run 'tlp tune' on it")
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded
