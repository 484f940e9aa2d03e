"""The judge against a judge in plain Python, and what two models' difference is worth."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from tlp.ranking.judge import compare, judge

INF = float("inf")


def made(seed=0, groups=12, most=30):
    """Latencies of workloads of different sizes with failures, and scores that know something."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, most, groups)
    group = rng.permutation(np.repeat(np.arange(groups) * 3, sizes))
    latencies = rng.exponential(1e-3, len(group)) + 1e-4
    latencies[rng.random(len(group)) < 0.2] = INF
    scores = -np.log(np.minimum(latencies, 1e-3)) + rng.normal(size=len(group))
    return scores, latencies, group, np.where(group == 3, 5.0, 1 + group / 10)


def plain(scores, latencies, weights, k):
    """(weight x best, weight x picked, top-k score) of a workload, in plain Python."""
    picks = sorted(range(len(scores)), key=lambda i: -scores[i])[:k]
    best = min(latencies)
    picked = min(latencies[i] for i in picks)
    score = best / picked
    if picked == INF:
        picked = max(value for value in latencies if value < INF)
    return weights[0] * best, weights[0] * picked, score


def test_figures_are_those_of_loops():
    scores, latencies, groups, weights = made()
    found = judge(scores, latencies, groups, weights=weights)
    summary = found.summary()
    rows = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    assert found.groups.tolist() == np.unique(groups).tolist()
    for k in (1, 5, 10):
        each = [plain(scores[r], latencies[r], weights[r], k) for r in rows]
        np.testing.assert_allclose(found.by_workload[f"top{k}"], [one[2] for one in each])
        assert summary[f"top{k}"] == pytest.approx(np.mean([one[2] for one in each]))
        total = sum(one[0] for one in each) / sum(one[1] for one in each)
        assert summary[f"top{k}_total"] == pytest.approx(total)
    first = [plain(scores[r], latencies[r], weights[r], 1) for r in rows]
    regrets = [one[1] / one[0] - 1 for one in first]
    np.testing.assert_allclose(found.by_workload["regret1"], regrets)
    assert summary["failed_picks"] == sum(one[2] == 0 for one in first) > 0
    for place, r in enumerate(rows):
        speeds = 1 / latencies[r]
        tau = scipy.stats.kendalltau(scores[r], speeds).statistic
        assert found.by_workload["kendall_tau"][place] == pytest.approx(tau)
    # Lists shorter than a subset take part whole.
    for name in ("top1", "top5", "top10", "ndcg10", "regret1", "top1_total", "top10_total"):
        assert summary[f"{name}_subsets"] == pytest.approx(summary[name])


def test_means_over_subsets_approach_those_over_all_subsets():
    # Five candidates, the model's order 2, 0, 4, 1, 3; subsets of two, all equally likely.
    latencies, scores = np.array([2.0, 4.0, INF, 1.0, 8.0]), np.array([4.0, 2.0, 5.0, 1.0, 3.0])
    tops, regrets = [], []
    for first in range(5):
        for second in range(first):
            pair = sorted((first, second), key=lambda i: -scores[i])
            best = min(latencies[pair])
            tops.append(best / latencies[pair[0]])
            picked = latencies[pair[0]] if latencies[pair[0]] < INF else 8.0
            regrets.append(picked / best - 1)
    found = judge(scores, latencies, np.zeros(5, int), subsets=4000, size=2).summary()
    assert found["top1_subsets"] == pytest.approx(np.mean(tops), abs=0.03)
    assert found["regret1_subsets"] == pytest.approx(np.mean(regrets), abs=0.15)
    assert found["top5_subsets"] == pytest.approx(1)


def test_the_order_of_rows_and_the_names_of_groups_change_nothing():
    scores, latencies, groups, weights = made(1)
    wanted = judge(scores, latencies, groups, weights=weights, size=5).summary()
    order = np.random.default_rng(2).permutation(len(scores))
    moved = judge(
        scores[order], latencies[order], groups[order] + 100, weights=weights[order], size=5
    ).summary()
    assert moved == pytest.approx(wanted)


def test_subsets_are_the_same_for_every_model_and_differ_by_seed():
    _, latencies, groups, _ = made(3)
    perfect = judge(-latencies, latencies, groups, size=5).summary()
    assert perfect["top1_subsets"] == perfect["ndcg10_subsets"] == pytest.approx(1)
    assert perfect["regret1_subsets"] == pytest.approx(0)
    scores = np.random.default_rng(0).random(len(groups))
    other = [judge(scores, latencies, groups, size=5, subsets=3, seed=s) for s in (0, 0, 1)]
    values = [one.by_workload["top1_subsets"].tolist() for one in other]
    assert values[0] == values[1] != values[2]


def test_workloads_in_which_all_failed_do_not_count():
    latencies, groups = np.array([1.0, 2.0, INF, INF]), np.array([0, 0, 1, 1])
    found = judge(np.array([1.0, 2.0, 3.0, 4.0]), latencies, groups, weights=np.ones(4))
    assert found.summary()["workloads"] == 1
    assert found.summary()["top1"] == found.summary()["top1_total"] == 0.5
    assert np.isnan(found.by_workload["top1"][1])
    nothing = judge(np.zeros(2), latencies[2:], groups[2:]).summary()
    assert nothing["workloads"] == nothing["failed_picks"] == 0
    assert np.isnan(nothing["top1"])
    empty = judge(np.zeros(0), np.zeros(0), np.zeros(0, int), weights=np.zeros(0)).summary()
    assert empty["workloads"] == 0


def test_lengths_that_differ_are_refused():
    with pytest.raises(ValueError, match="got 3, 2 and 2"):
        judge(np.zeros(3), np.zeros(2), np.zeros(2, int))


def test_a_difference_is_paired_and_covers_what_a_normal_interval_does():
    scores, latencies, groups, _ = made(5, groups=60)
    better = judge(-np.minimum(latencies, 1.0), latencies, groups)
    worse = judge(scores, latencies, groups)
    found = compare(better, worse, "top1")
    each = better.by_workload["top1"] - worse.by_workload["top1"]
    assert found.workloads == 60
    assert found.mean == pytest.approx(each.mean())
    half = 1.96 * each.std() / np.sqrt(60)
    assert found.low == pytest.approx(each.mean() - half, abs=0.2 * half)
    assert found.high == pytest.approx(each.mean() + half, abs=0.2 * half)
    same = compare(worse, worse, "kendall_tau")
    assert same.mean == same.low == same.high == 0


def test_only_models_judged_on_the_same_workloads_are_compared():
    scores, latencies, groups, _ = made()
    one = judge(scores, latencies, groups)
    with pytest.raises(ValueError, match="different workloads"):
        compare(one, judge(scores, latencies, groups + 1), "top1")
    failed = judge(np.zeros(2), np.array([INF, INF]), np.zeros(2, int))
    assert compare(failed, failed, "top1").workloads == 0
