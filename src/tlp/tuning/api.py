"""The library's two entry points: `tlp.tune` and `tlp.load`."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlp import errors
from tlp.tuning.run import Result
from tlp.tuning.workdir import WorkDir

if TYPE_CHECKING:
    import torch

    from tlp.metaschedule.compile import CompiledNetwork


def tune(
    model: torch.nn.Module | str | Path,
    example_inputs: Sequence[Any] | None = None,
    *,
    target: str | dict[str, Any] = "native",
    trials: int | None = None,
    minutes: float | None = None,
    work_dir: str | Path | None = None,
    weight_layouts: bool = True,
    seed: int = 0,
    reuse: Sequence[str | Path] = (),
    tasks: Sequence[str] = (),
    rpc: str | None = None,
    rpc_key: str | None = None,
    quiet: bool = False,
) -> Result:
    """Tune a network and return the result with the compiled network.

    The run is a process of its own (the command line, in fact): candidates must be measured in
    children of a process that has never run a kernel, which cannot be said of the caller's.

    Parameters
    ----------
    model
        A module with example inputs, a built-in network's name, or a ``.pt2`` file.
    example_inputs
        Tensors for ``model(*example_inputs)``; they fix shapes and types.
    target
        As on the command line, or a dict.
    trials, minutes
        When to stop; with neither, after 20 minutes.
    work_dir
        Folder of the run; the same again resumes. A temporary folder by default.
    reuse, tasks
        Folders whose records are used, and patterns of the tasks to tune, as on the command line.
    rpc, rpc_key
        Address of a tracker, such as ``"192.168.1.2:9190"``, and the key of its devices to measure
        on instead of this machine.
    quiet
        Show no progress.

    Returns
    -------
    Result
        ``result.summary`` is plain JSON, ``result.network()`` loads the tuned network.

    Raises
    ------
    TlpError
        As the command line reports it.

    Examples
    --------
    >>> result = tlp.tune(model, (image,), trials=500, work_dir="runs/mine")  # doctest: +SKIP
    >>> outputs = result.network()(image.numpy())  # doctest: +SKIP
    """
    folder = Path(work_dir) if work_dir is not None else Path(tempfile.mkdtemp(prefix="tlp-"))
    if isinstance(model, str | Path):
        if example_inputs is not None:
            raise errors.NetworkError(
                "example_inputs go with a module; a built-in network or a file has its own"
            )
        source = str(model)
    else:
        if example_inputs is None:
            raise errors.NetworkError("tuning a module needs example_inputs, a tuple of tensors")
        source = _export(model, tuple(example_inputs), folder)
    command = [
        *(sys.executable, "-m", "tlp", "tune", source),
        *("--work-dir", str(folder), "--seed", str(seed), "--json"),
        *("--target", target if isinstance(target, str) else json.dumps(target)),
        *(() if trials is None else ("--trials", str(trials))),
        *(() if minutes is None else ("--minutes", str(minutes))),
        *(() if weight_layouts else ("--no-weight-layouts",)),
        *(part for source in reuse for part in ("--reuse", str(source))),
        *(part for pattern in tasks for part in ("--tasks", pattern)),
        *(() if rpc is None else ("--rpc", rpc)),
        *(() if rpc_key is None else ("--rpc-key", rpc_key)),
        *(("--quiet",) if quiet else ()),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise errors.TlpError(
            f"'{' '.join(command[1:4])}' ended with exit code {done.returncode}"
        ) from None
    if done.returncode:
        kind = getattr(errors, str(answer.get("error")), errors.TlpError)
        raise kind(answer.get("message", done.stdout))
    return Result(folder, answer)


def _export(model: torch.nn.Module, example_inputs: tuple[Any, ...], folder: Path) -> str:
    """Export a module beside the run; on resume the folder must hold the same module."""
    from tlp.networks.load import export_module

    path, note = folder / "exported.pt2", folder / "exported.sha256"
    folder.mkdir(parents=True, exist_ok=True)
    identity = _identity(model, example_inputs)
    if path.exists() and note.exists():
        if note.read_text() != identity:
            raise errors.WorkDirError(
                f"{folder} belongs to another module or other example inputs; use another work_dir"
            )
        return str(path)
    export_module(model, example_inputs, path)
    note.write_text(identity)
    return str(path)


def _identity(model: torch.nn.Module, example_inputs: tuple[Any, ...]) -> str:
    """Hash of a module's structure and weights and of its inputs' shapes and types."""
    digest = hashlib.sha256(repr(model).encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(_bytes()).numpy())
    for value in example_inputs:
        digest.update(f"{tuple(value.shape)} {value.dtype}".encode())
    return digest.hexdigest()


def _bytes() -> Any:
    import torch

    return torch.uint8


def load(folder: str | Path) -> CompiledNetwork:
    """Load the tuned network of a work folder.

    Raises
    ------
    WorkDirError
        If the folder holds none.
    """
    from tlp.metaschedule.compile import CompiledNetwork

    return CompiledNetwork(WorkDir(Path(folder)).library)
