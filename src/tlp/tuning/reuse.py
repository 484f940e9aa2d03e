"""Records of other runs: those that hold here are taken over, others become first picks.

A latency holds where it was measured: on the same platform (target and TVM) and the same host.
Whatever else is fast elsewhere is worth a try, so the best of it is measured first, here.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tlp.errors import MeasureError, WorkDirError
from tlp.metaschedule.database import RECORDS, WORKLOADS, Record, read_database, record_row
from tlp.metaschedule.sketches import rename_blocks
from tlp.networks.canonical import block_names, plain_key, workload_key
from tlp.processes import run_isolated
from tlp.records.salvage import read_all
from tlp.records.status import Status
from tlp.records.store import Candidate, Store, StoredTask
from tlp.tuning.space import Decisions
from tlp.tuning.state import TaskState
from tlp.tuning.workdir import WorkDir

FIRST_PICKS = 8
"""Most rows of other platforms or hosts that are tried first, for each task."""


@dataclass(frozen=True)
class Platform:
    """What latencies compare within: target, compiler, and the host or device."""

    target: dict[str, Any]
    tvm: str
    host: str


@dataclass(frozen=True)
class Pick:
    """A row that was fast elsewhere; ``latency`` (seconds) orders the rows of its source only."""

    task: str
    sketch: int
    decisions: Decisions
    latency: float


@dataclass
class Source:
    """What was found in one folder.

    Parameters
    ----------
    measured
        Rows that hold here, in the order in which they were measured.
    picks
        Rows worth measuring.
    unused
        Number of other rows, by reason.
    """

    folder: Path
    kind: str
    measured: list[Candidate] = field(default_factory=list)
    picks: list[Pick] = field(default_factory=list)
    unused: Counter[str] = field(default_factory=Counter)


def check_sources(folders: Sequence[Path], own: Path) -> None:
    """See that every folder can be a source.

    Raises
    ------
    WorkDirError
        If one is missing, is neither kind of folder, or belongs to this very run.
    """
    for folder in folders:
        if not folder.is_dir():
            raise WorkDirError(
                f"--reuse {folder}: no such folder; give a work folder of tlp tune, or one with "
                f"{WORKLOADS} and {RECORDS}"
            )
        if folder.resolve() == own.resolve() or own.resolve() in folder.resolve().parents:
            raise WorkDirError(
                f"--reuse {folder} is the work folder of this run, whose records count anyway; "
                "leave the option out, or choose another --work-dir"
            )
        _kind(folder)


def _kind(folder: Path) -> str:
    if WorkDir(folder).store.exists():
        return "work folder"
    if (folder / WORKLOADS).exists() and (folder / RECORDS).exists():
        return "MetaSchedule database"
    raise WorkDirError(
        f"--reuse {folder} is neither a work folder of tlp tune with records (state.sqlite) nor a "
        f"MetaSchedule database ({WORKLOADS} and {RECORDS})"
    )


def read_source(
    folder: Path, states: Sequence[TaskState], platform: Platform, progress: Callable[[str], None]
) -> Source:
    """Read a folder and find out what each record is for the tasks of this run.

    Foreign traces are applied to workloads: call it in a process of its own.
    """
    source = Source(folder, _kind(folder))
    matcher = _Matcher(states)
    if source.kind == "work folder":
        _read_work_folder(source, matcher, platform)
    else:
        kind = platform.target["kind"]
        for number, record in enumerate(read_database(folder)):
            if number % 20 == 0:
                progress(f"reading {folder.name}: record {number + 1}")
            source.unused += Counter(_read_record(source, matcher, record, kind))
    return source


class _Matcher:
    """Finds the task that computes the same as a workload, and how its blocks are called here."""

    def __init__(self, states: Sequence[TaskState]) -> None:
        self.states = states
        self.exact = {state.task.key: state for state in states}
        self._names: dict[str, list[str]] = {}
        self.find = functools.cache(self._find)

    @functools.cached_property
    def plain(self) -> dict[str, TaskState]:
        """Tasks by what they compute, layouts apart."""
        return {plain_key(state.task.mod): state for state in self.states}

    def _find(self, mod: Any) -> tuple[TaskState | None, bool, Mapping[str, str]]:
        """The task, whether it is the very same, and names of blocks there to names here."""
        state = self.exact.get(workload_key(mod))
        exact = state is not None
        if state is None:
            state = self.plain.get(plain_key(mod))
        if state is None:
            return None, False, {}
        return state, exact, dict(zip(block_names(mod), self._own(state), strict=True))

    def _own(self, state: TaskState) -> list[str]:
        key = state.task.key
        if key not in self._names:
            self._names[key] = block_names(state.task.mod)
        return self._names[key]


def _read_work_folder(source: Source, matcher: _Matcher, platform: Platform) -> None:
    contents = read_all(WorkDir(source.folder).store)
    if contents.damaged:
        source.unused["damaged"] = contents.damaged
    config = WorkDir(source.folder).read_config() or {}
    same_build = (platform.target, platform.tvm) == (
        config.get("identity", {}).get("target"),
        config.get("versions", {}).get("apache-tvm"),
    )
    matches = {task.key: _match_task(task, matcher) for task in contents.tasks}
    for row in contents.candidates:
        state, exact, sketches = matches.get(row.task, (None, False, {}))
        if state is None:
            source.unused["of no task here" if row.task in matches else "damaged"] += 1
            continue
        sketch, same_sketch = sketches.get(row.sketch, (-1, False))
        if not _fits(state, sketch, row.decisions):
            source.unused["of another structure"] += 1
        elif exact and same_sketch and same_build and row.host == platform.host:
            source.measured.append(
                dataclasses.replace(
                    row,
                    id=None,
                    task=state.task.key,
                    sketch=sketch,
                    origin=row.origin or str(source.folder),
                )
            )
        elif row.status is Status.OK and row.verified:
            pick = Pick(state.task.key, sketch, row.decisions, row.latency)
            source.picks.append(pick)
        else:
            source.unused["failed or slow there"] += 1


def _match_task(
    stored: StoredTask, matcher: _Matcher
) -> tuple[TaskState | None, bool, dict[int, tuple[int, bool]]]:
    """The task here, whether it is the very same, and its sketches by the index there."""
    from tlp.metaschedule.imports import load_tvm

    try:
        mod = load_tvm().ir.load_json(stored.workload)
    except Exception:  # TVM's reader raises several kinds
        return None, False, {}
    state, exact, names = matcher.find(mod)
    if state is None:
        return None, False, {}
    sketches = {}
    for index, text in enumerate(stored.sketches):
        renamed = json.dumps(rename_blocks(json.loads(text), names), separators=(",", ":"))
        try:
            sketches[index] = state.design.find(renamed)
        except ValueError:
            continue
    return state, exact, sketches


def _fits(state: TaskState, sketch: int, decisions: Decisions) -> bool:
    """Whether decisions are a row of the task's space."""
    if not 0 <= sketch < len(state.space.sketches):
        return False
    if len(decisions) != len(state.space.sketches[sketch]):
        return False
    try:
        state.space.row(sketch, decisions)
    except ValueError:
        return False
    return True


