"""The rounds of a run: search, replay, build, run, learn."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tlp.errors import DiskFullError, MeasureError
from tlp.measuring.batch import Batch, Measured, reference, replay_all
from tlp.measuring.messages import Program, Replay
from tlp.measuring.pool import WorkerPool
from tlp.models.scorer import Scorer
from tlp.records.status import Status
from tlp.records.store import Candidate, Store
from tlp.tuning.scheduler import network_latency, next_task
from tlp.tuning.search import Proposals, SearchSettings, propose
from tlp.tuning.state import TaskState

# Replays of one round go on in waves until there are enough new programs.
_WAVES = 4
_BARREN_ROUNDS = 3
# A task leaves when none of so many candidates works.
_HOPELESS_TRIALS = 20


class Observer(Protocol):
    """Whoever shows the run."""

    def tick(self) -> None:
        """Time passes; called at least ten times a second while something is waited for."""

    def waiting(self, text: str) -> None:
        """Nothing can be measured at present; called as often as :meth:`tick`, in its place."""

    def round_started(self, state: TaskState, phase: str) -> None:
        """A task entered a phase of its round."""

    def measured(self, state: TaskState, candidate: Candidate) -> None:
        """A candidate's outcome is known and stored."""


@dataclass
class Budget:
    """When to stop.

    Parameters
    ----------
    trials
        Trials of the whole folder, earlier runs included.
    seconds
        Wall time of this call.
    """

    trials: int | None = None
    seconds: float | None = None
    started: float = field(default_factory=time.monotonic)

    def left(self, trials: int) -> float:
        """Share of the budget that is left, 1 to 0."""
        shares = [1.0]
        if self.trials is not None:
            shares.append(1 - trials / self.trials if self.trials else 0.0)
        if self.seconds is not None:
            used = time.monotonic() - self.started
            shares.append(1 - used / self.seconds if self.seconds else 0.0)
        return max(0.0, min(shares))

    def picks(self, trials: int, picks: int, waiting: int = 0) -> int:
        """Picks of the next round: never more than trials are left.

        While ``waiting`` tasks, the next one among them, are without their first round, each of
        them keeps an equal part of what is left: a task without a record is compiled without a
        schedule, which can cost more than all the others gain.
        """
        if self.trials is None:
            return picks
        left = self.trials - trials
        return max(0, min(picks, math.ceil(left / waiting) if waiting else left))


