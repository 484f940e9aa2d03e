"""The decisions of a sketch: what each of its sampling instructions can take."""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Decisions = tuple[tuple[int, ...], ...]


class DecisionKind(str, enum.Enum):
    """What a sampling instruction decides."""

    TILE = "tile"
    CATEGORY = "category"
    LOCATION = "location"


@functools.lru_cache(maxsize=4096)
def factorisations(extent: int, parts: int, limit: int) -> tuple[tuple[int, ...], ...]:
    """All ordered factorisations of ``extent`` into ``parts`` factors, the last at most ``limit``.

    Examples
    --------
    >>> factorisations(4, 2, 2)
    ((2, 2), (4, 1))
    """
    if parts == 1:
        return ((extent,),) if extent <= limit else ()
    divisors = [d for d in range(1, int(extent**0.5) + 1) if extent % d == 0]
    divisors += [extent // d for d in reversed(divisors) if d * d != extent]
    return tuple(
        (first, *rest)
        for first in divisors
        for rest in factorisations(extent // first, parts - 1, limit)
    )


@functools.lru_cache(maxsize=1024)
def _primes(number: int) -> tuple[int, ...]:
    found, divisor = [], 2
    while divisor * divisor <= number:
        if number % divisor == 0:
            found.append(divisor)
            while number % divisor == 0:
                number //= divisor
        divisor += 1
    return (*found, number) if number > 1 else tuple(found)


def _tile_neighbours(values: Sequence[tuple[int, ...]]) -> npt.NDArray[np.int32]:
    """Tiles that differ by moving one prime factor: ``int32 [k, most]``, padded with itself."""
    index = {value: position for position, value in enumerate(values)}
    lists = []
    for value in values:
        found: set[int] = set()
        for source, target in itertools.permutations(range(len(value)), 2):
            for prime in _primes(value[source]):
                moved = list(value)
                moved[source] //= prime
                moved[target] *= prime
                position = index.get(tuple(moved))
                if position is not None:
                    found.add(position)
        lists.append(sorted(found))
    width = max(1, max((len(near) for near in lists), default=1))
    table = np.empty((len(values), width), np.int32)
    for position, near in enumerate(lists):
        table[position] = np.resize(np.array(near or [position], np.int32), width)
    return table


@functools.lru_cache(maxsize=1024)
def _cached_neighbours(values: tuple[tuple[int, ...], ...]) -> npt.NDArray[np.int32]:
    return _tile_neighbours(values)


class Decision:
    """One sampling instruction: its kind, its values, and what replays granted.

    Parameters
    ----------
    kind
        Tile, category or location.
    values
        Each value as a tuple: the factors of a tile, the index of a category, a location.
    meaning
        What the model is told for each value of a category, such as the unroll step.
    limit
        Largest innermost factor of a tile.
    """

    def __init__(
        self,
        kind: DecisionKind,
        values: Sequence[tuple[int, ...]],
        meaning: Sequence[float] | None = None,
        limit: int = 0,
    ) -> None:
        if not values:
            raise ValueError(f"a {kind.value} decision needs at least one value")
        self.kind = kind
        self.limit = limit
        self.values: list[tuple[int, ...]] = list(values)
        self._meaning = None if meaning is None else list(meaning)
        self._index = {value: position for position, value in enumerate(self.values)}
        self._refresh()

    def _refresh(self) -> None:
        width = max(len(value) for value in self.values)
        if self.kind is DecisionKind.TILE:
            table = np.log2(np.array(self.values, np.float32))
            self._neighbours = _cached_neighbours(tuple(self.values))
        elif self._meaning is not None:
            table = np.log2(1 + np.array(self._meaning, np.float32))[:, None]
        else:
            table = np.array(self.values, np.float32)
        self.features: npt.NDArray[np.float32] = table.reshape(len(self.values), width)
        meant = self.values if self._meaning is None else self._meaning
        self.numbers: npt.NDArray[np.int64] = np.array(meant, np.int64).reshape(-1, width)
        weights = np.ones(len(self.values), np.float64)
        asked = getattr(self, "_asked", np.zeros(0))
        granted = getattr(self, "_granted", np.zeros(0))
        self._asked = np.zeros(len(self.values))
        self._granted = np.zeros(len(self.values))
        self._asked[: len(asked)] = asked
        self._granted[: len(granted)] = granted
        self._weights = weights

    def __len__(self) -> int:
        return len(self.values)

    @property
    def width(self) -> int:
        """Number of feature columns."""
        return int(self.features.shape[1])

    def index_of(self, value: tuple[int, ...]) -> int:
        """Index of a value; a value that a replay brought back for the first time is added.

        A tile of a new extent brings all factorisations of that extent.
        """
        known = self._index.get(value)
        if known is not None:
            return known
        fresh: Iterable[tuple[int, ...]] = (value,)
        if self.kind is DecisionKind.TILE:
            extent = int(np.prod(value))
            fresh = (value, *factorisations(extent, len(value), self.limit))
        elif self.kind is DecisionKind.CATEGORY:
            raise ValueError(f"category {value} is not one of {self.values}")
        for item in fresh:
            if item not in self._index:
                self._index[item] = len(self.values)
                self.values.append(item)
        self._refresh()
        return self._index[value]

    def record(self, asked: int, granted: int) -> None:
        """Remember what a replay made of an asked-for value."""
        self._asked[asked] += 1
        if asked == granted:
            self._granted[asked] += 1
        else:
            self._asked[granted] += 1
            self._granted[granted] += 1

    def sample(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.int32]:
        """Random indices; values that replays keep refusing become rare."""
        if self.kind is DecisionKind.LOCATION and self._asked.any():
            share = (self._granted + 1) / (self._asked + 1)
            return rng.choice(len(self), size=count, p=share / share.sum()).astype(np.int32)
        return rng.integers(0, len(self), size=count, dtype=np.int32)

    def neighbours(
        self, rng: np.random.Generator, current: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.int32]:
        """A random value near each current one (tiles), or any other value."""
        if self.kind is DecisionKind.TILE:
            pick = rng.integers(0, self._neighbours.shape[1], size=len(current))
            return self._neighbours[current, pick]
        return self.sample(rng, len(current))
