from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlp.tuning.decisions import Decision, DecisionKind, factorisations
from tlp.tuning.space import DecisionSpace

TILE, CATEGORY, LOCATION = DecisionKind.TILE, DecisionKind.CATEGORY, DecisionKind.LOCATION


def tile(extent, parts, limit=64):
    return Decision(TILE, factorisations(extent, parts, limit), limit=limit)


def unroll():
    return Decision(CATEGORY, [(0,), (1,), (2,), (3,)], [0, 16, 64, 512])


def location():
    return Decision(LOCATION, [(value,) for value in range(-2, 4)])


@pytest.fixture
def space():
    return DecisionSpace([[tile(12, 2), tile(8, 4), unroll()], [tile(12, 2), location()]])


@given(st.integers(1, 200), st.integers(1, 4), st.integers(1, 64))
def test_factorisations_are_all_there_are(extent, parts, limit):
    divisors = [d for d in range(1, extent + 1) if extent % d == 0]
    by_force = {
        value
        for value in itertools.product(divisors, repeat=parts)
        if math.prod(value) == extent and value[-1] <= limit
    }
    found = factorisations(extent, parts, limit)
    assert set(found) == by_force
    assert len(found) == len(by_force)


def test_number_of_tiles_of_112_in_four_parts():
    # 112 = 2^4 * 7: C(7,3) * C(4,3) ways without a limit.
    assert len(factorisations(112, 4, 112)) == 35 * 4


def test_upper_bound_is_the_product_per_sketch(space):
    # 12 has 6 divisors, 8 = 2^3 gives C(6,3) = 20 tiles of four parts, 4 unroll steps.
    assert space.upper_bound == 6 * 20 * 4 + 6 * 6


def test_enumeration_has_every_row_once(space):
    rows = space.enumerate(1000)
    assert rows.shape == (space.upper_bound, space.width)
    assert len(np.unique(rows, axis=0)) == space.upper_bound
    assert space.enumerate(space.upper_bound - 1) is None


def test_enumerated_rows_become_decisions_and_back(space):
    for row in space.enumerate(1000):
        sketch, decisions = space.decisions(row)
        np.testing.assert_array_equal(space.row(sketch, decisions), row)


def valid(space, rows):
    for row in rows:
        decisions = space.sketches[row[0]]
        used = row[1 : 1 + len(decisions)]
        assert all(0 <= index < len(d) for index, d in zip(used, decisions, strict=True))
        assert (row[1 + len(decisions) :] == -1).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_sampling_mutation_and_crossover_stay_in_the_space(seed):
    space = DecisionSpace([[tile(12, 2), tile(8, 4), unroll()], [tile(12, 2), location()]])
    rng = np.random.default_rng(seed)
    rows = space.uniform(rng, 50)
    valid(space, rows)
    mutated = space.mutate(rng, rows)
    valid(space, mutated)
    np.testing.assert_array_equal(mutated[:, 0], rows[:, 0])
    changed = (mutated != rows).sum(axis=1)
    assert changed.max() <= 3
    children = space.crossover(rng, rows, 40)
    valid(space, children)
    assert len(children) <= 40


def test_mutation_changes_most_rows(space):
    rng = np.random.default_rng(0)
    rows = space.uniform(rng, 400)
    assert (space.mutate(rng, rows) != rows).any(axis=1).mean() > 0.6


def test_mutation_leaves_its_input_alone(space):
    rng = np.random.default_rng(0)
    rows = space.uniform(rng, 20)
    before = rows.copy()
    space.mutate(rng, rows)
    np.testing.assert_array_equal(rows, before)


def test_uniform_sampling_reaches_every_value_alike(space):
    rows = space.uniform(np.random.default_rng(1), 12_000)
    first = rows[rows[:, 0] == 0]
    share = np.bincount(first[:, 2], minlength=20) / len(first)
    assert share.min() > 0.7 / 20
    assert share.max() < 1.3 / 20


def test_tile_neighbours_move_one_prime():
    decision = tile(12, 2)
    rng = np.random.default_rng(0)
    start = decision.index_of((2, 6))
    near = decision.neighbours(rng, np.full(200, start, np.int32))
    # From (2, 6): move a 2 either way, or a 3 from the second factor to the first.
    assert {decision.values[index] for index in near} == {(1, 12), (4, 3), (6, 2)}


def test_hashes_differ_for_all_rows_of_a_large_space():
    space = DecisionSpace([[tile(64, 4), tile(64, 4), unroll(), location()]])
    rows = np.unique(space.uniform(np.random.default_rng(0), 50_000), axis=0)
    assert len(np.unique(space.hashes(rows))) == len(rows)


