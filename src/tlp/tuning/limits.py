"""Limits of a GPU, checked on rows before any of them is replayed.

A sketch says which tile factors become threads and which buffers it keeps in shared memory; how
many threads a block has and how many bytes it needs are then products of a row's numbers. The
description is plain integers (`metaschedule/limits.py` reads it from a sketch), so that a hundred
thousand rows are checked in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int32]
# Decision and part: the second factor of the third tile is (2, 1).
Factor = tuple[int, int]
Lookup = Callable[[Factor], Numbers]


@dataclass(frozen=True)
class Product:
    """A constant times numbers that a row decides."""

    constant: int = 1
    factors: tuple[Factor, ...] = ()

    def __mul__(self, other: Product) -> Product:
        return Product(self.constant * other.constant, self.factors + other.factors)

    def evaluate(self, lookup: Lookup) -> Numbers:
        """The product for each row, ``int64 [n]`` (a scalar without factors)."""
        value = np.asarray(self.constant, np.int64)
        for factor in self.factors:
            value = value * lookup(factor)
        return value


@dataclass(frozen=True)
class Span:
    """Which values an index takes inside a tile, as interval arithmetic.

    Parameters
    ----------
    operator
        ``tile``: 0 to ``tile - 1``; ``+``: the sum of the operands; ``*``, ``//``, ``%``: the
        operand with ``constant``, which is positive for the latter two.
    """

    operator: Literal["tile", "+", "*", "//", "%"]
    operands: tuple[Span, ...] = ()
    constant: int = 1
    tile: Product = Product()

    def evaluate(self, lookup: Lookup) -> tuple[Numbers, Numbers]:
        """Least and largest value for each row."""
        if self.operator == "tile":
            return np.asarray(0, np.int64), self.tile.evaluate(lookup) - 1
        if self.operator == "+":
            low = high = np.asarray(0, np.int64)
            for operand in self.operands:
                least, most = operand.evaluate(lookup)
                low, high = low + least, high + most
            return low, high
        (operand,) = self.operands
        low, high = operand.evaluate(lookup)
        if self.operator == "*":
            ends = low * self.constant, high * self.constant
            return np.minimum(*ends), np.maximum(*ends)
        floors = low // self.constant, high // self.constant
        if self.operator == "//":
            return floors
        whole = floors[0] != floors[1]
        return (
            np.where(whole, 0, low % self.constant),
            np.where(whole, self.constant - 1, high % self.constant),
        )


@dataclass(frozen=True)
class Extent:
    """How far a tile reaches along one dimension of a buffer.

    Parameters
    ----------
    base
        Elements read at one index.
    index
        Indices inside the tile; None if they are the same everywhere, or not understood.
    limit
        The buffer's extent.
    """

    base: int
    index: Span | None
    limit: int

    def evaluate(self, lookup: Lookup) -> Numbers:
        """The extent for each row."""
        if self.index is None:
            return np.asarray(min(self.base, self.limit), np.int64)
        low, high = self.index.evaluate(lookup)
        reach: Numbers = np.minimum(high - low + self.base, self.limit)
        return reach


@dataclass(frozen=True)
class SharedBuffer:
    """One buffer in shared memory.

    Parameters
    ----------
    element_bytes
        Of one element, times the copies that a software pipeline keeps.
    extents
        One a dimension.
    """

    element_bytes: int
    extents: tuple[Extent, ...]

    def evaluate(self, lookup: Lookup) -> Numbers:
        """Bytes for each row."""
        value = np.asarray(self.element_bytes, np.int64)
        for extent in self.extents:
            value = value * extent.evaluate(lookup)
        return value


@dataclass(frozen=True)
class Range:
    """A product and the least and most that it may be."""

    product: Product
    least: int
    most: int | None = None

    def holds(self, lookup: Lookup) -> npt.NDArray[np.bool_]:
        """Whether each row keeps to the range."""
        value = self.product.evaluate(lookup)
        held: npt.NDArray[np.bool_] = value >= self.least
        return held if self.most is None else held & (value <= self.most)


@dataclass(frozen=True)
class SketchLimits:
    """What a row of one sketch must keep to.

    Parameters
    ----------
    ranges
        Threads a block of each kernel, rounds of a software pipeline.
    shared
        Buffers that share the block's memory.
    shared_bytes
        Bytes that a block has.
    """

    ranges: tuple[Range, ...] = ()
    shared: tuple[SharedBuffer, ...] = ()
    shared_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.ranges or self.shared)

    def allowed(self, tables: Sequence[Numbers], indices: Indices) -> npt.NDArray[np.bool_]:
        """Which rows keep to the limits.

        Parameters
        ----------
        tables
            The numbers that each value of each decision stands for, ``int64 [values, parts]``.
        indices
            Index of each row's value of each decision, ``int32 [n, decisions]``.
        """
        left = np.arange(len(indices))

        def lookup(factor: Factor) -> Numbers:
            decision, part = factor
            return tables[decision][:, part][indices[left, decision]]

        # Most rows fail the first check, the number of threads; later ones see the others only.
        for limit in self.ranges:
            left = left[np.broadcast_to(limit.holds(lookup), left.shape)]
        if self.shared:
            used = np.zeros(len(left), np.int64)
            for buffer in self.shared:
                used += buffer.evaluate(lookup)
            left = left[used <= self.shared_bytes]
        result = np.zeros(len(indices), np.bool_)
        result[left] = True
        return result
