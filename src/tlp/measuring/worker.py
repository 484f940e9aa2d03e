"""The worker process: replays, builds and runs candidates one after another."""

from __future__ import annotations

import gc
import math
import os
import signal
import time
import traceback
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from tlp.disk import says_full
from tlp.errors import MeasureError
from tlp.host import pin_process, set_tvm_threads
from tlp.measuring.messages import (
    Build,
    BuildRequest,
    GiveUp,
    Limits,
    Note,
    Program,
    Reference,
    ReferenceRequest,
    Replay,
    ReplayRequest,
    Reply,
    Request,
    Run,
    RunRequest,
    Unreached,
)
from tlp.measuring.pace import Pace, Repeats, repeat_at_full_pace
from tlp.measuring.place import ExpiredError, Loaded, LocalPlace, Place, Say, UnreachedError
from tlp.metaschedule.arguments import Argument, Array, random_array, random_inputs
from tlp.metaschedule.build import (
    Built,
    build_candidate,
    build_default,
    build_unscheduled,
    lay_out_weights,
)
from tlp.metaschedule.replay import replay
from tlp.metaschedule.sketches import Design
from tlp.processes import die_with_parent, take_over_output
from tlp.records.status import Status

_INPUT_SEED = 20_23
_TEXT_LIMIT = 4000
_KEPT_SCHEDULES = 64


@dataclass(frozen=True)
class Subject:
    """What a worker must know of a task."""

    design: Design
    arguments: tuple[Argument, ...]
    reduction_length: int

    @property
    def on_gpu(self) -> bool:
        """Whether candidates run on a GPU."""
        return bool(self.design.target.kind.name != "llvm")


@dataclass(frozen=True)
class TimingRules:
    """How a candidate is timed.

    Parameters
    ----------
    repeats
        Number of latencies.
    min_repeat_s
        Each repeat runs the program often enough to last this long.
    short_repeat_s
        The same where the core's pace is watched: as much time in more and shorter repeats, since
        a disturbance may come at any moment.
    patience_s
        How long a candidate waits for a core at full pace, at least; a slow one waits for four
        times what its repeats take.
    cut_factor
        A candidate whose first two calls are slower than this times the best is cut.
    """

    repeats: int = 5
    min_repeat_s: float = 0.01
    short_repeat_s: float = 0.002
    patience_s: float = 1.0
    cut_factor: float = 3.0


@dataclass
class _State:
    subjects: Mapping[str, Subject]
    place: Place
    references: Path
    rules: TimingRules
    limits: Limits
    say: Say
    pace: Pace | None
    schedules: dict[Program, Any] = field(default_factory=dict)
    built: dict[Program, tuple[Any, Built, Any]] = field(default_factory=dict)


