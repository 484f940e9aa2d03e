from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tlp.networks.eager import eager_server
from tlp.networks.spec import NetworkSpec


@contextmanager
def _serving(spec: NetworkSpec, folder: Path) -> Iterator[tuple[Any, Any]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    core = min(os.sched_getaffinity(0))
    process = context.Process(target=eager_server, args=(theirs, spec, folder, (core,)))
    process.start()
    theirs.close()
    try:
        yield ours, process
    finally:
        ours.close()
        process.join(20)
        process.kill()


def test_timings_on_request(prepared: tuple[Path, list[str]]) -> None:
    # The original file is gone: the folder's copy serves.
    spec = NetworkSpec("gone/small.pt2")
    with _serving(spec, prepared[0]) as (connection, process):
        assert connection.recv() == ("ready",)
        core = min(os.sched_getaffinity(0))
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            assert os.sched_getaffinity(int(task.name)) == {core}
        for repeats in (3, 1):
            connection.send(("time", repeats))
            seconds = connection.recv()
            assert len(seconds) == repeats
            assert all(0 < value < 1 for value in seconds)
        connection.send(("stop",))
        process.join(20)
        assert process.exitcode == 0


def test_errors_are_told(tmp_path: Path) -> None:
    with _serving(NetworkSpec("resnet18"), tmp_path) as (connection, process):
        kind, text = connection.recv()
        assert kind == "error"
        assert "reference.npz" in text
        process.join(20)
        assert process.exitcode == 0
