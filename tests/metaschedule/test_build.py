from __future__ import annotations

import numpy as np
import pytest

from tlp.metaschedule.arguments import describe_arguments, random_inputs
from tlp.metaschedule.build import build_candidate, build_unscheduled, lay_out_weights
from tlp.metaschedule.replay import replay
from tlp.metaschedule.sketches import decision_space, make_design


@pytest.fixture(scope="module")
def dense(tvm):
    """A matrix product and a bias whose second and third arguments are weights."""
    from tvm import te

    x = te.placeholder((8, 32), name="x")
    w = te.placeholder((32, 48), name="w")
    b = te.placeholder((48,), name="b")
    k = te.reduce_axis((0, 32), name="k")
    product = te.compute((8, 48), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="y")
    out = te.compute((8, 48), lambda i, j: product[i, j] + b[j], name="out")
    function = te.create_prim_func([x, w, b, out]).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": function.with_attr("layout_free_buffers", [1, 2])})


def test_candidates_with_laid_out_weights_compute_the_product(tvm, dense, small_target):
    design = make_design(dense, small_target)
    space = decision_space(design)
    x, w, b = [v for v in random_inputs(describe_arguments(dense), 0) if v is not None]
    new_layouts = 0
    for row in space.uniform(np.random.default_rng(0), 5):
        done = replay(design, *space.decisions(row))
        built = build_candidate(done.schedule.mod, design.target)
        laid_out = lay_out_weights(done.schedule.mod, design.target, [x, w, b])
        assert [v.shape for v in laid_out] == [shape for _, shape in built.shapes[:3]]
        new_layouts += laid_out[1].shape != w.shape
        buffers = [tvm.runtime.tensor(v) for v in laid_out]
        out = tvm.runtime.tensor(np.zeros((8, 48), np.float32))
        built.library["main"](*buffers, out)
        np.testing.assert_allclose(out.numpy(), x @ w + b, rtol=1e-4, atol=1e-5)
    assert new_layouts >= 1


def test_without_layouts_the_inputs_stay_as_they_are(tvm, matmul_mod, matmul_design):
    space = decision_space(matmul_design)
    row = space.uniform(np.random.default_rng(0), 1)[0]
    done = replay(matmul_design, *space.decisions(row))
    values = [v for v in random_inputs(describe_arguments(matmul_mod), 0) if v is not None]
    laid_out = lay_out_weights(done.schedule.mod, matmul_design.target, values)
    assert all(a is b for a, b in zip(laid_out, values, strict=True))


def test_unscheduled_program_computes_the_product(tvm, matmul_mod, matmul_design):
    a, b, _ = random_inputs(describe_arguments(matmul_mod), 3)
    out = tvm.runtime.tensor(np.zeros((32, 48), np.float32))
    entry = build_unscheduled(matmul_mod, matmul_design.target)
    entry(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    np.testing.assert_allclose(out.numpy(), a @ b, rtol=1e-4, atol=1e-5)
