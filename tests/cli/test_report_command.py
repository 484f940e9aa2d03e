"""`tlp report`, in processes of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tlp.records.status import Status
from tlp.records.store import Candidate, Store, StoredTask


def tlp(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "tlp", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def stopped(tmp_path):
    """A folder whose run was stopped after two trials."""
    root = tmp_path / "work"
    root.mkdir()
    store = Store(root / "state.sqlite")
    store.add_task(StoredTask("k", "conv[red]", 3, 4e6, "{}", ("s",)))
    store.add(Candidate("k", 0, ((1,),), "p", Status.OK, (2e-3,), True, elapsed_s=3.0, host="h"))
    store.add(Candidate("k", 0, ((2,),), "q", Status.RUN_CRASH, error="signal 11", host="h"))
    store.close()
    return root


def test_the_table_and_the_page_of_a_stopped_run(stopped):
    done = tlp("report", stopped)
    assert done.returncode == 0, done.stderr
    assert "conv[red]" in done.stdout
    assert "2,000.0" in done.stdout
    assert "2 trials, 1 failed" in done.stdout
    assert "going on, or it was stopped" in " ".join(done.stdout.split())
    assert "PyTorch eager" not in done.stdout
    assert str(stopped / "report.html") in done.stdout.replace("\n", "")
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 100
    assert (stopped / "report.html").read_text().startswith("<!doctype html>")


def test_json_makes_a_page_only_where_one_is_asked_for(stopped, tmp_path):
    done = tlp("report", stopped, "--json")
    answer = json.loads(done.stdout)
    assert (answer["trials"], answer["failures"], answer["complete"]) == (2, 1, False)
    assert answer["tasks"][0]["best_us"] == 2000.0
    assert answer["failures_by_cause"][0]["example"] == "signal 11"
    assert not (stopped / "report.html").exists()
    done = tlp("report", stopped, "--json", "--html", tmp_path / "page.html")
    assert json.loads(done.stdout) == answer
    assert (tmp_path / "page.html").exists()


def test_mistakes_end_with_two_and_the_way_out(stopped, tmp_path):
    for arguments, says in (
        ((tmp_path / "nowhere",), "is no folder"),
        ((tmp_path,), "holds no measurements yet"),
        ((stopped, "--html", tmp_path), "name a file with --html"),
    ):
        done = tlp("report", *arguments)
        assert done.returncode == 2
        assert says in done.stderr
        assert "Traceback" not in done.stderr
    answer = json.loads(tlp("report", tmp_path, "--json").stdout)
    assert answer["error"] == "WorkDirError"
