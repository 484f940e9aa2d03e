"""Loading a network into torch, and making inputs for it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlp.errors import NetworkError
from tlp.networks.builtin import BUILTINS, Builtin
from tlp.networks.calibrate import calibrate, fit_final_pool
from tlp.networks.exported import check_exported, export, load_exported
from tlp.networks.spec import NetworkSpec
from tlp.processes import require

if TYPE_CHECKING:
    import torch

Range = tuple[int, int] | None


@dataclass(frozen=True)
class Network:
    """A network in torch, ready to run and to import.

    Parameters
    ----------
    name
        Short name.
    module
        Takes the inputs as positional tensors; in evaluation mode.
    exported
        The same network as a ``torch.export.ExportedProgram``.
    inputs
        Example inputs.
    ranges
        For each input, the least and the largest value of its integers; ``None`` for floats and
        booleans.
    """

    name: str
    module: Any
    exported: torch.export.ExportedProgram
    inputs: tuple[torch.Tensor, ...]
    ranges: tuple[Range, ...]


def load_network(spec: NetworkSpec) -> Network:
    """Build or load the network and export it.

    Raises
    ------
    NetworkError
        If it cannot be loaded, run or exported, or its file does not fit the spec.
    MissingExtraError
        If torch or the library that defines the network is not installed.
    """
    require("torch", "torch")
    if spec.is_file:
        return _load_file(spec)
    module, inputs = _build_builtin(spec)
    exported = export(module, inputs, spec.name)
    return Network(spec.name, module, exported, inputs, _builtin_ranges(spec))


def load_module(spec: NetworkSpec) -> Any:
    """Build or load only the callable module, without exporting it."""
    require("torch", "torch")
    return _load_file(spec).module if spec.is_file else _build_builtin(spec)[0]


def run(module: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Run a network once and return its outputs as a flat tuple."""
    import torch
    from torch.utils import _pytree as pytree

    with torch.inference_mode():
        return tuple(pytree.tree_leaves(module(*inputs)))


def random_inputs(network: Network, seed: int) -> tuple[torch.Tensor, ...]:
    """Draw inputs of the network's shapes and types, the same ones for the same seed.

    Floats are standard normal, integers uniform in the range the network allows.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    return tuple(
        _draw(tuple(example.shape), example.dtype, limits, generator)
        for example, limits in zip(network.inputs, network.ranges, strict=True)
    )


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


def _draw(
    shape: tuple[int, ...], dtype: torch.dtype, limits: Range, generator: torch.Generator
) -> torch.Tensor:
    import torch

    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(torch.bool)
    if limits is not None:
        return torch.randint(limits[0], limits[1] + 1, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


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
    inputs = (_example(entry, (spec.batch, *shape), generator),)
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


def _example(entry: Builtin, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    import torch

    if entry.family == "text":
        return _draw(shape, torch.int64, (0, entry.vocabulary - 1), generator)
    return _draw(shape, torch.float32, None, generator)


def _builtin_ranges(spec: NetworkSpec) -> tuple[Range, ...]:
    entry = BUILTINS[spec.source]
    return ((0, entry.vocabulary - 1),) if entry.family == "text" else (None,)


def _load_file(spec: NetworkSpec) -> Network:
    spec.check_file()
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
    return Network(
        spec.name, exported.module(), exported, inputs, tuple(map(_observed_range, inputs))
    )


def _observed_range(example: torch.Tensor) -> Range:
    import torch

    if example.dtype.is_floating_point or example.dtype == torch.bool:
        return None
    return (int(example.min()), int(example.max())) if example.numel() else (0, 0)
