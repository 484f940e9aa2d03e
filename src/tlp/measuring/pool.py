"""The parent's side: workers, their deadlines and their deaths."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from tlp.errors import MeasureError
from tlp.host import CorePlan
from tlp.measuring.messages import (
    BuildRequest,
    Lost,
    ReferenceRequest,
    ReplayRequest,
    Reply,
    Request,
    RunRequest,
)
from tlp.measuring.worker import Subject, TimingRules, work
from tlp.processes import log_tail

_EARLY_DEATHS = 5
# A wait that takes so much longer than it should means that this process was stopped.
_PAUSE_S = 2.0


@dataclass(frozen=True)
class Limits:
    """Hard limits in seconds; past them a worker is killed."""

    replay: float = 30.0
    build: float = 12.0
    run: float = 30.0
    reference: float = 300.0

    def of(self, request: Request) -> float:
        """Limit of a request."""
        kinds = {
            ReplayRequest: self.replay,
            BuildRequest: self.build,
            RunRequest: self.run,
            ReferenceRequest: self.reference,
        }
        return kinds[type(request)]


@dataclass
class _Worker:
    number: int
    process: BaseProcess
    connection: Connection
    log: Path | None
    request: Request | None = None
    deadline: float = 0.0
    answered: int = 0


class WorkerPool:
    """Forked workers that answer one request at a time.

    Parameters
    ----------
    subjects
        What workers know of each task; they inherit it.
    plan
        Cores that run and cores that build.
    size
        Number of workers; by default one a core for builds, and one more where running and
        building overlap.
    references
        Folder for reference outputs.
    log_dir
        Folder for what the workers print.

    Raises
    ------
    MeasureError
        When workers keep dying before they answer anything.
    """

    def __init__(
        self,
        subjects: Mapping[str, Subject],
        plan: CorePlan,
        references: Path,
        *,
        size: int | None = None,
        limits: Limits | None = None,
        rules: TimingRules | None = None,
        log_dir: Path | None = None,
    ) -> None:
        self.plan = plan
        self.limits = limits or Limits()
        self._subjects = subjects
        self.references = references
        self._rules = rules or TimingRules()
        self._log_dir = log_dir
        self._context = multiprocessing.get_context("fork")
        self._early_deaths = 0
        self._looked = time.monotonic()
        references.mkdir(parents=True, exist_ok=True)
        if log_dir is not None:
            log_dir.mkdir(parents=True, exist_ok=True)
        count = size or len(plan.work) + (0 if plan.exclusive else 1)
        self._workers = [self._start(number) for number in range(count)]

    def _start(self, number: int) -> _Worker:
        ours, theirs = self._context.Pipe()
        log = None if self._log_dir is None else self._log_dir / f"worker{number}.log"
        process = self._context.Process(
            target=work,
            args=(
                theirs,
                self._subjects,
                self.plan,
                self.references,
                self._rules,
                log,
                os.getpid(),
            ),
            daemon=True,
            name=f"tlp-worker-{number}",
        )
        process.start()
        theirs.close()
        return _Worker(number, process, ours, log)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self._workers)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid or 0 for worker in self._workers]

    def idle(self) -> list[int]:
        """Numbers of the workers that have nothing to do."""
        return [worker.number for worker in self._workers if worker.request is None]

    def busy(self) -> list[Request]:
        """Requests under way."""
        return [worker.request for worker in self._workers if worker.request is not None]

    def submit(self, number: int, request: Request) -> None:
        """Hand a request to an idle worker."""
        worker = self._workers[number]
        if worker.request is not None:
            raise ValueError(f"worker {number} is busy")
        if not self.busy():
            self._looked = time.monotonic()
        worker.request = request
        worker.deadline = time.monotonic() + self.limits.of(request)
        try:
            worker.connection.send(request)
        except (BrokenPipeError, ConnectionResetError):
            # It died while idle; the next collect() reports the request as lost.
            worker.deadline = time.monotonic()

    def collect(self, timeout: float = 0.1) -> list[tuple[int, Request, Reply]]:
        """Replies that arrive within ``timeout`` seconds: worker, its request, the reply."""
        active: dict[Any, _Worker] = {
            worker.connection: worker for worker in self._workers if worker.request is not None
        }
        if not active:
            return []
        nearest = min(worker.deadline for worker in active.values()) - time.monotonic()
        patience = max(0.0, min(timeout, nearest))
        ready = wait(list(active), timeout=patience)
        now = time.monotonic()
        self._forgive(now - self._looked - patience)
        self._looked = now
        replies: list[tuple[int, Request, Reply]] = []
        for connection in ready:
            worker = active.pop(connection)
            request = worker.request
            assert request is not None
            try:
                reply: Reply = worker.connection.recv()
                worker.answered += 1
                self._early_deaths = 0
                worker.request = None
            except (EOFError, OSError):
                reply = self._bury(worker, timed_out=False)
            replies.append((worker.number, request, reply))
        now = time.monotonic()
        for worker in active.values():
            if worker.deadline <= now and worker.request is not None:
                request = worker.request
                replies.append((worker.number, request, self._bury(worker, timed_out=True)))
        return replies

    def _forgive(self, late: float) -> None:
        """Put deadlines off by the time for which everything stood still (Ctrl-Z, a debugger)."""
        if late > _PAUSE_S:
            for worker in self._workers:
                worker.deadline += late

    def _bury(self, worker: _Worker, timed_out: bool) -> Lost:
        """Kill what is left of a worker, start its successor and say what was lost."""
        request = worker.request
        assert request is not None
        limit = self.limits.of(request)
        if timed_out and worker.process.is_alive():
            worker.process.kill()
        worker.process.join()
        code = worker.process.exitcode or 0
        if timed_out:
            text = f"killed after {limit:g} s"
        elif code < 0:
            text = f"died of {signal.Signals(-code).name}\n{log_tail(worker.log)}"
        else:
            text = f"ended with exit code {code}\n{log_tail(worker.log)}"
        worker.connection.close()
        if worker.answered == 0 and not timed_out:
            self._early_deaths += 1
            if self._early_deaths >= _EARLY_DEATHS:
                raise MeasureError(
                    f"{_EARLY_DEATHS} workers in a row died before answering anything: {text}. "
                    "Run 'tlp doctor' to see what is wrong with the installation"
                )
        self._workers[worker.number] = self._start(worker.number)
        return Lost(request, timed_out, text.strip())

    def close(self) -> None:
        """End all workers; none is left behind."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()
