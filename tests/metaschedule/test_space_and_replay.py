from __future__ import annotations

import numpy as np
import pytest

from tlp.metaschedule.replay import replay
from tlp.metaschedule.sketches import decision_space, make_design, read_decisions, skeleton
from tlp.tuning.decisions import DecisionKind


def test_matmul_space_by_hand(matmul_design):
    space = decision_space(matmul_design)
    tiles, *_ = space.sketches
    kinds = [d.kind for d in tiles]
    assert kinds == [DecisionKind.TILE] * 3 + [DecisionKind.CATEGORY]
    # 32 = 2^5 and 48 = 2^4 * 3 in four parts, 64 = 2^6 in two, all within the limit of 64:
    # C(8,3), C(7,3) * C(4,3) and 7 tiles, and four unroll steps.
    assert [len(d) for d in tiles] == [56, 35 * 4, 7, 4]
    assert space.line == 16  # float32 in 64 bytes


def test_every_accepted_row_reads_back_as_its_program(conv_design):
    space = decision_space(conv_design)
    rng = np.random.default_rng(0)
    accepted = 0
    for row in space.uniform(rng, 24):
        sketch, decisions = space.decisions(row)
        done = replay(conv_design, sketch, decisions)
        if done.refused_by:
            continue
        accepted += 1
        trace = done.schedule.trace
        assert conv_design.sketch_of(trace) == (sketch, done.decisions)
        again = replay(conv_design, sketch, done.decisions)
        assert again.program == done.program
        assert again.decisions == done.decisions
    assert accepted >= 12


def test_replay_is_the_same_each_time(conv_design):
    space = decision_space(conv_design)
    for row in space.uniform(np.random.default_rng(1), 6):
        first, second = (replay(conv_design, *space.decisions(row)) for _ in range(2))
        assert (first.program, first.decisions) == (second.program, second.decisions)


def test_replay_repairs_an_impossible_location(conv_design):
    sketch = next(
        i for i, s in enumerate(decision_space(conv_design).sketches)
        if any(d.kind is DecisionKind.LOCATION for d in s)
    )  # fmt: skip
    space = decision_space(conv_design)
    row = space.uniform(np.random.default_rng(0), 50)
    row = row[row[:, 0] == sketch][0]
    _, decisions = space.decisions(row)
    position = next(
        i for i, d in enumerate(space.sketches[sketch]) if d.kind is DecisionKind.LOCATION
    )
    asked = (*decisions[:position], (99,), *decisions[position + 1 :])
    done = replay(conv_design, sketch, asked)
    assert done.decisions[position] != (99,)
    granted = space.row(sketch, done.decisions)
    assert space.decisions(granted)[1] == done.decisions


def test_stock_traces_of_the_task_convert_back(tvm, conv_mod, conv_design, small_target):
    """Traces that stock's own search strategy samples belong to our sketches."""
    from tvm.s_tir import meta_schedule as ms

    context = ms.TuneContext(
        mod=conv_mod,
        target=tvm.target.Target(small_target),
        space_generator="post-order-apply",
        search_strategy="replay-trace",
        rand_state=7,
        num_threads=1,
    )
    context.pre_tuning(max_trials=8, num_trials_per_iter=8)
    space = decision_space(conv_design)
    candidates = context.generate_measure_candidates()
    assert candidates is not None
    assert len(candidates) == 8
    for stock in candidates:
        sketch, decisions = conv_design.sketch_of(stock.sch.trace)
        space.row(sketch, decisions)
        assert len(decisions) == len(conv_design.sketches[sketch].sampling)
    context.post_tuning()


def test_a_foreign_trace_is_an_error(matmul_design, conv_design):
    space = decision_space(matmul_design)
    sketch, decisions = space.decisions(space.uniform(np.random.default_rng(0), 1)[0])
    trace = replay(matmul_design, sketch, decisions).schedule.trace
    with pytest.raises(ValueError, match="none of the task's sketches"):
        conv_design.sketch_of(trace)


def test_skeletons_are_the_same_in_every_generation(conv_mod, conv_design, small_target):
    again = make_design(conv_mod, small_target, seed=99)
    assert [s.skeleton for s in again.sketches] == [s.skeleton for s in conv_design.sketches]


def test_skeleton_ignores_decisions_and_reading_does_not(matmul_design):
    space = decision_space(matmul_design)
    rows = space.enumerate(10**6)
    rows = rows[rows[:, 0] == 0][[0, -1]]
    traces = [replay(matmul_design, *space.decisions(row)).schedule.trace for row in rows]
    assert skeleton(traces[0]) == skeleton(traces[1])
    assert read_decisions(traces[0]) != read_decisions(traces[1])