def work(
    connection: Connection,
    subjects: Mapping[str, Subject],
    place: Place,
    references: Path,
    rules: TimingRules,
    limits: Limits,
    log: Path | None,
    parent: int,
) -> None:
    """Serve requests until the connection closes."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_tvm_threads(place.plan.run)
    take_over_output(log)
    pin_process(place.plan.work)
    # What the parent has loaded is shared memory; collecting it would copy every page.
    gc.freeze()

    def say(waiting: str, seconds: float) -> None:
        connection.send(Note(waiting, seconds))

    pace = Pace() if place.one_core else None
    state = _State(subjects, place, references, rules, limits, say, pace)
    handlers: dict[type, Any] = {
        ReplayRequest: _replay,
        BuildRequest: _build,
        RunRequest: _run,
        ReferenceRequest: _reference,
    }
    while True:
        try:
            request: Request = connection.recv()
        except (EOFError, OSError):
            return
        start = time.perf_counter()
        reply: Reply | GiveUp
        try:
            reply = handlers[type(request)](state, request, start)
        except UnreachedError as error:
            reply = Unreached(str(error))
        except MeasureError as error:
            reply = GiveUp(str(error))
        connection.send(reply)


def _describe(error: BaseException) -> tuple[str, str]:
    text = "".join(traceback.format_exception_only(error)).strip()
    return type(error).__name__, text[-_TEXT_LIMIT:]


def _replay(state: _State, request: ReplayRequest, start: float) -> Replay:
    program = request.program
    try:
        done = replay(state.subjects[program.task].design, program.sketch, program.decisions)
    except Exception as error:
        cause, text = _describe(error)
        seconds = time.perf_counter() - start
        return Replay(Status.REPLAY_ERROR, program.decisions, "", cause, text, seconds)
    seconds = time.perf_counter() - start
    if done.refused_by:
        return Replay(Status.REFUSED, done.decisions, "", done.refused_by, "", seconds)
    granted = Program(program.task, program.sketch, done.decisions)
    while len(state.schedules) >= _KEPT_SCHEDULES:
        state.schedules.pop(next(iter(state.schedules)))
    state.schedules[granted] = done.schedule.mod
    return Replay(Status.OK, done.decisions, done.program, seconds=seconds)


def _build(state: _State, request: BuildRequest, start: float) -> Build:
    program = request.program
    design = state.subjects[program.task].design
    try:
        mod = state.schedules.pop(program, None)
        if mod is None:
            done = replay(design, program.sketch, program.decisions)
            if done.refused_by:
                return Build(Status.BUILD_ERROR, done.refused_by, "refused on the second replay")
            mod = done.schedule.mod
        built = build_candidate(mod, design.target)
        state.built[program] = (mod, built, state.place.finish(built.library))
    except Exception as error:
        cause, text = _describe(error)
        return Build(Status.BUILD_ERROR, cause, text, time.perf_counter() - start)
    return Build(Status.OK, seconds=time.perf_counter() - start)


def candidate_arrays(
    shapes: tuple[tuple[str, tuple[int, ...]], ...], arguments: Any
) -> list[Array]:
    """Values for the arguments of a scheduled program, whose weights may be laid out anew."""
    arrays = []
    for position, ((dtype, shape), argument) in enumerate(zip(shapes, arguments, strict=True)):
        if argument.output:
            arrays.append(np.zeros(shape, dtype))
        else:
            shaped = Argument(argument.name, dtype, shape, False, argument.bound)
            arrays.append(random_array(shaped, (_INPUT_SEED, position)))
    return arrays


def _run(state: _State, request: RunRequest, start: float) -> Run:
    program = request.program
    subject = state.subjects[program.task]
    mod, built, finished = state.built[program]
    try:
        # Made before a device is asked for: neither it nor the candidate's limit waits for us.
        if state.place.remote:
            state.say("making the inputs", state.limits.reference)
        arrays = candidate_arrays(built.shapes, subject.arguments)
        with state.place.open(finished, state.limits.run, state.say) as there:
            run = _measure(state, request, there, arrays, mod, start)
    except (UnreachedError, MeasureError):
        raise
    except ExpiredError as error:
        seconds = time.perf_counter() - start
        run = Run(Status.RUN_TIMEOUT, (), False, "timeout", str(error), seconds)
    except Exception as error:
        cause, text = _describe(error)
        if state.place.breaks:
            # After a failed kernel every call of this process fails: end it. That costs this
            # candidate; what else was built here is built again.
            print(text, flush=True)
            os._exit(1)
        run = Run(Status.RUN_ERROR, (), False, cause, text, time.perf_counter() - start)
    del state.built[program]
    return run


def _measure(
    state: _State,
    request: RunRequest,
    there: Loaded,
    arrays: list[Array],
    mod: Any,
    start: float,
) -> Run:
    """Time a program where it runs, and compare its output if it would be the new best."""
    buffers = [there.tensor(array) for array in arrays]
    limit = state.rules.cut_factor * request.best
    first = there.first(buffers, limit)
    if first > limit:
        return Run(Status.SLOW, (first,), seconds=time.perf_counter() - start)
    repeats = _time(state.rules, state.pace, there, buffers, first)
    verified, error = False, ""
    if float(np.median(repeats.counted)) < request.best:
        error = _compare(state, request.program, mod, there)
        verified = not error
    run = Run(
        Status.WRONG_OUTPUT if error else Status.OK,
        repeats.counted,
        verified,
        "wrong output" if error else "",
        error,
        disturbed=repeats.disturbed,
    )
    return replace(run, seconds=time.perf_counter() - start)


def _time(
    rules: TimingRules, pace: Pace | None, there: Loaded, buffers: list[Any], first: float
) -> Repeats:
    shortest = rules.min_repeat_s if pace is None else rules.short_repeat_s
    number, once = 1, first
    if first < shortest:
        # The first call was cold; one repeat tells how often the program fits.
        (once,) = there.time(buffers, math.ceil(shortest / max(first, 1e-7)), 1)
        number = max(1, math.ceil(shortest / max(once, 1e-9)))
    if pace is None:
        repeats = Repeats(there.time(buffers, number, rules.repeats))
    else:
        wanted = max(rules.repeats, round(rules.repeats * rules.min_repeat_s / (number * once)))
        repeats = repeat_at_full_pace(
            lambda: there.time(buffers, number, 1)[0],
            pace,
            wanted,
            max(rules.patience_s, 4 * wanted * number * once),
        )
    if not all(math.isfinite(value) and value > 0 for value in repeats.counted):
        raise ValueError(f"the timer returned {repeats.counted}")
    return repeats


def reference_path(folder: Path, task: str) -> Path:
    """File of a task's reference output."""
    return folder / f"{task}.npz"


def _reference(state: _State, request: ReferenceRequest, start: float) -> Reference:
    """Run the unscheduled workload: its output is made here, its latency where candidates run."""
    subject = state.subjects[request.task]
    path = reference_path(state.references, request.task)
    try:
        local = LocalPlace(state.place.plan)
        library = build_unscheduled(subject.design.mod, state.place.here(subject.design.target))
        with local.open(local.finish(library), state.limits.reference, state.say) as there:
            latency, positive, outputs = _outputs(subject, there)
        arrays = {f"output{i}": output for i, output in enumerate(outputs)}
        if state.place.remote or subject.on_gpu:
            latency = math.inf
            _save_reference(path, positive, latency, state.place.platform, arrays)
            latency = _latency_there(state, subject, positive)
        _save_reference(path, positive, latency, state.place.platform, arrays)
        return Reference(latency)
    except (UnreachedError, MeasureError):
        raise
    except Exception as error:
        return Reference(math.inf, _describe(error)[1], says_full(error))
    finally:
        _temporary(path).unlink(missing_ok=True)


