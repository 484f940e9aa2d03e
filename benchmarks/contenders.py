"""Searches that race for one task: each gives its trials with the times at which they were known.

All build and run on the same workers, one candidate at a time where the platform has one core, and
nobody's clock counts what only the comparison needs.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Silent
from tlp.host import fingerprint, pin_process, plan_cores, set_tvm_threads
from tlp.measuring.batch import Batch, Measured, reference, replay_all
from tlp.measuring.messages import Program
from tlp.measuring.pace import Pace, repeat_at_full_pace
from tlp.measuring.place import Loaded, LocalPlace
from tlp.measuring.pool import WorkerPool
from tlp.measuring.worker import candidate_arrays
from tlp.metaschedule.arguments import describe_arguments
from tlp.metaschedule.build import build_candidate
from tlp.metaschedule.replay import replay
from tlp.metaschedule.sketches import Design, make_design, skeleton
from tlp.models.gaussian import OnlineProcess
from tlp.models.scorer import RandomScorer, Scorer
from tlp.networks.tasks import Task
from tlp.processes import native_output_to
from tlp.records.store import Candidate, Store, StoredTask
from tlp.tuning.decisions import Decisions
from tlp.tuning.loop import Budget, Loop
from tlp.tuning.search import SearchSettings
from tlp.tuning.state import make_states, restore_start, subjects_of

# MutateParallel of TVM's default rules for a CPU.
_JOBS_A_CORE = 16
# Of the comparison: how long a repeat takes, and waits for a core at full pace.
_REPEAT_S = 0.005
_PATIENCE_S = 1.0


@dataclass(frozen=True)
class Trial:
    """One measured program.

    Parameters
    ----------
    elapsed_s
        Contender's time when the latency was known.
    latency
        Median of the repeats in seconds; infinite for a failure or a candidate that was cut.
    """

    elapsed_s: float
    latency: float
    sketch: int
    decisions: Decisions
    program: str


@dataclass(frozen=True)
class Trajectory:
    """A contender's run on one task.

    Parameters
    ----------
    neighbours_busy
        Share of the time in which other cores worked beside it, which slows it down.
    """

    contender: str
    seed: int
    host: str
    trials: tuple[Trial, ...]
    seconds_by_phase: dict[str, float]
    neighbours_busy: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, infinite latencies as null."""
        plain = asdict(self)
        for trial in plain["trials"]:
            if not math.isfinite(trial["latency"]):
                trial["latency"] = None
        return plain

    @staticmethod
    def from_json(plain: dict[str, Any]) -> Trajectory:
        """Inverse of :meth:`to_json`."""
        trials = [
            Trial(
                trial["elapsed_s"],
                math.inf if trial["latency"] is None else trial["latency"],
                trial["sketch"],
                tuple(tuple(value) for value in trial["decisions"]),
                trial["program"],
            )
            for trial in plain["trials"]
        ]
        return Trajectory(**{**plain, "trials": tuple(trials)})

    def improvements(self, by: float = 0.0) -> list[int]:
        """Indices of the trials that beat all before them by more than the share ``by``."""
        best, found = math.inf, []
        for index, trial in enumerate(self.trials):
            if trial.latency < best * (1 - by):
                best = trial.latency
                found.append(index)
        return found

    def best(self, trials: int | None = None) -> Trial:
        """Fastest of the first trials."""
        return min(self.trials[:trials], key=lambda trial: trial.latency)


def _trial(candidate: Candidate) -> Trial:
    good = candidate.status.timed and candidate.status.value != "slow"
    return Trial(
        candidate.elapsed_s,
        candidate.latency if good else math.inf,
        candidate.sketch,
        candidate.decisions,
        candidate.program,
    )


def loop_contender(
    name: str,
    make_scorer: Callable[[int], Scorer],
    settings: SearchSettings,
    task: Task,
    target: dict[str, Any],
    seed: int,
    trials: int,
    folder: Path,
) -> Trajectory:
    """Our rounds with a scorer; goes on where the folder's store ends."""
    begin = time.monotonic()
    plan = plan_cores(int(target["num-cores"]))
    pin_process(plan.work)
    folder.mkdir(parents=True, exist_ok=True)
    with native_output_to(folder / "tvm.log"):
        (state,) = make_states([task], target)
        subjects = subjects_of([state])
    store = Store(folder / "store.sqlite")
    known = bool(store.get_meta("elapsed_s"))
    if known:
        state.restore(store, fingerprint())
        restore_start(state, folder / "references", fingerprint())
        begin = time.monotonic()  # making the space anew is the price of the interruption only
    store.add_task(StoredTask(task.key, name, 1, task.flops, "", ()))
    scorer = make_scorer(seed)
    with WorkerPool(subjects, LocalPlace(plan), folder / "references", log_dir=folder) as pool:
        loop = Loop(
            [state],
            store,
            pool,
            scorer,
            Silent(),
            settings,
            np.random.default_rng([seed, state.trials]),
            elapsed_before=store.get_meta("elapsed_s") or 0.0,
            started=begin,
        )
        loop.run(Budget(trials=trials))
    found = [_trial(c) for c in store.candidates(task.key) if c.status.replayed]
    phases = store.phase_seconds()
    store.close()
    return Trajectory(name, seed, fingerprint(), tuple(found), phases)