def _read_record(
    source: Source, matcher: _Matcher, record: Record | None, kind: str
) -> dict[str, int]:
    """Take one record of a database in; returns why it is of no use, if so."""
    if record is None:
        return {"damaged": 1}
    if record.target_kind != kind:
        return {"for another kind of target": 1}
    if not math.isfinite(record.latency):
        return {"failed or slow there": 1}
    found: list[tuple[TaskState, Mapping[str, str]]]
    if record.mod is not None:
        state, _, names = matcher.find(record.mod)
        found = [] if state is None else [(state, names)]
    else:
        # The workload is written in a form that this TVM does not read: whichever task takes
        # the same arguments and lets the trace be applied will do, since it is measured here.
        found = [(s, {}) for s in matcher.states if s.task.arguments == record.arguments]
    for state, names in found:
        try:
            sketch, decisions, _ = record_row(record, state.design, names)
        except Exception:  # whatever TVM raises: the trace is not one of this task
            continue
        if _fits(state, sketch, decisions):
            source.picks.append(Pick(state.task.key, sketch, decisions, record.latency))
            return {}
    if not found:
        return {"of no task here" if record.mod is not None else "written by another TVM": 1}
    return {"of another structure": 1}


def read_sources(
    folders: Sequence[Path],
    states: Sequence[TaskState],
    platform: Platform,
    log: Path,
    on_progress: Callable[[str], None],
    on_wait: Callable[[], None],
) -> list[Source]:
    """Read each folder in a process of its own.

    Raises
    ------
    WorkDirError
        If a folder cannot be read.
    """
    sources = []
    for folder in folders:
        on_progress(f"reading {folder}")
        try:
            sources.append(
                run_isolated(
                    read_source,
                    folder,
                    states,
                    platform,
                    start="fork",
                    log=log,
                    on_progress=on_progress,
                    on_wait=on_wait,
                )
            )
        except MeasureError as error:
            raise WorkDirError(f"--reuse {folder} cannot be read; leave it out. {error}") from error
    return sources


