"""How good a ranking is, on many lists at once.

Every metric takes ``(scores, labels, mask, groups)`` as the losses do, as arrays, and returns one
value a list (in the order of the groups), NaN where a list has nothing to find. Labels are
relative speeds in [0, 1], failed rows have 0. Rows with equal scores are taken in an order that
depends on the list's labels alone and is as good as random: the order of rows, padding and
batching change nothing, and a model that says the same of all rows gains nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tlp.ranking.lists import lists_of

Floats = npt.NDArray[np.floating[Any]]
Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Ranked:
    """Lists as a model ranks them.

    Attributes
    ----------
    best
        Labels from the best to the worst, ``[b, n]``; padding holds -1 and comes last.
    order
        Column of ``best`` at each rank, ``int64 [b, n]``; padding last.
    scores
        Scores in the columns of ``best``.
    """

    best: Values
    order: npt.NDArray[np.int64]
    scores: Values


def _mixed(bits: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Well-mixed bits of integers (Steele, Lea and Flood, SplitMix, OOPSLA 2014)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _argsort(first: Values, second: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Sort rows by the first key, and by the second where it ties."""
    order = np.argsort(first, axis=-1)
    found = np.take_along_axis(first, order, -1)
    tied = (found[:, 1:] == found[:, :-1]).any(-1)
    if tied.any():
        order[tied] = np.lexsort((second[tied], first[tied]), axis=-1)
    return order


def padded(
    scores: Floats, labels: Floats, mask: Mask | None, groups: npt.NDArray[Any] | None
) -> tuple[Values, Values, Mask]:
    """Scores, labels and mask as lists ``[b, n]``."""
    said: Values = np.asarray(scores, np.float64)
    true: Values = np.asarray(labels, np.float64)
    real = np.ones(said.shape, bool) if mask is None else np.asarray(mask, bool)
    if groups is not None:
        lists = lists_of(np.asarray(groups).reshape(-1), real.reshape(-1))
        return said.reshape(-1)[lists.index], true.reshape(-1)[lists.index], lists.mask
    if said.ndim == 1:
        return said[None], true[None], real[None]
    return said, true, real


def ranked(scores: Values, labels: Values, mask: Mask) -> Ranked:
    """Rank padded lists; a score that is not a number counts as the worst."""
    scores = np.where(mask, np.where(np.isnan(scores), -np.inf, scores), -np.inf)
    labels = np.where(mask, labels, -1.0)
    order = _argsort(-labels, -scores)
    best = np.take_along_axis(labels, order, -1)
    scores = np.take_along_axis(scores, order, -1)
    keys = random_keys(best, 0)
    return Ranked(best, _argsort(-scores, keys), scores)


def random_keys(best: Values, salt: int) -> npt.NDArray[np.uint64]:
    """A number as good as random for each column of ``best [b, n]``; padding has the largest.

    A hash of the column, seeded by the bits of the list's own labels and by the salt.
    """
    real = best >= 0
    bits = np.ascontiguousarray(np.where(real, best, 0.0)).view(np.uint64)
    seed = _mixed(
        bits.sum(-1, keepdims=True, dtype=np.uint64) + _mixed(np.array([salt], np.uint64))
    )
    keys = _mixed(seed + np.arange(best.shape[-1], dtype=np.uint64)) >> np.uint64(1)
    return np.where(real, keys, np.uint64(2**63))


def first_labels(found: Ranked, k: int, keep: Mask | None = None) -> tuple[Values, Values]:
    """Labels of the model's k first picks and the k best labels, ``[b, k]`` each.

    Where a list is shorter the rest holds -1.

    Parameters
    ----------
    keep
        Columns of ``best`` that exist, ``bool [b, n]``: a subset of the candidates.
    """
    in_order = np.take_along_axis(found.best, found.order, -1)
    if keep is None:
        return _first(in_order, k, None), _first(found.best, k, None)
    return (
        _first(in_order, k, np.take_along_axis(keep, found.order, -1)),
        _first(found.best, k, keep),
    )


def _first(values: Values, k: int, keep: Mask | None) -> Values:
    result = np.full((len(values), k), -1.0)
    if keep is None:
        result[:, : values.shape[1]] = values[:, :k]
        return result
    place = np.cumsum(keep, -1, dtype=np.int32)
    rows, columns = np.nonzero(keep & (place <= k))
    result[rows, place[rows, columns] - 1] = values[rows, columns]
    return result