def test_hashes_tell_sketches_apart(space):
    first = space.row(0, ((1, 12), (1, 1, 1, 8), (0,)))
    second = space.row(1, ((1, 12), (-2,)))
    assert len(np.unique(space.hashes(np.stack([first, second])))) == 2


def test_unknown_tile_brings_all_tiles_of_its_extent(space):
    before = len(space.sketches[1][0])
    row = space.row(1, ((3, 6), (0,)))
    # 18 has 6 divisors.
    assert len(space.sketches[1][0]) == before + 6
    assert space.decisions(row) == (1, ((3, 6), (0,)))


def test_unknown_location_is_added_and_old_rows_keep_their_meaning(space):
    old = space.row(1, ((3, 4), (1,)))
    space.row(1, ((3, 4), (9,)))
    assert space.decisions(old) == (1, ((3, 4), (1,)))
    assert (9,) in space.sketches[1][1].values


def test_unknown_category_and_wrong_length_are_errors(space):
    with pytest.raises(ValueError, match="category"):
        space.row(0, ((1, 12), (1, 1, 1, 8), (7,)))
    with pytest.raises(ValueError, match="sketch 0 has 3 decisions, 1 were given"):
        space.row(0, ((1, 12),))


def test_locations_that_replays_refuse_become_rare():
    space = DecisionSpace([[location()]])
    asked, granted = space.row(0, ((3,),)), space.row(0, ((1,),))
    for _ in range(30):
        space.record_replay(asked, granted)
    drawn = space.uniform(np.random.default_rng(0), 4000)[:, 1]
    share = np.bincount(drawn, minlength=6) / len(drawn)
    assert share[space.row(0, ((3,),))[1]] < 0.02
    assert share[space.row(0, ((1,),))[1]] > 0.15


def test_features_by_hand():
    space = DecisionSpace([[tile(12, 2), tile(8, 2), unroll()], [tile(8, 2), location()]])
    assert space.feature_names == [
        *("sketch0", "sketch1"),
        *("tile0.0", "tile0.1", "tile1.0", "tile1.1"),
        "category0.0",
        "location0.0",
        *("level2.0", "level2.1"),
    ]
    rows = np.stack([space.row(0, ((3, 4), (2, 4), (2,))), space.row(1, ((1, 8), (-1,)))])
    nan = math.nan
    expected = [
        [1, 0, math.log2(3), 2, 1, 2, math.log2(65), nan, math.log2(3) + 1, 4],
        [0, 1, 0, 3, nan, nan, nan, -1, 0, 3],
    ]
    np.testing.assert_allclose(space.encode(rows), expected, rtol=1e-6)


def test_largest_unroll_step_by_hand():
    steps = Decision(DecisionKind.CATEGORY, [(0,), (1,), (2,)], meaning=[64.0, 512.0, 16.0])
    sketches = [[tile(64, 4), steps], [tile(64, 4)]]
    space = DecisionSpace(sketches, line=16)
    whole = (1, 1, 1, 64)
    rows = np.stack([space.row(0, (whole, (i,))) for i in range(3)] + [space.row(1, (whole,))])
    assert space.unrolls_most(rows).tolist() == [False, True, False, False]
    assert not DecisionSpace(sketches).unrolls_most(rows).any()


def test_share_of_cache_lines_by_hand():
    reduction = tile(16, 2)
    space = DecisionSpace([[tile(64, 4), tile(80, 4), reduction], [reduction]], line=16)
    last = [1, 8, 16, 20, 80]
    rows = [space.row(0, ((1, 1, 1, 64), (1, 1, 80 // inner, inner), (16, 1))) for inner in last]
    rows.append(space.row(1, ((16, 1),)))
    expected = [1 / 16, 1 / 2, 1, 20 / 32, 1, 1]  # 80 values fill five lines
    np.testing.assert_allclose(space.line_use(np.stack(rows)), expected)
    without = DecisionSpace(space.sketches)
    np.testing.assert_array_equal(without.line_use(np.stack(rows)), np.ones(6))


def test_a_space_without_sketches_or_a_decision_without_values_is_an_error():
    with pytest.raises(ValueError, match="at least one sketch"):
        DecisionSpace([])
    with pytest.raises(ValueError, match="at least one value"):
        Decision(TILE, [])


def test_a_task_without_decisions_has_one_row():
    space = DecisionSpace([[]])
    assert space.upper_bound == 1
    np.testing.assert_array_equal(space.enumerate(10), [[0]])
    assert space.encode(space.enumerate(10)).shape == (1, 1)
