"""Timing at full pace, on a core whose pace is known."""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlp.host import available_cores
from tlp.measuring.pace import Pace, repeat_at_full_pace


class Core:
    """A core with a clock of its own: ``slowed`` says at which times it runs at half pace."""

    def __init__(self, slowed):
        self.now, self.slowed = 0.0, slowed

    def work(self, seconds):
        begin = self.now
        self.now += seconds * (2 if self.slowed(begin) else 1)
        return self.now - begin

    def clock(self):
        return self.now


def timed(slowed, wanted, patience=100.0, warm=True):
    core = Core(lambda now: False)
    pace = Pace(lambda: core.work(0.2e-3))
    if warm:
        pace.full()
        core.now = 0.0
    core.slowed = slowed
    return repeat_at_full_pace(lambda: core.work(2e-3), pace, wanted, patience, core.clock), core


def test_a_quiet_core_is_timed_without_waiting():
    repeats, core = timed(lambda now: False, 5)
    assert repeats.counted == pytest.approx((2e-3,) * 5)
    assert repeats.disturbed == ()
    assert core.now == pytest.approx(5 * 2e-3 + 6 * 0.2e-3)


def test_a_slow_stretch_is_waited_out():
    repeats, core = timed(lambda now: now < 1.0, 5)
    assert repeats.counted == pytest.approx((2e-3,) * 5)
    assert core.now > 1.0


def test_a_repeat_that_a_slow_stretch_touches_does_not_count():
    # It is slowed from 3 to 9 ms: the second repeat begins before, the probe after it tells.
    repeats, _ = timed(lambda now: 3e-3 < now < 9e-3, 4)
    assert repeats.counted == pytest.approx((2e-3,) * 4)
    assert len(repeats.disturbed) == 1


def test_without_a_quiet_moment_the_fastest_repeats_count_after_the_patience():
    repeats, core = timed(lambda now: True, 3, patience=0.5)
    assert repeats.counted == pytest.approx((4e-3,) * 3)
    assert core.now == pytest.approx(0.5 + 3 * 4e-3, abs=2e-3)


def test_a_core_that_becomes_slower_for_good_is_at_full_pace_again():
    core = Core(lambda now: now > 0.5)
    pace = Pace(lambda: core.work(0.2e-3))
    assert pace.full()
    core.now = 0.6
    assert not pace.full()
    for _ in range(31_000):
        pace.full()
    assert pace.full()


@given(st.lists(st.floats(1e-4, 0.02), min_size=1, max_size=40), st.integers(1, 8))
def test_as_many_repeats_count_as_were_wanted_whatever_the_core_does(spans, wanted):
    edges, total = [], 0.0
    for span in spans:
        total += span
        edges.append(total)

    def slowed(now):
        return sum(edge <= now for edge in edges) % 2 == 0 and now < total

    repeats, core = timed(slowed, wanted, patience=0.1)
    assert len(repeats.counted) == wanted
    # A stretch shorter than a repeat can hide between two probes; it costs at most the repeat.
    assert all(2e-3 - 1e-9 <= value <= 4e-3 + 1e-9 for value in repeats.counted + repeats.disturbed)
    assert core.now <= 0.1 + (wanted + 1) * 4.4e-3 + 1e-3


def _spin(core):
    os.sched_setaffinity(0, {core})
    while True:
        pass


def test_another_process_on_the_core_is_noticed():
    core = available_cores()[-1]
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        pace = Pace()
        quiet = [pace.full() for _ in range(300)]
        other = multiprocessing.get_context("fork").Process(target=_spin, args=(core,))
        other.start()
        try:
            time.sleep(0.2)
            shared = [pace.full() for _ in range(300)]
        finally:
            other.kill()
            other.join()
    finally:
        os.sched_setaffinity(0, allowed)
    # Each is held up every few milliseconds, for as long; other guests may disturb both counts.
    assert any(quiet)
    assert not all(shared)
