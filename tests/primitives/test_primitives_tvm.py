"""The language against traces that TVM itself makes and reads."""

from __future__ import annotations

import numpy as np
import pytest
from raw_logs import before_postprocessing, text

from tlp.metaschedule.replay import replay
from tlp.metaschedule.sketches import decision_space
from tlp.primitives.metaschedule import read_trace, write_trace
from tlp.primitives.vocabulary import METASCHEDULE_KINDS

OLDER = {"GetBlock", "SetAxisSeparator"}


def plain(value):
    """TVM's JSON values as Python's."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "value"):
        return value.value
    return [plain(item) for item in value]


def written(trace):
    primitives = read_trace(trace)
    again = write_trace(primitives)
    assert text(again) == text(before_postprocessing(trace))
    assert "unknown" not in {primitive.kind for primitive in primitives}
    return again, primitives


def test_the_vocabulary_has_tvms_names(tvm):
    from tvm.s_tir.schedule.instruction import InstructionKind

    for name in METASCHEDULE_KINDS.keys() - OLDER:
        assert InstructionKind.get(name).name == name
    for name in OLDER:
        with pytest.raises(Exception, match=name):
            InstructionKind.get(name)


def test_traces_of_tvm_come_back_and_make_the_same_program(conv_design):
    import tvm_ffi
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Trace

    space = decision_space(conv_design)
    checked = 0
    for row in space.uniform(np.random.default_rng(0), 8):
        done = replay(conv_design, *space.decisions(row))
        if done.refused_by:
            continue
        trace, primitives = written(plain(done.schedule.trace.as_json()))
        sampled = [p for p in primitives if p.kind.startswith("sample")]
        decided = {"sample_tile": lambda p: p.form.count("#", 0, p.form.index(";"))}
        # The decision leads an instruction's numbers: as many as its tile has factors, or one.
        read = [p.numbers[: decided.get(p.kind, lambda _: 1)(p)] for p in sampled]
        assert set(map(tuple, read)) >= set(done.decisions)

        schedule = Schedule(conv_design.mod)
        Trace.apply_json_to_schedule(trace, schedule)
        assert text(plain(schedule.trace.as_json())) == text(trace)
        reference = Schedule(conv_design.mod)
        done.schedule.trace.apply_to_schedule(reference, remove_postproc=True)
        assert tvm_ffi.structural_equal(schedule.mod, reference.mod)
        checked += 1
    assert checked >= 4


def test_instructions_that_search_does_not_use_come_back(tvm, matmul_mod):
    """Inputs of every shape: numbers, words, lists, index maps, conditions, quoted text."""
    from tvm.s_tir import Schedule

    schedule = Schedule(matmul_mod)
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    rows, columns, depth = schedule.get_loops(block)
    schedule.annotate(depth, "pragma_a", [1, 2])
    schedule.annotate(depth, "weight", 0.5)
    schedule.unroll(depth)
    schedule.reindex_cache_read(block, 0, "shared", lambda i, j, k: (k, i))
    schedule.cache_write(block, 0, "local")
    schedule.storage_align(block, 0, -2, 8, 4)
    schedule.unsafe_set_dtype(block, 0, "float16")
    schedule.unsafe_hide_buffer_access(block, "read", [0])
    schedule.reorder_block_iter_var(block, [1, 0, 2])
    schedule.transform_layout(block, ("write", 0), lambda i, j: (j, i))
    schedule.sample_partitioned_tile(rows, 3, 0, 4)
    schedule.split(rows, [None, 4], preserve_unit_iters=False, disable_predication=True)
    schedule.loop_partition(columns, [2, 4])
    _, primitives = written(plain(schedule.trace.as_json()))

    parts = {primitive.opcode: primitive for primitive in primitives}
    assert parts["CacheWrite"].tokens == ("local",)
    assert parts["ReindexCacheRead"].tokens == ("shared",)
    assert parts["UnsafeSetDType"].tokens == ("float16",)
    assert parts["UnsafeHideBufferAccess"].tokens == ("read",)
    assert parts["StorageAlign"].numbers[1:] == (0, -2, 8, 4)
    assert parts["GetSBlock"].names == ("root", "main")
    assert parts["Unroll"].tokens == ("unroll",)
    assert parts["Annotate"].numbers[1:] == (0.5,)
    assert parts["TransformLayout"].names[0].startswith("{")
