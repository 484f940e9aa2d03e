"""Losses that teach a model to rank, on many lists at once.

Every loss takes ``(scores, labels, mask, groups)``:

- scores, labels: float tensors ``[b, n]``, or ``[n]`` for a single list or with ``groups``;
- mask: bool, same shape, what counts; all by default;
- groups: integers, same shape: rows of equal number form a list of their own.

and returns the mean over the lists that have something to tell, 0 if none has; with
``reduction="none"`` one value a list. Labels are relative speeds in [0, 1]; higher is better.
Rows that are tied share their mean rank, so the order of rows never matters.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tlp.ranking.lists import lists_of

Loss = Callable[..., torch.Tensor]
LOSSES: dict[str, Loss] = {}


def _loss(name: str) -> Callable[[Callable[..., Any]], Loss]:
    """Register a loss of padded lists ``[b, n] -> ([b], [b] bool)`` under a name."""

    def register(function: Callable[..., Any]) -> Loss:
        @functools.wraps(function)
        def loss(
            scores: torch.Tensor,
            labels: torch.Tensor,
            mask: torch.Tensor | None = None,
            groups: torch.Tensor | None = None,
            *,
            reduction: str = "mean",
            **options: float,
        ) -> torch.Tensor:
            scores, labels = scores.float(), labels.float()
            mask = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
            if groups is not None:
                lists = lists_of(groups.reshape(-1).cpu().numpy(), mask.reshape(-1).cpu().numpy())
                index = torch.from_numpy(lists.index).to(scores.device)
                scores, labels = scores.reshape(-1)[index], labels.reshape(-1)[index]
                mask = torch.from_numpy(lists.mask).to(scores.device)
            elif scores.ndim == 1:
                scores, labels, mask = scores[None], labels[None], mask[None]
            # Padding may hold anything, NaN included: it must not reach a gradient.
            values, told = function(
                scores.masked_fill(~mask, 0), labels.masked_fill(~mask, 0), mask, **options
            )
            values = torch.where(told, values, torch.zeros_like(values))
            if reduction == "none":
                return values
            return values.sum() / told.sum().clamp(min=1)

        LOSSES[name] = loss
        return loss

    return register


def _differs(labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Whether a list has two different labels, ``[b]``."""
    if not labels.shape[-1]:
        return torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
    low = labels.masked_fill(~mask, math.inf).amin(-1)
    return labels.masked_fill(~mask, -math.inf).amax(-1) > low


def _ideal(gains: torch.Tensor) -> torch.Tensor:
    """Discounted gain of the best order, ``[b, 1]``; padding has gain 0."""
    ranks = torch.arange(1, gains.shape[-1] + 1, device=gains.device)
    best = gains.sort(-1, descending=True).values
    total = (best / torch.log2(1.0 + ranks)).sum(-1, keepdim=True)
    return total.clamp(min=1e-10)


