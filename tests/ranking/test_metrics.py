"""Metrics against plain Python, SciPy and brute force, and in what must change nothing."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from tlp.ranking.lists import lists_of, relative_speeds
from tlp.ranking.metrics import kendall_tau, ndcg, regret, top_k_score

INF = float("inf")
METRICS = {
    "top1": lambda *a, **k: top_k_score(*a, k=1, **k),
    "top3": lambda *a, **k: top_k_score(*a, k=3, **k),
    "ndcg": lambda *a, **k: ndcg(*a, k=3, **k),
    "regret": lambda *a, **k: regret(*a, k=2, **k),
    "tau": kendall_tau,
}


def test_relative_speeds_by_hand():
    latencies = np.array([4.0, 2.0, INF, 6.0, np.nan, 3.0, INF, 0.0])
    groups = np.array([5, 5, 5, 1, 1, 1, 9, 9])
    assert relative_speeds(latencies, groups).tolist() == [0.5, 1, 0, 0.5, 0, 1, 0, 0]
    assert relative_speeds(np.zeros(0), np.zeros(0, np.int64)).tolist() == []


def test_lists_keep_the_order_of_rows_and_leave_masked_ones_out():
    groups = np.array([7, 3, 7, 3, 7])
    packed = lists_of(groups, np.array([True, True, False, True, True]))
    assert packed.groups.tolist() == [3, 7]
    assert packed.index.tolist() == [[1, 3], [0, 4]]
    assert packed.mask.all()
    assert lists_of(np.zeros(0, np.int64)).index.shape == (0, 0)


def test_top_k_and_regret_by_hand():
    labels, scores = np.array([0.25, 1.0, 0.5, 0.0]), np.array([4.0, 1.0, 3.0, 2.0])
    assert [top_k_score(scores, labels, k=k)[0] for k in (1, 2, 3, 4, 10)] == [0.25, 0.5, 0.5, 1, 1]
    assert [regret(scores, labels, k=k)[0] for k in (1, 2, 4)] == [3, 1, 0]
    assert regret(-labels, labels, k=1)[0] == INF
    assert top_k_score(-labels, labels, k=1)[0] == 0
    # Of a list whose best is not 1, the best stands for 1.
    assert top_k_score(scores, labels / 2, k=1)[0] == 0.25


def test_ndcg_is_1_for_the_best_of_all_orders_and_by_hand_for_each():
    labels = [1.0, 0.6, 0.6, 0.0, 0.2]
    for k in (1, 3, 5, 8):
        discounted = {
            order: sum(
                (2 ** labels[i] - 1) / math.log2(2 + rank) for rank, i in enumerate(order[:k])
            )
            for order in itertools.permutations(range(5))
        }
        best = max(discounted.values())
        for order, value in list(discounted.items())[::7]:
            scores = np.zeros(5)
            scores[list(order)] = [5, 4, 3, 2, 1]
            assert ndcg(scores, np.array(labels), k=k)[0] == pytest.approx(value / best)


@pytest.mark.parametrize("size", [2, 3, 10, 300, 40_000])
def test_kendalls_tau_is_scipys(size):
    rng = np.random.default_rng(size)
    for ties in (3, 50, 10**6):
        labels = rng.integers(ties, size=size) / ties
        scores = (labels + rng.normal(size=size)).round(1 if ties < 100 else 8)
        wanted = scipy.stats.kendalltau(scores, labels).statistic
        found = kendall_tau(scores, labels)[0]
        assert found == pytest.approx(wanted, abs=1e-12, nan_ok=True)


def test_tau_is_nan_where_all_is_tied_and_counts_ties_as_kendall_does():
    assert np.isnan(kendall_tau(np.zeros(3), np.array([0.1, 0.2, 0.3]))[0])
    assert np.isnan(kendall_tau(np.arange(3), np.full(3, 0.5))[0])
    # Pairs: 4 concordant, 0 discordant, one tied in each of the two: 4 / sqrt(5 * 5).
    found = kendall_tau(np.array([1, 2, 3, 3]), np.array([0.1, 0.1, 0.2, 0.3]))[0]
    assert found == pytest.approx(4 / 5)


def test_lists_in_which_all_failed_have_nothing_to_find():
    scores, labels = np.array([1.0, 2.0]), np.zeros(2)
    for metric in METRICS.values():
        assert np.isnan(metric(scores, labels)[0])


def test_scores_that_are_no_numbers_are_the_worst():
    labels = np.array([1.0, 0.5, 0.25])
    assert top_k_score(np.array([np.nan, -1e30, -INF]), labels, k=1)[0] == 0.5
    assert np.isfinite(kendall_tau(np.array([np.nan, 1.0, 2.0]), labels)[0])


@pytest.mark.parametrize("name", METRICS)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    padding=st.integers(0, 3),
)
@settings(max_examples=30, deadline=None)
def test_order_padding_and_packing_change_nothing(name, seed, sizes, padding):
    rng = np.random.default_rng(seed)
    metric = METRICS[name]
    # Few values, so that scores and labels tie.
    lists = [(rng.integers(3, size=n) * 1.0, rng.choice([0, 0.5, 1], n)) for n in sizes]
    alone = np.array([metric(s, y)[0] for s, y in lists])
    width = max(sizes) + padding
    scores, labels = np.full((len(sizes), width), np.nan), np.full((len(sizes), width), 9.0)
    mask = np.zeros((len(sizes), width), bool)
    for row, (s, y) in enumerate(lists):
        places = rng.permutation(width)[: len(s)]
        scores[row, places], labels[row, places], mask[row, places] = s, y, True
    np.testing.assert_allclose(metric(scores, labels, mask), alone, rtol=1e-12)
    order = rng.permutation(sum(sizes))
    groups = np.repeat(np.arange(len(sizes)), sizes)[order]
    flat = metric(
        np.concatenate([s for s, _ in lists])[order],
        np.concatenate([y for _, y in lists])[order],
        groups=groups,
    )
    np.testing.assert_allclose(flat, alone, rtol=1e-12)


def test_a_model_that_says_the_same_of_all_rows_picks_at_random():
    rng = np.random.default_rng(0)
    labels = rng.random((3000, 10))
    labels /= labels.max(-1, keepdims=True)
    found = top_k_score(np.zeros(labels.shape), labels, k=1).mean()
    assert found == pytest.approx(labels.mean(), abs=0.02)
    # Whatever the order in which rows come: the best one first, too.
    first = top_k_score(np.zeros(labels.shape), -np.sort(-labels, -1), k=1).mean()
    assert first == pytest.approx(found, abs=1e-12)
