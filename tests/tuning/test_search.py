from __future__ import annotations

import numpy as np
import pytest

from tlp.models.scorer import RandomScorer
from tlp.tuning.decisions import Decision, DecisionKind, factorisations
from tlp.tuning.search import SearchSettings, propose
from tlp.tuning.space import DecisionSpace


def big_space():
    sketch = [
        Decision(DecisionKind.TILE, factorisations(extent, 4, 64), limit=64)
        for extent in (64, 48, 56)
    ]
    return DecisionSpace([sketch, sketch[:2]])


class Planted:
    """Knows the truth: the nearer the first decision is to index 7, the better."""

    name = "planted"

    def __init__(self):
        self.scored = []

    def knows(self, task):
        return True

    def learn(self, task, space, rows, latencies):
        pass

    def score(self, task, space, rows):
        self.scored.append(rows)
        return -np.abs(rows[:, 1] - 7).astype(np.float32)


def no_rows(space):
    return np.zeros((0, space.width), np.int32)


def run(space, scorer, tried=None, parents=None, wanted=20, **settings):
    tried = np.zeros(0, np.uint64) if tried is None else tried
    parents = no_rows(space) if parents is None else parents
    rng = np.random.default_rng(0)
    return propose(space, scorer, "t", tried, parents, rng, SearchSettings(**settings), wanted)


@pytest.mark.parametrize("with_parents", [False, True])
def test_scores_ten_thousand_distinct_rows_that_were_not_tried(with_parents):
    space = big_space()
    rng = np.random.default_rng(5)
    old = space.uniform(rng, 5000)
    scorer = Planted()
    parents = old[:20] if with_parents else None
    found = run(space, scorer, tried=space.hashes(old), parents=parents)
    seen = np.concatenate(scorer.scored)
    assert len(seen) == found.scored >= 10_000
    assert len(np.unique(seen, axis=0)) == len(seen)
    assert not np.isin(space.hashes(seen), space.hashes(old)).any()


def test_scores_all_that_are_left_of_a_small_space():
    space = DecisionSpace([[Decision(DecisionKind.TILE, factorisations(12, 3, 12), limit=12)]])
    everything = space.enumerate(1000)
    tried = space.hashes(everything[:10])
    found = run(space, Planted(), tried=tried, wanted=1000)
    # 12 = 2^2 * 3 has C(4,2) * C(3,2) = 18 factorisations in three parts.
    assert found.scored == len(found.rows) == 18 - 10


def test_nothing_is_left():
    space = DecisionSpace([[]])
    found = run(space, Planted(), tried=space.hashes(space.enumerate(5)))
    assert found.scored == 0
    assert found.rows.shape == (0, 1)


def test_best_first_with_the_asked_share_of_random_ones():
    space = big_space()
    found = run(space, Planted(), wanted=30, random_share=0.1, spread=1)
    assert found.random.sum() == 3
    assert found.random[9]
    chosen = found.scores[~found.random]
    assert (np.diff(chosen) <= 0).all()
    assert (chosen == 0).all()


def test_first_picks_cover_whole_cache_lines_where_uniform_ones_hardly_do():
    sketch = [
        Decision(DecisionKind.TILE, factorisations(extent, parts, 64), limit=64)
        for extent, parts in ((64, 4), (96, 4), (32, 2))
    ]
    steps = [0.0, 16.0, 64.0, 512.0]
    unroll = Decision(DecisionKind.CATEGORY, [(i,) for i in range(4)], meaning=steps)
    space = DecisionSpace([[*sketch, unroll]], line=16)
    first = run(space, RandomScorer(), wanted=50, picks=10, draws=10)
    uniform = run(space, RandomScorer(), wanted=50, picks=10, draws=1)
    assert first.random.all()
    assert uniform.random.all()
    use = space.line_use(first.rows)
    assert use[:10].min() > 0.7
    assert (np.diff(use) <= 0).all()
    assert space.line_use(uniform.rows[:10]).mean() < 0.6
    most = space.unrolls_most(first.rows)
    whole = use == use[0]
    assert most[whole].any()
    assert (np.diff(most[whole].astype(int)) >= 0).all()


def test_no_random_share_means_none():
    assert not run(big_space(), Planted(), wanted=30, random_share=0.0).random.any()


def test_picks_differ_in_as_many_decisions_as_asked():
    space = big_space()
    found = run(space, Planted(), wanted=10, random_share=0.0, spread=2)
    distances = [(a != b).sum() for i, a in enumerate(found.rows) for b in found.rows[:i]]
    assert min(distances) >= 2


def test_an_unknown_task_gets_uniform_picks():
    found = run(big_space(), RandomScorer(), wanted=10)
    assert found.random.all()
    assert set(found.rows[:, 0]) == {0, 1}


def test_same_seed_same_proposals():
    space = big_space()
    first, second = run(space, Planted()), run(space, Planted())
    np.testing.assert_array_equal(first.rows, second.rows)
