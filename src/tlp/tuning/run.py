"""A whole run: from a network to a tuned, verified, compiled network in a work folder."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tlp.errors import TlpError, WrongOutputError
from tlp.host import CorePlan, available_cores, describe_host, fingerprint, pin_process, plan_cores
from tlp.measuring.compare import (
    alternate,
    compiled_contender,
    eager_contender,
    output_error,
)
from tlp.measuring.pool import Limits, WorkerPool
from tlp.measuring.worker import Subject, reference_path
from tlp.metaschedule.arguments import describe_arguments
from tlp.metaschedule.compile import CompiledNetwork, compile_network
from tlp.metaschedule.database import Entry, write_database
from tlp.metaschedule.imports import load_tvm
from tlp.metaschedule.sketches import decision_space, make_design
from tlp.metaschedule.targets import check_host, parse_target
from tlp.models.scorer import Scorer
from tlp.models.trees import OnlineTrees
from tlp.networks.prepare import MODULE_FILE, load_prepared, load_reference, prepare
from tlp.networks.spec import NetworkSpec
from tlp.networks.tasks import Task, extract_tasks
from tlp.processes import Interrupt, deferred_interrupt, native_output_to, run_isolated
from tlp.records.store import Candidate, Store, StoredTask
from tlp.reports.history import read_history
from tlp.reports.page import write_page
from tlp.tuning.loop import Budget, Loop, Observer
from tlp.tuning.scheduler import Progress
from tlp.tuning.search import SearchSettings
from tlp.tuning.state import TaskState
from tlp.tuning.summary import TOLERANCE, summarise, versions, write_trials
from tlp.tuning.workdir import WorkDir, write_json


@dataclass(frozen=True)
class TuneSettings:
    """What to tune and how long.

    Parameters
    ----------
    network
        What to tune.
    target
        ``native``, a tag, JSON, or the short form.
    work_dir
        Folder of the run; an old one resumes.
    trials
        Trials of the folder in all, earlier runs included; None for no limit.
    minutes
        Wall time for tuning in this call; None for no limit.
    weight_layouts
        Lay constant weights out for the tuned loops.
    seed
        Of the search.
    """

    network: NetworkSpec
    work_dir: Path
    target: str = "native"
    trials: int | None = None
    minutes: float | None = None
    weight_layouts: bool = True
    seed: int = 0
    search: SearchSettings = field(default_factory=SearchSettings)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.trials is not None and self.trials < 1:
            raise TlpError(f"--trials is {self.trials}; give at least 1, or leave it out")
        if self.minutes is not None and not self.minutes > 0:
            raise TlpError(f"--minutes is {self.minutes}; give more than 0, or leave it out")


class RunObserver(Observer, Protocol):
    """Whoever shows a whole run."""

    def stage(self, text: str) -> None:
        """A stage outside the rounds began or went on."""

    def loop_started(self, loop: Loop, budget: Budget) -> None:
        """Rounds begin."""

    def loop_ended(self) -> None:
        """Rounds are over."""


class _Interruptible(RunObserver):
    """Passes everything on, and stops where Ctrl-C was pressed."""

    def __init__(self, inner: RunObserver, interrupt: Interrupt) -> None:
        self._inner = inner
        self._interrupt = interrupt

    def tick(self) -> None:
        self._interrupt.check()
        self._inner.tick()

    def stage(self, text: str) -> None:
        self._interrupt.check()
        self._inner.stage(text)

    def round_started(self, state: TaskState, phase: str) -> None:
        self._interrupt.check()
        self._inner.round_started(state, phase)

    def measured(self, state: TaskState, candidate: Candidate) -> None:
        self._inner.measured(state, candidate)

    def loop_started(self, loop: Loop, budget: Budget) -> None:
        self._inner.loop_started(loop, budget)

    def loop_ended(self) -> None:
        self._inner.loop_ended()


@dataclass(frozen=True)
class Result:
    """Outcome of a run: its summary (plain JSON) and where everything lies."""

    work_dir: Path
    summary: dict[str, Any]

    def network(self) -> CompiledNetwork:
        """Load the tuned network."""
        return CompiledNetwork(WorkDir(self.work_dir).library)


def tune(
    settings: TuneSettings,
    observer: RunObserver,
    make_scorer: Callable[[int], Scorer] | None = None,
) -> Result:
    """Tune a network; the folder keeps everything that was measured whatever happens.

    Parameters
    ----------
    make_scorer
        Makes the scorer from a seed; online trees by default.
    """
    with deferred_interrupt() as interrupt:
        return _tune_in_folder(settings, _Interruptible(observer, interrupt), make_scorer)


def _tune_in_folder(
    settings: TuneSettings,
    observer: RunObserver,
    make_scorer: Callable[[int], Scorer] | None,
) -> Result:
    settings.network.check_file()
    folder = WorkDir(settings.work_dir)
    observer.stage("loading TVM")
    target = parse_target(settings.target)
    check_host(target)
    plan = plan_cores(int(target["num-cores"]))
    with folder.locked():
        _claim(folder, settings, target)
        _prepare(folder, settings, target, observer)
        everything = available_cores()
        try:
            pin_process(plan.work)
            return _tune(folder, settings, target, plan, observer, make_scorer)
        finally:
            pin_process(everything)
            _write_page(folder, observer)


def _write_page(folder: WorkDir, observer: RunObserver) -> None:
    """Show what was measured, whatever ended the run; the run's outcome stays what it is."""
    if not folder.store.exists():
        return
    observer.stage("writing the page")
    try:
        write_page(read_history(folder.root), folder.report)
    except Exception as error:
        observer.stage(f"no page was written: {type(error).__name__}: {error}")


