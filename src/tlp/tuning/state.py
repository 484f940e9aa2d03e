"""What a run knows of its tasks, rebuilt from the store on resume."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tlp.errors import TlpError
from tlp.measuring.worker import Subject, reference_path, stored_latency
from tlp.metaschedule.arguments import describe_arguments
from tlp.metaschedule.sketches import Design, decision_space, make_design, unscheduled
from tlp.networks.tasks import Task
from tlp.records.status import Status
from tlp.records.store import Candidate, Store
from tlp.tuning.scheduler import Progress
from tlp.tuning.search import Hashes
from tlp.tuning.space import DecisionSpace, Rows


@dataclass
class TaskState:
    """A task during the run.

    Parameters
    ----------
    rows, latencies, seconds
        Every row with an outcome, its latency in seconds (infinite if it failed or was refused)
        and what measuring it took.
    programs
        Structural hashes measured so far.
    tried
        Hashes of rows never to be proposed again: measured, refused, aliases.
    trials
        Candidates of this folder that became a program.
    reused
        The same of other folders.
    first_picks
        Rows that were fast elsewhere, to be measured first.
    left_out
        The task gets no rounds in this call.
    barren
        Rounds in a row that found no new program.
    referenced
        The unscheduled workload was run on this platform.
    """

    task: Task
    design: Design
    space: DecisionSpace
    progress: Progress
    rows: list[Rows] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    programs: set[str] = field(default_factory=set)
    tried: set[int] = field(default_factory=set)
    trials: int = 0
    reused: int = 0
    first_picks: list[Rows] = field(default_factory=list)
    left_out: bool = False
    failures: int = 0
    rounds: int = 0
    barren: int = 0
    best: Candidate | None = None
    referenced: bool = False
    note: str = ""

    @property
    def best_latency(self) -> float:
        """Seconds of the best verified candidate; infinite if there is none."""
        return math.inf if self.best is None else self.best.latency

    def tried_hashes(self) -> Hashes:
        """Rows never to be proposed again, ``uint64 [n]``."""
        return np.fromiter(self.tried, np.uint64, len(self.tried))

    def mark(self, row: Rows) -> None:
        """Never propose a row again."""
        self.tried.add(int(self.space.hashes(row[None, :])[0]))

    def learned(self) -> tuple[Rows, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """All rows with an outcome, their latencies and what measuring them took."""
        if not self.rows:
            return np.zeros((0, self.space.width), np.int32), np.zeros(0), np.zeros(0)
        return np.stack(self.rows), np.array(self.latencies), np.array(self.seconds)

    def fastest(self, count: int) -> Rows:
        """Best measured rows, fastest first."""
        rows, latencies, _ = self.learned()
        order = np.argsort(latencies, kind="stable")[:count]
        return rows[order[np.isfinite(latencies[order])]]

    def take_in(self, candidate: Candidate) -> None:
        """Account for a candidate's outcome."""
        row = self.space.row(candidate.sketch, candidate.decisions)
        self.mark(row)
        self.rows.append(row)
        timed = candidate.status.timed and candidate.latencies
        self.latencies.append(candidate.latency if timed else math.inf)
        self.seconds.append(candidate.replay_s + candidate.build_s + candidate.run_s)
        if candidate.status.replayed and candidate.origin:
            self.reused += 1
        elif candidate.status.replayed:
            self.trials += 1
            self.failures += not candidate.status.timed
        if candidate.program:
            self.programs.add(candidate.program)
        if candidate.good and candidate.latency < self.best_latency:
            self.best = candidate

    def end_round(self) -> None:
        """Note where the task stands after a round."""
        self.rounds += 1
        self.progress.history.append(self.best_latency)

    def restore(self, store: Store, platform: str) -> None:
        """Take in what the store knows of this task and this platform.

        Latencies of another platform stay in the store, but say nothing here: those programs may
        be measured again. Refusals hold everywhere. Rounds of reused rows are part of the history:
        the scheduler must see what they gained.
        """
        last, rounds = None, 0
        for candidate in store.candidates(self.task.key):
            if candidate.host != platform and candidate.status is not Status.REFUSED:
                continue
            if last not in (None, (candidate.origin, candidate.round)):
                self.end_round()
            last = (candidate.origin, candidate.round)
            rounds = rounds if candidate.origin else max(rounds, candidate.round)
            self.take_in(candidate)
        if last is not None:
            self.end_round()
        self.rounds = rounds
        for sketch, asked, granted in store.aliases(self.task.key):
            asked_row = self.space.row(sketch, asked)
            granted_row = self.space.row(sketch, granted)
            self.space.record_replay(asked_row, granted_row)
            self.mark(asked_row)
            self.mark(granted_row)


def make_states(
    tasks: Sequence[Task],
    target: dict[str, Any],
) -> list[TaskState]:
    """Sketches and decision spaces of tasks; call it inside ``native_output_to``."""
    states = []
    for task in tasks:
        note = ""
        try:
            design = make_design(task.mod, target)
            space = decision_space(design)
        except Exception as error:  # what TVM raises when a rule cannot cope with a workload
            design = unscheduled(task.mod, target)
            space = decision_space(design)
            note = f"no sketches can be made: {str(error).strip().splitlines()[-1]}"
        states.append(
            TaskState(
                task=task,
                design=design,
                space=space,
                progress=Progress(weight=task.weight, start=math.inf, done=bool(note)),
                note=note,
            )
        )
    return states


def choose_tasks(states: Sequence[TaskState], patterns: Sequence[str]) -> None:
    """Leave out the tasks that match none of the patterns, if there are any.

    A pattern is a shell pattern or a part of a task's name or of what it computes.

    Raises
    ------
    TlpError
        If a pattern matches no task.
    """
    if not patterns:
        return
    wanted: set[str] = set()
    for pattern in patterns:
        found = {state.task.key for state in states if _matches(state.task, pattern)}
        if not found:
            names = ", ".join(state.task.name for state in states)
            raise TlpError(f"--tasks {pattern!r} matches none of the tasks: {names}")
        wanted |= found
    for state in states:
        state.left_out = state.task.key not in wanted


def _matches(task: Task, pattern: str) -> bool:
    texts = [task.name.lower(), task.anchor.lower()]
    pattern = pattern.lower()
    return any(pattern in text or fnmatch.fnmatchcase(text, pattern) for text in texts)


def subjects_of(states: Sequence[TaskState]) -> dict[str, Subject]:
    """What the workers must know of the tasks."""
    return {
        state.task.key: Subject(
            state.design, describe_arguments(state.task.mod), state.task.reduction_length
        )
        for state in states
    }


def restore_start(state: TaskState, references: Path, platform: str) -> None:
    """Read the latency of a task's unscheduled workload, if it was measured on this platform."""
    latency = stored_latency(reference_path(references, state.task.key), platform)
    if latency is not None:
        state.progress.start = latency
        state.referenced = True
