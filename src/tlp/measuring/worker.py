"""The worker process: replays, builds and runs candidates one after another."""

from __future__ import annotations

import gc
import math
import os
import signal
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from tlp.disk import says_full
from tlp.host import CorePlan, pin_process, set_tvm_threads
from tlp.measuring.messages import (
    Build,
    BuildRequest,
    Program,
    Reference,
    ReferenceRequest,
    Replay,
    ReplayRequest,
    Reply,
    Request,
    Run,
    RunRequest,
)
from tlp.metaschedule.arguments import Argument, Array, random_array, random_inputs
from tlp.metaschedule.build import Built, build_candidate, build_unscheduled, lay_out_weights
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


@dataclass(frozen=True)
class TimingRules:
    """How a candidate is timed.

    Parameters
    ----------
    repeats
        Number of latencies kept.
    min_repeat_s
        Each repeat runs the program often enough to last this long.
    cut_factor
        A candidate whose first two calls are slower than this times the best is cut.
    """

    repeats: int = 5
    min_repeat_s: float = 0.01
    cut_factor: float = 3.0


@dataclass
class _State:
    subjects: Mapping[str, Subject]
    plan: CorePlan
    references: Path
    rules: TimingRules
    schedules: dict[Program, Any] = field(default_factory=dict)
    built: dict[Program, tuple[Any, Built]] = field(default_factory=dict)


def work(
    connection: Connection,
    subjects: Mapping[str, Subject],
    plan: CorePlan,
    references: Path,
    rules: TimingRules,
    log: Path | None,
    parent: int,
) -> None:
    """Serve requests until the connection closes."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_tvm_threads(plan.run)
    take_over_output(log)
    pin_process(plan.work)
    # What the parent has loaded is shared memory; collecting it would copy every page.
    gc.freeze()
    state = _State(subjects, plan, references, rules)
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
        reply: Reply = handlers[type(request)](state, request, start)
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
        state.built[program] = (mod, build_candidate(mod, design.target))
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


def _call(entry: Any, buffers: list[Any]) -> float:
    begin = time.perf_counter()
    entry(*buffers)
    return time.perf_counter() - begin


def _run(state: _State, request: RunRequest, start: float) -> Run:
    import tvm

    program = request.program
    subject = state.subjects[program.task]
    mod, built = state.built.pop(program)
    try:
        pin_process(state.plan.run)
        arrays = candidate_arrays(built.shapes, subject.arguments)
        buffers = [tvm.runtime.tensor(array) for array in arrays]
        first = _call(built.entry, buffers)
        # The pool's threads exist from the first parallel kernel on: confine them, too.
        pin_process(state.plan.run)
        limit = state.rules.cut_factor * request.best
        if first > limit:
            first = min(first, _call(built.entry, buffers))
            if first > limit:
                return Run(Status.SLOW, (first,), seconds=time.perf_counter() - start)
        latencies = _time(state.rules, built, buffers, first)
        verified, error = False, ""
        if float(np.median(latencies)) < request.best:
            error = _compare(state, program, mod, built)
            verified = not error
        seconds = time.perf_counter() - start
        if error:
            return Run(Status.WRONG_OUTPUT, latencies, False, "wrong output", error, seconds)
        return Run(Status.OK, latencies, verified, seconds=seconds)
    except Exception as error:
        cause, text = _describe(error)
        return Run(Status.RUN_ERROR, (), False, cause, text, time.perf_counter() - start)
    finally:
        pin_process(state.plan.work)


def _time(rules: TimingRules, built: Built, buffers: list[Any], first: float) -> tuple[float, ...]:
    import tvm

    number = max(1, math.ceil(rules.min_repeat_s / max(first, 1e-7)))
    evaluator = built.library.time_evaluator("main", tvm.cpu(0), number=number, repeat=1)
    if number > 1:
        # The first call was cold; one repeat tells how often the program fits.
        once = float(evaluator(*buffers).mean)
        number = max(1, math.ceil(rules.min_repeat_s / max(once, 1e-9)))
    evaluator = built.library.time_evaluator(
        "main", tvm.cpu(0), number=number, repeat=rules.repeats
    )
    latencies = tuple(float(value) for value in evaluator(*buffers).results)
    if not all(math.isfinite(value) and value > 0 for value in latencies):
        raise ValueError(f"the timer returned {latencies}")
    return latencies


def reference_path(folder: Path, task: str) -> Path:
    """File of a task's reference output."""
    return folder / f"{task}.npz"


def _reference(state: _State, request: ReferenceRequest, start: float) -> Reference:
    """Run the unscheduled workload; positive inputs are taken if mixed signs give NaN."""
    import tvm

    subject = state.subjects[request.task]
    path = reference_path(state.references, request.task)
    temporary = path.with_suffix(f".{os.getpid()}.tmp.npz")
    try:
        entry = build_unscheduled(subject.design.mod, subject.design.target)
        pin_process(state.plan.run)
        latency = math.inf
        for positive in (False, True):
            values = random_inputs(subject.arguments, _INPUT_SEED, positive)
            buffers = [
                tvm.runtime.tensor(np.zeros(a.shape, a.dtype) if v is None else v)
                for a, v in zip(subject.arguments, values, strict=True)
            ]
            latency = _call(entry, buffers)
            outputs = [
                buffer.numpy()
                for a, buffer in zip(subject.arguments, buffers, strict=True)
                if a.output
            ]
            if all(np.isfinite(o).all() for o in outputs if o.dtype.kind == "f"):
                break
        np.savez(
            temporary,
            positive=np.bool_(positive),
            latency=np.float64(latency),
            **{f"output{i}": output for i, output in enumerate(outputs)},
        )
        temporary.replace(path)
        return Reference(latency)
    except Exception as error:
        return Reference(math.inf, _describe(error)[1], says_full(error))
    finally:
        temporary.unlink(missing_ok=True)
        pin_process(state.plan.work)


def _compare(state: _State, program: Program, mod: Any, built: Built) -> str:
    """Difference to the unscheduled workload's output; empty if it is within the tolerance."""
    import tvm

    subject = state.subjects[program.task]
    with np.load(reference_path(state.references, program.task)) as stored:
        positive = bool(stored["positive"])
        expected = [stored[name] for name in stored.files if name.startswith("output")]
    values = random_inputs(subject.arguments, _INPUT_SEED, positive)
    inputs = [value for value in values if value is not None]
    laid_out = lay_out_weights(mod, subject.design.target, inputs)
    outputs = [
        tvm.runtime.tensor(np.zeros(argument.shape, argument.dtype))
        for argument in subject.arguments
        if argument.output
    ]
    built.entry(*[tvm.runtime.tensor(value) for value in laid_out], *outputs)
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
