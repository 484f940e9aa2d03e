"""Replaying, building and running a round's picks on a pool of workers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tlp.measuring.messages import (
    Build,
    BuildRequest,
    Lost,
    Program,
    Reference,
    ReferenceRequest,
    Replay,
    ReplayRequest,
    Run,
    RunRequest,
)
from tlp.measuring.pool import WorkerPool
from tlp.records.status import Status

Tick = Callable[[], None]


@dataclass(frozen=True)
class Measured:
    """A candidate's whole way; ``run`` is None where the build failed."""

    program: Program
    build: Build
    run: Run | None


def _nothing() -> None:
    return None


def replay_all(
    pool: WorkerPool, programs: Sequence[Program], tick: Tick = _nothing
) -> list[Replay]:
    """Replay candidates on all workers; results in the order given."""
    waiting = deque(enumerate(programs))
    positions: dict[int, int] = {}
    results: dict[int, Replay] = {}
    while waiting or positions:
        for worker in pool.idle():
            if waiting:
                position, program = waiting.popleft()
                positions[worker] = position
                pool.submit(worker, ReplayRequest(program))
        for worker, request, reply in pool.collect():
            position = positions.pop(worker)
            if isinstance(reply, Lost):
                assert isinstance(request, ReplayRequest)
                cause = "timeout" if reply.timed_out else "crash"
                reply = Replay(
                    Status.REPLAY_ERROR, request.program.decisions, "", cause, reply.error
                )
            assert isinstance(reply, Replay)
            results[position] = reply
        tick()
    return [results[position] for position in range(len(programs))]


def reference(pool: WorkerPool, task: str, tick: Tick = _nothing) -> Reference:
    """Run a task's unscheduled workload alone and keep its output."""
    pool.submit(pool.idle()[0], ReferenceRequest(task))
    while True:
        for _, _, reply in pool.collect():
            if isinstance(reply, Lost):
                return Reference(float("inf"), reply.error)
            assert isinstance(reply, Reference)
            return reply
        tick()


class Batch:
    """Builds and runs the picks of one round.

    On a platform that uses all cores the whole batch is built first and then run, one candidate
    at a time with every other worker idle. Elsewhere builds go on beside the runs.

    ``seconds`` says where the wall time went: ``run`` while a candidate ran, else ``build``.
    """

    def __init__(
        self, pool: WorkerPool, programs: Sequence[Program], best: Callable[[], float]
    ) -> None:
        self._pool = pool
        self._best = best
        self._to_build: deque[Program] = deque(programs)
        self._builds: dict[Program, Build] = {}
        self._homes: dict[Program, int] = {}
        self._doing: dict[int, Program] = {}
        self._running: int | None = None
        self.seconds = {"build": 0.0, "run": 0.0}

    def results(self, tick: Tick = _nothing) -> Iterator[Measured]:
        """Yield each candidate as soon as it is known."""
        while self._to_build or self._homes or self._doing:
            begin = time.perf_counter()
            self._hand_out()
            phase = "build" if self._running is None else "run"
            replies = self._pool.collect()
            self.seconds[phase] += time.perf_counter() - begin
            for worker, _, reply in replies:
                program = self._doing.pop(worker)
                was_running = worker == self._running
                if was_running:
                    self._running = None
                if isinstance(reply, Lost):
                    yield self._lost(worker, program, was_running, reply)
                elif isinstance(reply, Build):
                    self._builds[program] = reply
                    if reply.status is Status.OK:
                        self._homes[program] = worker
                    else:
                        yield Measured(program, reply, None)
                elif isinstance(reply, Run):
                    yield Measured(program, self._builds[program], reply)
            tick()

    def _hand_out(self) -> None:
        exclusive = self._pool.plan.exclusive
        building = len(self._doing) - (self._running is not None)
        may_run = self._running is None and not (exclusive and (self._to_build or building))
        idle = self._pool.idle()
        if may_run:
            for program, home in self._homes.items():
                if home in idle:
                    del self._homes[program]
                    self._running = home
                    self._doing[home] = program
                    self._pool.submit(home, RunRequest(program, self._best()))
                    idle.remove(home)
                    break
        if exclusive and self._running is not None:
            return
        for worker in idle:
            if self._to_build:
                program = self._to_build.popleft()
                self._doing[worker] = program
                self._pool.submit(worker, BuildRequest(program))

    def _lost(self, worker: int, program: Program, running: bool, lost: Lost) -> Measured:
        """A crash costs one candidate; what the worker had built besides is built again."""
        for other, home in list(self._homes.items()):
            if home == worker:
                del self._homes[other]
                self._to_build.append(other)
        limit = self._pool.limits.of(lost.request)
        seconds = limit if lost.timed_out else 0.0
        cause = "timeout" if lost.timed_out else "crash"
        if running:
            status = Status.RUN_TIMEOUT if lost.timed_out else Status.RUN_CRASH
            run = Run(status, cause=cause, error=lost.error, seconds=seconds)
            return Measured(program, self._builds[program], run)
        status = Status.BUILD_TIMEOUT if lost.timed_out else Status.BUILD_CRASH
        return Measured(program, Build(status, cause, lost.error, seconds), None)
