"""Folding of constants in NumPy, before TVM's own pass sees them.

TVM's FoldConstant compiles a kernel for every expression, a tenth of a second each, and a network
with batch norms has hundreds. Nearly all of them are the same few operators on weights, which NumPy
computes at once. What is not listed here is left to TVM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_ELEMENTWISE: dict[str, Callable[..., Array]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.divide": np.divide,
    "relax.negative": np.negative,
    "relax.sqrt": np.sqrt,
    "relax.rsqrt": lambda value: 1 / np.sqrt(value),
}
_SHAPING = frozenset({"relax.reshape", "relax.expand_dims", "relax.permute_dims"})


def fold_in_numpy(tvm: Any, mod: Any) -> Any:
    """Fold what is computed from constants alone, and batch norms with constant statistics.

    A batch norm that no convolution took becomes one multiplication and one addition.

    Parameters
    ----------
    mod
        Module whose function ``main`` is in normal form; other functions are left alone.

    Returns
    -------
    tvm.ir.IRModule
        A new module that computes the same.
    """
    relax = tvm.relax

    @relax.expr_functor.mutator
    class Folder(relax.PyExprMutator):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__(mod)
            self.known: dict[Any, Any] = {}

        def visit_var_(self, op: Any) -> Any:
            return self.known.get(op) or super().visit_var_(op)

        def visit_dataflow_var_(self, op: Any) -> Any:
            return self.known.get(op) or super().visit_dataflow_var_(op)

        def visit_var_binding_(self, binding: Any) -> None:
            if not isinstance(binding.var, relax.DataflowVar):
                super().visit_var_binding_(binding)
                return
            value = self.visit_expr(binding.value)
            if isinstance(value, tvm.ir.GenericConst):
                self.known[binding.var] = value
            else:
                emitted = self.builder_.emit(value, name_hint=binding.var.name)
                self.set_var_remap(binding.var, emitted)

        def visit_call_(self, op: Any) -> Any:
            call = super().visit_call_(op)
            if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.Op):
                return call
            if call.op.name == "relax.nn.batch_norm":
                return _scale_and_shift(tvm, call)
            value = _evaluate(tvm, call)
            return call if value is None else relax.const(value, str(call.ty.dtype))

    folder = Folder()
    main = folder.visit_expr(mod["main"])
    folder.builder_.update_func(mod.get_global_var("main"), main)
    return folder.builder_.get()


def _evaluate(tvm: Any, call: Any) -> Array | None:
    """Value of a call whose tensors are constants; None if it has to stay."""
    name = call.op.name
    if name in _SHAPING:
        source = _constant(tvm, call.args[0])
        if source is None or any(not isinstance(extent, int) for extent in _extents(call.ty)):
            return None
        if name != "relax.permute_dims":
            return source.reshape(_extents(call.ty))
        axes = call.attrs.axes
        axes = None if axes is None else [int(axis) for axis in axes]
        return np.ascontiguousarray(source.transpose(axes))
    function = _ELEMENTWISE.get(name)
    if function is None:
        return None
    values = [_constant(tvm, argument) for argument in call.args]
    known = [value for value in values if value is not None and value.dtype.kind == "f"]
    if len(known) < len(values) or len({value.dtype for value in known}) != 1:
        return None
    return function(*known)


def _constant(tvm: Any, expression: Any) -> Array | None:
    if isinstance(expression, tvm.ir.GenericConst) and hasattr(expression.value, "numpy"):
        return np.asarray(expression.value.numpy())
    if isinstance(expression, tvm.tirx.FloatImm):
        return np.asarray(expression.value, str(expression.ty.dtype))
    return None


def _extents(kind: Any) -> list[Any]:
    return [getattr(extent, "value", extent) for extent in kind.shape]


def _scale_and_shift(tvm: Any, call: Any) -> Any:
    """Rewrite a batch norm for inference as ``data * scale + shift``."""
    data, *parameters = call.args
    constants = [_constant(tvm, parameter) for parameter in parameters]
    if call.attrs.training or any(value is None for value in constants):
        return call
    gamma, beta, mean, variance = (np.asarray(value) for value in constants)
    if any(value.dtype != np.float32 for value in (gamma, beta, mean, variance)):
        return call
    if str(data.ty.dtype) != "float32":
        return call
    epsilon = np.float32(call.attrs.epsilon)
    scale = 1 / np.sqrt(variance + epsilon)
    if call.attrs.scale:
        scale = gamma * scale
    shift = -mean * scale
    if call.attrs.center:
        shift = beta + shift
    axis, rank = int(call.attrs.axis), len(data.ty.shape)
    shape = [1] * rank
    shape[axis] = -1
    relax = tvm.relax
    product = relax.op.multiply(data, relax.const(scale.reshape(shape)))
    result = relax.op.add(product, relax.const(shift.reshape(shape)))
    return relax.Tuple([result, *parameters[2:]])