def _mean_ranks(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Rank of each score from 1, ties sharing their mean, ``[b, n]``."""
    lower = scores[:, :, None] < scores[:, None, :]
    equal = scores[:, :, None] == scores[:, None, :]
    ahead = (lower + 0.5 * equal) * mask[:, None, :]
    return 0.5 + ahead.sum(-1)


@_loss("lambdarank")
def lambda_rank(
    scores: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor, sigma: float = 1.0
) -> Any:
    """LambdaRank: logistic loss of each pair, weighted by the NDCG that a swap would change.

    ``- sum over y_i > y_j of |G_i - G_j| |1/D_i - 1/D_j| log2 sigmoid(sigma (s_i - s_j))``, with
    ``G = (2^y - 1) / ideal DCG`` and ``D = log2(1 + rank)``; weights carry no gradient. Burges,
    From RankNet to LambdaRank to LambdaMART, 2010; as a loss: Wang et al., The LambdaLoss
    Framework, CIKM 2018, section 4. The loss that TLP (ASPLOS'23) trains with.
    """
    with torch.no_grad():
        gains = (torch.exp2(labels) - 1).masked_fill(~mask, 0)
        gains = gains / _ideal(gains)
        discounts = 1 / torch.log2(1 + _mean_ranks(scores, mask))
        weights = (gains[:, :, None] - gains[:, None, :]).relu_()
        weights *= (discounts[:, :, None] - discounts[:, None, :]).abs_()
        weights *= (mask[:, :, None] & mask[:, None, :]) / -math.log(2)
    pairs = F.logsigmoid(sigma * (scores[:, :, None] - scores[:, None, :]))
    return (weights * pairs).sum((-1, -2)), _differs(labels, mask)


@_loss("logistic")
def pairwise_logistic(scores: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> Any:
    """RankNet: mean over pairs ``y_i > y_j`` of ``log(1 + exp(s_j - s_i))``.

    Burges et al., Learning to Rank using Gradient Descent, ICML 2005.
    """
    pairs = (labels[:, :, None] > labels[:, None, :]) & mask[:, :, None] & mask[:, None, :]
    losses = F.softplus(scores[:, None, :] - scores[:, :, None]) * pairs
    return losses.sum((-1, -2)) / pairs.sum((-1, -2)).clamp(min=1), _differs(labels, mask)


@_loss("listnet")
def list_net(
    scores: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor, temperature: float = 0.1
) -> Any:
    """ListNet: cross entropy from ``softmax(y / temperature)`` to ``softmax(s)``.

    Cao et al., Learning to Rank: From Pairwise Approach to Listwise Approach, ICML 2007, the
    top-one form. Relative speeds lie close together: the temperature spreads them.
    """
    wanted = (labels / temperature).masked_fill(~mask, -math.inf).softmax(-1)
    got = scores.masked_fill(~mask, -1e30).log_softmax(-1)
    return -(wanted.nan_to_num() * got).sum(-1), _differs(labels, mask)


@_loss("listmle")
def list_mle(scores: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> Any:
    """ListMLE: negative log likelihood of the true order under Plackett-Luce, a row.

    ``1/n sum_i (log sum over y_j <= y_i of exp s_j - s_i)``. Xia et al., Listwise Approach to
    Learning to Rank, ICML 2008; equal labels share a denominator (Breslow's treatment of ties).
    """
    order = labels.masked_fill(~mask, math.inf).argsort(-1)
    ascending = labels.masked_fill(~mask, math.inf).gather(-1, order)
    sorted_scores = scores.masked_fill(~mask, -1e30).gather(-1, order)
    # The denominator of a row ends with the last row of its label.
    sums = sorted_scores.logcumsumexp(-1)
    last = torch.searchsorted(ascending.contiguous(), ascending.contiguous(), right=True) - 1
    real = mask.gather(-1, order)
    losses = (sums.gather(-1, last) - sorted_scores) * real
    return losses.sum(-1) / mask.sum(-1).clamp(min=1), _differs(labels, mask)


@_loss("approxndcg")
def approx_ndcg(
    scores: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor, temperature: float = 0.1
) -> Any:
    """1 - NDCG with smooth ranks ``1 + sum over j != i of sigmoid((s_j - s_i) / temperature)``.

    Qin, Liu and Li, A General Approximation Framework for Direct Optimization of Information
    Retrieval Measures, 2010.
    """
    gains = (torch.exp2(labels) - 1).masked_fill(~mask, 0)
    ahead = torch.sigmoid((scores[:, None, :] - scores[:, :, None]) / temperature)
    ranks = 0.5 + (ahead * mask[:, None, :]).sum(-1)  # a row is half ahead of itself
    reached = (gains / torch.log2(1 + ranks)).sum(-1)
    return 1 - reached / _ideal(gains)[:, 0], _differs(labels, mask)


@_loss("mse")
def mean_squared_error(scores: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> Any:
    """Mean of ``(s - y)^2`` over a list's rows: regression on the relative speed."""
    squares = (scores - labels) ** 2 * mask
    count = mask.sum(-1)
    return squares.sum(-1) / count.clamp(min=1), count > 0
