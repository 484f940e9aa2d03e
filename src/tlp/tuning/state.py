"""What a run knows of one task, rebuilt from the store on resume."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tlp.host import fingerprint
from tlp.metaschedule.sketches import Design
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
    rows, latencies
        Every row with an outcome, and its seconds (infinite if it failed or was refused).
    programs
        Structural hashes measured so far.
    tried
        Hashes of rows never to be proposed again: measured, refused, aliases.
    trials
        Candidates that became a program.
    barren
        Rounds in a row that found no new program.
    """

    task: Task
    design: Design
    space: DecisionSpace
    progress: Progress
    rows: list[Rows] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    programs: set[str] = field(default_factory=set)
    tried: set[int] = field(default_factory=set)
    trials: int = 0
    failures: int = 0
    rounds: int = 0
    barren: int = 0
    best: Candidate | None = None
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

    def learned(self) -> tuple[Rows, npt.NDArray[np.float64]]:
        """All rows with an outcome and their seconds."""
        if not self.rows:
            return np.zeros((0, self.space.width), np.int32), np.zeros(0)
        return np.stack(self.rows), np.array(self.latencies)

    def fastest(self, count: int) -> Rows:
        """Best measured rows, fastest first."""
        rows, latencies = self.learned()
        order = np.argsort(latencies, kind="stable")[:count]
        return rows[order[np.isfinite(latencies[order])]]

    def take_in(self, candidate: Candidate) -> None:
        """Account for a candidate's outcome."""
        row = self.space.row(candidate.sketch, candidate.decisions)
        self.mark(row)
        self.rows.append(row)
        timed = candidate.status.timed and candidate.latencies
        self.latencies.append(candidate.latency if timed else math.inf)
        if candidate.status.replayed:
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

    def restore(self, store: Store) -> None:
        """Take in what the store knows of this task and this machine.

        Latencies of another machine stay in the store, but say nothing here: those programs may
        be measured again. Refusals hold everywhere.
        """
        last = 0
        for candidate in store.candidates(self.task.key):
            if candidate.host != fingerprint() and candidate.status is not Status.REFUSED:
                continue
            if candidate.round != last and last:
                self.end_round()
            last = candidate.round
            self.take_in(candidate)
        if last:
            self.end_round()
            self.rounds = last
        for sketch, asked, granted in store.aliases(self.task.key):
            asked_row = self.space.row(sketch, asked)
            granted_row = self.space.row(sketch, granted)
            self.space.record_replay(asked_row, granted_row)
            self.mark(asked_row)
            self.mark(granted_row)
