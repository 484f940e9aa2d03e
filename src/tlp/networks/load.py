"""Loading a network by its spec, and what times it in its own framework."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tlp.errors import NetworkError
from tlp.networks.builtin import BUILTINS, Builtin
from tlp.networks.calibrate import calibrate, fit_final_pool
from tlp.networks.exported import (
    TorchNetwork,
    as_array,
    as_tensors,
    check_exported,
    export,
    load_exported,
)
from tlp.networks.network import Array, Network, Range, draw
from tlp.networks.onnx_file import copy_onnx, external_files, load_onnx
from tlp.networks.spec import ONNX_RUNTIME, NetworkSpec
from tlp.processes import require

if TYPE_CHECKING:
    import torch


def load_network(spec: NetworkSpec) -> Network:
    """Build or load the network.

    Raises
    ------
    NetworkError
        If it cannot be loaded, run or exported, or its file does not fit the spec.
    MissingExtraError
        If its framework or the library that defines it is not installed.
    """
    if spec.is_file:
        spec.check_file()
    if spec.framework is ONNX_RUNTIME:
        return load_onnx(spec)
    require("torch", "torch")
    if spec.is_file:
        return _load_exported(spec)
    module, inputs = _build_builtin(spec)
    exported = export(module, inputs, spec.name)
    arrays = tuple(as_array(spec.name, tensor) for tensor in inputs)
    return TorchNetwork(spec.name, arrays, _builtin_ranges(spec), module, exported)


def framework_call(
    spec: NetworkSpec, inputs: tuple[Array, ...], threads: int, device: str = "cpu"
) -> Callable[[], object]:
    """Return what runs the network once on the inputs in its own framework, as fast as it can.

    PyTorch runs it on ``device`` and waits for the result; ONNX Runtime on the CPU.

    Call it in a process that has pinned its cores and has not used the framework yet.
    """
    if spec.framework is ONNX_RUNTIME:
        network = load_onnx(spec, threads)
        return lambda: network.run(inputs)
    torch = require("torch", "torch")
    torch.set_num_threads(threads)
    module = _load_exported(spec).module if spec.is_file else _build_builtin(spec)[0]
    module = module.to(device)
    tensors = tuple(tensor.to(device) for tensor in as_tensors(inputs))

    def call() -> object:
        with torch.inference_mode():
            result = module(*tensors)
            if device == "cuda":
                torch.cuda.synchronize()
            return result

    return call


def source_files(spec: NetworkSpec) -> list[Path]:
    """Files that a network consists of; none for a built-in one."""
    if not spec.is_file:
        return []
    path = Path(spec.source)
    return [path, *(external_files(path) if spec.framework is ONNX_RUNTIME else [])]


def copy_file(spec: NetworkSpec, target: Path) -> None:
    """Copy a network's file so that the copy is enough to load it."""
    if spec.framework is ONNX_RUNTIME:
        copy_onnx(Path(spec.source), target)
    else:
        shutil.copyfile(spec.source, target)


def export_module(module: Any, example_inputs: tuple[Any, ...], path: Path) -> None:
    """Export a ``torch.nn.Module`` with its example inputs to a ``.pt2`` file.

    Raises
    ------
    NetworkError
        If the inputs are not a tuple of tensors or torch cannot export the module.
    """
    torch = require("torch", "torch")
    name = type(module).__name__
    if not isinstance(module, torch.nn.Module):
        raise NetworkError(
            f"model: expected a torch.nn.Module, got {name}. Wrap a function in a module whose "
            "forward calls it"
        )
    if isinstance(example_inputs, dict):
        raise NetworkError(
            "example inputs: keyword inputs are not supported. Give a tuple of tensors in the "
            "order of the module's forward, or wrap the module in one that takes them by position"
        )
    if isinstance(example_inputs, torch.Tensor):
        example_inputs = (example_inputs,)
    if not isinstance(example_inputs, (tuple, list)):
        raise NetworkError(
            f"example inputs: expected a tuple of tensors, got {type(example_inputs).__name__}"
        )
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        exported = export(module, tuple(example_inputs), name)
    finally:
        for part in training:
            part.training = True
    check_exported(exported, f"model {name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.export.save(exported, str(path))


def _build_builtin(spec: NetworkSpec) -> tuple[Any, tuple[torch.Tensor, ...]]:
    import torch

    entry = BUILTINS[spec.source]
    shape = spec.input_shape or entry.input_shape
    # The libraries draw weights from torch's global generator.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(spec.seed)
        module = entry.factory(shape).eval()
    generator = torch.Generator().manual_seed(spec.seed)
    inputs = as_tensors((_example(entry, (spec.batch, *shape), spec.seed),))
    try:
        if entry.family == "image":
            fit_final_pool(module, inputs[0])
            calibrate(module, shape, generator)
    except (RuntimeError, ValueError) as error:
        raise NetworkError(
            f"input shape {','.join(map(str, shape))}: {spec.name} cannot run on it ({error}). "
            f"Its own is {','.join(map(str, entry.input_shape))}"
        ) from error
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module, inputs


def _example(entry: Builtin, shape: tuple[int, ...], seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if entry.family == "text":
        return draw(shape, np.int64, (0, entry.vocabulary - 1), rng)
    return draw(shape, np.float32, None, rng)


def _builtin_ranges(spec: NetworkSpec) -> tuple[Range, ...]:
    entry = BUILTINS[spec.source]
    return ((0, entry.vocabulary - 1),) if entry.family == "text" else (None,)


def _load_exported(spec: NetworkSpec) -> TorchNetwork:
    exported, inputs = load_exported(Path(spec.source))
    shape = tuple(inputs[0].shape)
    wanted = spec.input_shape
    if (spec.batch != 1 and spec.batch != (shape[0] if shape else None)) or (
        wanted is not None and wanted != shape[1:]
    ):
        option = "batch" if wanted is None or wanted == shape[1:] else "input shape"
        raise NetworkError(
            f"{option}: the shapes in {spec.source} are fixed, its first input is "
            f"{','.join(map(str, shape)) or 'a scalar'} (batch first). Leave the option out, or "
            "export the network again with example inputs of the shape you want"
        )
    arrays = tuple(as_array(spec.name, tensor) for tensor in inputs)
    ranges = tuple(map(_observed_range, arrays))
    return TorchNetwork(spec.name, arrays, ranges, exported.module(), exported)


def _observed_range(example: Array) -> Range:
    if example.dtype.kind not in "iu":
        return None
    return (int(example.min()), int(example.max())) if example.size else (0, 0)
