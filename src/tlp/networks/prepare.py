"""The framework's side of a run, done once in a process of its own, and the folder it fills."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tlp.errors import NetworkError, WorkDirError
from tlp.metaschedule.imports import load_tvm
from tlp.networks import importer, load
from tlp.networks.network import Network, random_inputs
from tlp.networks.spec import NetworkSpec

if TYPE_CHECKING:
    import tvm

MODULE_FILE = "module.json"
REFERENCE_FILE = "reference.npz"
_GROUPS = ("x1", "y1", "x2", "y2")


@dataclass(frozen=True)
class Reference:
    """Two random inputs of a network and its framework's outputs for them."""

    x1: tuple[np.ndarray, ...]
    y1: tuple[np.ndarray, ...]
    x2: tuple[np.ndarray, ...]
    y2: tuple[np.ndarray, ...]


def prepare(
    spec: NetworkSpec,
    target: Mapping[str, Any],
    weight_layouts: bool,
    folder: Path,
    progress: Callable[[str], None],
) -> None:
    """Load a network, import it into TVM, and write what a run needs into ``folder``.

    It writes ``reference.npz``, for a network from a file a copy of it, and last
    ``module.json``. Starts threads of the framework and TVM: call it in a process of its own.

    Raises
    ------
    NetworkError
        If the network cannot be loaded or imported, or its output cannot serve as a reference.
    """
    folder.mkdir(parents=True, exist_ok=True)
    progress(f"building {spec.name}" if not spec.is_file else f"loading {spec.source}")
    spec.check_file()
    network = load.load_network(spec)
    progress(f"running {spec.framework.name}")
    arrays = _reference_arrays(network)
    _write(folder / REFERENCE_FILE, lambda path: _save_arrays(path, arrays))
    copy = folder / spec.copy_name
    if spec.is_file and not copy.exists():
        _write(copy, lambda path: load.copy_file(spec, path))
    progress("importing into TVM")
    mod = importer.import_network(network, target, weight_layouts)
    progress("saving the module")
    text = load_tvm().ir.save_json(mod)
    _write(folder / MODULE_FILE, lambda path: path.write_text(text))


def load_prepared(folder: Path) -> tvm.ir.IRModule:
    """Read the prepared module.

    Raises
    ------
    WorkDirError
        If it is missing or damaged.
    """
    tvm = load_tvm()
    path = folder / MODULE_FILE
    try:
        mod = tvm.ir.load_json(path.read_text())
    except OSError as error:
        raise WorkDirError(_damaged(path, error)) from error
    except Exception as error:  # TVM's reader raises several kinds
        raise WorkDirError(_damaged(path, error)) from error
    if not isinstance(mod, tvm.ir.IRModule):
        raise WorkDirError(_damaged(path, f"holds a {type(mod).__name__}, not a module"))
    return mod


def load_reference(folder: Path) -> Reference:
    """Read the reference inputs and outputs.

    Raises
    ------
    WorkDirError
        If they are missing or damaged.
    """
    path = folder / REFERENCE_FILE
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zipfile.error) as error:
        raise WorkDirError(_damaged(path, error)) from error
    groups = {group: _group(arrays, group) for group in _GROUPS}
    empty = [group for group, values in groups.items() if not values]
    if empty:
        raise WorkDirError(_damaged(path, f"lacks {', '.join(empty)}"))
    return Reference(**groups)


def _group(arrays: Mapping[str, np.ndarray], group: str) -> tuple[np.ndarray, ...]:
    count = sum(name.startswith(f"{group}_") for name in arrays)
    return tuple(arrays[f"{group}_{index}"] for index in range(count))


def _reference_arrays(network: Network) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for seed in (1, 2):
        inputs = random_inputs(network, seed)
        for index, value in enumerate(inputs):
            arrays[f"x{seed}_{index}"] = value
        for index, output in enumerate(network.run(inputs)):
            arrays[f"y{seed}_{index}"] = output
            if not np.isfinite(output).all():
                raise NetworkError(
                    f"network {network.name}: output {index} is not finite on random input "
                    "(standard normal), so the tuned network could not be checked against it. "
                    "Wrap the network in one that maps its input into the valid range first"
                )
    for index, value in enumerate(network.run(random_inputs(network, 2))):
        if not np.allclose(value, arrays[f"y2_{index}"], rtol=1e-3, atol=1e-5):
            raise NetworkError(
                f"network {network.name}: two runs on the same input differ. Call model.eval() "
                "before torch.export, and take random operators out"
            )
    return arrays


def _save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    with path.open("wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def _write(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file under another name and rename it, so that it is whole or absent."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _damaged(path: Path, reason: object) -> str:
    return (
        f"{path} cannot be read ({str(reason).strip()[:300]}). Delete the folder {path.parent} to "
        "start over, or use another one"
    )
