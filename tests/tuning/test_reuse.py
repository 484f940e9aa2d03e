"""Records of other runs, measured for real, and what they count for here."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import shutil

import pytest

from tests_helpers import Watcher, gather, make_store, matmul_add, run_loop
from tlp.errors import WorkDirError
from tlp.host import fingerprint
from tlp.metaschedule.replay import replay
from tlp.networks.tasks import make_task
from tlp.records.status import Status
from tlp.records.store import Store
from tlp.tuning import reuse
from tlp.tuning.reuse import (
    Platform,
    check_sources,
    choose_first_picks,
    describe,
    read_source,
    read_sources,
    take_over,
)
from tlp.tuning.state import make_states
from tlp.tuning.summary import versions
from tlp.tuning.workdir import WorkDir

TRIALS = 10


def states_of(mods, target):
    return make_states([make_task(mod, name) for name, mod in mods.items()], target)


@pytest.fixture(scope="module")
def platform(small_target):
    return Platform(small_target, versions()["apache-tvm"], fingerprint())


@pytest.fixture(scope="module")
def measured(tvm, small_target, platform, tmp_path_factory):
    """A work folder: a matrix product and a conversion nobody else has, measured for real."""
    folder = WorkDir(tmp_path_factory.mktemp("there"))
    folder.claim({"target": platform.target}, {"versions": {"apache-tvm": platform.tvm}})
    states = states_of({"dense": matmul_add(tvm, "abkmr"), "take": gather(tvm)}, small_target)
    store = make_store(folder.store, states)
    run_loop(states, store, folder.root, trials=TRIALS, picks=9)
    store.close()
    return folder.root


@pytest.fixture
def here(tvm, small_target):
    """The same product under other names, beside another."""
    mods = {"other": matmul_add(tvm, extents=(16, 16, 16)), "fused": matmul_add(tvm, "xyzuv")}
    return states_of(mods, small_target)


def rows_of(folder):
    store = Store(WorkDir(folder).store)
    found = list(store.candidates())
    store.close()
    return found


def edited(folder, copy, statement, *values):
    """A copy of a folder, a table changed."""
    shutil.copytree(folder, copy)
    store = Store(WorkDir(copy).store)
    store._db.execute(statement, values)
    store.close()
    return copy


def read(folder, states, platform):
    return read_source(folder, states, platform, lambda text: None)


def test_rows_of_an_equal_task_under_other_names_count_as_measured(
    measured, here, platform, tmp_path
):
    fused = here[1]
    there = rows_of(measured)
    key = fused.task.key
    assert not any("xyzuv"[3] == c.task for c in there)
    same = [c for c in there if c.task == key]
    assert len([c for c in same if c.status.replayed]) >= 5
    # The names do differ: no sketch of the folder is a sketch of this task as it stands.
    (stored,) = [t for t in Store(WorkDir(measured).store).tasks() if t.key == key]
    assert not set(stored.sketches) & {s.skeleton for s in fused.design.sketches}

    (source,) = read_sources(
        [measured], here, platform, tmp_path / "log", lambda text: None, lambda: None
    )
    store = make_store(tmp_path / "state.sqlite", here)
    counts = take_over([source], store, fingerprint())
    for state in here:
        state.restore(store, fingerprint())
    choose_first_picks([source], here, counts)
    assert counts[0]["measured"] == len(same)
    assert counts[0]["unused"] == {"of no task here": len(there) - len(same)}
    assert [(c.program, c.latencies) for c in store.candidates()] == [
        (c.program, c.latencies) for c in same
    ]
    assert {c.origin for c in store.candidates()} == {str(measured)}
    assert (fused.trials, fused.reused) == (0, sum(c.status.replayed for c in same))
    assert fused.best_latency == min(c.latency for c in same if c.verified)
    assert fused.progress.history[-1] == fused.best_latency
    assert here[0].reused == 0
    for c in store.candidates():
        if c.program:
            assert replay(fused.design, c.sketch, c.decisions).program == c.program
    # A second call takes nothing twice, and the folder alone remembers everything.
    assert take_over([source], store, fingerprint())[0]["measured"] == 0
    assert len(list(store.candidates())) == len(same)


def test_sketches_in_another_order_are_found(measured, here, platform, tmp_path):
    folder = shutil.copytree(measured, tmp_path / "there")
    store = Store(WorkDir(folder).store)
    key = here[1].task.key
    (task,) = [t for t in store.tasks() if t.key == key]
    count = len(task.sketches)
    assert count > 1
    store._db.execute("DELETE FROM tasks WHERE key = ?", (key,))
    store.add_task(dataclasses.replace(task, sketches=task.sketches[::-1]))
    store._db.execute("UPDATE candidates SET sketch = ? - sketch WHERE task = ?", (count - 1, key))
    store.close()
    source, original = read(folder, here, platform), read(measured, here, platform)
    assert [c.sketch for c in source.measured] == [c.sketch for c in original.measured]
    for c in source.measured:
        if c.program:
            assert replay(here[1].design, c.sketch, c.decisions).program == c.program


@pytest.mark.parametrize("difference", ["host", "target", "tvm"])
def test_rows_of_another_platform_or_host_are_measured_again(
    measured, here, platform, small_target, tmp_path, difference, tvm
):
    folder = measured
    if difference == "host":
        folder = edited(measured, tmp_path / "there", "UPDATE candidates SET host = 'elsewhere'")
    elif difference == "tvm":
        platform = dataclasses.replace(platform, tvm="0.26.0")
    else:
        # Twice the cores: the sketches differ in the constants of their annotations.
        target = {**small_target, "num-cores": 2}
        mods = {"other": matmul_add(tvm, extents=(16, 16, 16)), "fused": matmul_add(tvm, "xyzuv")}
        here, platform = states_of(mods, target), dataclasses.replace(platform, target=target)
    fused = here[1]
    source = read(folder, here, platform)
    assert source.measured == []
    good = sorted(
        (c for c in rows_of(folder) if c.task == fused.task.key and c.status is Status.OK
         and c.verified),
        key=lambda c: c.latency,
    )  # fmt: skip
    assert good
    store = make_store(tmp_path / "state.sqlite", here)
    counts = take_over([source], store, fingerprint())
    choose_first_picks([source], here, counts)
    assert list(store.candidates()) == []
    assert counts[0]["first_picks"] == len(fused.first_picks) == min(len(good), reuse.FIRST_PICKS)
    assert fused.best_latency == math.inf
    picked = fused.space.decisions(fused.first_picks[0])
    assert picked[1] == good[0].decisions

    if difference == "host":
        watcher = Watcher()
        here[0].left_out = True
        run_loop(here, store, tmp_path, trials=5, picks=5, watcher=watcher)
        again = [c for c in watcher.candidates if c.picked_by == "reused"]
        assert len(again) == min(5, len(good))
        assert {c.program for c in again} <= {c.program for c in good}
        for c in again:
            assert c.host == fingerprint()
            assert c.origin == ""
            assert c.latencies not in [g.latencies for g in good]
        assert fused.trials == 5


class DatabaseWriter:
    """A MetaSchedule database as stock TVM writes it, for a workload of any names."""

    def __init__(self, tvm, folder, target):
        from tvm.s_tir import meta_schedule as ms

        self.ms, self.tvm, self.folder, self.target = ms, tvm, folder, tvm.target.Target(target)
        folder.mkdir()
        self.database = ms.database.JSONDatabase(work_dir=str(folder))

    def add(self, mod, count, seconds):
        ms = self.ms
        context = ms.TuneContext(
            mod=mod, target=self.target, space_generator="post-order-apply",
            search_strategy="replay-trace", rand_state=3, num_threads=1,
        )  # fmt: skip
        context.pre_tuning(max_trials=count, num_trials_per_iter=count)
        workload = self.database.commit_workload(mod)
        programs = []
        for number, candidate in enumerate(context.generate_measure_candidates()):
            self.database.commit_tuning_record(
                ms.database.TuningRecord(
                    candidate.sch.trace, workload, [seconds * (number + 1)], self.target,
                    ms.arg_info.ArgInfo.from_prim_func(mod["main"]),
                )
            )  # fmt: skip
            programs.append(candidate.sch.mod)
        context.post_tuning()
        return programs


@pytest.fixture
def database(tvm, small_target, tmp_path):
    """Stock records of the product (one failed), of another workload, and a torn line."""
    import tvm_ffi

    writer = DatabaseWriter(tvm, tmp_path / "database", small_target)
    programs = writer.add(matmul_add(tvm, "ABCDE"), 6, 1e-5)
    writer.add(matmul_add(tvm, extents=(8, 8, 8)), 2, 1e-5)
    writer.add(matmul_add(tvm, "ABCDE"), 1, 1e10)
    with (writer.folder / "database_tuning_record.json").open("a") as stream:
        stream.write('[0, [[[["GetSBlock"')
    hashes = {f"{tvm_ffi.structural_hash(mod) & (2**64 - 1):016x}" for mod in programs}
    return writer.folder, hashes


def picked_programs(state):
    found = set()
    for row in state.first_picks:
        done = replay(state.design, *state.space.decisions(row))
        assert done.program
        found.add(done.program)
    return found


def test_a_stock_database_gives_first_picks(database, here, platform, tmp_path):
    folder, programs = database
    (source,) = read_sources(
        [folder], here, platform, tmp_path / "log", lambda text: None, lambda: None
    )
    assert source.kind == "MetaSchedule database"
    assert source.measured == []
    counts = take_over([source], make_store(tmp_path / "state.sqlite", here), fingerprint())
    choose_first_picks([source], here, counts)
    assert counts[0]["first_picks"] == 6
    assert counts[0]["unused"] == {
        "of no task here": 2, "failed or slow there": 1, "damaged": 1
    }  # fmt: skip
    assert picked_programs(here[1]) == programs
    assert "0 measured, 6 first picks; 4 not used (" in describe(counts[0])


def test_a_database_that_this_tvm_cannot_read_is_matched_by_arguments_and_trace(
    tvm, small_target, platform, database, tmp_path
):
    """As TVM 0.16 and before wrote it: another form of modules, other names of instructions."""
    folder, programs = database
    lines = (folder / "database_workload.json").read_text().splitlines()
    legacy = base64.b64encode(b"\0" * 8 + b'{"root": 1, "nodes": [{"type_key": ""}]}').decode()
    (folder / "database_workload.json").write_text(
        "".join(json.dumps([json.loads(line)[0], legacy]) + "\n" for line in lines)
    )
    path = folder / "database_tuning_record.json"
    text = path.read_text().replace('"GetSBlock"', '"GetBlock"')
    records = [json.loads(line) for line in text.splitlines()[:-1]]
    for record in records:
        for instruction in record[1][0][0]:
            if instruction[0] == "Split":
                instruction[2] = instruction[2][:1]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    states = states_of({"fused": matmul_add(tvm, "ABCDE")}, small_target)
    source = read(folder, states, platform)
    choose_first_picks([source], states, [{"first_picks": 0}])
    assert picked_programs(states[0]) == programs
    # Under other names of blocks the trace says nothing.
    states = states_of({"fused": matmul_add(tvm, "abkmr")}, small_target)
    source = read(folder, states, platform)
    assert source.picks == []
    assert source.unused["of another structure"] == 6
    assert source.unused["written by another TVM"] == 2


def test_layouts_and_kinds_of_targets(tvm, small_target, platform, database):
    """A task whose weights may be laid out has another key, but the same sketches."""
    folder, programs = database
    mod = matmul_add(tvm, "abkmr")
    free = tvm.IRModule({"main": mod["main"].with_attr("layout_free_buffers", [1])})
    states = states_of({"fused": free}, small_target)
    source = read(folder, states, platform)
    choose_first_picks([source], states, [{"first_picks": 0}])
    assert len(states[0].first_picks) == len(programs)
    cuda = Platform({"kind": "cuda"}, platform.tvm, platform.host)
    assert read(folder, states, cuda).unused["for another kind of target"] == 9


def test_sources_take_turns_and_the_best_come_first(
    measured, here, platform, database, tmp_path, monkeypatch
):
    # How many rows were timed to the end depends on the machine; five there always are.
    monkeypatch.setattr(reuse, "FIRST_PICKS", 4)
    elsewhere = edited(measured, tmp_path / "there", "UPDATE candidates SET host = 'elsewhere'")
    sources = [read(elsewhere, here, platform), read(database[0], here, platform)]
    counts = [{"first_picks": 0}, {"first_picks": 0}]
    choose_first_picks(sources, here, counts)
    assert len(here[1].first_picks) == 4
    assert min(count["first_picks"] for count in counts) >= 1
    first = [here[1].space.decisions(row)[1] for row in here[1].first_picks[:2]]
    for source, decisions in zip(sources, first, strict=True):
        assert min(source.picks, key=lambda pick: pick.latency).decisions == decisions
    here[1].left_out = True
    choose_first_picks(sources, here, counts)
    assert here[1].first_picks == []


def test_a_damaged_store_gives_what_can_be_read(measured, here, platform, tmp_path):
    folder = edited(
        measured, tmp_path / "there", "UPDATE candidates SET latencies = '[1.0,' WHERE id = 1"
    )
    source = read(folder, here, platform)
    assert source.unused["damaged"] == 1
    assert source.measured
    (folder / "state.sqlite").write_bytes(b"gone" * 5000)
    with pytest.raises(WorkDirError, match="cannot be read at all"):
        read_sources([folder], here, platform, tmp_path / "log", lambda text: None, lambda: None)


def test_folders_that_cannot_be_sources(measured, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    for folder, says in (
        (own, "is the work folder of this run"),
        (measured, "is the work folder of this run"),
        (tmp_path / "missing", "no such folder"),
        (tmp_path, "is neither a work folder"),
    ):
        with pytest.raises(WorkDirError, match=f"--reuse {folder}.*{says}"):
            check_sources([folder], measured if folder == measured else own)
    (own / "database").mkdir()
    with pytest.raises(WorkDirError, match="is the work folder of this run"):
        check_sources([own / "database"], own)
    check_sources([measured], own)
