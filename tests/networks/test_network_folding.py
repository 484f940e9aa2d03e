from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tlp.networks.folding import fold_in_numpy


def _module(tvm: Any, build: Any, shape: tuple[int, ...] = (2, 3)) -> Any:
    """Module whose ``main`` returns ``build(builder, x)``."""
    builder = tvm.relax.BlockBuilder()
    x = tvm.relax.Var("x", tvm.relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(build(builder, x))
        builder.emit_func_output(result)
    return builder.get()


def _calls(mod: Any) -> list[str]:
    """Operators of ``main`` in order."""
    names = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            operator = getattr(binding.value, "op", None)
            names.append(str(getattr(operator, "name", type(binding.value).__name__)))
    return [name for name in names if name.startswith("relax.")]


def _run(tvm: Any, mod: Any, x: np.ndarray) -> np.ndarray:
    built = tvm.relax.build(mod, tvm.target.Target({"kind": "llvm"}))
    result = tvm.relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x))
    found: np.ndarray = result.numpy()
    return found


def test_arithmetic_on_constants_by_hand(tvm: Any) -> None:
    op, const = tvm.relax.op, tvm.relax.const

    def build(builder: Any, x: Any) -> Any:
        four = const(np.array([4, 16, 64], np.float32))
        root = builder.emit(op.sqrt(four))  # 2 4 8
        sum_ = builder.emit(op.add(root, four))  # 6 20 72
        quotient = builder.emit(op.divide(sum_, root))  # 3 5 9
        column = builder.emit(op.reshape(quotient, (3, 1)))
        row = builder.emit(op.permute_dims(column, [1, 0]))
        return builder.emit(op.multiply(x, row))

    folded = fold_in_numpy(tvm, _module(tvm, build))
    assert _calls(folded) == ["relax.multiply"]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(_run(tvm, folded, x), [[0, 5, 18], [9, 20, 45]])


def test_a_batch_norm_becomes_a_scale_and_a_shift(tvm: Any) -> None:
    rng = np.random.default_rng(1)
    gamma, beta, mean = rng.standard_normal((3, 3)).astype(np.float32)
    variance = rng.uniform(0.5, 2, 3).astype(np.float32)

    def build(builder: Any, x: Any) -> Any:
        constants = map(tvm.relax.const, (gamma, beta, mean, variance))
        norm = builder.emit(
            tvm.relax.op.nn.batch_norm(x, *constants, axis=1, epsilon=0.1, training=False)
        )
        return builder.emit(tvm.relax.TupleGetItem(norm, 0))

    mod = _module(tvm, build, (2, 3, 4))
    folded = fold_in_numpy(tvm, mod)
    assert _calls(folded) == ["relax.multiply", "relax.add"]
    x = rng.standard_normal((2, 3, 4)).astype(np.float32)
    column = (slice(None), None)
    want = (x.astype(np.float64) - mean[column]) / np.sqrt(variance[column] + 0.1)
    want = want * gamma[column] + beta[column]
    np.testing.assert_allclose(_run(tvm, folded, x), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", ["integers", "operator", "output"])
def test_the_rest_is_left_to_tvm(tvm: Any, case: str) -> None:
    op, const = tvm.relax.op, tvm.relax.const
    three = const(np.array([3, 3, 3], np.float32))
    if case == "integers":
        three = const(np.array([3, 3, 3], np.int64), "int64")

    def build(builder: Any, x: Any) -> Any:
        if case == "output":
            return op.add(three, three)
        value = builder.emit(op.add(three, three) if case == "integers" else op.exp(three))
        return builder.emit(op.add(x, op.astype(value, "float32")))

    mod = _module(tvm, build)
    folded = fold_in_numpy(tvm, mod)
    if case == "output":
        # A function's result has to stay a variable; its value may be a constant.
        np.testing.assert_array_equal(
            _run(tvm, folded, np.zeros((2, 3), np.float32)), np.full(3, 6, np.float32)
        )
    else:
        assert _calls(folded) == _calls(mod)
    whole = tvm.relax.transform.FoldConstant()(folded)
    assert len(_calls(whole)) <= 1
