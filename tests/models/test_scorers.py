from __future__ import annotations

import numpy as np
import pytest

from tlp.models.gaussian import OnlineProcess
from tlp.models.labels import labels
from tlp.models.trees import OnlineTrees
from tlp.tuning.decisions import Decision, DecisionKind, factorisations
from tlp.tuning.space import DecisionSpace


@pytest.fixture
def space():
    return DecisionSpace(
        [
            [
                Decision(DecisionKind.TILE, factorisations(64, 4, 64), limit=64),
                Decision(DecisionKind.TILE, factorisations(32, 2, 64), limit=64),
                Decision(DecisionKind.CATEGORY, [(0,), (1,)], [0, 64]),
            ]
        ]
    )


@pytest.fixture(params=[OnlineTrees, OnlineProcess])
def make(request):
    return request.param


def truth(space, rows):
    """Fast where the innermost factor is eight and the loop is unrolled."""
    features = space.encode(rows)
    return 1e-3 * (1 + np.abs(features[:, 4] - 3) + (features[:, 7] == 0))


def test_labels_by_hand():
    got = labels(np.array([4.0, 1.0, 2.0, np.inf, 1e9]))
    np.testing.assert_allclose(got, [-2, 0, -1, -5, -4])


def test_all_failed_is_not_learned_as_perfect():
    assert (labels(np.full(3, np.inf)) == -5).all()


def test_learns_a_planted_rule_and_ranks_new_rows(space, make):
    rng = np.random.default_rng(0)
    rows = space.uniform(rng, 120)
    model = make(seed=0)
    assert not model.knows("t")
    model.learn("t", space, rows, truth(space, rows), np.ones(len(rows)))
    assert model.knows("t")
    fresh = space.uniform(rng, 2000)
    scores, seconds = model.score("t", space, fresh), truth(space, fresh)
    assert scores.dtype == np.float32
    top = seconds[np.argsort(-scores)[:20]]
    assert top.mean() < 1.3 * seconds.min()


def test_failures_rank_last(space, make):
    rng = np.random.default_rng(0)
    rows = space.uniform(rng, 200)
    seconds = truth(space, rows)
    failing = space.encode(rows)[:, 7] == 0
    seconds[failing] = np.inf
    model = make()
    model.learn("t", space, rows, seconds, np.ones(len(rows)))
    fresh = space.uniform(rng, 500)
    scores = model.score("t", space, fresh)
    fails = space.encode(fresh)[:, 7] == 0
    assert scores[fails].max() < np.median(scores[~fails])


def test_same_seed_same_scores(space, make):
    rows = space.uniform(np.random.default_rng(0), 50)
    scores = []
    for _ in range(2):
        model = make(seed=3)
        model.learn("t", space, rows, truth(space, rows), np.ones(len(rows)))
        scores.append(model.score("t", space, rows))
    np.testing.assert_array_equal(scores[0], scores[1])


@pytest.mark.parametrize("seconds", [np.ones(30), np.full(30, np.inf), np.ones(3)])
def test_nothing_to_tell_apart_stays_unknown(space, make, seconds):
    model = make()
    rows = space.uniform(np.random.default_rng(0), len(seconds))
    model.learn("t", space, rows, seconds, np.ones(len(rows)))
    assert not model.knows("t")
    assert (model.score("t", space, rows) == 0).all()


def test_a_value_learned_from_a_replay_keeps_the_model_usable(space, make):
    rng = np.random.default_rng(0)
    rows = space.uniform(rng, 60)
    model = make()
    model.learn("t", space, rows, truth(space, rows), np.ones(len(rows)))
    row = space.row(0, ((3, 1, 1, 1), (1, 32), (0,)))
    assert np.isfinite(model.score("t", space, row[None])).all()