def top_k_of(picked: Values, best: Values, k: int) -> Values:
    """Top-k score from the first labels (see :func:`top_k_score`)."""
    top = best[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(top > 0, np.maximum(picked[:, :k].max(-1), 0) / top, np.nan)


def ndcg_of(picked: Values, best: Values, k: int) -> Values:
    """NDCG@k from the first labels (see :func:`ndcg`)."""
    discounts = 1 / np.log2(np.arange(2, k + 2))
    gain = (np.exp2(np.maximum(picked[:, :k], 0)) - 1) @ discounts
    ideal = (np.exp2(np.maximum(best[:, :k], 0)) - 1) @ discounts
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(ideal > 0, gain / ideal, np.nan)


def top_k_score(
    scores: Floats,
    labels: Floats,
    mask: Mask | None = None,
    groups: npt.NDArray[Any] | None = None,
    *,
    k: int,
) -> Values:
    """Best label among the k rows with the highest scores, over the best label of the list.

    With labels ``best latency / latency`` this is best latency / best latency among the picks:
    TenSet (Zheng et al., NeurIPS 2021 Datasets and Benchmarks) and TLP, section 6.1, for one
    workload. 0 where all picks failed.
    """
    return top_k_of(*first_labels(ranked(*padded(scores, labels, mask, groups)), k), k)


def regret(
    scores: Floats,
    labels: Floats,
    mask: Mask | None = None,
    groups: npt.NDArray[Any] | None = None,
    *,
    k: int,
) -> Values:
    """Time lost by taking the best of the k first picks: ``1 / top-k score - 1``.

    Infinite where all picks failed.
    """
    with np.errstate(divide="ignore"):
        return 1 / top_k_score(scores, labels, mask, groups, k=k) - 1


def ndcg(
    scores: Floats,
    labels: Floats,
    mask: Mask | None = None,
    groups: npt.NDArray[Any] | None = None,
    *,
    k: int,
) -> Values:
    """Normalised discounted cumulative gain of the k first: DCG / ideal DCG.

    ``DCG = sum over ranks r <= k of (2^y - 1) / log2(1 + r)``. Jarvelin and Kekalainen, 2002, with
    the gain of Burges et al., ICML 2005.
    """
    return ndcg_of(*first_labels(ranked(*padded(scores, labels, mask, groups)), k), k)


def kendall_tau(
    scores: Floats,
    labels: Floats,
    mask: Mask | None = None,
    groups: npt.NDArray[Any] | None = None,
) -> Values:
    """Kendall's tau-b: concordant minus discordant pairs, corrected for ties.

    ``(P - Q) / sqrt((P + Q + S) (P + Q + T))``, S and T the pairs tied in labels or scores only.
    Kendall, The Treatment of Ties in Ranking Problems, 1945. NaN where all is tied.
    """
    return tau_of(ranked(*padded(scores, labels, mask, groups)))


def tau_of(found: Ranked) -> Values:
    """Kendall's tau-b of ranked lists (see :func:`kendall_tau`)."""
    real = found.best >= 0
    count = real.sum(-1)
    label_ties = _run_pairs(found.best, real)
    # Columns run from the best label down, equal labels from the highest score down: a pair is
    # discordant where the later score is higher, and then the labels differ.
    both = (found.best[:, 1:] == found.best[:, :-1]) & (found.scores[:, 1:] == found.scores[:, :-1])
    joint_ties = _pairs_of_runs(both, real)
    in_order = np.take_along_axis(found.scores, found.order, -1)
    dense = np.zeros(in_order.shape, np.int64)
    dense[:, 1:] = np.cumsum(in_order[:, 1:] != in_order[:, :-1], -1)
    score_ties = _run_pairs(in_order, np.take_along_axis(real, found.order, -1))
    ranks = np.empty_like(dense)
    np.put_along_axis(ranks, found.order, dense, -1)
    ranks[~real] = ranks.max(initial=0) + 1
    discordant = _inversions(ranks)
    pairs = count * (count - 1) / 2
    balance = pairs - label_ties - score_ties + joint_ties - 2 * discordant
    with np.errstate(divide="ignore", invalid="ignore"):
        return balance / np.sqrt((pairs - label_ties) * (pairs - score_ties))


def _run_pairs(ordered: Values, real: Mask) -> Values:
    """Pairs of equal values in sorted rows, ``[b]``."""
    return _pairs_of_runs(ordered[:, 1:] == ordered[:, :-1], real)


def _pairs_of_runs(same: Mask, real: Mask) -> Values:
    """Pairs within runs, where ``same [b, n-1]`` says whether a column equals the one before."""
    if not real.shape[1]:
        return np.zeros(len(real))
    same = same & real[:, 1:]
    columns = np.arange(1, real.shape[1])
    # The length of the run so far, minus one, is how many earlier columns a column is tied with.
    start = np.maximum.accumulate(np.where(same, 0, columns), -1)
    return np.asarray(((columns - start) * same).sum(-1), np.float64)


def _inversions(ranks: npt.NDArray[np.int64]) -> Values:
    """Pairs of columns in which the later rank is smaller, ``[b]``.

    One bit a pass, from the highest: among columns that agree in the higher bits, sorted stably
    together, each 0 is inverted with the 1s before it.
    """
    total = np.zeros(len(ranks))
    width = ranks.shape[-1]
    # Sixteen bits are sorted by radix.
    ranks = ranks.astype(np.int16 if ranks.max(initial=0) < 2**15 else np.int64)
    columns = np.arange(width)
    for bit in reversed(range(int(ranks.max(initial=0)).bit_length())):
        prefix = ranks >> (bit + 1)
        ones = (ranks >> bit) & 1
        before = np.cumsum(ones, -1, dtype=np.int32) - ones
        first = np.ones(ranks.shape, bool)
        first[:, 1:] = prefix[:, 1:] != prefix[:, :-1]
        start = np.maximum.accumulate(np.where(first, columns, 0), -1)
        inside = before - np.take_along_axis(before, start, -1)
        total += ((1 - ones) * inside).sum(-1)
        # A stable partition of each block by the bit.
        order = np.argsort(ranks >> bit, axis=-1, kind="stable")
        ranks = np.take_along_axis(ranks, order, -1)
    return total
