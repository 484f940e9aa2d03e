"""Batches of packed lists, the same for the same seed and epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tlp.ranking.lists import lists_of
from tlp.training.settings import TrainSettings


@dataclass(frozen=True)
class Batch:
    """Rows of a data set, and the list that each belongs to (``[B]`` both)."""

    rows: npt.NDArray[np.int64]
    lists: npt.NDArray[np.int64]

    @property
    def list_count(self) -> int:
        """How many lists there are."""
        return int(self.lists[-1]) + 1

    def share(self, rank: int, world: int) -> Batch:
        """Every ``world``-th list, of one process among several."""
        kept = self.lists % world == rank
        return Batch(self.rows[kept], self.lists[kept])


def useful_rows(
    labels: npt.NDArray[np.float64], groups: npt.NDArray[Any], settings: TrainSettings
) -> npt.NDArray[np.int64]:
    """Rows that a list can learn from: in groups with two different labels, or all.

    Regression and lists across groups learn from every row.
    """
    if settings.loss == "mse" or not settings.within_groups:
        return np.arange(len(labels))
    _, number = np.unique(groups, return_inverse=True)
    low = np.full(number.max(initial=-1) + 1, np.inf)
    high = np.full(len(low), -np.inf)
    np.minimum.at(low, number, labels)
    np.maximum.at(high, number, labels)
    return np.flatnonzero((high > low)[number])


def make_batches(
    rows: npt.NDArray[np.int64], groups: npt.NDArray[Any], settings: TrainSettings, epoch: int
) -> list[Batch]:
    """An epoch's batches.

    Each group is shuffled and cut into lists of nearly equal length, at most ``list_rows``; lists
    are shuffled and packed until a batch holds ``batch_rows``.
    """
    rng = np.random.default_rng([settings.seed, epoch])
    if not settings.within_groups:
        order = rng.permutation(rows)
        cuts = range(settings.batch_rows, len(order), settings.batch_rows)
        return [Batch(part, np.zeros(len(part), np.int64)) for part in np.split(order, cuts)]
    shuffled = rng.permutation(rows)
    packed = lists_of(groups[shuffled])
    lists: list[npt.NDArray[np.int64]] = []
    for index, filled in zip(packed.index, packed.mask, strict=True):
        members = shuffled[index[filled]]
        lists += np.array_split(members, -(-len(members) // settings.list_rows))
    batches: list[Batch] = []
    current: list[npt.NDArray[np.int64]] = []
    size = 0
    for number in rng.permutation(len(lists)):
        if current and size + len(lists[number]) > settings.batch_rows:
            batches.append(_packed(current))
            current, size = [], 0
        current.append(lists[number])
        size += len(lists[number])
    if current:
        batches.append(_packed(current))
    return batches


def occurring(
    count: int, indices: npt.NDArray[np.integer[Any]], mask: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """What of a table of ``count`` primitives occurs in sequences ``[n, L]``.

    Returns
    -------
    tuple
        Rows of the table, ``[d]``, and the sequences as positions among them, ``[n, L]``; 0 where
        they are padded.
    """
    occurs = np.zeros(count, bool)
    occurs[indices[mask]] = True
    number = np.cumsum(occurs, dtype=np.int64) - 1
    return np.flatnonzero(occurs), np.where(mask, number[np.where(mask, indices, 0)], 0)


def _packed(lists: list[npt.NDArray[np.int64]]) -> Batch:
    numbers = np.repeat(np.arange(len(lists)), [len(one) for one in lists])
    return Batch(np.concatenate(lists), numbers)
