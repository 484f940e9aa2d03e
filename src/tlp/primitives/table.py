"""Distinct primitives by number, and sequences of such numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tlp.primitives.primitive import Primitive


class PrimitiveTable:
    """Numbers distinct primitives in the order in which they come.

    Parameters
    ----------
    primitives
        Those that are numbered already, from 0 on.
    """

    def __init__(self, primitives: Iterable[Primitive] = ()) -> None:
        self._numbers: dict[Primitive, int] = {}
        for primitive in primitives:
            self.add(primitive)

    def add(self, primitive: Primitive) -> int:
        """Number of a primitive, a new one if it was not seen before."""
        return self._numbers.setdefault(primitive, len(self._numbers))

    def add_all(self, primitives: Iterable[Primitive]) -> NDArray[np.int32]:
        """Numbers of a sequence."""
        return np.array([self.add(primitive) for primitive in primitives], np.int32)

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Primitive]:
        return iter(self._numbers)


def ragged(
    sequences: Sequence[Sequence[int] | NDArray[np.int32]],
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Sequences one after the other: all numbers, and offsets ``[n + 1]`` of where each begins."""
    lengths = np.fromiter((len(sequence) for sequence in sequences), np.int64, len(sequences))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    arrays = [np.asarray(sequence, np.int32) for sequence in sequences]
    return (np.concatenate(arrays) if arrays else np.zeros(0, np.int32)), offsets


def pad(flat: NDArray[np.integer], offsets: NDArray[np.integer], length: int) -> NDArray[np.int32]:
    """Ragged sequences as ``int32 [n, length]``: cropped, or filled up with -1.

    -1 is the last row of an encoder's table, which is zero.
    """
    starts, ends = offsets[:-1, None], offsets[1:, None]
    places = starts + np.arange(length)
    if len(flat) == 0:
        return np.full(places.shape, -1, np.int32)
    taken = flat[np.minimum(places, len(flat) - 1)]
    return np.where(places < ends, taken, -1).astype(np.int32)
