"""The judge: what a model's scores are worth, and whether two models differ.

Failed rows count with relative speed 0. Every figure is a mean over workloads with equal weight.
One pick a workload is noisy, so figures are also averaged over random subsets of each workload's
candidates, the same ones for every model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tlp.ranking.lists import lists_of, relative_speeds
from tlp.ranking.metrics import (
    Floats,
    Mask,
    Ranked,
    Values,
    first_labels,
    ndcg_of,
    random_keys,
    ranked,
    tau_of,
    top_k_of,
)

TOPS = (1, 5, 10)


@dataclass(frozen=True)
class Judgement:
    """Figures of one model.

    Attributes
    ----------
    groups
        Workloads, in the order of the values, ``[b]``.
    by_workload
        Values of each workload ``[b]``: ``top1``, ``top5``, ``top10``, ``ndcg10`` and ``regret1``
        over all candidates, the same with ``_subsets`` as means over the random subsets, and
        ``kendall_tau``. NaN where no candidate works.
    totals
        Latency-weighted totals ``top1_total`` ... and ``top1_total_subsets`` ...
    failed_picks
        Workloads whose first pick failed.
    sizes
        Candidates of each workload, ``[b]``.
    """

    groups: npt.NDArray[Any]
    by_workload: dict[str, Values]
    totals: dict[str, float]
    failed_picks: int
    sizes: npt.NDArray[np.int64]

    def summary(self) -> dict[str, float]:
        """Means over workloads, totals, and what they were counted from."""
        means = {name: _mean(values) for name, values in self.by_workload.items()}
        return {
            **means,
            **self.totals,
            "workloads": int(np.isfinite(self.by_workload["top1"]).sum()),
            "failed_picks": self.failed_picks,
        }


def judge(
    scores: Floats,
    latencies: npt.NDArray[np.float64],
    groups: npt.NDArray[Any],
    *,
    weights: npt.NDArray[np.float64] | None = None,
    subsets: int = 20,
    size: int = 1000,
    seed: int = 0,
) -> Judgement:
    """Judge scores of flat rows.

    Parameters
    ----------
    scores
        ``[n]``, higher is better; NaN counts as the worst.
    latencies
        Seconds, ``[n]``; infinite where the row failed.
    groups
        Workload (and platform) of each row, ``[n]``.
    weights
        How often the network uses the workload of each row, ``[n]``; 1 by default.
    subsets, size, seed
        Random subsets a workload, candidates in each, and their seed. A workload with fewer
        candidates takes part with all of them.

    Notes
    -----
    The total is the top-k score of TLP (ASPLOS'23), section 6.1: the sum of weight x best latency,
    over the sum of weight x best latency among the k first picks. Where all picks failed there is
    no latency to add: the slowest working candidate's stands in, and `failed_picks` says how
    often. A subset is judged against the best within it. Regret is the time lost, ``picked / best
    - 1``, with the same stand-in.
    """
    said: Values = np.asarray(scores, np.float64)
    if len(said) != len(latencies) or len(said) != len(groups):
        raise ValueError(
            f"scores, latencies and groups must be of one length, "
            f"got {len(said)}, {len(latencies)} and {len(groups)}"
        )
    lists = lists_of(groups)
    labels = relative_speeds(latencies, groups)
    usable = np.where(np.isfinite(latencies) & (latencies > 0), latencies, np.inf)
    best = np.where(lists.mask, usable[lists.index], np.inf).min(-1, initial=np.inf)
    weight = np.ones(len(best))
    if weights is not None and len(best):
        weight = weights[lists.index[:, 0]]
    costs = np.where(np.isfinite(best), weight * best, 0.0)
    found = ranked(said[lists.index], labels[lists.index], lists.mask)
    slowest = np.where(found.best > 0, found.best, np.inf).min(-1, initial=np.inf)

    values, totals = _figures(*first_labels(found, max(TOPS)), slowest, costs)
    failed = int((values["top1"] == 0).sum())
    values["kendall_tau"] = tau_of(found)
    over: list[tuple[dict[str, Values], dict[str, float]]] = []
    for number in range(subsets):
        keep = _subset(found, size, 1 + number + subsets * seed)
        over.append(_figures(*first_labels(found, max(TOPS), keep), slowest, costs))
    if over:
        for name in over[0][0]:
            values[f"{name}_subsets"] = _nanmean(np.stack([one[0][name] for one in over]))
        for name in over[0][1]:
            totals[f"{name}_subsets"] = _mean(np.array([one[1][name] for one in over]))
    return Judgement(lists.groups, values, totals, failed, lists.mask.sum(-1))


def _figures(
    picked: Values, best: Values, slowest: Values, costs: Values
) -> tuple[dict[str, Values], dict[str, float]]:
    """Values by workload and totals, from the first picks and the best labels."""
    values, totals = {}, {}
    for k in TOPS:
        values[f"top{k}"] = score = top_k_of(picked, best, k)
        known = np.isfinite(score)
        # A subset's best may be slower than the workload's: costs and labels are the subset's.
        taken = np.where(score == 0, slowest / best[:, 0], score)
        own = costs[known] / best[known, 0]
        with np.errstate(divide="ignore"):
            totals[f"top{k}_total"] = (
                float(own.sum() / (own / taken[known]).sum()) if own.sum() > 0 else float("nan")
            )
            if k == 1:
                values["regret1"] = np.where(known, 1 / np.where(known, taken, 1) - 1, np.nan)
    values["ndcg10"] = ndcg_of(picked, best, 10)
    return values, totals


def _subset(found: Ranked, size: int, salt: int) -> Mask:
    """Columns of `found.best` that exist in a random subset of ``size`` candidates a list.

    It depends on the list's own labels and the salt: not on the model, nor on other lists.
    """
    keys = random_keys(found.best, salt)
    if keys.shape[1] <= size:
        return found.best >= 0
    limit = np.partition(keys, size - 1, axis=-1)[:, size - 1 : size]
    return np.asarray((keys <= limit) & (found.best >= 0))


def _nanmean(values: Values) -> Values:
    """Mean over the first axis, NaN only where all are."""
    known = np.isfinite(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(known, values, 0).sum(0) / known.sum(0))


def _mean(values: Values) -> float:
    return float(_nanmean(values.reshape(-1)[:, None])[0]) if values.size else float("nan")


@dataclass(frozen=True)
class Difference:
    """Mean difference of two models over workloads, with its 95 % interval."""

    mean: float
    low: float
    high: float
    workloads: int


def compare(
    first: Judgement, second: Judgement, figure: str, *, samples: int = 10_000, seed: int = 0
) -> Difference:
    """First minus second, by a paired bootstrap over workloads.

    Workloads are drawn with replacement and keep both models' values together (Efron and
    Tibshirani, An Introduction to the Bootstrap, 1993, percentile interval).

    Parameters
    ----------
    figure
        A key of `Judgement.by_workload`.
    """
    if not np.array_equal(first.groups, second.groups):
        raise ValueError("the two models were judged on different workloads")
    differences = first.by_workload[figure] - second.by_workload[figure]
    differences = differences[np.isfinite(differences)]
    if not len(differences):
        return Difference(float("nan"), float("nan"), float("nan"), 0)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(differences), size=(samples, len(differences)), dtype=np.int32)
    means = differences[drawn].mean(-1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Difference(float(differences.mean()), float(low), float(high), len(differences))