def _outputs(subject: Subject, there: Loaded) -> tuple[float, bool, list[Array]]:
    """Latency and outputs; positive inputs are taken if mixed signs give NaN."""
    for positive in (False, True):
        buffers = _unscheduled_buffers(subject, there, positive)
        latency = there.first(buffers, math.inf)
        outputs = [
            buffer.numpy()
            for argument, buffer in zip(subject.arguments, buffers, strict=True)
            if argument.output
        ]
        if all(np.isfinite(o).all() for o in outputs if o.dtype.kind == "f"):
            break
    return latency, positive, outputs


def _unscheduled_buffers(subject: Subject, there: Loaded, positive: bool) -> list[Any]:
    values = random_inputs(subject.arguments, _INPUT_SEED, positive)
    return [
        there.tensor(np.zeros(a.shape, a.dtype) if value is None else value)
        for a, value in zip(subject.arguments, values, strict=True)
    ]


def _latency_there(state: _State, subject: Subject, positive: bool) -> float:
    """Latency of the workload before tuning on a device; infinite if it is ended there.

    A GPU runs nothing that is not bound to threads: there it is that of TVM's default schedule.
    """
    build = build_default if subject.on_gpu else build_unscheduled
    library = build(subject.design.mod, subject.design.target)
    finished = state.place.finish(library)
    try:
        with state.place.open(finished, state.limits.run, state.say) as there:
            return there.first(_unscheduled_buffers(subject, there, positive), math.inf)
    except ExpiredError:
        return math.inf


def _temporary(path: Path) -> Path:
    return path.with_suffix(f".{os.getpid()}.tmp.npz")


def _save_reference(
    path: Path, positive: bool, latency: float, platform: str, outputs: dict[str, Array]
) -> None:
    temporary = _temporary(path)
    np.savez(
        temporary,
        positive=np.bool_(positive),
        latency=np.float64(latency),
        platform=np.str_(platform),
        **outputs,  # type: ignore[arg-type]
    )
    temporary.replace(path)


def stored_latency(path: Path, platform: str) -> float | None:
    """Unscheduled latency from a reference file, or None if it says nothing of a platform."""
    if not path.exists():
        return None
    try:
        with np.load(path) as stored:
            known = str(stored["platform"]) if "platform" in stored else ""
            return float(stored["latency"]) if known == platform else None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        path.unlink()  # damaged: it is made anew
        return None


def _compare(state: _State, program: Program, mod: Any, there: Loaded) -> str:
    """Difference to the unscheduled workload's output; empty if it is within the tolerance."""
    subject = state.subjects[program.task]
    with np.load(reference_path(state.references, program.task)) as stored:
        positive = bool(stored["positive"])
        expected = [stored[name] for name in stored.files if name.startswith("output")]
    values = random_inputs(subject.arguments, _INPUT_SEED, positive)
    inputs = [value for value in values if value is not None]
    laid_out = lay_out_weights(mod, state.place.here(subject.design.target), inputs)
    outputs = [
        there.tensor(np.zeros(argument.shape, argument.dtype))
        for argument in subject.arguments
        if argument.output
    ]
    there.call([*(there.tensor(value) for value in laid_out), *outputs])
    for position, (want, buffer) in enumerate(zip(expected, outputs, strict=True)):
        message = difference(buffer.numpy(), want, subject.reduction_length)
        if message:
            return f"output {position}: {message}"
    return ""


def difference(got: Array, want: Array, reduction_length: int) -> str:
    """What is wrong with an output, or an empty text.

    The tolerance is ``eps * (64 + reduction_length) * max|want|``: sums in another order differ
    by rounding that grows with their length. Integers must be equal; NaN and infinities must
    stand in the same places.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"shape or type differ: {got.dtype}{got.shape}, expected {want.dtype}{want.shape}"
    if want.dtype.kind in "iub":
        wrong = int((got != want).sum())
        return f"{wrong} of {want.size} integers differ" if wrong else ""
    epsilon = 2.0**-7 if want.dtype.itemsize == 2 else float(np.finfo(want.dtype).eps)
    got64, want64 = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want64)
    if not np.array_equal(finite, np.isfinite(got64)):
        return "NaN or infinity where the reference is finite, or the other way round"
    if not finite.any():
        return ""
    scale = float(np.abs(want64[finite]).max())
    error = float(np.abs(got64[finite] - want64[finite]).max())
    tolerance = epsilon * (64 + reduction_length) * scale
    if error > tolerance:
        return f"max|a-b| = {error:.3g}, allowed {tolerance:.3g} (max|b| = {scale:.3g})"
    return ""
