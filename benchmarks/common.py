"""What all benchmarks share: settings, where results go, te_workload tasks."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from tlp.host import describe_host, fingerprint
from tlp.networks.tasks import Task, make_task
from tlp.tuning.summary import versions
from tlp.tuning.workdir import write_json

RESULTS = Path(__file__).parent / "results"


def write_result(
    name: str, summary: dict[str, float], settings: dict[str, Any], **details: Any
) -> Path:
    """Write ``results/NAME.json``: a flat summary, the settings, versions, machine, details."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    write_json(
        path,
        {
            "summary": summary,
            "settings": settings,
            "written": time.strftime("%Y-%m-%d"),
            "versions": versions(),
            "host": describe_host(),
            "host_fingerprint": fingerprint(),
            **details,
        },
    )
    print(json.dumps(summary, indent=2))
    return path


def te_task(name: str, index: int = 0) -> Task:
    """A task of TVM's ``te_workload``, in one of its configurations."""
    from tlp.metaschedule.imports import load_tvm

    tvm = load_tvm()
    from tvm.s_tir.meta_schedule.testing.te_workload import create_te_workload

    function = create_te_workload(name, index).with_attr("global_symbol", "main")
    return make_task(tvm.IRModule({"main": function}), name)


class Neighbours:
    """How busy the cores were that this process may not use, since this object was made.

    They share caches, memory and power with it, if not the core itself.
    """

    def __init__(self) -> None:
        self._begin = _busy_and_all()

    @property
    def busy(self) -> float:
        """Share of their time in which they worked; 0 where there are none."""
        busy, every = (now - then for now, then in zip(_busy_and_all(), self._begin, strict=True))
        return busy / every if every else 0.0


def _busy_and_all() -> tuple[int, int]:
    """Ticks that the other cores worked, and all their ticks (proc(5), /proc/stat)."""
    own = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    busy = every = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name.startswith("cpu") and name != "cpu" and name not in own:
            # The first eight: what follows is counted in them already.
            numbers = [int(tick) for tick in ticks[:8]]
            every += sum(numbers)
            busy += sum(numbers) - numbers[3] - numbers[4]
    return busy, every


class Silent:
    """Observes a run and shows nothing."""

    def waiting(self, text: str) -> None:
        """Nothing."""

    def tick(self) -> None:
        """Nothing."""

    def round_started(self, state: Any, phase: str) -> None:
        """Nothing."""

    def measured(self, state: Any, candidate: Any) -> None:
        """Nothing."""
