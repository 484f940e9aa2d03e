"""Ansor's measure records: one JSON line a program, ``{"i": ..., "r": ..., "v": ...}``."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import orjson

from tlp.errors import RecordsError
from tlp.primitives.primitive import Framework
from tlp.records.status import Status

NEVER = 1e9
"""Seconds from which on a cost stands for a failure: both frameworks write 1e10."""

ERRORS = {
    1: (Status.REPLAY_ERROR, "error 1: the schedule could not be applied"),
    2: (Status.BUILD_ERROR, "error 2: compiling for the host failed"),
    3: (Status.BUILD_ERROR, "error 3: compiling for the device failed"),
    4: (Status.RUN_ERROR, "error 4: the program failed on the device"),
    5: (Status.WRONG_OUTPUT, "error 5: wrong answer"),
    6: (Status.BUILD_TIMEOUT, "error 6: the build took too long"),
    7: (Status.RUN_TIMEOUT, "error 7: the run took too long"),
    8: (Status.FAILED, "error 8: unknown"),
}
"""What Ansor's error numbers mean (auto_scheduler, MeasureErrorNO)."""

AUTOTVM = (
    "an AutoTVM record: it holds the knobs of a hand-written template and no schedule; tlp reads "
    "records of Ansor (auto_scheduler) and of MetaSchedule"
)


@dataclass(frozen=True)
class TaskInfo:
    """What a record says about the program's task.

    Parameters
    ----------
    version
        Of the log's format (Ansor, ``v0.6``) or of TVM.
    hardware
        Ansor's hardware parameters as text, empty where there are none.
    workload
        Workload key.
    arguments
        Arguments of the workload as JSON text, empty if they are not known.
    layout
        The rest of Ansor's task as JSON text: host target, layout option, input names.
    """

    framework: Framework
    version: str
    target: str
    hardware: str
    workload: str
    arguments: str = ""
    flops: float | None = None
    layout: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a measurement ended; ``latencies`` in seconds, ``stamp`` in seconds since 1970."""

    status: Status
    latencies: tuple[float, ...]
    error: str = ""
    stamp: int | None = None


def read_task(task: Any, version: Any) -> TaskInfo:
    """The task of a record: ``[key, target, hardware, host, layout, inputs]``, or its beginning.

    Raises
    ------
    RecordsError
        If it is none.
    """
    if not isinstance(version, str) or len(version) > 40:
        raise RecordsError("its version is no text")
    if not isinstance(task, list) or len(task) not in (2, 3, 5, 6):
        raise RecordsError("its task is no list of 2, 3, 5 or 6 items")
    key, target, *rest = task
    if not isinstance(key, str) or not isinstance(target, str):
        raise RecordsError("its workload key or target is no text")
    hardware = rest[0] if rest else None
    if rest and not (
        isinstance(hardware, list)
        and len(hardware) <= 64
        and all(isinstance(value, int) and not isinstance(value, bool) for value in hardware)
    ):
        raise RecordsError("its hardware parameters are no list of integers")
    if len(rest) >= 3 and not (
        isinstance(rest[1], str) and isinstance(rest[2], int) and not isinstance(rest[2], bool)
    ):
        raise RecordsError("its host target or layout option is malformed")
    if len(rest) == 4 and not (
        isinstance(rest[3], list) and all(isinstance(name, str) for name in rest[3])
    ):
        raise RecordsError("its input names are malformed")
    return TaskInfo(
        framework=Framework.ANSOR,
        version=version,
        target=target,
        hardware=",".join(map(str, hardware)) if hardware else "",
        workload=key,
        arguments=_arguments(key),
        layout=orjson.dumps(rest[1:]).decode() if len(rest) > 1 else "",
    )


def _arguments(key: str) -> str:
    """What follows the hash or function name in a workload key, if the key is a JSON list."""
    try:
        found = orjson.loads(key)
    except orjson.JSONDecodeError:
        return ""
    if not isinstance(found, list) or not found or not isinstance(found[0], str):
        return ""
    return orjson.dumps(found[1:]).decode()


def read_outcome(result: Any) -> Outcome:
    """The outcome that ``[costs, error, seconds, time stamp]`` tells.

    Raises
    ------
    RecordsError
        If it is none, or a program without an error has a cost that is no time.
    """
    if not isinstance(result, list) or len(result) != 4:
        raise RecordsError("its result is no list of costs, error, seconds and time stamp")
    costs, error, seconds, stamp = result
    if isinstance(error, bool) or not isinstance(error, int) or not 0 <= error <= len(ERRORS):
        raise RecordsError(f"its error is not one of the numbers 0 to {len(ERRORS)}")
    if not _is_number(seconds) or not _is_number(stamp) or not 0 <= stamp < 2**40:
        raise RecordsError("its seconds or time stamp is no number")
    latencies, failed = read_costs(costs)
    if error:
        status, text = ERRORS[error]
        return Outcome(status, latencies, text, int(stamp))
    if failed:
        return Outcome(Status.FAILED, latencies, "a cost of 1e10 without an error", int(stamp))
    return Outcome(Status.OK, latencies, "", int(stamp))


def read_costs(costs: Any) -> tuple[tuple[float, ...], bool]:
    """Real times among costs, and whether a cost stands for a failure.

    Raises
    ------
    RecordsError
        If they are no list of positive numbers.
    """
    if not isinstance(costs, list) or not costs:
        raise RecordsError("its costs are no list with a number")
    for cost in costs:
        if not _is_number(cost) or not cost > 0:
            raise RecordsError("one of its costs is no positive number")
    latencies = tuple(float(cost) for cost in costs if cost < NEVER)
    return latencies, len(latencies) < len(costs)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


def read_record(value: dict[str, Any]) -> tuple[Any, list[Any], Any, Any]:
    """Task, steps, result and version of a decoded line.

    Raises
    ------
    RecordsError
        If it is no measure record.
    """
    if (
        "input" in value
        or "config" in value
        or (isinstance(value.get("i"), list) and len(value["i"]) > 2 and "r" in value)
    ):
        raise RecordsError(AUTOTVM)
    if set(value) == {"i"} or set(value) == {"i", "v"}:
        raise RecordsError("an input without a result: it was not measured")
    if set(value) != {"i", "r", "v"}:
        raise RecordsError("no measure record: it has other fields than i, r and v")
    inputs = value["i"]
    if not isinstance(inputs, list) or len(inputs) != 2:
        raise RecordsError("its input is no task and state")
    task, state = inputs
    if not isinstance(state, list) or len(state) != 2 or state[0] != []:
        raise RecordsError("its state is no list of stages, which is empty, and steps")
    if not isinstance(state[1], list):
        raise RecordsError("its steps are no list")
    return task, state[1], value["r"], value["v"]


def step_text(step: Any) -> bytes:
    """A step as Ansor writes it, without what stands around its name and its end."""
    return json.dumps(step, ensure_ascii=False).encode()[2:-1]
