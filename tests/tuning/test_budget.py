from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlp.tuning.loop import Budget


def test_picks_by_hand():
    assert Budget().picks(1000, 10, waiting=7) == 10
    assert Budget(trials=40).picks(35, 10) == 5
    assert Budget(trials=40).picks(0, 10, waiting=5) == 8
    assert Budget(trials=40).picks(39, 10, waiting=3) == 1
    assert Budget(trials=40).picks(40, 10, waiting=3) == 0


@given(
    trials=st.integers(1, 400),
    picks=st.integers(1, 20),
    programs=st.lists(st.integers(1, 30), min_size=1, max_size=30),
)
def test_a_budget_of_a_trial_a_task_reaches_every_task(trials, picks, programs):
    budget, used, first_rounds = Budget(trials=trials), 0, []
    for done, found in enumerate(programs):
        taken = min(found, budget.picks(used, picks, waiting=len(programs) - done))
        first_rounds.append(taken)
        used += taken
    assert used <= trials
    assert all(first_rounds[: min(trials, len(programs))])


@pytest.mark.parametrize(("trials", "used", "left"), [(10, 0, 1.0), (10, 5, 0.5), (10, 12, 0.0)])
def test_share_left(trials, used, left):
    assert Budget(trials=trials).left(used) == pytest.approx(left)
