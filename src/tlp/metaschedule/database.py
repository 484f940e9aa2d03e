"""MetaSchedule's JSON database, written anew from the run's own store."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tlp.metaschedule.replay import replay
from tlp.metaschedule.sketches import Design
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
