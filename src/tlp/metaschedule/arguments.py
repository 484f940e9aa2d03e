"""Arguments of a workload: shapes, which ones are written, and valid random values."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Argument:
    """One buffer argument of a workload.

    Parameters
    ----------
    name, dtype, shape
        As in the workload's signature.
    output
        The workload writes it.
    bound
        For an integer input that serves as an index: all values must lie in ``[0, bound)``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    output: bool
    bound: int | None


def describe_arguments(mod: Any) -> tuple[Argument, ...]:
    """Arguments of the function ``main`` of a workload's module.

    Raises
    ------
    ValueError
        If the function takes something other than buffers of fixed shape.
    """
    import tvm_ffi
    from tvm import ir, tirx

    function = mod["main"]
    buffers = list(function.params)
    for buffer in buffers:
        if not isinstance(buffer.ty, tirx.buffer.BufferType):
            raise ValueError(f"argument {buffer} is not a buffer")
        if not all(isinstance(extent, int | tirx.IntImm) for extent in buffer.shape):
            raise ValueError(f"argument {buffer} has no fixed shape: {buffer.shape}")
    integers = [b for b in buffers if str(b.dtype).startswith(("int", "uint"))]
    written: set[str] = set()
    bounds: dict[str, int] = {}

    def bound_indices(accessed: Any, indices: Any) -> None:
        for index, extent in zip(indices, accessed.shape, strict=True):
            for buffer in _loaded(index, integers):
                limit = _largest_bound(index, buffer, int(extent))
                bounds[buffer.name] = min(bounds.get(buffer.name, limit), limit)

    def on_store(store: Any) -> None:
        written.update(b.name for b in buffers if b.same_as(store.buffer))
        if integers:
            bound_indices(store.buffer, store.indices)

    def on_load(load: Any) -> None:
        if integers:
            bound_indices(load.source, load.indices)

    tvm_ffi.structural_walk(
        function.body, [(tirx.BufferStore, on_store), (ir.expr.TensorLoad, on_load)]
    )
    return tuple(
        Argument(
            name=buffer.name,
            dtype=str(buffer.dtype),
            shape=tuple(int(extent) for extent in buffer.shape),
            output=buffer.name in written,
            bound=bounds.get(buffer.name),
        )
        for buffer in buffers
    )


def _loaded(expression: Any, buffers: list[Any]) -> list[Any]:
    """Those of the buffers that an expression loads from."""
    import tvm_ffi
    from tvm import ir

    found: list[Any] = []

    def on_load(load: Any) -> None:
        found.extend(buffer for buffer in buffers if buffer.same_as(load.source))

    tvm_ffi.structural_walk(expression, [(ir.expr.TensorLoad, on_load)])
    return found


def _largest_bound(index: Any, buffer: Any, extent: int) -> int:
    """Largest b for which the index stays below ``extent`` while the loads lie in [0, b).

    An index may compute with what it loads (a cast, a wrap of negative values, a stride), so the
    bound is halved until TVM's own interval analysis accepts it. Where a loop variable takes
    part the analysis has no limit, and the plain extent is used.
    """
    import tvm_ffi
    from tvm import ir, sym, tirx

    analyzer = sym.analyzer.Analyzer()
    bound = extent
    while bound > 1:
        limit = bound

        def replace(load: Any, limit: int = limit) -> Any:
            if not load.source.same_as(buffer):
                return load
            value = tirx.Var("loaded", str(load.source.dtype))
            return tirx.floormod(value, tirx.const(limit, str(load.source.dtype)))

        replaced = tvm_ffi.structural_map(index, [(ir.expr.TensorLoad, replace)])
        largest = int(analyzer.const_int_bound(replaced).max_value)
        if largest >= 2**62:
            return extent
        if largest < extent:
            return bound
        bound //= 2
    return bound


def random_inputs(
    arguments: tuple[Argument, ...], seed: int, positive: bool = False
) -> list[Array | None]:
    """Random values for the inputs, None for the outputs.

    Floats are uniform in (-1, 1), or in (0.1, 1) where ``positive`` is set: workloads with roots
    or logarithms give NaN otherwise. Integers stay inside the extent they index.
    """
    values: list[Array | None] = []
    for position, argument in enumerate(arguments):
        if argument.output:
            values.append(None)
        else:
            low = 0.1 if positive else -1.0
            values.append(random_array(argument, (seed, position), low))
    return values


def random_array(argument: Argument, seed: tuple[int, ...], low: float = -1.0) -> Array:
    """One random array of an argument's shape and type."""
    rng = np.random.default_rng([*seed, zlib.crc32(argument.dtype.encode())])
    if argument.dtype == "bool":
        return rng.integers(0, 2, size=argument.shape).astype(np.bool_)
    if argument.dtype.startswith(("int", "uint")):
        high = argument.bound if argument.bound is not None else 8
        return rng.integers(0, max(1, high), size=argument.shape).astype(argument.dtype)
    values = rng.uniform(low, 1.0, size=argument.shape).astype(np.float32)
    if argument.dtype == "bfloat16":
        import ml_dtypes

        return values.astype(ml_dtypes.bfloat16)
    return values.astype(argument.dtype)
