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
from tlp.measuring.messages import GiveUp, Limits, Lost, Note, Reply, Request
from tlp.measuring.place import Place
from tlp.measuring.worker import Subject, TimingRules, work
from tlp.processes import log_tail

_EARLY_DEATHS = 5
# Seconds after which a wait is worth a word.
_PATIENCE = 3.0
# A wait that takes so much longer than it should means that this process was stopped.
_PAUSE_S = 2.0


@dataclass
class _Worker:
    number: int
    process: BaseProcess
    connection: Connection
    log: Path | None
    request: Request | None = None
    limit: float = 0.0
    deadline: float = 0.0
    answered: int = 0
    note: Note | None = None
    waits_since: float = 0.0


class WorkerPool:
    """Forked workers that answer one request at a time.

    Parameters
    ----------
    subjects
        What workers know of each task; they inherit it.
    place
        Where candidates run, and cores that build.
    size
        Number of workers; by default one a core for builds, and one more for each candidate that
        may run beside them.
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
        place: Place,
        references: Path,
        *,
        size: int | None = None,
        limits: Limits | None = None,
        rules: TimingRules | None = None,
        log_dir: Path | None = None,
    ) -> None:
        self.place = place
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
        self.builders = len(place.plan.work)
        count = size or self.builders + (0 if place.plan.exclusive else place.lanes)
        self._workers = [self._start(number) for number in range(count)]

    def _start(self, number: int) -> _Worker:
        ours, theirs = self._context.Pipe()
        log = None if self._log_dir is None else self._log_dir / f"worker{number}.log"
        process = self._context.Process(
            target=work,
            args=(
                theirs,
                self._subjects,
                self.place,
                self.references,
                self._rules,
                self.limits,
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

    def waiting(self) -> str:
        """What a worker has been waiting for longest, if no other has a program running."""
        notes = [worker for worker in self._workers if worker.request and worker.note]
        if not notes or any(not worker.note.waiting for worker in notes if worker.note):
            return ""
        longest = min(notes, key=lambda worker: worker.waits_since)
        seconds = time.monotonic() - longest.waits_since
        assert longest.note is not None
        return f"{longest.note.waiting}, {seconds:.0f} s" if seconds > _PATIENCE else ""

    def submit(self, number: int, request: Request) -> None:
        """Hand a request to an idle worker."""
        worker = self._workers[number]
        if worker.request is not None:
            raise ValueError(f"worker {number} is busy")
        if not self.busy():
            self._looked = time.monotonic()
        worker.request = request
        worker.note = None
        worker.limit = self.limits.of(request)
        worker.deadline = time.monotonic() + worker.limit
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
                reply: Reply | Note | GiveUp = worker.connection.recv()
                worker.answered += 1
                self._early_deaths = 0
            except (EOFError, OSError):
                reply = self._bury(worker, timed_out=False)
            else:
                if isinstance(reply, GiveUp):
                    raise MeasureError(reply.error)
                if isinstance(reply, Note):
                    self._take_note(worker, reply)
                    continue
                worker.request = None
            replies.append((worker.number, request, reply))
        now = time.monotonic()
        for worker in active.values():
            if worker.deadline <= now and worker.request is not None:
                request = worker.request
                replies.append((worker.number, request, self._bury(worker, timed_out=True)))
        return replies

    @staticmethod
    def _take_note(worker: _Worker, note: Note) -> None:
        now = time.monotonic()
        if worker.note is None or not worker.note.waiting:
            worker.waits_since = now
        worker.note = note
        worker.limit = note.seconds
        worker.deadline = now + note.seconds

    def _forgive(self, late: float) -> None:
        """Put deadlines off by the time for which everything stood still (Ctrl-Z, a debugger)."""
        if late > _PAUSE_S:
            for worker in self._workers:
                worker.deadline += late

    def _bury(self, worker: _Worker, timed_out: bool) -> Lost:
        """Kill what is left of a worker, start its successor and say what was lost."""
        request = worker.request
        assert request is not None
        note = worker.note
        if timed_out and worker.process.is_alive():
            worker.process.kill()
        worker.process.join()
        code = worker.process.exitcode or 0
        if timed_out:
            text = f"killed after {worker.limit:g} s"
            if note is not None:
                text += f" of {note.waiting}" if note.waiting else " without an answer"
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
        unreached = note is not None and (timed_out or bool(note.waiting))
        return Lost(request, timed_out, text.strip(), unreached)

    def close(self) -> None:
        """End all workers; none is left behind."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()
