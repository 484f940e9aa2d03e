"""Replaying, building and running a round's picks on a pool of workers."""

from __future__ import annotations

import time
from collections import Counter, deque
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
    Unreached,
)
from tlp.measuring.pool import WorkerPool
from tlp.records.status import Status

Tick = Callable[[], None]

# Devices that may be lost under one candidate, or one reference, before it is given up.
_ATTEMPTS = 2


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
    lost = 0
    while True:
        for worker, request, reply in pool.collect():
            if isinstance(reply, Reference):
                return reply
            assert isinstance(reply, Lost | Unreached)
            if isinstance(reply, Lost) and not reply.unreached:
                return Reference(float("inf"), reply.error)
            lost += 1
            if lost >= _ATTEMPTS:
                # What it computes is known from here; how long it takes there is not.
                return Reference(float("inf"))
            pool.submit(worker, request)
        tick()


class Batch:
    """Builds and runs the picks of one round.

    On a platform that uses all cores the whole batch is built first and then run, one candidate
    at a time with every other worker idle. Elsewhere builds go on beside the runs, of which there
    are as many at once as the place has lanes. A candidate whose device was lost gets another.

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
        self._running: set[int] = set()
        self._devices_lost: Counter[Program] = Counter()
        self.seconds = {"build": 0.0, "run": 0.0}

    def results(self, tick: Tick = _nothing) -> Iterator[Measured]:
        """Yield each candidate as soon as it is known."""
        while self._to_build or self._homes or self._doing:
            begin = time.perf_counter()
            self._hand_out()
            phase = "run" if self._running else "build"
            replies = self._pool.collect()
            self.seconds[phase] += time.perf_counter() - begin
            for worker, _, reply in replies:
                program = self._doing.pop(worker)
                was_running = worker in self._running
                self._running.discard(worker)
                if isinstance(reply, Lost | Unreached):
                    if isinstance(reply, Lost):
                        self._build_again(worker)
                    if self._may_try_again(worker, program, reply):
                        continue
                    yield self._lost(program, was_running, reply)
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
        place = self._pool.place
        exclusive = place.plan.exclusive
        building = len(self._doing) - len(self._running)
        idle = self._pool.idle()
        if not (exclusive and (self._to_build or building)):
            for program, home in list(self._homes.items()):
                if len(self._running) < place.lanes and home in idle:
                    del self._homes[program]
                    self._running.add(home)
                    self._doing[home] = program
                    self._pool.submit(home, RunRequest(program, self._best()))
                    idle.remove(home)
        if exclusive and self._running:
            return
        for worker in idle:
            if self._to_build and building < self._pool.builders:
                building += 1
                program = self._to_build.popleft()
                self._doing[worker] = program
                self._pool.submit(worker, BuildRequest(program))

    def _build_again(self, worker: int) -> None:
        """What a lost worker had built besides is not lost with it."""
        for other, home in list(self._homes.items()):
            if home == worker:
                del self._homes[other]
                self._to_build.append(other)

    def _may_try_again(self, worker: int, program: Program, reply: Lost | Unreached) -> bool:
        """Put a candidate back whose device was lost, unless that happened too often."""
        if isinstance(reply, Lost) and not reply.unreached:
            return False
        self._devices_lost[program] += 1
        if self._devices_lost[program] >= _ATTEMPTS:
            return False
        if isinstance(reply, Lost):
            self._to_build.append(program)
        else:
            self._homes[program] = worker
        return True

    def _lost(self, program: Program, running: bool, lost: Lost | Unreached) -> Measured:
        """A crash costs one candidate."""
        if isinstance(lost, Unreached):
            error = f"{_ATTEMPTS} devices in a row were lost under it; the last: {lost.error}"
            run = Run(Status.RUN_CRASH, cause="device lost", error=error)
            return Measured(program, self._builds[program], run)
        limit = self._pool.limits.of(lost.request)
        seconds = limit if lost.timed_out else 0.0
        cause = "timeout" if lost.timed_out else "crash"
        if running:
            status = Status.RUN_TIMEOUT if lost.timed_out else Status.RUN_CRASH
            run = Run(status, cause=cause, error=lost.error, seconds=seconds)
            return Measured(program, self._builds[program], run)
        status = Status.BUILD_TIMEOUT if lost.timed_out else Status.BUILD_CRASH
        return Measured(program, Build(status, cause, lost.error, seconds), None)