def ours(
    task: Task, target: dict[str, Any], seed: int, trials: int, folder: Path, *_: Any
) -> Trajectory:
    """Our search, nothing pre-trained."""
    return loop_contender(
        "ours", OnlineProcess, SearchSettings(), task, target, seed, trials, folder
    )


def uniform(
    task: Task, target: dict[str, Any], seed: int, trials: int, folder: Path, *_: Any
) -> Trajectory:
    """Uniform sampling of rows; it scores nothing, so it proposes no more than it needs."""
    settings = SearchSettings(scored=100, draws=1)
    return loop_contender("uniform", RandomScorer, settings, task, target, seed, trials, folder)


def stock(
    task: Task, target: dict[str, Any], seed: int, trials: int, folder: Path, *_: Any
) -> Trajectory:
    """Stock EvolutionarySearch with XGBModel, both with TVM's defaults."""
    return stock_contender("stock", task, target, seed, trials, folder, batch=64, warmup=100)


def stock_warm16(
    task: Task, target: dict[str, Any], seed: int, trials: int, folder: Path, *_: Any
) -> Trajectory:
    """Stock with the model in use from 16 samples on, and batches of 16."""
    return stock_contender("stock-warm16", task, target, seed, trials, folder, batch=16, warmup=16)


def with_parallel_extents(design: Design) -> Design:
    """The design, then its sketches with each other extent that stock's MutateParallel may set.

    Stock changes how far loops are fused for threads, a constant of the sketch and no decision;
    a program of its choice is measured exactly only if the workers know that sketch.
    """
    from tvm.s_tir.schedule import Instruction, Trace

    found = {sketch.skeleton: sketch for sketch in design.sketches}
    most = _JOBS_A_CORE * int(design.target.attrs.get("num-cores", 1))
    for sketch in design.sketches:
        for extent in range(1, most + 1):
            instructions = [
                Instruction(i.kind, [i.inputs[0], extent], i.attrs, i.outputs)
                if i.kind.name == "Annotate" and i.attrs[0] == "meta_schedule.parallel"
                else i
                for i in sketch.instructions
            ]
            text = skeleton(Trace(instructions, {}))
            found.setdefault(text, replace(sketch, instructions=tuple(instructions), skeleton=text))
    return replace(design, sketches=tuple(found.values()))


def stock_contender(
    name: str,
    task: Task,
    target: dict[str, Any],
    seed: int,
    trials: int,
    folder: Path,
    *,
    batch: int,
    warmup: int,
) -> Trajectory:
    """Stock's search, cost model, callbacks and space; our builder and runner.

    A candidate reaches the workers as its decisions. The replay that this takes is not stock's:
    its time is left out of the clock. The program must be the one that stock asked for.
    """
    import tvm
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.cost_model.xgb_model import XGBModel

    plan = plan_cores(int(target["num-cores"]))
    pin_process(plan.work)
    folder.mkdir(parents=True, exist_ok=True)
    with native_output_to(folder / "tvm.log"):
        (state,) = make_states([task], target)
        state.design = with_parallel_extents(state.design)
        pool = WorkerPool(
            subjects_of([state]), LocalPlace(plan), folder / "references", log_dir=folder
        )
        clock = _Clock()
        context = ms.TuneContext(
            mod=task.mod,
            target=tvm.target.Target(target),
            space_generator="post-order-apply",
            search_strategy="evolutionary",
            rand_state=seed + 1,
            num_threads=len(plan.work),
        )
        database = ms.database.MemoryDatabase()
        workload = database.commit_workload(context.mod)
        model = XGBModel(num_warmup_samples=warmup, num_tuning_cores=len(plan.work))
        context.pre_tuning(trials, batch, context.generate_design_space(), database, model)
        found: list[Trial] = []
        with pool:
            reference(pool, task.key)
            clock.lap("run")
            while len(found) < trials:
                candidates = context.generate_measure_candidates()
                clock.lap("search")
                if candidates is None:
                    break
                candidates = list(candidates)[: trials - len(found)]
                measured = _measure(pool, task, state.design, candidates, found, clock)
                results = [_runner_result(ms, one) for one in measured]
                for candidate, one, result in zip(candidates, measured, results, strict=True):
                    seconds = result.run_secs if one.run and one.run.latencies else [1e10]
                    database.commit_tuning_record(
                        ms.database.TuningRecord(
                            candidate.sch.trace,
                            workload,
                            seconds,
                            context.target,
                            candidate.args_info,
                        )
                    )
                built = [i for i, one in enumerate(measured) if one.run is not None]
                model.update(context, [candidates[i] for i in built], [results[i] for i in built])
                context.notify_runner_results(candidates, results)
                clock.lap("learn")
    return Trajectory(name, seed, fingerprint(), tuple(found), clock.seconds)


