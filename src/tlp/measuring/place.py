"""Where candidates run. The worker knows one interface; this machine's cores are one place."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from tlp.host import CorePlan, fingerprint, pin_process
from tlp.metaschedule.arguments import Array
from tlp.metaschedule.devices import device_of

ENTRY = "main"
_CPU = 1  # DLPack's kDLCPU

Say = Callable[[str, float], None]
"""Tells the pool what is waited for, and how many seconds from now this may last."""


class UnreachedError(Exception):
    """The device was lost: this says nothing of the candidate."""


class ExpiredError(Exception):
    """The candidate took longer than its limit and was ended by the device."""


class Loaded(Protocol):
    """A program at the place where it runs."""

    def tensor(self, array: Array) -> Any:
        """Copy an array there; ``.numpy()`` brings it back."""

    def call(self, buffers: Sequence[Any]) -> None:
        """Run once."""

    def first(self, buffers: Sequence[Any], limit: float) -> float:
        """Seconds of a first call; a slow first one, which is cold, gets a second chance."""

    def time(self, buffers: Sequence[Any], number: int, repeats: int) -> tuple[float, ...]:
        """Mean seconds of ``number`` calls, ``repeats`` times."""


class Place(Protocol):
    """Where candidates run and whose latencies count."""

    @property
    def plan(self) -> CorePlan:
        """Cores of this machine."""

    @property
    def lanes(self) -> int:
        """How many candidates may run at the same time."""

    @property
    def platform(self) -> str:
        """What latencies belong to: they compare only where it is the same."""

    @property
    def remote(self) -> bool:
        """Whether candidates run on another machine."""

    @property
    def one_core(self) -> bool:
        """Whether programs run on one core of this machine, alone on it."""

    @property
    def breaks(self) -> bool:
        """Whether a process whose program failed there can run nothing more."""

    def here(self, target: Any) -> Any:
        """Target for what must run in this process: reference outputs, layouts of weights."""

    def finish(self, library: Any) -> Any:
        """End a build: what :meth:`open` takes."""

    def open(self, finished: Any, seconds: float, say: Say) -> AbstractContextManager[Loaded]:
        """Bring a program to where it runs; ``seconds`` limit the run, not what it waits for.

        Raises
        ------
        UnreachedError
            If the device was lost.
        ExpiredError
            If the device ended the run at the limit.
        """


@dataclass(frozen=True)
class LocalPlace:
    """Cores of this machine, or its GPU: programs run in the worker that has built them.

    Parameters
    ----------
    device
        Kind of TVM's device, ``cpu`` or ``cuda``.
    """

    plan: CorePlan
    device: str = "cpu"
    lanes: int = 1
    remote: bool = False

    @property
    def one_core(self) -> bool:
        """So it is for a CPU platform of one core."""
        return self.device == "cpu" and len(self.plan.run) == 1

    @property
    def breaks(self) -> bool:
        """A failed kernel breaks CUDA for the whole process."""
        return self.device == "cuda"

    @property
    def platform(self) -> str:
        """Fingerprint of this machine."""
        return fingerprint()

    def here(self, target: Any) -> Any:
        """The target itself."""
        return target

    def finish(self, library: Any) -> Any:
        """Look the entry up: LLVM emits machine code then, which belongs to the build's time."""
        return library, library[ENTRY]

    @contextlib.contextmanager
    def open(self, finished: Any, seconds: float, say: Say) -> Iterator[Loaded]:
        """Pin the process to the platform's cores while the program runs."""
        pin_process(self.plan.run)
        try:
            library, entry = finished
            yield _LocalProgram(library, entry, self.plan, device_of(self.device))
        finally:
            pin_process(self.plan.work)


@dataclass(frozen=True)
class _LocalProgram:
    library: Any
    entry: Any
    plan: CorePlan
    device: Any

    def tensor(self, array: Array) -> Any:
        import tvm

        return tvm.runtime.tensor(array, self.device)

    def call(self, buffers: Sequence[Any]) -> None:
        self.entry(*buffers)

    def first(self, buffers: Sequence[Any], limit: float) -> float:
        seconds = self._seconds(buffers)
        # The pool's threads exist from the first parallel kernel on: confine them, too.
        pin_process(self.plan.run)
        # A GPU's first call also loads the kernels.
        again = seconds > limit or self.device.dlpack_device_type() != _CPU
        return min(seconds, self._seconds(buffers)) if again else seconds

    def _seconds(self, buffers: Sequence[Any]) -> float:
        begin = time.perf_counter()
        self.entry(*buffers)
        self.device.sync()
        return time.perf_counter() - begin

    def time(self, buffers: Sequence[Any], number: int, repeats: int) -> tuple[float, ...]:
        if number == repeats == 1:  # the evaluator would run it once more before
            return (self._seconds(buffers),)
        evaluator = self.library.time_evaluator(ENTRY, self.device, number=number, repeat=repeats)
        return tuple(float(value) for value in evaluator(*buffers).results)
