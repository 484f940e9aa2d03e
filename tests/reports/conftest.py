"""Work folders in which a run got so far."""

from __future__ import annotations

import pytest
from folders import Folder, candidate

from tlp.records.status import Status


@pytest.fixture
def folder(tmp_path):
    made = Folder(tmp_path / "work")
    yield made
    made.store.close()


@pytest.fixture
def two_tasks(folder):
    """Tasks a (twice, 8 ms at first) and b (once, 4 ms at first), two rounds of a, one of b."""
    folder.config().task("a", weight=2, start=8.0).task("b", weight=1, start=4.0)
    folder.add(
        candidate("a", 1, 4.0, elapsed_s=1.0),
        candidate("a", 1, 9.0, Status.SLOW, elapsed_s=2.0),
        candidate("b", 1, 1.0, verified=False, elapsed_s=3.0),
        candidate("b", 1, 2.0, elapsed_s=4.0),
        candidate("b", 1, status=Status.REFUSED, cause="VerifyGPUCode", elapsed_s=4.5),
        candidate("a", 2, 3.0, predicted=-0.5, elapsed_s=5.0),
        candidate("a", 2, 2.0, predicted=0.25, elapsed_s=6.0),
        candidate("a", 2, status=Status.RUN_CRASH, error="signal 11", elapsed_s=7.0),
    )
    for task, number, phase, seconds in (
        ("a", 1, "search", 0.5),
        ("a", 1, "build", 1.5),
        ("b", 1, "build", 2.0),
        ("a", 2, "build", 1.0),
        ("a", 2, "run", 3.0),
    ):
        folder.store.add_phase(task, number, phase, seconds)
    folder.store.set_meta("elapsed_s", 7.5)
    return folder