@dataclass
class Loop:
    """Everything a round needs."""

    states: Sequence[TaskState]
    store: Store
    pool: WorkerPool
    scorer: Scorer
    observer: Observer
    settings: SearchSettings
    rng: np.random.Generator
    elapsed_before: float = 0.0
    started: float = field(default_factory=time.monotonic)
    proposals_scored: int = 0
    trials_here: int = 0
    worked: bool = False
    failed: list[Candidate] = field(default_factory=list)

    @property
    def elapsed(self) -> float:
        """Seconds of tuning in this folder."""
        return self.elapsed_before + time.monotonic() - self.started

    @property
    def trials(self) -> int:
        """Candidates of all tasks that became a program."""
        return sum(state.trials for state in self.states)

    def run(self, budget: Budget) -> str:
        """Run rounds until the budget is spent or no program is left; returns which."""
        for state in self.states:
            if state.rows:
                self.scorer.learn(state.task.key, state.space, *state.learned())
        states = [state for state in self.states if not state.left_out]
        stopped = "the budget is spent"
        while budget.left(self.trials) > 0:
            index = next_task([state.progress for state in states])
            if index is None:
                tasks = "every task" if len(states) == len(self.states) else "the chosen tasks"
                stopped = f"every program of {tasks} is measured"
                break
            waiting = sum(not (s.progress.history or s.progress.done) for s in states)
            self.round(states[index], budget.picks(self.trials, self.settings.picks, waiting))
            self._check_failures(len([s for s in states if not s.progress.done]))
        if not self.worked and self.trials_here >= _BARREN_ROUNDS:
            self._give_up()
        return stopped

    def _account(self, state: TaskState, candidate: Candidate) -> None:
        self.store.add(candidate)
        state.take_in(candidate)
        self.trials_here += 1
        self.worked |= candidate.status.timed
        self.failed = [] if candidate.status.timed else [*self.failed, candidate]
        self.observer.measured(state, candidate)

    def _check_failures(self, open_tasks: int) -> None:
        """Give up when whatever is tried fails: one bad task leaves, but several are no chance."""
        trials, tasks = (2 * _HOPELESS_TRIALS, 3) if self.worked else (_HOPELESS_TRIALS, 2)
        several = len({candidate.task for candidate in self.failed})
        if open_tasks and len(self.failed) >= trials and several >= min(tasks, open_tasks):
            self._give_up()

    def _give_up(self) -> None:
        last = self.failed[-1]
        counts = Counter(candidate.status.value for candidate in self.failed)
        kinds = ", ".join(f"{number} {status}" for status, number in counts.items())
        reason = (last.error.strip() or last.cause).splitlines()
        raise MeasureError(
            f"the last {len(self.failed)} candidates all failed ({kinds}); the last one: "
            f"{reason[-1] if reason else last.status.value}. All of it is kept; logs/ and "
            "trials.csv of the work folder say more, 'tlp doctor' checks the installation, and "
            "the same command goes on from here"
        )

    def round(self, state: TaskState, picks: int) -> None:
        """One round of one task."""
        clock = _Clock(self.store, state.task.key, state.rounds + 1)
        if not state.referenced:
            self.observer.round_started(state, "reference")
            if not self._measure_reference(state):
                return
            clock.lap("run")
        self.observer.round_started(state, "search")
        proposals = propose(
            state.space,
            self.scorer,
            state.task.key,
            state.tried_hashes(),
            state.fastest(self.settings.parents),
            self.rng,
            self.settings,
            picks * (_WAVES + 1),
        )
        self.proposals_scored += proposals.scored
        if state.first_picks:
            first = np.stack(state.first_picks[:picks])
            del state.first_picks[:picks]
            scores = self.scorer.score(state.task.key, state.space, first)
            proposals = proposals.after(first, scores)
        clock.lap("search")
        self.observer.round_started(state, "replay")
        chosen = self._replay(state, proposals, picks)
        clock.lap("replay")
        if not chosen:
            self._no_program(state, proposals)
            return
        state.barren = 0
        self.observer.round_started(state, "measure")
        batch = Batch(self.pool, list(chosen), lambda: state.best_latency)
        for measured in batch.results(self._tick):
            candidate = self._candidate(state, measured, chosen[measured.program])
            self._account(state, candidate)
        for phase, seconds in batch.seconds.items():
            self.store.add_phase(state.task.key, state.rounds + 1, phase, seconds)
        clock.restart()
        self.scorer.learn(state.task.key, state.space, *state.learned())
        clock.lap("learn")
        state.end_round()
        if _all_tried(state, proposals):
            state.progress.done = True
        elif state.failures >= _HOPELESS_TRIALS and not np.isfinite(state.latencies).any():
            state.progress.done = True
            state.note = f"none of {state.failures} candidates works ({candidate.status.value})"
            if self.worked:
                self.failed = [c for c in self.failed if c.task != state.task.key]
        self.store.set_meta("elapsed_s", self.elapsed)

    def _tick(self) -> None:
        waiting = self.pool.waiting()
        if waiting:
            self.observer.waiting(waiting)
        else:
            self.observer.tick()

    def _measure_reference(self, state: TaskState) -> bool:
        result = reference(self.pool, state.task.key, self._tick)
        if not result.error:
            state.progress.start = result.latency
            state.referenced = True
            return True
        if result.disk_full:
            raise DiskFullError(f"{self.pool.references}: {result.error}")
        state.progress.done = True
        state.note = f"the unscheduled workload cannot be run: {result.error}"
        return False

    def _no_program(self, state: TaskState, proposals: Proposals) -> None:
        """A round without a new program: the task leaves when nothing is left to try."""
        state.barren += 1
        state.end_round()
        if _all_tried(state, proposals) or state.barren >= _BARREN_ROUNDS:
            state.progress.done = True

    def _replay(
        self, state: TaskState, proposals: Proposals, picks: int
    ) -> dict[Program, tuple[Replay, float | None, str]]:
        """Replay proposals in order until ``picks`` of them are new programs."""
        chosen: dict[Program, tuple[Replay, float | None, str]] = {}
        programs = set(state.programs)
        known = self.scorer.knows(state.task.key)
        position = 0
        while len(chosen) < picks and position < len(proposals.rows):
            wave = range(position, min(position + picks - len(chosen), len(proposals.rows)))
            position = wave.stop
            asked = [
                Program(state.task.key, *state.space.decisions(proposals.rows[index]))
                for index in wave
            ]
            for index, program, replay in zip(
                wave, asked, replay_all(self.pool, asked, self._tick), strict=True
            ):
                score = float(proposals.scores[index]) if known else None
                how = "random" if proposals.random[index] else self.scorer.name
                if index < proposals.reused:
                    how = "reused"
                if self._is_new(state, program, replay, programs, score, how):
                    granted = Program(program.task, program.sketch, replay.decisions)
                    chosen[granted] = (replay, score, how)
        return chosen

    def _is_new(
        self,
        state: TaskState,
        asked: Program,
        replay: Replay,
        programs: set[str],
        score: float | None,
        how: str,
    ) -> bool:
        """Account for a replay: whether it gave a program that is worth building."""
        key, sketch = state.task.key, asked.sketch
        row = state.space.row(sketch, asked.decisions)
        state.mark(row)
        if replay.decisions != asked.decisions or replay.program in programs:
            self.store.add_alias(key, sketch, asked.decisions, replay.decisions)
        granted = state.space.row(sketch, replay.decisions)
        state.space.record_replay(row, granted)
        if replay.status is not Status.OK:
            known = int(state.space.hashes(granted[None, :])[0]) in state.tried
            if not known or replay.decisions == asked.decisions:
                candidate = Candidate(
                    task=key,
                    sketch=sketch,
                    decisions=replay.decisions,
                    program="",
                    status=replay.status,
                    error=replay.error,
                    cause=replay.cause,
                    predicted=score,
                    picked_by=how,
                    round=state.rounds + 1,
                    replay_s=replay.seconds,
                    elapsed_s=self.elapsed,
                    host=self.pool.place.platform,
                )
                self.store.add(candidate)
                state.take_in(candidate)
            return False
        state.mark(granted)
        if replay.program in programs:
            return False
        programs.add(replay.program)
        return True

    def _candidate(
        self, state: TaskState, measured: Measured, chosen: tuple[Replay, float | None, str]
    ) -> Candidate:
        replay, score, how = chosen
        outcome = measured.run or measured.build
        run = measured.run
        return Candidate(
            task=state.task.key,
            sketch=measured.program.sketch,
            decisions=measured.program.decisions,
            program=replay.program,
            status=outcome.status,
            latencies=run.latencies if run else (),
            disturbed=run.disturbed if run else (),
            verified=run.verified if run else False,
            error=outcome.error,
            cause=outcome.cause,
            predicted=score,
            picked_by=how,
            round=state.rounds + 1,
            replay_s=replay.seconds,
            build_s=measured.build.seconds,
            run_s=run.seconds if run else 0.0,
            elapsed_s=self.elapsed,
            host=self.pool.place.platform,
        )


def _all_tried(state: TaskState, proposals: Proposals) -> bool:
    """Whether the proposals were all the rows that were left, and each has been replayed."""
    if proposals.scored > len(proposals.rows):
        return False
    return all(int(value) in state.tried for value in state.space.hashes(proposals.rows))


class _Clock:
    """Books wall time on phases."""

    def __init__(self, store: Store, task: str, round: int) -> None:
        self._book: Callable[[str, float], None] = lambda phase, seconds: store.add_phase(
            task, round, phase, seconds
        )
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self._book(phase, now - self._last)
        self._last = now

    def restart(self) -> None:
        self._last = time.perf_counter()


def estimated_latency(states: Sequence[TaskState]) -> float:
    """Network latency as the sum over its tasks, seconds; infinite before all have a time."""
    return network_latency([state.progress for state in states])
