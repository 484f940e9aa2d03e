"""The end of a run: database, compiled networks, the check of the output, latencies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tlp.errors import WrongOutputError
from tlp.host import pin_process
from tlp.measuring.compare import alternate, compiled_contender, eager_contender, output_error
from tlp.measuring.place import LocalPlace, Place
from tlp.measuring.remote import RemotePlace
from tlp.measuring.remote_network import compare_there
from tlp.metaschedule.compile import CompiledNetwork, compile_network
from tlp.metaschedule.database import Entry, write_database
from tlp.networks.eager import torch_has_cuda
from tlp.networks.prepare import load_prepared, load_reference
from tlp.networks.spec import PYTORCH, NetworkSpec
from tlp.processes import run_isolated
from tlp.tuning.state import TaskState
from tlp.tuning.summary import TOLERANCE
from tlp.tuning.workdir import WorkDir


class Stages(Protocol):
    """Whoever shows the stages."""

    def stage(self, text: str) -> None:
        """A stage began or went on."""

    def tick(self) -> None:
        """Time passes."""


def write_best(folder: WorkDir, states: Sequence[TaskState], observer: Stages) -> None:
    """Write the verified best program of each task to the database."""
    entries = [
        Entry(state.design, state.best.sketch, state.best.decisions, state.best.latency)
        for state in states
        if state.best is not None
    ]
    observer.stage("writing the database")
    run_isolated(
        write_database,
        entries,
        folder.database,
        start="fork",
        log=folder.logs / "database.log",
        on_progress=observer.stage,
        on_wait=observer.tick,
    )


def _compile_in_folder(
    prepared: Path,
    target: dict[str, Any],
    library: Path,
    database: Path | None,
    weight_layouts: bool,
    cc: str | None,
    progress: Callable[[str], None],
) -> None:
    mod = load_prepared(prepared)
    compile_network(mod, target, library, database, weight_layouts, progress, cc)


def compile_networks(
    folder: WorkDir, target: dict[str, Any], weight_layouts: bool, place: Place, observer: Stages
) -> dict[str, Path]:
    """Compile the tuned network and, once, the untuned one; files by name.

    For devices they are packed as candidates are.
    """
    suffix, cc = ".so", None
    if isinstance(place, RemotePlace):
        suffix, cc = place.suffix(), place.devices.cc
    libraries = {
        "tuned": folder.library.with_suffix(suffix),
        "untuned": folder.untuned.with_suffix(suffix),
    }
    for name, library in libraries.items():
        if name == "untuned" and library.exists():
            continue
        run_isolated(
            _compile_in_folder,
            folder.prepared,
            target,
            library,
            folder.database if name == "tuned" else None,
            weight_layouts,
            cc,
            start="fork",
            log=folder.logs / f"compile_{name}.log",
            on_progress=functools.partial(_stage_of, observer, name),
            on_wait=observer.tick,
        )
    return libraries


def _stage_of(observer: Stages, name: str, text: str) -> None:
    observer.stage(f"{name} network: {text}")


def _check(
    library: Path, prepared: Path, cores: tuple[int, ...], progress: Callable[[str], None]
) -> float:
    pin_process(cores)
    return output_error(CompiledNetwork(library), load_reference(prepared))


def check_and_compare(
    folder: WorkDir,
    spec: NetworkSpec,
    libraries: dict[str, Path],
    place: Place,
    observer: Stages,
) -> tuple[float, dict[str, list[float]]]:
    """Error of the tuned network's output, and seconds of every timed call by contender.

    Raises
    ------
    WrongOutputError
        If the output differs from the framework's.
    """
    if isinstance(place, RemotePlace):
        error, seconds = run_isolated(
            compare_there,
            place,
            folder.prepared,
            libraries,
            folder.library,
            start="fork",
            log=folder.logs / "compare.log",
            on_progress=observer.stage,
            on_wait=observer.tick,
        )
        _refuse(error, folder, spec.framework.name)
        return error, seconds
    framework = spec.framework
    observer.stage(f"checking the output against {framework.name}")
    cores = place.plan.run
    error = run_isolated(
        _check,
        libraries["tuned"],
        folder.prepared,
        cores,
        start="fork",
        log=folder.logs / "check.log",
        on_wait=observer.tick,
    )
    _refuse(error, folder, framework.name)
    observer.stage("comparing latencies")
    prepared, logs = folder.prepared, folder.logs
    contenders = [
        compiled_contender(name, libraries[name], prepared, cores, logs / f"{name}.log")
        for name in ("tuned", "untuned")
    ]
    on_gpu = isinstance(place, LocalPlace) and place.device == "cuda"
    if not on_gpu or (framework is PYTORCH and run_isolated(torch_has_cuda)):
        device = "cuda" if on_gpu else "cpu"
        contenders.insert(1, eager_contender(spec.localised(prepared), prepared, cores, device))
    return error, alternate(contenders, tick=observer.stage)


def _refuse(error: float, folder: WorkDir, framework: str) -> None:
    if not error <= TOLERANCE:
        raise WrongOutputError(
            f"the tuned network's output differs from {framework}'s: {error:.3g} of the output's "
            f"variation, allowed {TOLERANCE:g}. The measurements are kept in {folder.root}; "
            "please report this with the folder's used_config.json and database/"
        )
