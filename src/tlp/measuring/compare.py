"""Latency of whole networks, contenders alternating on the same cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tlp.errors import MeasureError
from tlp.host import pin_process, set_tvm_threads
from tlp.metaschedule.compile import CompiledNetwork
from tlp.networks.eager import eager_server
from tlp.networks.prepare import Reference, load_reference
from tlp.networks.spec import NetworkSpec
from tlp.processes import die_with_parent, log_tail, take_over_output

Array = npt.NDArray[Any]

_ROUNDS = 7
_ROUND_SECONDS = 0.4
_MOST_REPEATS = 50
_START_SECONDS = 300.0


def network_server(
    connection: Connection,
    library: Path,
    prepared: Path,
    cores: tuple[int, ...],
    log: Path | None,
    parent: int,
) -> None:
    """Serve timings of a compiled network; the same requests as the framework's side answers."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_tvm_threads(cores)
    take_over_output(log)
    os.sched_setaffinity(0, cores)
    try:
        inputs = load_reference(prepared).x1
        network = CompiledNetwork(library)
        network.time(*inputs, repeats=2)
        pin_process(cores)
        connection.send(("ready",))
        while True:
            request, *content = connection.recv()
            if request == "stop":
                return
            connection.send(network.time(*inputs, repeats=int(content[0])))
    except (EOFError, OSError):
        return
    except Exception as error:
        connection.send(("error", f"{type(error).__name__}: {error}"))


@dataclass(frozen=True)
class Contender:
    """Something that answers ``("time", repeats)``: a name, where to start it and its arguments."""

    name: str
    target: Callable[..., None]
    args: tuple[Any, ...]
    start: str


def compiled_contender(
    name: str, library: Path, prepared: Path, cores: tuple[int, ...], log: Path | None
) -> Contender:
    """A compiled network as a contender."""
    args = (library, prepared, cores, log, os.getpid())
    return Contender(name, network_server, args, "fork")


def eager_contender(
    spec: NetworkSpec, prepared: Path, cores: tuple[int, ...], device: str = "cpu"
) -> Contender:
    """The network in its own framework, PyTorch eager mode or ONNX Runtime, as a contender."""
    return Contender(spec.framework.key, eager_server, (spec, prepared, cores, device), "spawn")


def alternate(
    contenders: Sequence[Contender],
    rounds: int = _ROUNDS,
    tick: Callable[[str], None] = lambda text: None,
) -> dict[str, list[float]]:
    """Time contenders in turn, each in a process of its own; seconds of every call by name.

    Raises
    ------
    MeasureError
        If a contender fails or dies.
    """
    started: list[tuple[Contender, Any, Connection]] = []
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    try:
        for contender in contenders:
            tick(f"starting {contender.name}")
            context = multiprocessing.get_context(contender.start)
            ours, theirs = context.Pipe()
            process = context.Process(  # type: ignore[attr-defined]
                target=contender.target, args=(theirs, *contender.args), daemon=True
            )
            process.start()
            theirs.close()
            started.append((contender, process, ours))
            _answer(contender, process, ours)
        for number in range(rounds):
            tick(f"timing, round {number + 1} of {rounds}")
            for contender, process, connection in started:
                known = seconds[contender.name]
                repeats = 1
                if known:
                    repeats = repeats_for(statistics.median(known))
                connection.send(("time", repeats))
                answer = _answer(contender, process, connection)
                if number == 0 and len(answer) == 1 and answer[0] > 10:
                    rounds = min(rounds, 3)
                seconds[contender.name] += answer
    finally:
        for _, process, connection in started:
            process.kill()
            process.join()
            connection.close()
    return seconds


def repeats_for(typical: float) -> int:
    """Calls of one round, for something that takes ``typical`` seconds."""
    return max(1, min(_MOST_REPEATS, round(_ROUND_SECONDS / typical)))


def _answer(contender: Contender, process: Any, connection: Connection) -> list[float]:
    try:
        if not connection.poll(_START_SECONDS):
            raise MeasureError(f"{contender.name} did not answer within {_START_SECONDS:g} s")
        answer = connection.recv()
    except (EOFError, OSError):
        process.join(5)
        log = next((value for value in contender.args if str(value).endswith(".log")), None)
        raise MeasureError(
            f"timing {contender.name}: its process died (exit code {process.exitcode})\n"
            f"{log_tail(log)}"
        ) from None
    if isinstance(answer, tuple) and answer[0] == "error":
        raise MeasureError(f"timing {contender.name}: {answer[1]}")
    return answer if isinstance(answer, list) else []


def output_error(network: Callable[..., Sequence[Array]], reference: Reference) -> float:
    """How far the network's outputs are from its framework's, relative to how much they vary.

    ``max|a - b| / max|f(x1) - f(x2)|`` over both inputs and all outputs; infinite where the
    number or shape of the outputs differ, or a value is not finite.
    """
    worst = 0.0
    expected = ((reference.x1, reference.y1), (reference.x2, reference.y2))
    spans = [
        float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max()) if a.size else 0.0
        for a, b in zip(reference.y1, reference.y2, strict=True)
    ]
    for inputs, outputs in expected:
        got = network(*inputs)
        if [value.shape for value in got] != [value.shape for value in outputs]:
            return float("inf")
        for value, want, span in zip(got, outputs, spans, strict=True):
            if not np.isfinite(value).all():
                return float("inf")
            error = float(np.abs(value.astype(np.float64) - want.astype(np.float64)).max(initial=0))
            if error:
                worst = max(worst, error / span if span else float("inf"))
    return worst
