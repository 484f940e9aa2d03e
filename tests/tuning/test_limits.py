"""Limits on rows, against numbers worked out by hand or by brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlp.tuning.decisions import Decision, DecisionKind, factorisations
from tlp.tuning.limits import Extent, Product, Range, SharedBuffer, SketchLimits, Span
from tlp.tuning.search import SearchSettings, propose
from tlp.tuning.space import DecisionSpace

TILE = DecisionKind.TILE
# A matrix product of 64 x 48 x 32: the second factors are threads, the others lie in a thread.
ROWS, COLUMNS, DEPTH = 0, 1, 2
THREADS = Product(1, ((ROWS, 1), (COLUMNS, 1)))


def axis(*factors):
    return Span("tile", tile=Product(1, factors))


def matmul_limits(shared_bytes=2000, least=8):
    rows = Extent(1, axis((ROWS, 1), (ROWS, 2)), 64)
    columns = Extent(1, axis((COLUMNS, 1), (COLUMNS, 2)), 48)
    depth = Extent(1, axis((DEPTH, 1)), 32)
    return SketchLimits(
        ranges=(Range(THREADS, least, 64),),
        shared=(SharedBuffer(4, (rows, depth)), SharedBuffer(4, (depth, columns))),
        shared_bytes=shared_bytes,
    )


def matmul_decisions():
    sizes = ((64, 3), (48, 3), (32, 2))
    return [Decision(TILE, factorisations(e, parts, 64), limit=64) for e, parts in sizes]


def allowed_by_hand(decisions, shared_bytes=2000):
    (_, r1, r2), (_, c1, c2), (_, d1) = decisions
    threads, used = r1 * c1, 4 * (r1 * r2 * d1 + d1 * c1 * c2)
    return 8 <= threads <= 64 and used <= shared_bytes


def constant(factor):
    raise AssertionError(f"nothing is decided here, but {factor} was asked for")


def fixed(**numbers):
    return lambda factor: np.array([numbers[f"d{factor[0]}_{factor[1]}"]])


def test_a_tile_of_a_strided_window_reads_as_far_as_worked_out():
    # Eight outputs with stride 2 and three taps: the last one starts at 14 and ends at 16.
    index = Span("+", (Span("*", (axis((0, 0)),), 2), axis((1, 0))))
    assert Extent(1, index, 230).evaluate(fixed(d0_0=8, d1_0=3)).item() == 17
    assert Extent(1, index, 16).evaluate(fixed(d0_0=8, d1_0=3)).item() == 16
    assert Extent(16, None, 64).evaluate(constant).item() == 16


SPANS = st.recursive(
    st.integers(0, 2).map(lambda i: axis((i, 0))),
    lambda inner: (
        st.tuples(inner, inner).map(lambda pair: Span("+", pair))
        | st.tuples(inner, st.integers(-3, 3)).map(lambda p: Span("*", (p[0],), p[1]))
        | st.tuples(inner, st.integers(1, 4)).map(lambda p: Span("//", (p[0],), p[1]))
        | st.tuples(inner, st.integers(1, 4)).map(lambda p: Span("%", (p[0],), p[1]))
    ),
    max_leaves=4,
)


def value_at(span, point):
    if span.operator == "tile":
        return point[span.tile.factors[0][0]]
    values = [value_at(operand, point) for operand in span.operands]
    if span.operator == "+":
        return sum(values)
    (value,) = values
    return {
        "*": value * span.constant,
        "//": value // (span.constant or 1),
        "%": value % (span.constant or 1),
    }[span.operator]


@given(SPANS, st.tuples(*[st.integers(1, 5)] * 3))
@settings(max_examples=150, deadline=None)
def test_spans_contain_every_index_of_the_tile(span, tiles):
    low, high = span.evaluate(lambda factor: np.array([tiles[factor[0]]]))
    found = [value_at(span, point) for point in itertools.product(*map(range, tiles))]
    assert np.min(low) <= min(found)
    assert max(found) <= np.max(high)
    if span.operator == "tile":
        assert (np.max(low), np.max(high)) == (min(found), max(found))


def test_every_row_is_judged_as_by_hand():
    whole = DecisionSpace([matmul_decisions()])
    space = DecisionSpace([matmul_decisions()], [matmul_limits()])
    rows = whole.enumerate(10**6)
    by_hand = np.array([allowed_by_hand(whole.decisions(row)[1]) for row in rows])
    assert 0 < by_hand.sum() < len(rows) / 2
    np.testing.assert_array_equal(space.allowed(rows), by_hand)
    assert whole.allowed(rows).all()
    np.testing.assert_array_equal(space.enumerate(len(rows)), rows[by_hand])


def test_a_space_is_sieved_unless_too_many_rows_are_left():
    space = DecisionSpace([matmul_decisions()], [matmul_limits()])
    count = len(space.enumerate(10**6))
    assert len(space.enumerate(count)) == count < space.upper_bound
    assert space.enumerate(count - 1) is None
    unlimited = DecisionSpace([matmul_decisions()])
    assert unlimited.enumerate(unlimited.upper_bound - 1) is None


def test_categories_are_judged_by_their_meaning():
    threads = Decision(DecisionKind.CATEGORY, [(0,), (1,), (2,)], [32, 64, 2048])
    space = DecisionSpace([[threads]], [SketchLimits((Range(Product(1, ((0, 0),)), 1, 1024),))])
    assert space.allowed(np.array([[0, 0], [0, 1], [0, 2]], np.int32)).tolist() == [1, 1, 0]


def test_values_that_a_replay_brings_are_judged_too():
    space = DecisionSpace([matmul_decisions()], [matmul_limits()])
    row = space.row(0, ((1, 8, 9), (6, 8, 1), (16, 2)))  # 72 rows: a tile of another extent
    assert space.allowed(row[None, :]).tolist() == [allowed_by_hand(space.decisions(row)[1])]


def test_random_rows_and_mutations_keep_to_the_limits_and_sketches_come_alike():
    free = SketchLimits()
    space = DecisionSpace([matmul_decisions()] * 2, [matmul_limits(500), free])
    rng = np.random.default_rng(0)
    rows = space.uniform(rng, 4000)
    assert len(rows) == 4000
    assert space.allowed(rows).all()
    assert 1800 < (rows[:, 0] == 0).sum() < 2200
    everything = space.uniform(rng, 4000, limited=False)
    assert 0 < (~space.allowed(everything)).sum() < 2200
    mutated = space.mutate(rng, rows)
    assert (mutated != rows).any(axis=1).mean() > 0.7
    assert space.allowed(mutated).mean() > 0.95
    assert space.allowed(mutated).mean() > space.allowed(space._mutate(rng, rows)).mean()


def test_a_sketch_without_any_allowed_row_ends_the_search_for_one():
    never = SketchLimits((Range(Product(), 2),))
    space = DecisionSpace([matmul_decisions()] * 2, [never, SketchLimits()])
    rows = space.uniform(np.random.default_rng(0), 100)
    assert set(rows[:, 0]) == {1}
    assert 20 < len(rows) < 80


class ByThreads:
    """The more threads the better: pulls the search towards what the limits forbid."""

    name = "threads"

    def __init__(self):
        self.scored = []

    def knows(self, task):
        return True

    def learn(self, task, space, rows, latencies):
        pass

    def score(self, task, space, rows):
        self.scored.append(rows)
        tables = [decision.numbers for decision in space.sketches[0]]
        return THREADS.evaluate(lambda f: tables[f[0]][:, f[1]][rows[:, 1 + f[0]]]).astype("f4")


@pytest.mark.parametrize("with_parents", [False, True])
def test_ten_thousand_allowed_rows_are_scored(with_parents):
    big = [
        Decision(TILE, factorisations(size, parts, 64), limit=64)
        for size, parts in ((512, 5), (768, 5), (512, 3))
    ]
    space = DecisionSpace([big], [matmul_limits(1000, least=64)])
    rng = np.random.default_rng(0)
    share = space.allowed(space.uniform(rng, 20_000, limited=False)).mean()
    assert 0.001 < share < 0.1
    parents = space.uniform(rng, 20 if with_parents else 0)
    scorer = ByThreads()
    tried = space.hashes(parents)
    found = propose(space, scorer, "t", tried, parents, rng, SearchSettings(), 50)
    seen = np.concatenate(scorer.scored)
    assert len(np.unique(seen, axis=0)) == found.scored >= 10_000
    assert space.allowed(seen).all()
    assert found.scores.max() == 64