def take_over(sources: Sequence[Source], store: Store, host: str) -> list[dict[str, Any]]:
    """Add rows that hold here to the store, each program once; returns counts for people.

    Call it before the tasks are restored from the store.
    """
    here = [row for row in store.candidates() if row.host == host]
    rows = {(row.task, row.sketch, row.decisions) for row in here}
    programs = {(row.task, row.program) for row in here if row.program}
    elapsed = store.get_meta("elapsed_s") or 0.0
    counts = []
    for source in sources:
        taken = 0
        for row in source.measured:
            identity, program = (row.task, row.sketch, row.decisions), (row.task, row.program)
            if identity in rows or program in programs:
                source.unused["known already"] += 1
                continue
            rows.add(identity)
            if row.program:
                programs.add(program)
            store.add(dataclasses.replace(row, elapsed_s=elapsed))
            taken += 1
        counts.append(
            {"folder": str(source.folder), "kind": source.kind, "measured": taken, "first_picks": 0}
        )
    return counts


def choose_first_picks(
    sources: Sequence[Source], states: Sequence[TaskState], counts: Sequence[dict[str, Any]]
) -> None:
    """Give each restored task the best rows from elsewhere that it has not tried.

    Latencies of different sources do not compare, so that sources take turns.
    """
    for state in states:
        seen = set(state.tried)
        state.first_picks = []
        for number, pick in _in_turn(sources, state.task.key):
            row = state.space.row(pick.sketch, pick.decisions)
            name = int(state.space.hashes(row[None, :])[0])
            if name in seen:
                sources[number].unused["known already"] += 1
            elif state.left_out:
                sources[number].unused["of a task left out"] += 1
            elif len(state.first_picks) >= FIRST_PICKS:
                sources[number].unused["slower than the first picks"] += 1
            else:
                seen.add(name)
                state.first_picks.append(row)
                counts[number]["first_picks"] += 1
    for source, count in zip(sources, counts, strict=True):
        count["unused"] = dict(source.unused)


def _in_turn(sources: Sequence[Source], task: str) -> Iterator[tuple[int, Pick]]:
    queues = [
        [
            (number, pick)
            for pick in sorted(source.picks, key=lambda pick: pick.latency)
            if pick.task == task
        ]
        for number, source in enumerate(sources)
    ]
    for turn in itertools.zip_longest(*queues):
        yield from (entry for entry in turn if entry is not None)


def describe(count: Mapping[str, Any]) -> str:
    """One line on what came of a source.

    Examples
    --------
    >>> describe({"folder": "a", "measured": 14, "first_picks": 3, "unused": {"damaged": 2}})
    'reused from a: 14 measured, 3 first picks; 2 not used (2 damaged)'
    """
    unused = count["unused"]
    text = (
        f"reused from {count['folder']}: {count['measured']} measured, "
        f"{count['first_picks']} first picks"
    )
    if unused:
        reasons = ", ".join(f"{number} {reason}" for reason, number in unused.items())
        text += f"; {sum(unused.values())} not used ({reasons})"
    return text
