from __future__ import annotations

import numpy as np
import pytest

from tlp.metaschedule.arguments import describe_arguments, random_inputs


def legalised(tvm, build):
    """Module of the single PrimFunc that a small Relax function becomes."""
    from tvm import relax, tirx

    builder = relax.BlockBuilder()
    variables, call = build(relax)
    with builder.function("main", variables):
        builder.emit_func_output(builder.emit(call))
    module = relax.transform.LegalizeOps()(builder.get())
    (function,) = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def tensor(relax, name, shape, dtype="float32"):
    return relax.Var(name, relax.TensorType(shape, dtype))


def test_roles_and_shapes(matmul_mod):
    arguments = describe_arguments(matmul_mod)
    assert [a.shape for a in arguments] == [(32, 64), (64, 48), (32, 48)]
    assert [a.output for a in arguments] == [False, False, True]
    assert [a.bound for a in arguments] == [None, None, None]


@pytest.mark.parametrize("mode", ["fast", "wrap", "clip"])
def test_indices_stay_inside_what_they_index(tvm, mode):
    def build(relax):
        table = tensor(relax, "table", (7, 4))
        index = tensor(relax, "index", (3, 5), "int64")
        return [table, index], relax.op.take(table, index, axis=0, mode=mode)

    _, index, _ = describe_arguments(legalised(tvm, build))
    assert index.bound == 7
    values = random_inputs(describe_arguments(legalised(tvm, build)), seed=0)
    assert values[1].min() >= 0
    assert values[1].max() < 7
    assert len(np.unique(values[1])) > 3


def test_an_integer_that_indexes_nothing_has_no_bound(tvm):
    def build(relax):
        first = tensor(relax, "a", (8,), "int32")
        return [first], relax.op.add(first, first)

    arguments = describe_arguments(legalised(tvm, build))
    assert arguments[0].bound is None


def test_inputs_are_deterministic_and_differ_by_position_and_seed(matmul_mod):
    arguments = describe_arguments(matmul_mod)
    a, b, none = random_inputs(arguments, seed=1)
    assert none is None
    again, _, _ = random_inputs(arguments, seed=1)
    np.testing.assert_array_equal(a, again)
    assert a.dtype == np.float32
    assert not np.array_equal(a.ravel()[:100], b.ravel()[:100])
    assert not np.array_equal(a, random_inputs(arguments, seed=2)[0])
    assert a.min() < -0.5
    assert random_inputs(arguments, seed=1, positive=True)[0].min() >= 0.1
