"""What a model learns from latencies: scores inside ranked lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tlp.primitives.encoding import Encoder


def scores(latencies: NDArray[np.float64], groups: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
    """Best latency of the list over the row's: 1 for the best, 0 for what failed.

    Parameters
    ----------
    latencies
        Seconds, ``[n]``; infinite where a program failed.
    groups
        Number of each row's list, ``[n]``.
    """
    best = np.full(int(groups.max(initial=-1)) + 1, np.inf)
    np.minimum.at(best, groups, latencies)
    found = np.zeros(len(latencies), np.float32)
    timed = np.isfinite(latencies)
    found[timed] = best[groups[timed]] / latencies[timed]
    return found


@dataclass(frozen=True)
class Merged:
    """Rows that a model cannot tell apart, given one label.

    Parameters
    ----------
    latencies
        Seconds, ``[n]``: those of the coinciding rows made one.
    coinciding
        How many rows share list and sequence with another.
    distinct
        How many sequences are different, list by list.
    """

    latencies: NDArray[np.float64]
    coinciding: int
    distinct: int


def merge(
    sequences: NDArray[np.int32],
    latencies: NDArray[np.float64],
    groups: NDArray[np.integer[Any]],
    how: Literal["best", "mean"] = "best",
) -> Merged:
    """Give rows whose cropped sequences coincide inside a list the same latency.

    Parameters
    ----------
    sequences
        ``int32 [n, length]``, cropped, in numbers that are equal where encoded rows are
        (`identities`).
    how
        The best of their latencies, as the paper has it, or the mean of those that did not fail.
    """
    keys = np.ascontiguousarray(np.column_stack([groups.astype(np.int32), sequences]))
    if len(keys) == 0:
        return Merged(latencies.copy(), 0, 0)
    packed = keys.view(np.dtype((np.void, keys.dtype.itemsize * keys.shape[1]))).ravel()
    _, place, counts = np.unique(packed, return_inverse=True, return_counts=True)
    place = place.ravel()
    timed = np.isfinite(latencies)
    if how == "best":
        value = np.full(len(counts), np.inf)
        np.minimum.at(value, place, latencies)
    else:
        number = np.bincount(place[timed], minlength=len(counts))
        total = np.bincount(place[timed], latencies[timed], minlength=len(counts))
        value = np.where(number > 0, total / np.maximum(number, 1), np.inf)
    return Merged(value[place], int(counts[counts > 1].sum()), len(counts))


def identities(encoder: Encoder) -> NDArray[np.int32]:
    """Numbers of primitives that are equal where their encoded rows are: ``int32 [d + 1]``.

    The last, for padding (-1), is -1 again unless a primitive's row is zero, too.
    """
    _, place = np.unique(encoder.table, axis=0, return_inverse=True)
    found = place.ravel().astype(np.int32)
    return np.where(found == found[-1], -1, found).astype(np.int32)
