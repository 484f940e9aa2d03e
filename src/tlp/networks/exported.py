"""Networks in PyTorch: making, reading, checking and translating ``torch.export`` programs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tlp.errors import NetworkError
from tlp.metaschedule.imports import load_tvm
from tlp.networks.network import WAY_OUT, Array, Network

if TYPE_CHECKING:
    import torch
    import tvm

_HOW = "torch.export.save(torch.export.export(model.eval(), example_inputs), path)"


@dataclass(frozen=True)
class TorchNetwork(Network):
    """A network in PyTorch.

    Parameters
    ----------
    module
        Takes the inputs as positional tensors; in evaluation mode.
    exported
        The same network as a ``torch.export.ExportedProgram``.
    """

    module: Any
    exported: torch.export.ExportedProgram

    def run(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        """Run the module once and return its outputs as a flat tuple."""
        import torch
        from torch.utils import _pytree as pytree

        with torch.inference_mode():
            outputs = pytree.tree_leaves(self.module(*as_tensors(inputs)))
        return tuple(as_array(self.name, output) for output in outputs)

    def to_relax(self) -> tvm.ir.IRModule:
        """Decompose the exported program into core operators and translate them."""
        load_tvm()
        decomposed = _decompose(self.name, self.exported)
        _refuse_unknown(self.name, decomposed)
        _refuse_mutation(self.name, decomposed)
        from tvm.relax.frontend.torch import from_exported_program

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return from_exported_program(
                    decomposed, unwrap_unit_return_tuple=True, run_ep_decomposition=False
                )
        except Exception as error:  # converters raise whatever they like
            node = _failing_node(error)
            culprit = f"operator {node.target} " if node is not None else ""
            raise NetworkError(
                f"network {self.name}: TVM's importer cannot take {culprit}"
                f"({type(error).__name__}: {str(error).strip()[:500]}). {WAY_OUT}"
            ) from error


def as_tensors(arrays: tuple[Array, ...]) -> tuple[torch.Tensor, ...]:
    """Copy arrays into tensors: PyTorch warns of arrays that must not be written."""
    import torch

    return tuple(torch.from_numpy(np.array(array)) for array in arrays)


def as_array(name: str, tensor: torch.Tensor) -> Array:
    """Give a tensor as an array, or a `NetworkError` for a type that NumPy lacks."""
    try:
        array: Array = tensor.numpy()
    except TypeError as error:
        raise NetworkError(
            f"network {name}: has inputs or outputs of type {tensor.dtype}, which NumPy does not "
            "have. Convert them to float32 at the borders of the network"
        ) from error
    return array


def export(module: Any, inputs: tuple[Any, ...], name: str) -> torch.export.ExportedProgram:
    """Export a module with fixed shapes, all failures as `NetworkError`."""
    import torch

    for position, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            raise NetworkError(
                f"example inputs of {name}: input {position} is of type {type(value).__name__}, "
                "expected a tensor. Wrap the model in a module that takes tensors only"
            )
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            return torch.export.export(module, inputs)
    except Exception as error:  # torch raises many kinds, some of them internal
        raise NetworkError(
            f"network {name}: torch.export failed with {type(error).__name__}: "
            f"{_first_lines(error)}"
        ) from error


def load_exported(
    path: Path,
) -> tuple[torch.export.ExportedProgram, tuple[torch.Tensor, ...]]:
    """Read a ``.pt2`` file and return the program with its example inputs."""
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.export.load(str(path))
    except Exception as error:  # foreign and cut files fail anywhere inside torch
        raise NetworkError(
            f"network file {path}: torch {torch.__version__} cannot read it as an exported program "
            f"({type(error).__name__}: {_first_lines(error, 2)}). Write it with {_HOW}"
        ) from error
    inputs = check_exported(exported, f"network file {path}")
    return exported, inputs


def check_exported(exported: torch.export.ExportedProgram, what: str) -> tuple[torch.Tensor, ...]:
    """Check that a program has fixed shapes and plain tensors, and return its example inputs."""
    import torch
    from torch.export.graph_signature import InputKind, OutputKind, TensorArgument

    if exported.example_inputs is None:
        raise NetworkError(f"{what}: holds no example inputs. Export it again with them: {_HOW}")
    args, kwargs = exported.example_inputs
    if kwargs:
        raise NetworkError(
            f"{what}: takes keyword inputs ({', '.join(kwargs)}), which are not supported. Wrap "
            "the model in a module that takes its tensors by position, and export that"
        )
    if exported.range_constraints:
        symbols = ", ".join(map(str, exported.range_constraints))
        raise NetworkError(
            f"{what}: has dynamic shapes ({symbols}), tuning needs fixed ones. Export it without "
            "dynamic_shapes; an operator whose output size depends on data cannot be tuned"
        )
    signature = exported.graph_signature
    written = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if written:
        raise NetworkError(
            f"{what}: changes its own state or input ({', '.join(map(str, written[:3]))}). Call "
            "model.eval() before torch.export, and return new state as an output"
        )
    plain = all(isinstance(value, torch.Tensor) for value in args) and all(
        isinstance(spec.arg, TensorArgument)
        for spec in (*signature.input_specs, *signature.output_specs)
        if spec.kind in (InputKind.USER_INPUT, OutputKind.USER_OUTPUT)
    )
    if not plain or not args:
        raise NetworkError(
            f"{what}: expected tensors as inputs (at least one) and outputs, not nested lists, "
            "numbers or None. Wrap the model in a module that takes and returns tensors"
        )
    _check_tensors(args, what)
    return tuple(args)


def _check_tensors(tensors: tuple[torch.Tensor, ...], what: str) -> None:
    for position, tensor in enumerate(tensors):
        if tensor.device.type != "cpu":
            raise NetworkError(
                f"{what}: input {position} is on {tensor.device}. Move the model and its inputs "
                "to the CPU before torch.export"
            )
        if tensor.dtype.is_complex:
            raise NetworkError(
                f"{what}: input {position} is complex, which TVM does not support. Pass real and "
                "imaginary parts as separate tensors"
            )


def _first_lines(error: BaseException, count: int = 5) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return "\n".join(lines[:count])


def _decompose(name: str, exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    import torch

    # Decomposed attention can have other strides than the exported one, which a view then refuses.
    for node in exported.graph.nodes:
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return exported.run_decompositions()
    except Exception as error:  # internal errors of torch
        raise NetworkError(
            f"network {name}: torch cannot decompose the exported program into core "
            f"operators ({type(error).__name__}: {str(error).strip()[:500]})"
        ) from error


def _refuse_unknown(name: str, exported: torch.export.ExportedProgram) -> None:
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    known = ExportedProgramImporter().convert_map
    missing = sorted(
        {
            str(node.target)
            for node in exported.graph.nodes
            if node.op == "call_function" and node.target.__name__ not in known
        }
    )
    if missing:
        plural = "s" if len(missing) > 1 else ""
        raise NetworkError(
            f"network {name}: TVM's importer does not know the operator{plural} "
            f"{', '.join(missing)}. {WAY_OUT}"
        )


def _refuse_mutation(name: str, exported: torch.export.ExportedProgram) -> None:
    written = list(exported.graph_signature.buffers_to_mutate.values())
    if written:
        raise NetworkError(
            f"network {name}: was exported in training mode, running it changes "
            f"{', '.join(written[:3])}. Call model.eval() before torch.export"
        )


def _failing_node(error: BaseException) -> Any:
    """Node of the graph that the importer was converting when it raised."""
    import torch

    found = None
    trace = error.__traceback__
    while trace is not None:
        node = trace.tb_frame.f_locals.get("node")
        if isinstance(node, torch.fx.Node) and node.op == "call_function":
            found = node
        trace = trace.tb_next
    return found
