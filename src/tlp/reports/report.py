"""A run summed up at any moment, as plain JSON."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict
from typing import Any

from tlp.records.status import Status
from tlp.reports.figures import (
    failures,
    network_curve,
    predicted,
    round_correlation,
    seconds_by_phase,
    top_picks,
)
from tlp.reports.history import History, TaskHistory

# What only a complete run knows.
_OF_COMPLETE_RUN = (
    *("finished", "latency_ms", "latency_calls", "framework"),
    *("output_error", "output_tolerance", "stopped"),
)


def make_report(history: History) -> dict[str, Any]:
    """Everything that the page and the tables show, without the plots' points.

    It has the keys of ``summary.json``, None where only a complete run can tell, and more:
    ``complete`` (no trial is newer than the last complete run), ``curve`` (seconds and
    milliseconds of the network's estimate), ``failures_by_cause``, ``notes``, and for each task
    ``rank_correlation`` and ``top_picks``.
    """
    summary = history.summary or {}
    config = history.config
    identity = config.get("identity", {})
    tasks = [task_report(task) for task in history.tasks]
    trials = sum(task["trials"] for task in tasks)
    known = [t for t in history.tasks if math.isfinite(min(t.start, t.best))]
    estimate = sum(task.weight * min(task.start, task.best) for task in known)
    # The machine that measured last may not be the one that made the folder.
    machine = next((s for s in (summary, config) if s.get("platform") == history.host), {})
    return {
        "network": summary.get("network") or identity.get("network"),
        "target": summary.get("target") or identity.get("target"),
        "weight_layouts": summary.get("weight_layouts", identity.get("weight_layouts")),
        "work_dir": str(history.folder),
        "versions": summary.get("versions") or config.get("versions") or {},
        "host": machine.get("host"),
        "host_fingerprint": machine.get("host_fingerprint"),
        "platform": history.host,
        "complete": bool(summary) and summary["trials"] == trials,
        "trials": trials,
        "failures": sum(task["failures"] for task in tasks),
        "reused": sum(task["reused"] for task in tasks),
        "reuse": summary.get("reuse") or [],
        "elapsed_s": history.elapsed_s,
        "sum_of_tasks_ms": 1e3 * estimate if known else None,
        "tasks_without_latency": [t.name for t in history.tasks if t not in known],
        **{key: summary.get(key) for key in _OF_COMPLETE_RUN},
        **{key: value for key, value in summary.items() if key.startswith("tuned_over_")},
        "seconds_by_phase": seconds_by_phase(history.rounds),
        "rounds": len(history.rounds),
        "tasks": tasks,
        "failures_by_cause": [asdict(failure) for failure in failures(history)],
        "curve": [
            [round(step.seconds, 3), 1e3 * step.latency] for step in network_curve(history.tasks)
        ],
        "notes": list(history.notes),
    }


def task_report(task: TaskHistory) -> dict[str, Any]:
    """One task's part of the report."""
    pairs = predicted(task)
    best = task.best if math.isfinite(task.best) else None
    trials = task.trials
    statuses = Counter(c.status for c in task.candidates if not c.origin)
    return {
        "name": task.name,
        "key": task.key,
        "anchor": task.anchor,
        "weight": task.weight,
        "flops": task.flops,
        "sketches": task.sketches,
        "rows": task.rows,
        "trials": len(trials),
        "failures": sum(not candidate.status.timed for candidate in trials),
        "reused": task.reused,
        "left_out": task.left_out,
        "refused": statuses[Status.REFUSED] + statuses[Status.REPLAY_ERROR],
        "best_us": None if best is None else 1e6 * best,
        "gflops": None if best is None else task.flops / best / 1e9,
        "start_us": 1e6 * task.start if math.isfinite(task.start) else None,
        "all_programs_measured": task.all_programs_measured,
        "note": task.note,
        "statuses": {status.value: count for status, count in statuses.items()},
        "predicted": len(pairs.candidates),
        "rank_correlation": round_correlation(pairs),
        "top_picks": asdict(top_picks(pairs)),
    }
