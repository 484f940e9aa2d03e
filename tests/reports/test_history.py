from __future__ import annotations

import math

import pytest
from folders import HOST, MS, candidate

from tlp.errors import WorkDirError
from tlp.records.status import Status
from tlp.records.store import Store
from tlp.reports.history import RoundTime, read_history


def files(root):
    """Names and contents, but for those that SQLite keeps beside a file in WAL mode."""
    return {
        path.name: path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.name.endswith(("-wal", "-shm"))
    }


def test_a_run_is_read_as_it_was_written(two_tasks):
    before = files(two_tasks.root)
    history = read_history(two_tasks.root)
    assert files(two_tasks.root) == before
    a, b = history.tasks
    assert (a.name, a.weight, a.start, a.best) == ("conv_a", 2, 8 * MS, 2 * MS)
    assert (b.name, b.weight, b.start, b.best) == ("conv_b", 1, 4 * MS, 2 * MS)
    assert (len(a.trials), len(b.trials)) == (5, 2)
    assert [c.elapsed_s for c in history.candidates] == [1, 2, 3, 4, 4.5, 5, 6, 7]
    assert history.elapsed_s == 7.5
    assert history.host == HOST
    assert history.rounds == (
        RoundTime("a", 1, {"search": 0.5, "build": 1.5}),
        RoundTime("b", 1, {"build": 2.0}),
        RoundTime("a", 2, {"build": 1.0, "run": 3.0}),
    )


def test_a_run_that_goes_on_is_read_beside_its_writer(two_tasks):
    # The fixture's store is open, and this row is in the write-ahead log only.
    two_tasks.add(candidate("b", 2, 0.5, elapsed_s=9.0))
    history = read_history(two_tasks.root)
    assert history.tasks[1].best == 0.5 * MS
    assert history.elapsed_s == 9.0
    assert history.summary is None
    assert any("going on, or it was stopped" in note for note in history.notes)
    two_tasks.add(candidate("b", 2, 0.25))
    assert read_history(two_tasks.root).tasks[1].best == 0.25 * MS


def test_latencies_of_another_machine_are_left_out(two_tasks):
    two_tasks.summary(trials=7)
    assert read_history(two_tasks.root).summary is not None
    two_tasks.add(candidate("b", 1, 3.0, host="there", elapsed_s=8.0))
    history = read_history(two_tasks.root)
    a, b = history.tasks
    assert history.host == "there"
    assert a.candidates == ()
    assert a.best == math.inf
    assert b.best == 3 * MS
    # Both unscheduled workloads were timed where the first candidates were.
    assert (a.start, b.start) == (math.inf, math.inf)
    assert history.summary is None
    assert any("8 candidates" in note and "another machine" in note for note in history.notes)
    assert any("last complete run was on another machine" in note for note in history.notes)


def test_trials_newer_than_the_summary_are_told(two_tasks):
    two_tasks.summary(trials=7)
    history = read_history(two_tasks.root)
    assert history.notes == ()
    assert history.summary["latency_ms"]["tuned"] == 8.0
    assert (history.tasks[0].anchor, history.tasks[0].rows) == ("conv2d 1x2x3", 12)
    two_tasks.add(candidate("a", 3, 5.0), candidate("a", 3, 5.0, Status.RUN_TIMEOUT))
    (note,) = read_history(two_tasks.root).notes
    assert "2 trials are newer" in note


def test_what_the_run_said_of_its_tasks_comes_first(two_tasks):
    two_tasks.store.set_meta("tasks", {"a": {"anchor": "dense 4x4", "rows": 2**70}})
    two_tasks.summary(trials=7)
    a, b = read_history(two_tasks.root).tasks
    assert (a.anchor, a.rows) == ("dense 4x4", 2**70)
    assert (b.anchor, b.rows) == ("", None)


@pytest.mark.parametrize("name", ["summary.json", "used_config.json"])
@pytest.mark.parametrize("content", ["{", "[]", b"\xff\xfe", "{}"])
def test_a_damaged_json_file_costs_only_what_it_told(two_tasks, name, content):
    data = content if isinstance(content, bytes) else content.encode()
    (two_tasks.root / name).write_bytes(data)
    history = read_history(two_tasks.root)
    assert history.summary is None
    assert history.tasks[0].best == 2 * MS
    if content != "{}":
        assert any(note.startswith(name) for note in history.notes)


def test_a_damaged_reference_is_no_latency(two_tasks):
    (two_tasks.root / "references" / "a.npz").write_bytes(b"PK\x03\x04 not a zip")
    assert read_history(two_tasks.root).tasks[0].start == math.inf


def test_folders_without_measurements_are_refused_with_the_way_out(tmp_path):
    with pytest.raises(WorkDirError, match="is no folder; give the --work-dir"):
        read_history(tmp_path / "nowhere")
    with pytest.raises(WorkDirError, match="holds no measurements yet"):
        read_history(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "state.sqlite").write_bytes(b"not a database at all " * 400)
    with pytest.raises(WorkDirError, match="damaged"):
        read_history(tmp_path)


def test_a_store_that_is_read_cannot_be_written(two_tasks):
    store = Store(two_tasks.root / "state.sqlite", read_only=True)
    with pytest.raises(WorkDirError, match="readonly"):
        store.add(candidate("a", 9, 1.0))
    store.close()
