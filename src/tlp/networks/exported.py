"""Reading, writing and checking programs made by ``torch.export``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlp.errors import NetworkError

if TYPE_CHECKING:
    import torch

_HOW = "torch.export.save(torch.export.export(model.eval(), example_inputs), path)"


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
