"""MetaSchedule's JSON databases: a file of workloads and one of tuning records."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tlp.errors import RecordsError
from tlp.primitives.metaschedule import read_trace
from tlp.primitives.primitive import Framework, Primitive
from tlp.records.ansor_log import Outcome, TaskInfo, read_costs
from tlp.records.logs import LONGEST_LINE, read_blocks
from tlp.records.status import Status
from tlp.records.workload_key import Workload, decode_workload

FAILED = "run_secs is 1e10: it failed, the database does not say why"


@dataclass
class WorkloadFile:
    """Workloads of a database by position; a text instead says why one cannot be read."""

    workloads: list[Workload | str] = field(default_factory=list)
    lines: int = 0
    blank: int = 0
    rejected: list[tuple[int, str]] = field(default_factory=list)


def read_workloads(path: Path) -> WorkloadFile:
    """Read the workloads of a database; malformed ones keep their place."""
    found = WorkloadFile()
    for block, _ in read_blocks(path):
        found.lines += block.lines
        if block.skipped or block.damage:
            reason = block.damage or f"a line of {block.skipped:,} bytes"
            found.workloads.append(reason)
            found.rejected.append((block.first, reason))
            continue
        for number, line in enumerate(block.data.split(b"\n"), block.first):
            if not line.strip():
                found.blank += 1
                continue
            workload = _workload(line)
            found.workloads.append(workload)
            if isinstance(workload, str):
                found.rejected.append((number, workload))
    return found


def _workload(line: bytes) -> Workload | str:
    if len(line) > LONGEST_LINE:
        return f"a line of {len(line):,} bytes"
    try:
        value = orjson.loads(line)
        if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], str):
            return "no workload: expected a hash and base64"
        return decode_workload(value[1])
    except orjson.JSONDecodeError as error:
        return f"no JSON: {error}"
    except RecordsError as error:
        return str(error)


def read_record(
    value: list[Any], workloads: Sequence[Workload | str] | None, place: str
) -> tuple[TaskInfo, tuple[Primitive, ...], Outcome]:
    """Task, sequence and outcome of ``[workload, [trace, seconds, target, arguments]]``.

    Parameters
    ----------
    workloads
        Those of the database; None if their file is missing.
    place
        Name of the database, which stands for what a missing file would say.

    Raises
    ------
    RecordsError, StepError
        If it is no tuning record.
    """
    if len(value) != 2 or isinstance(value[0], bool) or not isinstance(value[0], int):
        if len(value) == 2 and all(isinstance(item, str) for item in value):
            raise RecordsError("a workload, no record; name its file database_workload.json")
        raise RecordsError("no tuning record: expected a workload's position and its record")
    index, record = value
    if not isinstance(record, list) or len(record) != 4:
        raise RecordsError("no tuning record: expected a trace, seconds, target and arguments")
    trace, seconds, target, arguments = record
    outcome = Outcome(Status.FAILED, (), "not measured") if seconds is None else _outcome(seconds)
    shapes = _arguments(arguments)
    if workloads is None:
        text = f"{place} {index} {orjson.dumps(arguments).decode()}"
        key = f"unknown-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        workload = Workload(key, shapes, None, "")
    elif not 0 <= index < len(workloads):
        raise RecordsError(f"it is of workload {index}, and the database has {len(workloads)}")
    else:
        known = workloads[index]
        if isinstance(known, str):
            raise RecordsError(f"its workload {index} cannot be read: {known}")
        workload = known
    task = TaskInfo(
        framework=Framework.METASCHEDULE,
        version=workload.version,
        target=target_text(target),
        hardware="",
        workload=workload.key,
        arguments=orjson.dumps(shapes or workload.arguments).decode(),
        flops=workload.flops,
    )
    return task, read_trace(trace), outcome


def _outcome(seconds: Any) -> Outcome:
    latencies, failed = read_costs(seconds)
    return Outcome(Status.FAILED, latencies, FAILED) if failed else Outcome(Status.OK, latencies)


def _arguments(arguments: Any) -> tuple[str, ...]:
    """Data types and shapes of ``["TENSOR", "float32", [1, 512]]`` and the like."""
    if arguments is None:
        return ()
    if not isinstance(arguments, list):
        raise RecordsError("its arguments are no list")
    found = []
    for item in arguments:
        if (
            not isinstance(item, list)
            or len(item) != 3
            or not isinstance(item[1], str)
            or not isinstance(item[2], list)
        ):
            raise RecordsError("its arguments are no list of tensors")
        found.append(f"{item[1]}[{','.join(map(str, item[2]))}]")
    return tuple(found)


def target_text(target: Any) -> str:
    """A target as one line, ``llvm -mcpu=haswell -num-cores=2``, the same for equal targets.

    Raises
    ------
    RecordsError
        If it is no target.
    """
    if isinstance(target, str):
        return target.strip()
    if not isinstance(target, dict) or not isinstance(target.get("kind"), str):
        raise RecordsError("its target is no text and no object with a kind")
    words = [target["kind"]]
    for name in sorted(set(target) - {"kind"}):
        value = target[name]
        if value in ("", None):
            continue
        if name == "host":
            text = f"[{target_text(value)}]"
        elif isinstance(value, list):
            text = ",".join(map(str, value))
        else:
            text = value if isinstance(value, str) else orjson.dumps(value).decode()
        words.append(f"-{name}={text}")
    return " ".join(words)
