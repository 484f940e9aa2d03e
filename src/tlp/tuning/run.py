"""A whole run: from a network to a tuned, verified, compiled network in a work folder."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tlp.disk import full_disk_reported
from tlp.errors import MeasureError, NetworkError, TlpError
from tlp.host import available_cores, describe_host, fingerprint, pin_process
from tlp.measuring.place import LocalPlace, Place
from tlp.measuring.pool import Limits, WorkerPool
from tlp.measuring.remote import Devices, RemotePlace, make_remote_place
from tlp.measuring.remote_network import try_device
from tlp.metaschedule.compile import CompiledNetwork
from tlp.metaschedule.devices import find_gpu
from tlp.metaschedule.imports import load_tvm
from tlp.metaschedule.targets import check_compiles, check_host, is_cpu, parse_target, plan_of
from tlp.models.gaussian import OnlineProcess
from tlp.models.scorer import Scorer
from tlp.networks.load import source_files
from tlp.networks.prepare import MODULE_FILE, load_prepared, prepare
from tlp.networks.spec import NetworkSpec
from tlp.networks.tasks import extract_tasks
from tlp.processes import Interrupt, deferred_interrupt, native_output_to, run_isolated
from tlp.records.store import Candidate, Store, StoredTask
from tlp.reports.history import read_history
from tlp.reports.page import write_page
from tlp.tuning.finish import check_and_compare, compile_networks, write_best
from tlp.tuning.loop import Budget, Loop, Observer
from tlp.tuning.reuse import (
    Platform,
    check_sources,
    choose_first_picks,
    describe,
    read_sources,
    take_over,
)
from tlp.tuning.search import SearchSettings
from tlp.tuning.state import TaskState, choose_tasks, make_states, restore_start, subjects_of
from tlp.tuning.summary import summarise, versions, write_trials
from tlp.tuning.workdir import WorkDir, write_json

# Each worker that has run something holds a CUDA context, some hundred megabytes on the GPU.
_MOST_GPU_WORKERS = 8
_GPU_BUILD_SECONDS = 60.0


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
        Trials of the folder in all, earlier runs included; None for no limit. None more than there
        are, such as 0, compiles from what is known.
    minutes
        Wall time for tuning in this call; None for no limit.
    weight_layouts
        Lay constant weights out for the tuned loops; TVM's GPU pipelines do not.
    seed
        Of the search.
    devices
        Devices behind an RPC tracker to measure on; by default this machine.
    reuse
        Folders whose records are used: work folders and MetaSchedule databases.
    tasks
        Patterns of the tasks that get rounds; all by default.
    """

    network: NetworkSpec
    work_dir: Path
    target: str = "native"
    trials: int | None = None
    minutes: float | None = None
    weight_layouts: bool = True
    seed: int = 0
    reuse: tuple[Path, ...] = ()
    tasks: tuple[str, ...] = ()
    search: SearchSettings = field(default_factory=SearchSettings)
    limits: Limits = field(default_factory=Limits)
    devices: Devices | None = None

    def __post_init__(self) -> None:
        if self.trials is not None and self.trials < 0:
            raise TlpError(
                f"--trials is {self.trials}; give a number, 0 to compile from what is known, or "
                "leave it out"
            )
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

    def waiting(self, text: str) -> None:
        self._interrupt.check()
        self._inner.waiting(text)

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
        Makes the scorer from a seed; a Gaussian process a task by default.
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
    check_sources(settings.reuse, folder.root)
    observer.stage("loading TVM")
    target = parse_target(settings.target, here=settings.devices is None)
    place = _make_place(settings, target)
    if not is_cpu(target):
        settings = _for_gpu(settings)
    with full_disk_reported(folder.root), folder.locked():
        _claim(folder, settings, target, place)
        if isinstance(place, RemotePlace):
            observer.stage("trying a device")
            run_isolated(
                try_device,
                place,
                target,
                start="fork",
                log=folder.logs / "device.log",
                on_progress=observer.stage,
                on_wait=observer.tick,
            )
        _prepare(folder, settings, target, observer)
        everything = available_cores()
        try:
            pin_process(place.plan.work)
            return _tune(folder, settings, target, place, observer, make_scorer)
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


def _for_gpu(settings: TuneSettings) -> TuneSettings:
    """Settings without weight layouts and, unless told otherwise, with time for the compiler."""
    limits = settings.limits
    if limits.build == Limits().build:
        limits = replace(limits, build=_GPU_BUILD_SECONDS)
    return replace(settings, weight_layouts=False, limits=limits)


def _make_place(settings: TuneSettings, target: dict[str, Any]) -> Place:
    if settings.devices is not None:
        check_compiles(target)
        return make_remote_place(settings.devices, target)
    check_host(target)
    return LocalPlace(plan_of(target), "cpu" if is_cpu(target) else "cuda")


