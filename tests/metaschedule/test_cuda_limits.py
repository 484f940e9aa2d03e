"""What sketches for a GPU say of threads and shared memory, against the postprocessors."""

from __future__ import annotations

import numpy as np
import pytest

from tlp.metaschedule.replay import replay
from tlp.metaschedule.sketches import decision_space, make_design
from tlp.metaschedule.targets import parse_target

A100 = "nvidia/nvidia-a100"


def design_of(tvm, tensors, target=A100):
    function = tvm.te.create_prim_func(tensors).with_attr("global_symbol", "main")
    return make_design(tvm.IRModule({"main": function}), parse_target(target))


@pytest.fixture(scope="module")
def matmul(tvm):
    from tvm.s_tir.meta_schedule.testing import te_workload

    return design_of(tvm, te_workload.matmul(128, 128, 128))


def accepted(design, space, rows):
    return np.array([not replay(design, *space.decisions(row)).refused_by for row in rows])


def acceptance_and_recall(design, uniform, filtered, seed=0):
    """As `benchmarks/cuda_spaces.py` measures them, with the number of accepted uniform rows."""
    space = decision_space(design)
    assert not space.line  # neighbouring threads share a line on a GPU, not one thread's values
    rng = np.random.default_rng(seed)
    rows = space.uniform(rng, uniform, limited=False)
    good, allowed = accepted(design, space, rows), space.allowed(rows)
    kept = accepted(design, space, space.uniform(rng, filtered))
    return kept.mean(), (good & allowed).sum() / good.sum(), good.sum()


def test_every_allowed_row_of_a_matmul_becomes_a_program_and_no_other_does(matmul):
    acceptance, recall, found = acceptance_and_recall(matmul, 160, 40)
    assert found >= 10
    assert acceptance >= 0.95
    assert recall >= 0.95


def test_a_strided_padded_convolution(tvm):
    from tvm.s_tir.meta_schedule.testing import te_workload

    design = design_of(tvm, te_workload.conv2d_nhwc(1, 28, 28, 16, 32, 3, 2, 1))
    acceptance, recall, found = acceptance_and_recall(design, 150, 30)
    assert found >= 4
    assert acceptance >= 0.95
    assert recall >= 0.95


def test_grouped_convolutions_index_by_quotients(tvm):
    from tvm.s_tir.meta_schedule.testing import te_workload

    design = design_of(tvm, te_workload.conv2d_nhwc(1, 14, 14, 16, 32, 3, 1, 1, 1, 4))
    acceptance, recall, _ = acceptance_and_recall(design, 60, 16)
    assert acceptance >= 0.9
    assert recall >= 0.95


def test_tensor_cores_run_a_warp_for_each_thread_row(tvm):
    from tvm.s_tir.meta_schedule.testing import te_workload

    half = {"in_dtype": "float16", "out_dtype": "float16"}
    design = design_of(tvm, te_workload.matmul(256, 256, 256, **half))
    kinds = {i.kind.name for sketch in design.sketches for i in sketch.instructions}
    assert "Blockize" in kinds
    acceptance, recall, found = acceptance_and_recall(design, 30, 16)
    assert found >= 5
    assert acceptance >= 0.5
    assert recall >= 0.95


def matmul_row(space, sketch, depth, unroll=0):
    """2 x 4 blocks, 8 x 16 threads; rounds of the outer reduction loop as asked."""
    return space.row(
        sketch,
        (
            (1, 1, 1, 1, 1),
            (2, 2, 8, 1, 4),
            (4, 1, 16, 2, 1),
            depth,
            (3,),
            (1,),
            (unroll,),
        ),
    )


def test_threads_and_bytes_of_a_row_by_hand(tvm):
    """Batch 1: the block's tile is 64 x 32, and 16 or 128 of the depth lie in shared memory."""
    from benchmarks.common import te_task

    design = make_design(te_task("GMM").mod, parse_target(A100))
    space = decision_space(design)
    plain, pipelined = 0, 1
    row = matmul_row(space, plain, (8, 4, 4))
    limits = design.sketches[plain].limits
    tables = [decision.numbers for decision in space.sketches[plain]]

    def lookup(factor):
        return tables[factor[0]][:, factor[1]][row[1 + factor[0]]]

    (threads,) = limits.ranges
    assert (threads.product.evaluate(lookup), threads.least, threads.most) == (128, 32, 1024)
    used = [int(buffer.evaluate(lookup)) for buffer in limits.shared]
    assert used == [4 * 64 * 16, 4 * 16 * 32]
    # A pipeline of three stages keeps three copies of both, and needs a second round.
    verdicts = {
        (sketch, depth): bool(space.allowed(matmul_row(space, sketch, depth)[None, :])[0])
        for sketch in (plain, pipelined)
        for depth in ((8, 4, 4), (1, 4, 32), (2, 8, 8))
    }
    assert verdicts == {
        (plain, (8, 4, 4)): True,
        (plain, (1, 4, 32)): True,  # 4 * 128 * 96 = 49152 bytes, all there is
        (plain, (2, 8, 8)): True,
        (pipelined, (8, 4, 4)): True,
        (pipelined, (1, 4, 32)): False,
        (pipelined, (2, 8, 8)): False,  # 3 * 4 * 64 * 96 = 73728 bytes
    }
    for (sketch, depth), allowed in verdicts.items():
        done = replay(design, *space.decisions(matmul_row(space, sketch, depth)))
        assert (not done.refused_by) == allowed


def test_wide_copies_are_narrowed_and_no_unroll_step_is_refused(tvm):
    from tvm.s_tir.meta_schedule.testing import te_workload

    double = {"in_dtype": "float64", "out_dtype": "float64"}
    design = design_of(tvm, te_workload.matmul(64, 64, 64, **double))
    space = decision_space(design)
    base = ((2, 1, 8, 2, 2), (2, 1, 8, 2, 2), (4, 4, 4))
    for lanes in range(4):
        for unroll in (0, 7):
            row = space.row(0, (*base, (lanes,), (lanes,), (unroll,)))
            assert space.allowed(row[None, :])[0]
            assert not replay(design, *space.decisions(row)).refused_by


def test_less_shared_memory_allows_fewer_rows(tvm, matmul):
    from tvm.s_tir.meta_schedule.testing import te_workload

    short = "cuda -arch=sm_80 -max_threads_per_block=256 -max_shared_memory_per_block=8192"
    small = decision_space(design_of(tvm, te_workload.matmul(128, 128, 128), short))
    large = decision_space(matmul)
    rows = large.uniform(np.random.default_rng(0), 3000)
    assert large.allowed(rows).all()
    assert 0 < small.allowed(rows).sum() < 2000
    assert large.allowed(small.uniform(np.random.default_rng(0), 500)).all()


def test_elementwise_and_reducing_workloads(tvm):
    from tvm.s_tir.meta_schedule.testing import te_workload

    design = design_of(tvm, te_workload.softmax_mn(64, 64))
    space = decision_space(design)
    rows = space.uniform(np.random.default_rng(0), 12, limited=False)
    np.testing.assert_array_equal(accepted(design, space, rows), space.allowed(rows))


def test_cpu_spaces_have_no_limits(matmul_design, conv_design):
    for design in (matmul_design, conv_design):
        assert not any(sketch.limits for sketch in design.sketches)
