"""Losses against loops in plain Python, by hand, and in what must change nothing."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tlp.ranking.losses import LOSSES

NAMES = sorted(LOSSES)
SCORES = [0.3, -1.2, 0.9, 0.3, 2.0]
LABELS = [0.5, 0.25, 1.0, 0.25, 0.0]


def mean_rank(scores, i):
    ahead = sum(s > scores[i] for s in scores)
    equal = sum(s == scores[i] for s in scores) - 1
    return 1 + ahead + equal / 2


def ideal(labels):
    best = sorted(labels, reverse=True)
    return sum((2**y - 1) / math.log2(1 + r) for r, y in enumerate(best, 1))


def lambdarank(s, y):
    total = 0.0
    for i, j in itertools.permutations(range(len(s)), 2):
        if y[i] > y[j]:
            gain = (2 ** y[i] - 2 ** y[j]) / ideal(y)
            discount = abs(1 / math.log2(1 + mean_rank(s, i)) - 1 / math.log2(1 + mean_rank(s, j)))
            total += gain * discount * math.log2(1 + math.exp(s[j] - s[i]))
    return total


def logistic(s, y):
    pairs = [(i, j) for i, j in itertools.permutations(range(len(s)), 2) if y[i] > y[j]]
    return sum(math.log(1 + math.exp(s[j] - s[i])) for i, j in pairs) / len(pairs)


def listnet(s, y):
    wanted = [math.exp(value / 0.1) for value in y]
    got = [math.exp(value) for value in s]
    return -sum(w / sum(wanted) * math.log(g / sum(got)) for w, g in zip(wanted, got, strict=True))


def listmle(s, y):
    total = 0.0
    for i in range(len(s)):
        below = sum(math.exp(s[j]) for j in range(len(s)) if y[j] <= y[i])
        total += math.log(below) - s[i]
    return total / len(s)


def approxndcg(s, y):
    reached = 0.0
    for i in range(len(s)):
        rank = 1 + sum(1 / (1 + math.exp((s[i] - s[j]) / 0.1)) for j in range(len(s)) if j != i)
        reached += (2 ** y[i] - 1) / math.log2(1 + rank)
    return 1 - reached / ideal(y)


def mse(s, y):
    return sum((a - b) ** 2 for a, b in zip(s, y, strict=True)) / len(s)


LOOPS = {f.__name__: f for f in (lambdarank, logistic, listnet, listmle, approxndcg, mse)}


def test_every_loss_has_a_loop_here():
    assert sorted(LOOPS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_is_what_loops_over_pairs_and_rows_say(name):
    rng = np.random.default_rng(0)
    for size in (2, 5, 9):
        scores = rng.normal(size=size).round(1).tolist()
        labels = rng.choice([0.0, 0.25, 0.5, 1.0], size).tolist()
        labels[:2] = [0.0, 1.0]
        found = LOSSES[name](torch.tensor(scores), torch.tensor(labels))
        assert float(found) == pytest.approx(LOOPS[name](scores, labels), rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_finite_differences(name):
    scores, labels = torch.tensor(SCORES), torch.tensor(LABELS)
    scores = scores + torch.tensor([0.0, 0.0, 0.0, 0.1, 0.0])  # weights jump where ranks tie
    scores.requires_grad_()
    LOSSES[name](scores, labels).backward()
    step = 1e-3
    for i in range(len(SCORES)):
        values = []
        for sign in (1, -1):
            moved = scores.detach().clone()
            moved[i] += sign * step
            values.append(LOOPS[name](moved.double().tolist(), LABELS))
        wanted = (values[0] - values[1]) / (2 * step)
        assert float(scores.grad[i]) == pytest.approx(wanted, rel=2e-2, abs=2e-4)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "mse"])
def test_of_all_orders_the_true_one_costs_least_and_the_reverse_most(name):
    labels = [1.0, 0.7, 0.4, 0.0]
    values = {
        order: float(LOSSES[name](torch.tensor(order).float(), torch.tensor(labels)))
        for order in itertools.permutations(range(4))
    }
    assert min(values, key=values.get) == (3, 2, 1, 0)
    if name in ("logistic", "listmle"):
        assert max(values, key=values.get) == (0, 1, 2, 3)


@pytest.mark.parametrize("name", NAMES)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    padding=st.integers(0, 3),
)
@settings(max_examples=20, deadline=None)
def test_order_padding_and_packing_change_nothing(name, seed, sizes, padding):
    rng = np.random.default_rng(seed)
    lists = [
        (torch.tensor(rng.normal(size=n)).float(), torch.tensor(rng.choice([0, 0.5, 1], n)).float())
        for n in sizes
    ]
    alone = torch.stack([LOSSES[name](s, y, reduction="none")[0] for s, y in lists])
    width = max(sizes) + padding
    scores, labels = (
        torch.full((len(sizes), width), torch.nan),
        torch.full((len(sizes), width), 9.0),
    )
    mask = torch.zeros(len(sizes), width, dtype=torch.bool)
    for row, (s, y) in enumerate(lists):
        places = torch.tensor(rng.permutation(width)[: len(s)])
        scores[row, places], labels[row, places], mask[row, places] = s, y, True
    padded = LOSSES[name](scores, labels, mask, reduction="none")
    torch.testing.assert_close(padded, alone, rtol=1e-4, atol=1e-5)
    order = torch.tensor(rng.permutation(sum(sizes)))
    flat = LOSSES[name](
        torch.cat([s for s, _ in lists])[order],
        torch.cat([y for _, y in lists])[order],
        groups=torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))[order],
        reduction="none",
    )
    torch.testing.assert_close(flat, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rubbish", [math.nan, math.inf, -math.inf, 1e38])
def test_padding_never_reaches_a_gradient(name, rubbish):
    scores = torch.tensor([[*SCORES, rubbish], [rubbish] * 6], requires_grad=True)
    labels = torch.tensor([[*LABELS, rubbish], [rubbish] * 6])
    mask = torch.tensor([[True] * 5 + [False], [False] * 6])
    loss = LOSSES[name](scores, labels, mask)
    loss.backward()
    clean = torch.tensor(SCORES, requires_grad=True)
    alone = LOSSES[name](clean, torch.tensor(LABELS))
    alone.backward()
    assert loss.item() == pytest.approx(alone.item(), rel=1e-5)
    torch.testing.assert_close(scores.grad[0, :5], clean.grad)
    assert scores.grad[0, 5] == 0
    assert (scores.grad[1] == 0).all()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "mse"])
def test_a_list_of_equal_labels_says_nothing_and_does_not_count(name):
    scores = torch.tensor([SCORES, SCORES], requires_grad=True)
    labels = torch.tensor([LABELS, [0.5] * 5])
    both = LOSSES[name](scores, labels)
    assert both.item() == pytest.approx(LOOPS[name](SCORES, LABELS), rel=1e-4)
    both.backward()
    assert (scores.grad[1] == 0).all()
    nothing = LOSSES[name](scores[1:], labels[1:])
    assert nothing.item() == 0
    assert LOSSES[name](torch.zeros(1, 0), torch.zeros(1, 0)).item() == 0


@pytest.mark.parametrize("name", NAMES)
def test_large_scores_stay_finite(name):
    scores = torch.tensor([-200.0, 300.0, 0.0], requires_grad=True)
    loss = LOSSES[name](scores, torch.tensor([1.0, 0.0, 0.5]))
    loss.backward()
    assert math.isfinite(loss.item())
    assert scores.grad.isfinite().all()


def test_the_weight_of_a_swap_is_the_change_of_ndcg():
    # Two rows, the better one ranked last: |1 - (2^0 - 1)| ... / ideal, |1/log2 2 - 1/log2 3|.
    found = LOSSES["lambdarank"](torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]))
    assert float(found) == pytest.approx((1 - 1 / math.log2(3)) * math.log2(1 + math.e), rel=1e-5)


def test_sigma_and_temperature_scale_scores():
    scores, labels = torch.tensor(SCORES), torch.tensor(LABELS)
    assert float(LOSSES["lambdarank"](scores, labels, sigma=2.0)) == pytest.approx(
        lambdarank([2 * s for s in SCORES], LABELS), rel=1e-4
    )
    assert float(LOSSES["approxndcg"](scores, labels, temperature=1.0)) == pytest.approx(
        approxndcg([s / 10 for s in SCORES], LABELS), rel=1e-4
    )
