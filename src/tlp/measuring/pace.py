"""Whether the core runs at full pace at this moment, and timing only while it does.

A core of a shared machine loses up to half its pace while a neighbour works on the other thread of
it, for milliseconds or for seconds, and nothing but a clock tells. A fixed piece of work, timed
before and after each repeat, does.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_LOOPS = 6000
# A shared core is slower by half and more, a change of its frequency by less than this.
_FULL = 1.3
# Probes of 0.2 ms before the first answer.
_WARMING = 500
# The best of the latest blocks of probes is the full pace: ten seconds of nothing but probes,
# longer than a burst of a neighbour. A core that is slower for good, being warm, is full then.
_BLOCK = 100
_BLOCKS = 300


def _work() -> None:
    total = 0
    for number in range(_LOOPS):
        total += number


class Pace:
    """The pace of the core that this process is pinned to, probed by 0.2 ms of interpreter work.

    Parameters
    ----------
    probe
        Seconds of a fixed piece of work, by wall clock: being held up counts.
    """

    def __init__(self, probe: Callable[[], float] | None = None) -> None:
        self._probe = probe or _timed_work
        self._blocks: deque[float] = deque(maxlen=_BLOCKS)
        self._best = self._block = math.inf
        self._probes = 0

    def full(self) -> bool:
        """Probe once: whether the core is about as fast as it has lately been at its best."""
        while self._probes < _WARMING:
            self._take()
        return self._take() <= _FULL * self._best

    def _take(self) -> float:
        seconds = self._probe()
        self._probes += 1
        self._block = min(self._block, seconds)
        self._best = min(self._best, seconds)
        if self._probes % _BLOCK == 0:
            self._blocks.append(self._block)
            self._best, self._block = min(self._blocks), math.inf
        return seconds


def _timed_work() -> float:
    begin = time.perf_counter()
    _work()
    return time.perf_counter() - begin


@dataclass(frozen=True)
class Repeats:
    """Seconds of repeats.

    Parameters
    ----------
    counted
        As many as were wanted, of those at full pace first.
    disturbed
        The others: the core was slower before or after them.
    """

    counted: tuple[float, ...]
    disturbed: tuple[float, ...] = ()


def repeat_at_full_pace(
    once: Callable[[], float],
    pace: Pace,
    wanted: int,
    patience_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Repeats:
    """Repeat until ``wanted`` repeats have begun and ended at full pace.

    Past ``patience_s`` seconds the fastest of the disturbed repeats count too: the core is never
    faster than undisturbed.
    """
    counted: list[float] = []
    disturbed: list[float] = []
    begin = clock()
    full = pace.full()
    while len(counted) < wanted and clock() - begin < patience_s:
        if not full:
            full = pace.full()
            continue
        seconds = once()
        full = pace.full()
        (counted if full else disturbed).append(seconds)
    while len(counted) + len(disturbed) < wanted:
        disturbed.append(once())
    disturbed.sort()
    missing = wanted - len(counted)
    return Repeats((*counted, *disturbed[:missing]), tuple(disturbed[missing:]))
