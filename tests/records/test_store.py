from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from tlp.errors import WorkDirError
from tlp.records.status import Status
from tlp.records.store import Candidate, Store, StoredTask

TASK = StoredTask("k", "conv", 3, 1.5e6, '{"workload": 1}', ("sketch a", "sketch b"))


def candidate(number=0, **changes):
    values = {
        "task": "k",
        "sketch": 1,
        "decisions": ((1, 2, number), (3,), (-1,)),
        "program": f"{number:016x}",
        "status": Status.OK,
        "latencies": (3e-3, 1e-3, 2e-3),
        "verified": True,
        "predicted": -0.25,
        "picked_by": "trees",
        "round": 2,
        "replay_s": 0.1,
        "build_s": 0.2,
        "run_s": 0.3,
        "elapsed_s": 12.5,
        "host": "abc",
        "measured_at": 1.0,
    }
    return Candidate(**{**values, **changes})


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "state.sqlite")
    store.add_task(TASK)
    return store


def test_everything_comes_back(store, tmp_path):
    first = candidate()
    failed = candidate(
        1, status=Status.BUILD_ERROR, latencies=(), verified=False, error="no", cause="ValueError",
        predicted=None,
    )  # fmt: skip
    store.add(first)
    store.add(failed)
    store.add_alias("k", 0, ((1,),), ((2,),))
    store.add_phase("k", 1, "build", 1.5)
    store.add_phase("k", 2, "build", 0.5)
    store.set_meta("elapsed_s", 7.5)
    store.close()
    again = Store(tmp_path / "state.sqlite")
    assert again.tasks() == [TASK]
    one, two = again.candidates("k")
    assert (one.id, two.id) == (1, 2)
    assert [Candidate(**{**vars(c), "id": None}) for c in (one, two)] == [first, failed]
    assert list(again.aliases("k")) == [(0, ((1,),), ((2,),))]
    assert again.phase_seconds() == {"build": 2.0}
    assert again.get_meta("elapsed_s") == 7.5
    assert again.get_meta("nothing") is None


def test_latency_is_the_median_and_infinite_without_repeats():
    assert candidate().latency == 2e-3
    assert candidate(latencies=()).latency == float("inf")


def test_best_needs_a_verified_ok(store):
    store.add(candidate(1, latencies=(5.0,)))
    store.add(candidate(2, latencies=(1.0,), verified=False))
    store.add(candidate(3, latencies=(0.5,), status=Status.WRONG_OUTPUT, verified=False))
    store.add(candidate(4, latencies=(4.0,)))
    best = store.best("k")
    assert best is not None
    assert best.latency == 4.0
    assert store.best("unknown") is None


def test_other_sketches_are_refused(store):
    store.add_task(TASK)
    other = StoredTask("k", "conv", 3, 1.5e6, "{}", ("another",))
    with pytest.raises(WorkDirError, match="sketches of task conv differ"):
        store.add_task(other)


def test_a_foreign_version_is_refused(store, tmp_path):
    store.set_meta("version", 99)
    store.close()
    with pytest.raises(WorkDirError, match="format 99"):
        Store(tmp_path / "state.sqlite")


@pytest.mark.parametrize(
    "content", [b"not a database at all " * 400, b"SQLite format 3\0" + b"x" * 9000]
)
def test_a_damaged_file_is_refused_with_the_way_out(tmp_path, content):
    path = tmp_path / "state.sqlite"
    path.write_bytes(content)
    with pytest.raises(WorkDirError, match=r"damaged .* --reuse"):
        Store(path)
    assert path.read_bytes() == content


WRITER = """
import sys
from pathlib import Path
from tlp.records.status import Status
from tlp.records.store import Candidate, Store, StoredTask
store = Store(Path(sys.argv[1]))
store.add_task(StoredTask("k", "n", 1, 0.0, "{}", ()))
for number in range(10**6):
    store.add(Candidate("k", 0, ((number,),), str(number), Status.OK, (1.0,)))
    print(number, flush=True)
"""


@pytest.mark.parametrize("delay", [0.05, 0.2, 0.5])
def test_kill_nine_loses_no_committed_row(tmp_path, delay):
    path = tmp_path / "state.sqlite"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    said = process.stdout.read().split()
    process.wait()
    rows = [c.decisions[0][0] for c in Store(path).candidates()]
    assert rows == list(range(len(rows)))
    assert len(rows) >= int(said[-1] if said else 0)


def test_the_file_is_in_wal_mode(store, tmp_path):
    mode = sqlite3.connect(tmp_path / "state.sqlite").execute("PRAGMA journal_mode").fetchone()
    assert mode == ("wal",)
