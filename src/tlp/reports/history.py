"""What a work folder knows of its run, read at any moment without TVM."""

from __future__ import annotations

import json
import math
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tlp.errors import WorkDirError
from tlp.measuring.worker import reference_path
from tlp.records.store import Candidate, Store, StoredTask
from tlp.tuning.workdir import WorkDir


@dataclass(frozen=True)
class TaskHistory:
    """One task and what became of its candidates, on one machine.

    Parameters
    ----------
    start
        Seconds of the unscheduled workload; infinite where unknown, or another machine's.
    anchor
        What it computes; empty where the folder does not say.
    rows
        Rows of its decision space; None where the folder does not say.
    candidates
        In the order in which they became known, with those taken over from other folders.
    """

    key: str
    name: str
    weight: int
    flops: float
    sketches: int
    start: float = math.inf
    anchor: str = ""
    rows: int | None = None
    note: str = ""
    all_programs_measured: bool = False
    left_out: bool = False
    candidates: tuple[Candidate, ...] = ()

    @cached_property
    def trials(self) -> tuple[Candidate, ...]:
        """Candidates of this folder that became a program."""
        return tuple(c for c in self.candidates if c.status.replayed and not c.origin)

    @cached_property
    def reused(self) -> int:
        """The same of other folders."""
        return sum(bool(c.status.replayed and c.origin) for c in self.candidates)

    @cached_property
    def best(self) -> float:
        """Seconds of the fastest verified candidate; infinite if there is none."""
        return min((c.latency for c in self.candidates if c.good), default=math.inf)


@dataclass(frozen=True)
class RoundTime:
    """Where the wall time of one round went, seconds by phase."""

    task: str
    round: int
    seconds: dict[str, float]


@dataclass(frozen=True)
class History:
    """A run as its folder tells it.

    Latencies of different machines do not compare: everything measured is that of ``host``, the
    machine that measured last. ``rounds`` and ``elapsed_s`` are the whole folder's.

    Parameters
    ----------
    config
        ``used_config.json``; empty where it is missing.
    summary
        ``summary.json`` of the last complete run on this machine, or None.
    notes
        What a reader has to know: rows left out, files that could not be read.
    """

    folder: Path
    tasks: tuple[TaskHistory, ...]
    rounds: tuple[RoundTime, ...]
    elapsed_s: float
    host: str
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()

    @property
    def candidates(self) -> list[Candidate]:
        """Those of all tasks, in the order in which they became known."""
        return sorted((c for task in self.tasks for c in task.candidates), key=lambda c: c.id or 0)


def read_history(root: Path) -> History:
    """Read a work folder, also one whose run is going on or was stopped.

    Raises
    ------
    WorkDirError
        If there is no such folder, nothing is measured in it, or its store is damaged.
    """
    if not root.is_dir():
        raise WorkDirError(f"{root} is no folder; give the --work-dir of a tlp tune")
    folder = WorkDir(root)
    notes: list[str] = []
    store = Store(folder.store, read_only=True)
    try:
        stored = store.tasks()
        candidates = list(store.candidates())
        phases = list(store.phases())
        elapsed = max([store.get_meta("elapsed_s") or 0.0, *(c.elapsed_s for c in candidates)])
        described = store.get_meta("tasks") or {}
    finally:
        store.close()
    config = _read_json(folder.config, notes) or {}
    host = candidates[-1].host if candidates else str(config.get("platform", ""))
    others = Counter(c.host for c in candidates if c.host != host)
    for other, count in others.items():
        notes.append(
            f"{count:,} candidates were measured on another machine (fingerprint {other}) and are "
            "left out: latencies of different machines do not compare. Tuning time and where it "
            "went are those of all machines."
        )
    summary = _summary(folder, host, candidates, notes)
    told = {task["key"]: task for task in (summary or {}).get("tasks", [])}
    starts = _starts(folder, stored, candidates, host)
    tasks = tuple(
        TaskHistory(
            key=task.key,
            name=task.name,
            weight=task.weight,
            flops=task.flops,
            sketches=len(task.sketches),
            start=starts[task.key],
            anchor=_first("anchor", described.get(task.key), told.get(task.key)) or "",
            rows=_first("rows", described.get(task.key), told.get(task.key)),
            note=told.get(task.key, {}).get("note", ""),
            left_out=told.get(task.key, {}).get("left_out", False),
            all_programs_measured=told.get(task.key, {}).get("all_programs_measured", False),
            candidates=tuple(c for c in candidates if c.task == task.key and c.host == host),
        )
        for task in stored
    )
    return History(root, tasks, _rounds(phases), elapsed, host, config, summary, notes=tuple(notes))


def _first(name: str, *sources: dict[str, Any] | None) -> Any:
    return next((source[name] for source in sources if source and name in source), None)


def _read_json(path: Path, notes: list[str]) -> dict[str, Any] | None:
    """A JSON object; a damaged file costs what it would have told, not the report."""
    try:
        loaded = json.loads(path.read_text())
        if isinstance(loaded, dict):
            return loaded
        notes.append(f"{path.name} holds no JSON object and is left out.")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        notes.append(f"{path.name} cannot be read and is left out: {error}")
    return None


def _summary(
    folder: WorkDir, host: str, candidates: Sequence[Candidate], notes: list[str]
) -> dict[str, Any] | None:
    summary = _read_json(folder.summary, notes)
    if summary is None:
        notes.append(
            "No run has been completed in this folder: it is going on, or it was stopped. The "
            "network's latency and output have not been compared with its framework's."
        )
        return None
    missing = {"tasks", "latency_ms", "trials", "platform", "framework"} - set(summary)
    if missing:
        notes.append(f"{folder.summary.name} lacks {', '.join(sorted(missing))} and is left out.")
        return None
    if summary["platform"] != host:
        notes.append(
            "The last complete run was on another machine; its network latencies are left out."
        )
        return None
    trials = sum(c.status.replayed and c.host == host and not c.origin for c in candidates)
    if trials != summary["trials"]:
        notes.append(
            f"{trials - summary['trials']:,} trials are newer than the last complete run: the "
            "network's latencies, its output error and the versions are that run's."
        )
    return summary


def _starts(
    folder: WorkDir, tasks: Sequence[StoredTask], candidates: Sequence[Candidate], host: str
) -> dict[str, float]:
    """Seconds of the unscheduled workloads, where this machine measured them.

    The file does not name its machine, but it is written right before a task's first candidate.
    """
    first: dict[str, str] = {}
    for candidate in candidates:
        first.setdefault(candidate.task, candidate.host)
    return {
        task.key: _start(reference_path(folder.references, task.key))
        if first.get(task.key) == host
        else math.inf
        for task in tasks
    }


def _start(path: Path) -> float:
    try:
        with np.load(path) as stored:
            return float(stored["latency"])
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
        return math.inf


def _rounds(phases: Sequence[tuple[str, int, str, float]]) -> tuple[RoundTime, ...]:
    """Phases of one round stand together, and one round ends before the next begins."""
    rounds: list[RoundTime] = []
    for task, number, phase, seconds in phases:
        if not rounds or (rounds[-1].task, rounds[-1].round) != (task, number):
            rounds.append(RoundTime(task, number, {}))
        spent = rounds[-1].seconds
        spent[phase] = spent.get(phase, 0.0) + seconds
    return tuple(rounds)
