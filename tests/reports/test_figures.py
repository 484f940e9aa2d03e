from __future__ import annotations

import math

import numpy as np
import pytest
from folders import HOST, MS, candidate
from hypothesis import given, settings
from hypothesis import strategies as st

from tlp.records.status import Status
from tlp.reports.figures import (
    Improvement,
    RoundSpan,
    TopPicks,
    best_so_far,
    failures,
    network_curve,
    placed_picks,
    predicted,
    rank_correlation,
    round_correlation,
    spans_of,
    top_picks,
)
from tlp.reports.history import History, RoundTime, TaskHistory, read_history
from tlp.reports.report import make_report


def task(*candidates, key="a", weight=1, start=math.inf):
    return TaskHistory(key, f"conv_{key}", weight, 4e6, 1, start, candidates=candidates)


def picks(round, *pairs):
    """Candidates of one round: score and latency in milliseconds."""
    return [candidate("a", round, latency, predicted=score) for score, latency in pairs]


def test_the_curve_sums_weights_times_best_latencies(two_tasks):
    curve = network_curve(read_history(two_tasks.root).tasks)
    # 2 x 8 + 4, then a to 4 ms, b to 2 (its 1 ms is unverified), a to 3, a to 2.
    assert [(step.seconds, step.task) for step in curve] == [
        *((0.0, ""), (1.0, "conv_a"), (4.0, "conv_b"), (5.0, "conv_a"), (6.0, "conv_a")),
    ]
    assert [1e3 * step.latency for step in curve] == pytest.approx([20, 12, 10, 8, 6])


def test_the_curve_begins_when_every_task_has_a_latency():
    first = task(candidate("a", 1, 3.0, elapsed_s=1.0, id=1), weight=2)
    second = task(candidate("b", 1, 5.0, elapsed_s=2.0, id=2), key="b")
    assert network_curve([first, second]) == [Improvement(2.0, pytest.approx(11 * MS), "conv_b")]
    nothing = task(candidate("c", 1, status=Status.BUILD_ERROR), key="c")
    assert network_curve([first, nothing]) == [Improvement(1.0, pytest.approx(6 * MS), "conv_a")]
    assert network_curve([nothing]) == network_curve([]) == []


def test_best_so_far_takes_good_candidates_only():
    row = [
        candidate("a", 1, status=Status.RUN_ERROR),
        candidate("a", 1, 5.0),
        candidate("a", 1, 1.0, Status.SLOW),
        candidate("a", 1, 2.0, verified=False),
        candidate("a", 1, 3.0),
        candidate("a", 1, 4.0),
    ]
    assert best_so_far(row).tolist() == pytest.approx(
        [math.inf, 5 * MS, 5 * MS, 5 * MS, 3 * MS, 3 * MS]
    )
    assert best_so_far([]).tolist() == []


def test_measured_scores_are_log2_of_best_over_latency():
    found = predicted(
        task(
            candidate("a", 1, 1.0),
            candidate("a", 2, 4.0, predicted=-1.5),
            candidate("a", 2, 2.0, Status.SLOW, predicted=0.5),
            candidate("a", 2, status=Status.BUILD_CRASH, predicted=9.0),
        )
    )
    assert found.scores.tolist() == [-1.5, 0.5]
    assert found.measured.tolist() == pytest.approx([-2.0, -1.0])


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-4, 4), st.floats(-10, 10, allow_subnormal=False)),
        min_size=3,
        max_size=30,
    )
)
def test_rank_correlation_is_spearmans(pairs):
    from scipy.stats import spearmanr

    first, second = np.array(pairs, np.float64).T
    found = rank_correlation(first, second)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        assert found is None
    else:
        assert found == pytest.approx(spearmanr(first, second).statistic, abs=1e-9)


def test_rank_correlation_is_the_mean_within_rounds():
    right = picks(2, (3.0, 1.0), (2.0, 2.0), (1.0, 4.0))
    reversed_ = picks(3, (-7.0, 1.0), (-6.0, 2.0), (-5.0, 4.0))
    constant = picks(4, (0.0, 1.0), (0.0, 2.0), (0.0, 3.0))
    assert round_correlation(predicted(task(*right))) == pytest.approx(1.0)
    assert round_correlation(predicted(task(*right, *reversed_))) == pytest.approx(0.0)
    assert round_correlation(predicted(task(*right, *constant))) == pytest.approx(1.0)
    assert round_correlation(predicted(task(*constant))) is None
    assert round_correlation(predicted(task())) is None


