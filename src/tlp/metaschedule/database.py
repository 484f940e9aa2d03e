"""MetaSchedule's JSON database: written anew from the run's own store, read from anywhere."""

from __future__ import annotations

import base64
import json
import math
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlp.metaschedule.replay import replay
from tlp.metaschedule.sketches import Design, read_decisions, rename_blocks, skeleton
from tlp.tuning.decisions import Decisions

WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"


@dataclass(frozen=True)
class Entry:
    """A verified program and its latency in seconds."""

    design: Design
    sketch: int
    decisions: Decisions
    latency: float


def write_database(
    entries: Sequence[Entry], folder: Path, progress: Callable[[str], None] = lambda text: None
) -> int:
    """Write a database that stock TVM reads; the old one stays until the new one is complete.

    Returns the number of records.
    """
    import tvm  # noqa: F401 (its import registers what the next one needs)
    from tvm.s_tir import meta_schedule as ms

    temporary = folder.with_name(folder.name + ".new")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    database = ms.database.JSONDatabase(
        str(temporary / WORKLOADS), str(temporary / RECORDS), allow_missing=True
    )
    for number, entry in enumerate(entries):
        if number % 20 == 0:
            progress(f"writing record {number + 1} of {len(entries)}")
        done = replay(entry.design, entry.sketch, entry.decisions)
        workload = database.commit_workload(entry.design.mod)
        database.commit_tuning_record(
            ms.database.TuningRecord(
                done.schedule.trace,
                workload,
                [entry.latency],
                entry.design.target,
                ms.arg_info.ArgInfo.from_entry_func(entry.design.mod, remove_preproc=False),
            )
        )
    if not entries:
        (temporary / WORKLOADS).touch()
        (temporary / RECORDS).touch()
    folder.mkdir(parents=True, exist_ok=True)
    for name in (WORKLOADS, RECORDS):
        (temporary / name).replace(folder / name)
    shutil.rmtree(temporary)
    return len(entries)


@dataclass(frozen=True)
class Record:
    """One record of a database that anybody wrote, most of it still as JSON.

    Parameters
    ----------
    mod
        The workload, or None where this TVM cannot read it.
    arguments
        Data type and shape of each argument.
    instructions, decisions
        The trace before the postprocessing, in TVM's JSON form.
    latency
        Median in seconds; infinite if the program failed.
    target_kind
        Such as ``llvm``.
    """

    mod: Any
    arguments: tuple[tuple[str, tuple[int, ...]], ...]
    instructions: list[Any]
    decisions: list[Any]
    latency: float
    target_kind: str


# A record of a program that failed has this or more for a latency.
_FAILED_SECONDS = 1e9


def read_database(folder: Path) -> Iterator[Record | None]:
    """Records of a JSON database in order; None for a line that is no record."""
    modules = [_module(line) for line in (folder / WORKLOADS).read_text().splitlines()]
    for line in (folder / RECORDS).read_text().splitlines():
        if not line.strip():
            continue
        try:
            yield _record(json.loads(line), modules)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            yield None


def _module(line: str) -> Any:
    """The module of a workload line; None if another TVM wrote it in a form unknown here."""
    from tlp.metaschedule.imports import load_tvm

    try:
        # Eight bytes of length stand before the text. The stored hash is not portable.
        text = base64.b64decode(json.loads(line)[1])[8:].decode()
        return load_tvm().ir.load_json(text)
    except Exception:  # TVM's reader raises several kinds
        return None


def _record(line: Any, modules: Sequence[Any]) -> Record:
    index, (trace, seconds, target, arguments) = line
    instructions, decisions = trace
    end = next((i for i, x in enumerate(instructions) if x[0] == "EnterPostproc"), None)
    instructions = [_upgraded(instruction) for instruction in instructions[:end]]
    latency = statistics.median(float(value) for value in seconds) if seconds else math.inf
    if not 0 < latency < _FAILED_SECONDS:
        latency = math.inf
    return Record(
        mod=modules[index] if index < len(modules) else None,
        arguments=tuple((str(dtype), tuple(shape)) for _, dtype, shape in arguments),
        instructions=instructions,
        decisions=[entry for entry in decisions if entry[0] < len(instructions)],
        latency=latency,
        target_kind=str(target["kind"] if isinstance(target, dict) else target).split()[0],
    )


def _upgraded(instruction: Sequence[Any]) -> list[Any]:
    """An instruction as this TVM writes it: earlier ones named blocks and options otherwise."""
    kind, inputs, attributes, outputs = instruction
    if kind == "GetBlock":
        kind = "GetSBlock"
    if kind == "Split" and len(attributes) == 1:
        attributes = [attributes[0], 0]
    if kind in ("ComputeAt", "ReverseComputeAt") and len(attributes) == 1:
        attributes = [attributes[0], -1]
    return [kind, inputs, attributes, outputs]


def record_row(
    record: Record, design: Design, names: Mapping[str, str]
) -> tuple[int, Decisions, bool]:
    """Sketch and decisions of a record for a task, and whether the sketch is the very same.

    The trace is applied to the task's own workload, block names translated, so that what is
    read back is what this TVM makes of it.

    Raises
    ------
    Exception
        What TVM raises when the trace does not fit; ValueError if it is of no sketch.
    """
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Trace

    schedule = Schedule(design.mod, error_render_level="none")
    instructions = rename_blocks(record.instructions, names)
    Trace.apply_json_to_schedule([instructions, record.decisions], schedule)
    sketch, exact = design.find(skeleton(schedule.trace))
    return sketch, read_decisions(schedule.trace), exact
