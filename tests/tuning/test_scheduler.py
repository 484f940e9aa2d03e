from __future__ import annotations

import math

import pytest

from tlp.tuning.scheduler import Progress, expected_gain, network_latency, next_task


def test_every_task_gets_a_first_round_in_order():
    tasks = [Progress(1, 1.0, [0.1]), Progress(1, 1e-6), Progress(9, 1.0)]
    assert next_task(tasks) == 1


def test_gain_by_hand():
    # Slope over the last three rounds (9 - 3) / 3 = 2, optimism 0.2 * 3 / 4; weight 2.
    progress = Progress(2, 20.0, [9.0, 7.0, 5.0, 3.0])
    assert expected_gain(progress) == pytest.approx(2 * (0.3 * 2 + 0.7 * 0.2 * 3 / 4))


def test_weight_decides_between_equal_tasks():
    tasks = [Progress(1, 2.0, [1.0, 1.0]), Progress(5, 2.0, [1.0, 1.0])]
    assert next_task(tasks) == 1


def test_a_gaining_task_beats_one_that_stands_still():
    tasks = [Progress(1, 9.0, [1.0, 1.0, 1.0]), Progress(1, 9.0, [2.0, 1.5, 1.0])]
    assert next_task(tasks) == 1


def test_done_tasks_get_nothing():
    assert next_task([Progress(1, 1.0, [1.0], done=True), Progress(1, 1.0, done=True)]) is None


def test_a_task_whose_candidates_all_fail_counts_with_its_start():
    progress = Progress(3, 2.0, [math.inf])
    assert progress.best == 2.0
    assert math.isfinite(expected_gain(progress))
    assert network_latency([progress, Progress(2, 9.0, [0.5])]) == pytest.approx(3 * 2 + 2 * 0.5)
