"""Faults injected into real rounds: the run goes on, or stops and says what to do."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import math
import os
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

from tests_helpers import Watcher, make_store, matmul_add, run_loop
from tlp.disk import free_bytes, full_disk_reported, says_full
from tlp.errors import DiskFullError, MeasureError, TlpError
from tlp.host import fingerprint
from tlp.measuring import worker
from tlp.measuring.pool import Limits
from tlp.measuring.worker import reference_path, stored_latency
from tlp.networks.tasks import make_task
from tlp.records.status import Status
from tlp.records.store import Store
from tlp.tuning import state as state_module
from tlp.tuning.state import choose_tasks, make_states, restore_start


@pytest.fixture
def states(tvm, small_target):
    tasks = {"first": matmul_add(tvm), "second": matmul_add(tvm, extents=(16, 32, 16))}
    return make_states([make_task(mod, name) for name, mod in tasks.items()], small_target)


def stored(store):
    return [(c.task, c.decisions, c.status) for c in store.candidates()]


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def hang():
    while True:
        time.sleep(60)


@pytest.mark.parametrize(
    ("phase", "fault", "status"),
    [
        ("build_candidate", crash, Status.BUILD_CRASH),
        ("build_candidate", hang, Status.BUILD_TIMEOUT),
        ("_time", crash, Status.RUN_CRASH),
        ("_time", hang, Status.RUN_TIMEOUT),
        ("lay_out_weights", None, Status.WRONG_OUTPUT),
    ],
    ids=["build crashes", "build hangs", "run crashes", "run hangs", "wrong result"],
)
def test_a_fault_costs_one_candidate(states, tmp_path, monkeypatch, phase, fault, status):
    """The fault strikes once, in whatever worker comes there first."""
    original, mark = getattr(worker, phase), tmp_path / "struck"

    def faulty(*arguments):
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return original(*arguments)
        if fault is None:
            return [value * 2 for value in original(*arguments)]
        return fault()

    monkeypatch.setattr(worker, phase, faulty)
    store, watcher = make_store(tmp_path / "state.sqlite", states), Watcher()
    short = "run" if phase == "_time" else "build"
    limits = Limits(**{"build": 60.0, "run": 60.0, **({short: 4.0} if fault is hang else {})})
    _, stopped = run_loop(states, store, tmp_path, trials=6, picks=3, limits=limits,
                          watcher=watcher)  # fmt: skip
    assert "budget" in stopped
    found = [c for c in store.candidates() if c.status.replayed]
    assert len(found) == 6
    assert [c.status for c in found].count(status) == 1
    assert all(c.status in (status, Status.OK, Status.SLOW) for c in found)
    assert found == [
        dataclasses.replace(c, id=f.id) for c, f in zip(watcher.candidates, found, strict=True)
    ]
    assert all(math.isfinite(state.best_latency) for state in states)
    (bad,) = [c for c in found if c.status is status]
    assert bad.latency not in [state.best_latency for state in states]
    assert {crash: "SIGSEGV", hang: "killed after 4 s", None: "max|a-b|"}[fault] in bad.error


def test_when_every_build_fails_the_run_stops_and_says_so(states, tmp_path, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("there is no compiler today")

    monkeypatch.setattr(worker, "build_candidate", broken)
    store = make_store(tmp_path / "state.sqlite", states)
    with pytest.raises(MeasureError, match=r"20 build_error.*no compiler today.*tlp doctor"):
        run_loop(states, store, tmp_path, trials=500, picks=10)
    assert len([c for c in store.candidates() if c.status is Status.BUILD_ERROR]) == 20


def test_a_budget_too_small_to_be_sure_ends_the_same_way(states, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "build_candidate", lambda *_: 1 / 0)
    store = make_store(tmp_path / "state.sqlite", states)
    with pytest.raises(MeasureError, match="5 build_error"):
        run_loop(states, store, tmp_path, trials=5, picks=10)


def test_a_task_that_never_works_leaves_and_the_others_go_on(states, tmp_path, monkeypatch):
    original, bad = worker.build_candidate, states[0].design.mod

    def faulty(mod, target):
        if mod["main"].params[0].ty.shape[0] == bad["main"].params[0].ty.shape[0]:
            raise RuntimeError("not this one")
        return original(mod, target)

    monkeypatch.setattr(worker, "build_candidate", faulty)
    store = make_store(tmp_path / "state.sqlite", states)
    _, stopped = run_loop(states, store, tmp_path, trials=30, picks=5)
    assert "budget" in stopped
    assert states[0].failures == 20
    assert states[0].progress.done
    assert "none of 20 candidates works (build_error)" in states[0].note
    assert states[1].failures == 0
    assert states[1].trials == 10


def test_a_task_whose_reference_fails_or_has_no_sketches_ends_nothing(
    tvm, small_target, tmp_path, monkeypatch
):
    mods = [matmul_add(tvm, extents=(n, 16, 16)) for n in (8, 16, 32)]
    original = state_module.make_design

    def choosy(mod, target):
        if mod is mods[0]:
            raise ValueError("a rule cannot cope")
        return original(mod, target)

    monkeypatch.setattr(state_module, "make_design", choosy)
    states = make_states([make_task(mod, "abc"[i]) for i, mod in enumerate(mods)], small_target)
    assert "no sketches can be made: a rule cannot cope" in states[0].note
    assert states[0].space.upper_bound == 1
    build = worker.build_unscheduled

    def half(mod, target):
        if int(mod["main"].params[0].ty.shape[0]) == 16:
            raise RuntimeError("no reference")
        return build(mod, target)

    monkeypatch.setattr(worker, "build_unscheduled", half)
    store = make_store(tmp_path / "state.sqlite", states)
    run_loop(states, store, tmp_path, trials=3, picks=3)
    assert "cannot be run: RuntimeError: no reference" in states[1].note
    assert [state.trials for state in states] == [0, 0, 3]


def test_chosen_tasks_only(states, tmp_path):
    choose_tasks(states, ["sec*"])
    assert [state.left_out for state in states] == [True, False]
    store = make_store(tmp_path / "state.sqlite", states)
    run_loop(states, store, tmp_path, trials=2, picks=2)
    assert [state.trials for state in states] == [0, 2]
    choose_tasks(states, ["32X48", "second"])
    assert [state.left_out for state in states] == [False, False]
    with pytest.raises(TlpError, match=r"--tasks 'third'.*first, second"):
        choose_tasks(states, ["first", "third"])


def test_a_damaged_reference_is_measured_again(tmp_path):
    path = reference_path(tmp_path, "k")
    assert stored_latency(path, "here") is None
    np.savez(path, latency=0.5, platform="here")
    assert stored_latency(path, "here") == 0.5
    assert stored_latency(path, "elsewhere") is None
    path.write_bytes(path.read_bytes()[:100])
    assert stored_latency(path, "here") is None
    assert not path.exists()


@pytest.fixture
def small_disk(tmp_path):
    """Mounts a disk of so many KiB; where that is not allowed there is nothing to test."""
    mounted = []

    def mount(kib):
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    if shutil.which("mount") is None:
        pytest.skip("there is no mount command")
    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder):
    """Leave no block free."""
    with (folder / "ballast").open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(b"x" * 4096)
    assert free_bytes(folder) < 4096


def test_a_disk_that_fills_up_stops_the_run_and_loses_nothing(
    states, tmp_path, small_disk, small_target, tvm
):
    disk = small_disk(512)
    folder = disk / "run"
    folder.mkdir()
    store = make_store(folder / "state.sqlite", states)

    class Filler(Watcher):
        def measured(self, state, candidate):
            super().measured(state, candidate)
            if len(self.candidates) == 3:
                fill(disk)

    watcher = Filler()
    with pytest.raises(DiskFullError) as caught, full_disk_reported(folder):
        run_loop(states, store, folder, trials=300, picks=2, watcher=watcher)
    assert caught.value.exit_code == 3
    for part in (str(folder), "full", "Free some space", "repeat the command"):
        assert part in str(caught.value)
    store.close()
    seen = [(c.task, c.decisions, c.status) for c in watcher.candidates]
    assert len(seen) >= 3
    # A larger disk: everything that was reported is there, and the run goes on.
    larger = tmp_path / "larger"
    shutil.copytree(folder, larger)
    again = Store(larger / "state.sqlite")
    known = [entry for entry in stored(again) if entry[2].replayed]
    assert known == seen
    for state in (fresh := make_states([s.task for s in states], small_target)):
        state.restore(again, fingerprint())
        restore_start(state, larger / "references", fingerprint())
    assert sum(state.trials for state in fresh) == len(seen)
    _, stopped = run_loop(fresh, again, larger, trials=len(seen) + 2, picks=2)
    assert "budget" in stopped
    assert [e for e in stored(again) if e[2].replayed][: len(seen)] == seen


def test_a_reference_that_does_not_fit_on_the_disk(states, tmp_path, small_disk):
    disk = small_disk(64)
    store = make_store(tmp_path / "state.sqlite", states)
    fill(disk)
    (disk / "ballast").unlink()
    (disk / "references").mkdir()
    fill(disk)
    with (
        pytest.raises(DiskFullError, match=f"the disk of {disk}.*work folder"),
        full_disk_reported(disk),
    ):
        run_loop(states, store, disk, trials=5)
    assert list((disk / "references").iterdir()) == []


def test_a_store_that_cannot_be_made_for_lack_of_space(small_disk, states):
    disk = small_disk(16)
    fill(disk)
    with pytest.raises(DiskFullError):
        Store(disk / "state.sqlite")
    assert not (disk / "state.sqlite").exists()


def test_other_errors_stay_what_they_are(tmp_path):
    assert says_full(OSError(errno.EDQUOT, "over quota"))
    assert says_full(RuntimeError("ld: cannot write: No space left on device"))
    assert not says_full(OSError(errno.EACCES, "no"))
    assert free_bytes(tmp_path / "not" / "there") > 0
    with pytest.raises(KeyError), full_disk_reported(tmp_path):
        raise KeyError("x")
    with pytest.raises(DiskFullError, match=r"TMPDIR|work folder"), full_disk_reported(tmp_path):
        raise MeasureError("the linker said: No space left on device")