def _claim(folder: WorkDir, settings: TuneSettings, target: dict[str, Any], place: Place) -> None:
    network = settings.network
    identity = {
        "network": network.to_json(),
        "network_sha256": _sha256(source_files(network)) if network.is_file else None,
        "target": target,
        "weight_layouts": settings.weight_layouts,
        "rpc_key": None if settings.devices is None else settings.devices.key,
    }
    gpu = None if is_cpu(target) else find_gpu()
    if gpu is not None:
        identity["gpu"] = gpu["name"]
    config = {
        "trials": settings.trials,
        "minutes": settings.minutes,
        "seed": settings.seed,
        "reuse": [str(path) for path in settings.reuse],
        "tasks": settings.tasks,
        "search": asdict(settings.search),
        "limits": asdict(settings.limits),
        "rpc": None if settings.devices is None else asdict(settings.devices),
        "platform": place.platform,
        "versions": versions(),
        "host": describe_host(),
        "host_fingerprint": fingerprint(),
    }
    folder.claim(identity, config)


def _sha256(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
        except OSError as error:
            raise NetworkError(f"network file {path}: cannot be read ({error})") from error
    return digest.hexdigest()


def _prepare(
    folder: WorkDir, settings: TuneSettings, target: dict[str, Any], observer: RunObserver
) -> None:
    if (folder.prepared / MODULE_FILE).exists():
        return
    observer.stage(f"loading {settings.network.framework.name}")
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


def _tune(
    folder: WorkDir,
    settings: TuneSettings,
    target: dict[str, Any],
    place: Place,
    observer: RunObserver,
    make_scorer: Callable[[int], Scorer] | None,
) -> Result:
    tvm = load_tvm()
    observer.stage("finding tasks")
    store = Store(folder.store)
    with native_output_to(folder.logs / "tvm.log"):
        states = make_states(extract_tasks(load_prepared(folder.prepared), target), target)
    choose_tasks(states, settings.tasks)
    for state in states:
        task = state.task
        if state.note:  # its stand-in for a sketch must not be taken for one later
            continue
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
    # What a report cannot know without TVM.
    store.set_meta(
        "tasks",
        {s.task.key: {"anchor": s.task.anchor, "rows": s.space.upper_bound} for s in states},
    )
    reused = _reuse(folder, settings, target, place.platform, states, store, observer)
    budget = Budget(
        trials=settings.trials,
        seconds=None if settings.minutes is None else 60 * settings.minutes,
    )
    resumed = sum(state.trials for state in states)
    stopped = "the budget holds no more trials"
    try:
        if budget.left(resumed) > 0:
            stopped = _rounds(
                folder, settings, target, place, states, store, budget, observer, make_scorer
            )
    except (KeyboardInterrupt, MeasureError):
        write_best(folder, states, observer)
        raise
    finally:
        with contextlib.suppress(OSError, TlpError):
            write_trials(store, states, folder.trials)
    write_best(folder, states, observer)
    libraries = compile_networks(folder, target, settings.weight_layouts, place, observer)
    difference, seconds = check_and_compare(folder, settings.network, libraries, place, observer)
    summary = summarise(
        settings.network,
        settings.work_dir,
        settings.weight_layouts,
        target,
        place.platform,
        states,
        store,
        seconds,
        difference,
    )
    summary["stopped"] = stopped
    summary["resumed_from_trials"] = resumed
    summary["reuse"] = reused
    write_json(folder.summary, summary)
    store.close()
    return Result(folder.root, summary)


def _reuse(
    folder: WorkDir,
    settings: TuneSettings,
    target: dict[str, Any],
    platform: str,
    states: Sequence[TaskState],
    store: Store,
    observer: RunObserver,
) -> list[dict[str, Any]]:
    """Take over what other folders know, and restore the tasks; counts for each folder."""
    able = [state for state in states if not state.note]
    sources = read_sources(
        settings.reuse,
        able,
        Platform(target, versions()["apache-tvm"], platform),
        folder.logs / "reuse.log",
        observer.stage,
        observer.tick,
    )
    counts = take_over(sources, store, platform)
    for state in states:
        state.restore(store, platform)
        restore_start(state, folder.references, platform)
    choose_first_picks(sources, able, counts)
    for count in counts:
        observer.stage(describe(count))
    return counts


def _rounds(
    folder: WorkDir,
    settings: TuneSettings,
    target: dict[str, Any],
    place: Place,
    states: Sequence[TaskState],
    store: Store,
    budget: Budget,
    observer: RunObserver,
    make_scorer: Callable[[int], Scorer] | None,
) -> str:
    """Tune until the budget is spent; returns why it stopped."""
    resumed = sum(state.trials for state in states)
    scorer = (make_scorer or OnlineProcess)(settings.seed)
    with native_output_to(folder.logs / "tvm.log"):
        subjects = subjects_of(states)
    observer.stage("starting workers")
    size = None if is_cpu(target) else min(_MOST_GPU_WORKERS, len(place.plan.work) + 1)
    with WorkerPool(
        subjects, place, folder.references, size=size, limits=settings.limits, log_dir=folder.logs
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
            return loop.run(budget)
        finally:
            observer.loop_ended()
            store.set_meta("elapsed_s", loop.elapsed)