def _claim(folder: WorkDir, settings: TuneSettings, target: dict[str, Any]) -> None:
    network = settings.network
    identity = {
        "network": network.to_json(),
        "network_sha256": _sha256(Path(network.source)) if network.is_file else None,
        "target": target,
        "weight_layouts": settings.weight_layouts,
    }
    config = {
        "trials": settings.trials,
        "minutes": settings.minutes,
        "seed": settings.seed,
        "search": asdict(settings.search),
        "limits": asdict(settings.limits),
        "versions": versions(),
        "host": describe_host(),
        "host_fingerprint": fingerprint(),
    }
    folder.claim(identity, config)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _prepare(
    folder: WorkDir, settings: TuneSettings, target: dict[str, Any], observer: RunObserver
) -> None:
    if (folder.prepared / MODULE_FILE).exists():
        return
    observer.stage("loading PyTorch")
    run_isolated(
        prepare,
        settings.network,
        target,
        settings.weight_layouts,
        folder.prepared,
        log=folder.logs / "prepare.log",
        on_progress=observer.stage,
        on_wait=observer.tick,
    )


def make_states(
    tasks: Sequence[Task],
    target: dict[str, Any],
    observer: RunObserver | None = None,
) -> list[TaskState]:
    """Sketches and decision spaces of tasks; call it inside ``native_output_to``."""
    states = []
    for number, task in enumerate(tasks):
        if observer is not None:
            observer.stage(f"design space {number + 1} of {len(tasks)}")
        design = make_design(task.mod, target)
        states.append(
            TaskState(
                task=task,
                design=design,
                space=decision_space(design),
                progress=Progress(weight=task.weight, start=math.inf),
            )
        )
    return states


def subjects_of(states: Sequence[TaskState]) -> dict[str, Subject]:
    """What the workers must know of the tasks."""
    return {
        state.task.key: Subject(
            state.design, describe_arguments(state.task.mod), state.task.reduction_length
        )
        for state in states
    }


def _tune(
    folder: WorkDir,
    settings: TuneSettings,
    target: dict[str, Any],
    plan: CorePlan,
    observer: RunObserver,
    make_scorer: Callable[[int], Scorer] | None,
) -> Result:
    tvm = load_tvm()
    observer.stage("finding tasks")
    store = Store(folder.store)
    with native_output_to(folder.logs / "tvm.log"):
        states = make_states(extract_tasks(load_prepared(folder.prepared), target), target)
        for state in states:
            task = state.task
            store.add_task(
                StoredTask(
                    task.key,
                    task.name,
                    task.weight,
                    task.flops,
                    tvm.ir.save_json(task.mod),
                    tuple(sketch.skeleton for sketch in state.design.sketches),
                )
            )
            _restore(state, store, folder)
        # What a report cannot know without TVM.
        store.set_meta(
            "tasks",
            {s.task.key: {"anchor": s.task.anchor, "rows": s.space.upper_bound} for s in states},
        )
        subjects = subjects_of(states)
    scorer = (make_scorer or OnlineTrees)(settings.seed)
    budget = Budget(
        trials=settings.trials,
        seconds=None if settings.minutes is None else 60 * settings.minutes,
    )
    resumed = sum(state.trials for state in states)
    observer.stage("starting workers")
    interrupted = False
    with WorkerPool(
        subjects, plan, folder.references, limits=settings.limits, log_dir=folder.logs
    ) as pool:
        loop = Loop(
            states,
            store,
            pool,
            scorer,
            observer,
            settings.search,
            np.random.default_rng([settings.seed, resumed]),
            elapsed_before=store.get_meta("elapsed_s") or 0.0,
        )
        observer.loop_started(loop, budget)
        try:
            stopped = loop.run(budget)
        except KeyboardInterrupt:
            interrupted = True
            stopped = "interrupted"
        finally:
            store.set_meta("elapsed_s", loop.elapsed)
            observer.loop_ended()
    write_trials(store, states, folder.trials)
    _write_database(folder, states, observer)
    if interrupted:
        raise KeyboardInterrupt
    _compile(folder, settings, target, observer)
    summary = _finish(folder, settings, target, plan, states, store, observer)
    summary["stopped"] = stopped
    summary["resumed_from_trials"] = resumed
    write_json(folder.summary, summary)
    store.close()
    return Result(folder.root, summary)


def _restore(state: TaskState, store: Store, folder: WorkDir) -> None:
    path = reference_path(folder.references, state.task.key)
    if path.exists():
        with np.load(path) as stored:
            state.progress.start = float(stored["latency"])
    state.restore(store)


def _write_database(folder: WorkDir, states: Sequence[TaskState], observer: RunObserver) -> None:
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


def _compile(
    folder: WorkDir, settings: TuneSettings, target: dict[str, Any], observer: RunObserver
) -> None:
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


def _finish(
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
