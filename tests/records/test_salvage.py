"""Stores that are damaged, in use, old or somebody else's."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys

import pytest
from test_store import TASK, WRITER, candidate

from tlp.errors import WorkDirError
from tlp.records.salvage import read_all
from tlp.records.store import Store

ROWS = 400


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store of some hundred pages, all of them in the one file."""
    path = tmp_path_factory.mktemp("whole") / "state.sqlite"
    store = Store(path)
    store.add_task(TASK)
    for number in range(ROWS):
        store.add(candidate(number, error="x" * 500))
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    assert path.stat().st_size > 200_000
    return path


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copy(whole, tmp_path / "state.sqlite")


def numbers(contents):
    return [c.decisions[0][2] for c in contents.candidates]


def refused(path):
    before = path.read_bytes()
    with pytest.raises(WorkDirError, match=f"(?s){path}.*damaged.*--reuse {path.parent}"):
        Store(path)
    assert path.read_bytes() == before


def test_a_whole_file_is_read_without_loss(copy):
    contents = read_all(copy)
    assert contents.tasks == (TASK,)
    assert numbers(contents) == list(range(ROWS))
    assert contents.damaged == 0


def test_garbage_in_the_middle(copy):
    size = copy.stat().st_size
    with copy.open("r+b") as stream:
        stream.seek(size // 2 // 4096 * 4096)
        stream.write(os.urandom(3 * 4096))
    refused(copy)
    contents = read_all(copy)
    found = numbers(contents)
    assert contents.tasks == (TASK,)
    assert set(found) <= set(range(ROWS))
    assert found == sorted(found)
    # Seven rows or so stand on a page; an index page among the three may take some more along.
    assert 0 < contents.damaged <= ROWS // 4
    assert len(found) + contents.damaged == ROWS
    assert {0, ROWS - 1} <= set(found)


def test_a_truncated_file(copy):
    os.truncate(copy, copy.stat().st_size // 2 // 4096 * 4096)
    refused(copy)
    found = numbers(read_all(copy))
    assert found[:50] == list(range(50))
    assert len(found) < ROWS


@pytest.mark.parametrize("content", [b"", b"nothing like it " * 500])
def test_a_file_of_which_nothing_is_left(tmp_path, content):
    path = tmp_path / "state.sqlite"
    path.write_bytes(content)
    refused(path)
    if content:
        with pytest.raises(WorkDirError, match=r"cannot be read at all.*database"):
            read_all(path)
    else:
        with pytest.raises(WorkDirError, match="cannot be read at all"):
            read_all(path)


def test_a_damaged_row_is_named_and_left_out(copy):
    db = sqlite3.connect(copy)
    db.execute("UPDATE candidates SET decisions = '[[1,' WHERE id = 7")
    db.execute("UPDATE candidates SET status = 'sideways' WHERE id = 9")
    db.commit()
    db.close()
    store = Store(copy)
    with pytest.raises(WorkDirError, match="damaged"):
        list(store.candidates())
    store.close()
    contents = read_all(copy)
    assert contents.damaged == 2
    assert sorted(set(range(ROWS)) - set(numbers(contents))) == [6, 8]


def test_the_log_that_a_kill_leaves_is_read(tmp_path):
    path = tmp_path / "state.sqlite"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(200):
        process.stdout.readline()
    living = read_all(path)
    os.kill(process.pid, signal.SIGKILL)
    said = process.stdout.read().split()
    process.wait()
    assert path.with_name("state.sqlite-wal").stat().st_size > 0
    dead = read_all(path)
    assert len(living.candidates) >= 199
    assert dead.candidates[: len(living.candidates)] == living.candidates
    assert len(dead.candidates) >= int(said[-1] if said else 199)
    # A torn end of the log takes its own transactions only.
    wal = path.with_name("state.sqlite-wal")
    os.truncate(wal, wal.stat().st_size - 100)
    torn = list(Store(path).candidates())
    assert torn == list(dead.candidates[: len(torn)])
    assert len(torn) >= len(dead.candidates) - 2


def test_a_store_of_the_first_format_is_read_and_upgraded(copy):
    db = sqlite3.connect(copy)
    for column in ("origin", "disturbed"):
        db.execute(f"ALTER TABLE candidates DROP COLUMN {column}")
    db.execute("UPDATE meta SET value = '1' WHERE key = 'version'")
    db.commit()
    db.close()
    before = copy.read_bytes()
    assert numbers(read_all(copy)) == list(range(ROWS))
    assert copy.read_bytes() == before
    store = Store(copy)
    assert store.get_meta("version") == 3
    store.add(candidate(ROWS, origin="elsewhere", disturbed=(1.5,)))
    assert [c.origin for c in store.candidates()][-2:] == ["", "elsewhere"]
    assert [c.disturbed for c in store.candidates()][-2:] == [(), (1.5,)]
