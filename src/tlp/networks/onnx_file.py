"""Networks from ONNX files: reading, fixing open dimensions, running and translating."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tlp.errors import NetworkError
from tlp.metaschedule.imports import load_tvm
from tlp.networks.network import WAY_OUT, Array, Network, Range, draw
from tlp.networks.spec import NetworkSpec
from tlp.processes import require

if TYPE_CHECKING:
    import tvm

_LARGEST = 2**31 - 1  # bytes of a protocol buffer
_DOMAINS = ("", "ai.onnx", "com.microsoft")


@dataclass(frozen=True)
class OnnxNetwork(Network):
    """A network that ONNX Runtime runs.

    Parameters
    ----------
    model
        ``onnx.ModelProto`` with fixed input shapes.
    session
        ``onnxruntime.InferenceSession`` of it.
    """

    model: Any
    session: Any

    def run(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        """Run the session once."""
        names = [value.name for value in self.session.get_inputs()]
        return tuple(self.session.run(None, dict(zip(names, inputs, strict=True))))

    def to_relax(self) -> tvm.ir.IRModule:
        """Translate the graph; initializers become constants."""
        tvm = load_tvm()
        from tvm.relax.frontend.onnx import from_onnx

        _refuse_unknown(self.name, self.model.graph)
        printed = io.StringIO()  # the importer prints what it stumbled over, weights included
        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
                warnings.simplefilter("ignore")
                mod = from_onnx(self.model, keep_params_in_input=False)
        except Exception as error:  # converters raise whatever they like
            operator = _failing_operator(error)
            culprit = f"operator {operator} " if operator else ""
            raise NetworkError(
                f"network {self.name}: TVM's importer cannot take {culprit}"
                f"({type(error).__name__}: {str(error).strip()[:500]}). {WAY_OUT}"
            ) from error
        _refuse_open(tvm, self.name, mod["main"])
        mod["main"] = mod["main"].without_attr("num_input")
        return mod


def load_onnx(spec: NetworkSpec, threads: int | None = None) -> OnnxNetwork:
    """Read an ONNX file, fix its shapes and start ONNX Runtime on it.

    Parameters
    ----------
    threads
        Threads of ONNX Runtime; its own choice by default.

    Raises
    ------
    NetworkError
        If the file cannot be read or run, or a dimension stays open.
    MissingExtraError
        If onnx or onnxruntime is not installed.
    """
    require("onnx", "onnx")
    require("onnxruntime", "onnx")
    model = _read(Path(spec.source))
    fix_shapes(model, spec)
    inputs = _inputs(model.graph)
    ranges = tuple(_range(model.graph, value) for value in inputs)
    rng = np.random.default_rng(spec.seed)
    examples = tuple(
        draw(_shape(value), _dtype(spec.source, value), limits, rng)
        for value, limits in zip(inputs, ranges, strict=True)
    )
    return OnnxNetwork(spec.name, examples, ranges, model, _session(spec.source, model, threads))


def copy_onnx(source: Path, target: Path) -> None:
    """Copy a file, with weights that lie beside it taken in."""
    target.write_bytes(_bytes(str(source), _read(source)))


def external_files(source: Path) -> list[Path]:
    """Files beside an ONNX file that hold its weights."""
    onnx = require("onnx", "onnx")
    try:
        model = onnx.load(str(source), load_external_data=False)
    except Exception as error:  # protobuf's own kinds
        raise _unreadable(source, error) from error
    names = {
        entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return [source.parent / name for name in sorted(names)]


def _read(source: Path) -> Any:
    import onnx

    try:
        model = onnx.load(str(source))
        model = onnx.inliner.inline_local_functions(model) if len(model.functions) else model
    except Exception as error:  # protobuf's own kinds, missing weights
        raise _unreadable(source, error) from error
    # ONNX Runtime finds what else is wrong; onnx.checker refuses files that it runs.
    if not model.graph.node:
        raise _unreadable(source, ValueError("it holds no operator"))
    if not _inputs(model.graph):
        raise NetworkError(f"network file {source}: has no input, so there is nothing to tune")
    return model


def _unreadable(source: Path, error: BaseException) -> NetworkError:
    text = " ".join(str(error).split())[:300]
    return NetworkError(
        f"network file {source}: not a valid ONNX model ({type(error).__name__}: {text}). Check it "
        "with onnx.checker.check_model, or export it again"
    )


def _bytes(what: str, model: Any) -> bytes:
    try:
        content: bytes = model.SerializeToString()
    except Exception as error:  # protobuf has several kinds for it
        raise NetworkError(
            f"network file {what}: larger than 2 GB with its weights, the most one ONNX model can "
            "hold in memory. Tune it in parts, or as a torch.export file"
        ) from error
    if len(content) > _LARGEST:
        raise NetworkError(f"network file {what}: larger than 2 GB. Tune it in parts")
    return content


def _session(source: str, model: Any, threads: int | None) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        # A number of its own also keeps ONNX Runtime from pinning its threads elsewhere.
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    content = _bytes(source, model)
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # a kind for every status
        text = " ".join(str(error).split())[:500]
        raise NetworkError(
            f"network file {source}: ONNX Runtime {onnxruntime.__version__} cannot load it "
            f"({type(error).__name__}: {text}). {WAY_OUT}"
        ) from error


def _inputs(graph: Any) -> list[Any]:
    """Inputs to be given: old files list their weights as inputs, too."""
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(dimension.dim_value for dimension in value.type.tensor_type.shape.dim)


def _dtype(source: str, value: Any) -> Any:
    import onnx

    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    if dtype.kind not in "fiub":
        raise NetworkError(
            f"network file {source}: input {value.name} is of type {dtype}; only floats, integers "
            "and booleans that NumPy knows can be tuned. Convert at the borders of the network"
        )
    return dtype


# --- open dimensions ----------------------------------------------------------------------------


def fix_shapes(model: Any, spec: NetworkSpec) -> None:
    """Give every open dimension of the inputs its size, in place.

    The first dimension of the first input is the batch, its others are ``spec.input_shape``.
    Dimensions of the same name have the same size everywhere.

    Raises
    ------
    NetworkError
        If a dimension stays open, or a size contradicts the file.
    """
    inputs = _inputs(model.graph)
    for value in inputs:
        if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
            raise NetworkError(
                f"network file {spec.source}: input {value.name} is no tensor of known rank. Give "
                "it a shape in the file"
            )
    names = {value.name: _dimension_names(value) for value in inputs}
    sizes = _sizes(spec, inputs[0], names[inputs[0].name])
    left = [
        f"{axis} ('{name}') of input {value.name}"
        for value in inputs
        for axis, name in enumerate(names[value.name])
        if name is not None and name not in sizes
    ]
    if left:
        asked = ",".join(name or str(size) for name, size in _labels(inputs[0]))
        raise NetworkError(
            f"network file {spec.source}: dimension {', '.join(left)} is open, tuning needs fixed "
            f"shapes. Give the shape of the first input ({inputs[0].name}: {asked}) without the "
            "batch as --input-shape; what that does not reach must be fixed in the file, with "
            "onnx.tools.update_model_dims for example"
        )
    for value in inputs:
        for dimension, name in zip(
            value.type.tensor_type.shape.dim, names[value.name], strict=True
        ):
            if name is not None:
                dimension.dim_value = sizes[name]
    for value in (*model.graph.output, *model.graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param in sizes:
                dimension.dim_value = sizes[dimension.dim_param]


def _labels(value: Any) -> list[tuple[str, int]]:
    return [
        (dimension.dim_param or ("?" if dimension.dim_value < 1 else ""), dimension.dim_value)
        for dimension in value.type.tensor_type.shape.dim
    ]


def _dimension_names(value: Any) -> list[str | None]:
    """Name of each open dimension, None where the size is fixed.

    An unnamed first dimension is taken for the batch, which all inputs share.
    """
    found: list[str | None] = []
    for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
        if dimension.dim_value > 0:
            found.append(None)
        else:
            unnamed = "batch?" if axis == 0 else f"{value.name}[{axis}]"
            found.append(dimension.dim_param or unnamed)
    return found


def _sizes(spec: NetworkSpec, first: Any, names: Sequence[str | None]) -> dict[str, int]:
    fixed = _shape(first)
    shape: tuple[int | None, ...] = spec.input_shape or (None,) * (len(fixed) - 1)
    if spec.input_shape is not None and len(shape) != len(fixed) - 1:
        raise NetworkError(
            f"input shape {','.join(map(str, shape))}: the first input of {spec.source}, "
            f"{first.name}, has {len(fixed) - 1} dimensions besides the batch"
        )
    sizes: dict[str, int] = {}
    for axis, (name, size) in enumerate(zip(names, (spec.batch, *shape), strict=False)):
        if name is not None:
            if size is not None and sizes.setdefault(name, size) != size:
                raise NetworkError(
                    f"input shape: dimension '{name}' of {first.name} in {spec.source} cannot be "
                    f"both {sizes[name]} and {size}"
                )
        elif size is not None and size != fixed[axis] and (axis or spec.batch != 1):
            raise NetworkError(
                f"{'input shape' if axis else 'batch'}: dimension {axis} of {first.name} is fixed "
                f"at {fixed[axis]} in {spec.source}, got {size}. Leave the option out, or export "
                "the network again"
            )
    return sizes


def _range(graph: Any, value: Any) -> Range:
    """Integers that an input may take: rows of the table it looks up, else 0 and 1."""
    import onnx

    kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).kind
    if kind not in "iu":
        return None
    rows = {tensor.name: tensor.dims[0] for tensor in graph.initializer if len(tensor.dims)}
    names = {value.name}
    tables = []
    for node in graph.node:
        if node.op_type in ("Cast", "Identity") and node.input[0] in names:
            names.add(node.output[0])
        axis = next((item.i for item in node.attribute if item.name == "axis"), 0)
        if node.op_type == "Gather" and node.input[1] in names and axis == 0:
            tables.append(rows.get(node.input[0], 2))
    return (0, min(tables, default=2) - 1)


# --- operators ----------------------------------------------------------------------------------


def _refuse_unknown(name: str, graph: Any) -> None:
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    known = {"If", "Constant", *_get_convert_map()}
    missing = sorted(
        {
            f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            for node in _nodes(graph)
            if node.op_type not in known or node.domain not in _DOMAINS
        }
    )
    if missing:
        plural = "s" if len(missing) > 1 else ""
        raise NetworkError(
            f"network {name}: TVM's importer does not know the operator{plural} "
            f"{', '.join(missing)}. {WAY_OUT}"
        )


def _nodes(graph: Any) -> list[Any]:
    """List all nodes, those of branches and loop bodies included."""
    found = []
    for node in graph.node:
        found.append(node)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += _nodes(attribute.g)
    return found


def _failing_operator(error: BaseException) -> str:
    """Operator that the importer was converting when it raised."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_locals.get("op_name")
        found = name if isinstance(name, str) else found
        trace = trace.tb_next
    return found


def _refuse_open(tvm: Any, name: str, main: Any) -> None:
    """Refuse results whose shape depends on data."""
    open_: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, tvm.relax.Call) and isinstance(node.op, tvm.ir.Op):
            shape = getattr(node.ty, "shape", None)
            fixed = shape is not None and all(
                isinstance(getattr(extent, "value", extent), int) for extent in shape
            )
            if isinstance(node.ty, tvm.relax.TensorType) and not fixed:
                open_.append(node.op.name)

    tvm.relax.analysis.post_order_visit(main, visit)
    if open_:
        raise NetworkError(
            f"network {name}: the size of what {open_[0]} computes depends on data, tuning needs "
            f"fixed shapes. {WAY_OUT}"
        )
