"""Lists: rows that compete with each other, packed side by side.

A list holds the rows of one workload on one platform. Flat rows with a group number each become
padded lists ``[b, n]`` with a mask; everything that ranks works on those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Lists:
    """Where the rows of each list lie among the flat ones.

    Attributes
    ----------
    index
        Rows, ``int64 [b, n]``; 0 where the list is padded.
    mask
        What is a row and what is padding, ``bool [b, n]``.
    groups
        The group of each list, ascending, ``[b]``.
    """

    index: npt.NDArray[np.int64]
    mask: npt.NDArray[np.bool_]
    groups: npt.NDArray[Any]


def lists_of(groups: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None = None) -> Lists:
    """One padded list a group; rows keep their order.

    Parameters
    ----------
    groups
        ``[n]``, any sortable type.
    mask
        Rows that count, ``bool [n]``; all by default.

    Examples
    --------
    >>> lists_of(np.array([7, 3, 7])).index.tolist()
    [[1, 0], [0, 2]]
    """
    rows = np.arange(len(groups)) if mask is None else np.flatnonzero(mask)
    order = rows[np.argsort(groups[rows], kind="stable")]
    names, counts = np.unique(groups[order], return_counts=True)
    columns = np.arange(counts.max(initial=0))
    filled = columns < counts[:, None]
    index = np.zeros(filled.shape, np.int64)
    index[filled] = order
    return Lists(index, filled, names)


def relative_speeds(latencies: npt.NDArray[np.float64], groups: npt.NDArray[Any]) -> Labels:
    """Labels: best latency of the group / latency, ``float64 [n]`` in [0, 1].

    Failed rows (infinite or NaN latency) get 0, and so does all of a group in which all failed.
    """
    usable = np.where(np.isfinite(latencies) & (latencies > 0), latencies, np.inf)
    _, number = np.unique(groups, return_inverse=True)
    best = np.full(number.max(initial=-1) + 1, np.inf)
    np.minimum.at(best, number, usable)
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(usable), best[number] / usable, 0.0)
