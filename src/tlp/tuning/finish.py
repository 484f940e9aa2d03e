"""The end of a run: database, compiled networks, the check of the output, latencies, summary."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlp.errors import WrongOutputError
from tlp.host import CorePlan, pin_process
from tlp.measuring.compare import (
    alternate,
    compiled_contender,
    eager_contender,
    output_error,
)
from tlp.metaschedule.compile import CompiledNetwork, compile_network
from tlp.metaschedule.database import Entry, write_database
from tlp.networks.prepare import load_prepared, load_reference
from tlp.processes import run_isolated
from tlp.records.store import Store
from tlp.tuning.state import TaskState
from tlp.tuning.summary import TOLERANCE, summarise
from tlp.tuning.workdir import WorkDir

if TYPE_CHECKING:
    from tlp.tuning.run import RunObserver, TuneSettings


def write_best(folder: WorkDir, states: Sequence[TaskState], observer: RunObserver) -> None:
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
    progress: Callable[[str], None],
) -> None:
    mod = load_prepared(prepared)
    compile_network(mod, target, library, database, weight_layouts, progress)


def compile_both(
    folder: WorkDir, settings: TuneSettings, target: dict[str, Any], observer: RunObserver
) -> None:
    """Compile the tuned network, and the untuned one if the folder lacks it."""
    jobs: list[tuple[str, Path, Path | None]] = [("tuned", folder.library, folder.database)]
    if not folder.untuned.exists():
        jobs.append(("untuned", folder.untuned, None))
    for name, library, database in jobs:
        run_isolated(
            _compile_in_folder,
            folder.prepared,
            target,
            library,
            database,
            settings.weight_layouts,
            start="fork",
            log=folder.logs / f"compile_{name}.log",
            on_progress=functools.partial(_stage_of, observer, name),
            on_wait=observer.tick,
        )


def _stage_of(observer: RunObserver, name: str, text: str) -> None:
    observer.stage(f"{name} network: {text}")


def _check(
    library: Path, prepared: Path, cores: tuple[int, ...], progress: Callable[[str], None]
) -> float:
    pin_process(cores)
    return output_error(CompiledNetwork(library), load_reference(prepared))


def verify_and_compare(
    folder: WorkDir,
    settings: TuneSettings,
    target: dict[str, Any],
    plan: CorePlan,
    states: Sequence[TaskState],
    store: Store,
    observer: RunObserver,
) -> dict[str, Any]:
    """Check the output against PyTorch's, compare latencies, and sum the run up."""
    observer.stage("checking the output against PyTorch")
    error = run_isolated(
        _check,
        folder.library,
        folder.prepared,
        plan.run,
        start="fork",
        log=folder.logs / "check.log",
        on_wait=observer.tick,
    )
    if not error <= TOLERANCE:
        raise WrongOutputError(
            f"the tuned network's output differs from PyTorch's: {error:.3g} of the output's "
            f"variation, allowed {TOLERANCE:g}. The measurements are kept in {folder.root}; "
            "please report this with the folder's used_config.json and database/"
        )
    observer.stage("comparing latencies")
    spec = settings.network.localised(folder.prepared)
    seconds = alternate(
        [
            compiled_contender(
                "tuned", folder.library, folder.prepared, plan.run, folder.logs / "tuned.log"
            ),
            eager_contender(spec, folder.prepared, plan.run),
            compiled_contender(
                "untuned", folder.untuned, folder.prepared, plan.run, folder.logs / "untuned.log"
            ),
        ],
        tick=observer.stage,
    )
    return summarise(
        settings.network,
        settings.work_dir,
        settings.weight_layouts,
        target,
        states,
        store,
        seconds,
        error,
    )