class _Clock:
    """A stopwatch that books laps and can leave spans out."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()
        self.left_out = 0.0
        self.seconds: dict[str, float] = {}

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start - self.left_out

    def lap(self, phase: str) -> None:
        now = time.monotonic()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now

    def leave_out(self) -> None:
        now = time.monotonic()
        self.left_out += now - self._last
        self._last = now


def _measure(
    pool: WorkerPool,
    task: Task,
    design: Design,
    candidates: Sequence[Any],
    found: list[Trial],
    clock: _Clock,
) -> list[Measured]:
    """Measure stock's candidates in order; notes each trial as soon as it is known."""
    import tvm_ffi

    programs = [
        Program(task.key, *design.sketch_of(candidate.sch.trace)) for candidate in candidates
    ]
    hashes = {}
    for candidate, program, replayed in zip(
        candidates, programs, replay_all(pool, programs), strict=True
    ):
        wanted = f"{tvm_ffi.structural_hash(candidate.sch.mod) & (2**64 - 1):016x}"
        if replayed.program != wanted or replayed.decisions != program.decisions:
            raise RuntimeError(f"{program} does not give the program that stock chose")
        hashes[program] = wanted
    clock.leave_out()
    best = min((trial.latency for trial in found), default=math.inf)
    results: dict[Program, Measured] = {}
    batch = Batch(pool, list(dict.fromkeys(programs)), lambda: best)
    for measured in batch.results():
        results[measured.program] = measured
        run = measured.run
        latency = math.inf
        if run is not None and run.status.value == "ok":
            latency = float(np.median(run.latencies))
        best = min(best, latency)
        found.append(
            Trial(
                clock.elapsed,
                latency,
                measured.program.sketch,
                measured.program.decisions,
                hashes[measured.program],
            )
        )
    clock.lap("measure")
    return [results[program] for program in programs]


def _runner_result(ms: Any, measured: Measured) -> Any:
    if measured.run is None:
        return ms.runner.RunnerResult(None, measured.build.error or "build failed")
    if not measured.run.latencies:
        return ms.runner.RunnerResult(None, measured.run.error or "run failed")
    return ms.runner.RunnerResult([float(value) for value in measured.run.latencies], None)


def _once(there: Loaded, buffers: list[Any], number: int) -> float:
    return there.time(buffers, number, 1)[0]


def remeasure(
    task: Task,
    target: dict[str, Any],
    programs: Sequence[tuple[int, Decisions]],
    repeats: int,
    progress: Callable[[str], None],
) -> list[list[float]]:
    """Seconds of programs, repeats in alternation; run it in a process of its own.

    Where the platform is one core each repeat waits until the core runs at full pace.
    """
    plan = plan_cores(int(target["num-cores"]))
    set_tvm_threads(plan.run)
    pin_process(plan.work)
    place = LocalPlace(plan)
    design = with_parallel_extents(make_design(task.mod, target))
    arguments = describe_arguments(task.mod)
    builds = [
        build_candidate(replay(design, sketch, decisions).schedule.mod, design.target)
        for sketch, decisions in programs
    ]
    seconds: list[list[float]] = [[] for _ in builds]
    with contextlib.ExitStack() as stack:
        ready = []
        for built in builds:
            finished = place.finish(built.library)
            there = stack.enter_context(place.open(finished, math.inf, lambda text, limit: None))
            buffers = [there.tensor(a) for a in candidate_arrays(built.shapes, arguments)]
            number = max(1, math.ceil(_REPEAT_S / max(there.first(buffers, 0.0), 1e-7)))
            ready.append(functools.partial(_once, there, buffers, number))
        pace = Pace() if place.one_core else None
        for _ in range(repeats):
            for values, once in zip(seconds, ready, strict=True):
                if pace is None:
                    values.append(once())
                else:
                    values += repeat_at_full_pace(once, pace, 1, _PATIENCE_S).counted
    return seconds


CONTENDERS: dict[str, Callable[..., Trajectory]] = {
    "ours": ours,
    "stock": stock,
    "stock-warm16": stock_warm16,
    "uniform": uniform,
}