def test_top_picks_count_rounds_whose_fastest_was_predicted_among_the_first_three():
    hit = picks(2, (5.0, 9.0), (4.0, 8.0), (3.0, 1.0), (2.0, 7.0), (1.0, 6.0))
    miss = picks(3, (5.0, 9.0), (4.0, 8.0), (3.0, 7.0), (2.0, 1.0))
    constant = picks(4, *[(0.0, float(latency)) for latency in range(1, 7)])
    no_choice = picks(5, (3.0, 1.0), (2.0, 2.0), (1.0, 3.0))
    found = top_picks(predicted(task(*hit, *miss, *constant, *no_choice)))
    assert found == TopPicks(1, 3, pytest.approx(3 / 5 + 3 / 4 + 3 / 6))
    assert top_picks(predicted(task())) == TopPicks(0, 0, 0.0)


def test_placed_picks_compare_with_the_fastest_of_their_round():
    rows = [*picks(2, (1.0, 4.0), (2.0, 2.0), (0.0, 8.0)), *picks(3, (1.0, 1.0))]
    found = placed_picks([task(*rows)])
    assert [(pick.place, pick.speed) for pick in found] == [
        *((2, pytest.approx(0.5)), (1, pytest.approx(1.0)), (3, pytest.approx(0.25))),
    ]


def test_failures_by_status_and_cause_with_an_example():
    def crash(key, **more):
        return candidate(key, 1, status=Status.RUN_CRASH, **more)

    refused = candidate("a", 1, status=Status.REFUSED, cause="VerifyGPUCode")
    history = History(
        None,
        (
            task(crash("a"), refused, candidate("a", 1, 1.0)),
            task(crash("b", error="signal 11"), crash("b", cause="x"), key="b"),
        ),
        (),
        0.0,
        HOST,
    )
    first, *rest = failures(history)
    assert (first.status, first.cause, first.count) == ("run_crash", "", 2)
    assert (first.tasks, first.example) == (("conv_a", "conv_b"), "signal 11")
    assert [(f.status, f.cause, f.count, f.example) for f in rest] == [
        *(("refused", "VerifyGPUCode", 1, ""), ("run_crash", "x", 1, "")),
    ]


def test_neighbouring_rounds_are_taken_together():
    rounds = [RoundTime("a", number, {"run": float(number)}) for number in range(1, 6)]
    assert [span.seconds for span in spans_of(rounds)] == [{"run": float(n)} for n in range(1, 6)]
    assert spans_of(rounds, most=2) == [
        RoundSpan(1, 3, {"run": 2.0}),
        RoundSpan(4, 5, {"run": 4.5}),
    ]
    assert spans_of([]) == []


def test_the_report_has_what_the_folder_tells(two_tasks):
    two_tasks.summary(trials=7)
    report = make_report(read_history(two_tasks.root))
    assert report["complete"]
    assert (report["trials"], report["failures"], report["rounds"]) == (7, 1, 3)
    assert report["sum_of_tasks_ms"] == pytest.approx(6.0)
    assert report["latency_ms"] == {"tuned": 8.0, "pytorch": 16.0, "untuned": 24.0}
    assert report["seconds_by_phase"] == {"search": 0.5, "build": 4.5, "run": 3.0}
    a, b = report["tasks"]
    assert (a["trials"], a["failures"], a["refused"]) == (5, 1, 0)
    assert (a["best_us"], a["start_us"]) == pytest.approx((2000.0, 8000.0))
    assert a["gflops"] == pytest.approx(4e6 / 2e-3 / 1e9)
    assert a["statuses"] == {"ok": 3, "slow": 1, "run_crash": 1}
    assert (b["trials"], b["refused"]) == (2, 1)


def test_the_report_of_an_unfinished_run_claims_nothing(two_tasks):
    report = make_report(read_history(two_tasks.root))
    assert not report["complete"]
    assert report["network"]["source"] == "mobilenet_v2"
    assert report["host"] == {"cpu": "A CPU", "cores": 2}
    for key in ("latency_ms", "output_error", "stopped", "finished"):
        assert report[key] is None
