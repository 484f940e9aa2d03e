"""Whole imports: every line accounted for, stopped and resumed, real logs."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from log_files import ANSOR, METASCHEDULE, record, shared, write_log

import tlp.records
from tlp.errors import RecordsError
from tlp.primitives.ansor import write_step
from tlp.primitives.metaschedule import write_trace
from tlp.records.importer import import_logs
from tlp.records.names import NetworkMap
from tlp.records.status import Status


def table(out, name):
    parts = json.loads((out / "manifest.json").read_text())["parts"]
    return pa.concat_tables(
        pq.read_table(path).unify_dictionaries()
        for path in sorted((out / parts).glob(f"{name}-*.parquet"))
    ).to_pylist()


def everything(out):
    return [table(out, name) for name in ("rows", "tasks", "primitives")]


@pytest.fixture
def many(tmp_path):
    """Files of 3,000 lines, all of which are different."""
    folder = tmp_path / "many"
    for number in range(3):
        lines = [
            record(f"k{i % 7}", [1e-3 + i * 1e-6], factor=1 + i % 50, stamp=i + 1000 * number)
            for i in range(1000)
        ]
        lines[10], lines[20], lines[30] = "", "# comment", "{"
        write_log(folder / f"net{number}.json", *lines)
    return folder


def test_every_line_is_accounted_for_and_the_logs_stay(many, tmp_path):
    before = [path.read_bytes() for path in sorted(many.iterdir())]
    shares = []
    done = import_logs([many], tmp_path / "out", on_progress=lambda *now: shares.append(now))
    counts = done.manifest["counts"]
    told = {name: counts[name] for name in ("lines", "rows", "rejected", "blank", "comments")}
    assert told == {"lines": 3000, "rows": 2991, "rejected": 3, "blank": 3, "comments": 3}
    assert shares[-1][1:] == (3000, 2991)
    assert shares[-1][0] == pytest.approx(1)
    data = tlp.records.open(tmp_path / "out")
    rejected = [json.loads(line) for line in data.rejected.read_text().splitlines()]
    assert [(one["file"], one["line"]) for one in rejected] == [
        (f"many/net{number}.json", 31) for number in range(3)
    ]
    assert [path.read_bytes() for path in sorted(many.iterdir())] == before


def test_processes_parts_and_blocks_change_nothing(many, tmp_path, monkeypatch):
    from tlp.records import logs

    import_logs([many], tmp_path / "one", jobs=1)
    import_logs([many], tmp_path / "two", jobs=2, part_rows=100)
    monkeypatch.setattr(logs, "BLOCK", 5000)
    import_logs([many], tmp_path / "small", jobs=1, part_rows=100)
    import_logs([many], tmp_path / "small2", jobs=2, part_rows=300)
    wanted = everything(tmp_path / "one")
    assert len(wanted[0]) == 2991
    for name in ("two", "small", "small2"):
        assert everything(tmp_path / name) == wanted


STOPPED = """
import sys
from pathlib import Path
from tlp.records import logs
from tlp.records.importer import import_logs
logs.BLOCK = 20000
seen = []
def slow(share, lines, rows):
    import time
    print(rows, flush=True)
    time.sleep(0.02)
import_logs([Path(sys.argv[1])], Path(sys.argv[2]), jobs=int(sys.argv[3]), part_rows=400,
            replace=True, on_progress=slow)
"""


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("before", [False, True])
def test_a_killed_import_leaves_the_old_or_the_new_and_goes_on(many, tmp_path, jobs, before):
    out = tmp_path / "out"
    if before:
        import_logs([write_log(tmp_path / "old.json", record("old"))], out)
        old = everything(out)
    command = [sys.executable, "-c", STOPPED, str(many), str(out), str(jobs)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for line in child.stdout:
        if int(line) > 1500:
            break
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    if before:
        assert everything(out) == old
    else:
        with pytest.raises(RecordsError, match="stopped"):
            tlp.records.open(out)
    done = import_logs([many], out, jobs=jobs, replace=True)
    assert done.resumed
    assert done.manifest["counts"]["lines"] == 3000
    import_logs([many], tmp_path / "whole", jobs=1)
    assert everything(out) == everything(tmp_path / "whole")
    assert len(list(out.glob("parts-*"))) == 1
    rejected = tlp.records.open(out).rejected
    assert rejected.read_text() == tlp.records.open(tmp_path / "whole").rejected.read_text()


def test_killed_at_every_moment_it_is_the_old_or_the_new(tmp_path):
    log, out = write_log(tmp_path / "a.json", *[record(factor=i) for i in range(1, 400)]), None
    for delay in (0.0, 0.3, 0.6):
        out = tmp_path / f"out{delay}"
        child = subprocess.Popen([sys.executable, "-c", STOPPED, str(log), str(out), "1"])
        time.sleep(delay)
        child.kill()
        child.wait()
        import_logs([log], out)
        assert len(table(out, "rows")) == 399


def test_the_same_again_is_complete_and_other_logs_need_leave(many, tmp_path):
    out = tmp_path / "out"
    assert not import_logs([many], out).complete_before
    assert import_logs([many], out).complete_before
    other = write_log(tmp_path / "other.json", record())
    for change in ({"platform": "mine"}, {}):
        with pytest.raises(RecordsError, match="--replace"):
            import_logs([other if not change else many], out, **change)
    assert import_logs([other], out, replace=True).manifest["rows"] == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    with pytest.raises(RecordsError, match="other files"):
        import_logs([other], tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("table", ["rows", "tasks", "primitives"])
@pytest.mark.parametrize("damage", ["missing", "short", "changed", "empty"])
def test_a_damaged_part_is_named_and_the_way_out_works(tmp_path, table, damage):
    log, out = write_log(tmp_path / "a.json", *ANSOR), tmp_path / "out"
    import_logs([log], out)
    wanted = everything(out)
    (part,) = out.glob(f"parts-*/{table}-*.parquet")
    content = part.read_bytes()
    middle = len(content) // 3
    if damage == "missing":
        part.unlink()
    else:
        part.write_bytes(
            {
                "short": content[:-20],
                "changed": content[:4] + b"\xff" * middle + content[4 + middle :],
                "empty": b"",
            }[damage]
        )
    says = "is missing" if damage == "missing" else "is damaged"
    with pytest.raises(RecordsError, match=rf"{part.name} {says}.*--replace"):
        [*tlp.records.open(out)]
    assert import_logs([log], out, replace=True).manifest["rows"] == len(ANSOR)
    assert everything(out) == wanted
    assert len(list(out.glob("parts-*"))) == 1


def test_a_damaged_manifest_is_named_and_the_way_out_works(tmp_path):
    log, out = write_log(tmp_path / "a.json", *ANSOR), tmp_path / "out"
    import_logs([log], out)
    for content in ("", "{", "[]", '{"format": "another"}'):
        (out / "manifest.json").write_text(content)
        with pytest.raises(RecordsError, match=r"manifest\.json"):
            import_logs([log], out)
        assert import_logs([log], out, replace=True).manifest["rows"] == len(ANSOR)
    # Without parts beside it a manifest may be anybody's.
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "manifest.json").write_text('{"format": "another"}')
    with pytest.raises(RecordsError, match=r"is not the manifest"):
        import_logs([log], tmp_path / "foreign", replace=True)


def test_a_data_set_among_the_logs_is_no_log(tmp_path):
    write_log(tmp_path / "logs" / "a.json", record(), "{")
    for _ in range(2):
        done = import_logs([tmp_path / "logs"], tmp_path / "logs" / "out", replace=True)
        assert [source["file"] for source in done.manifest["sources"]] == ["logs/a.json"]
        assert not done.others


def test_logs_without_a_record_say_why_and_leave_nothing(tmp_path):
    autotvm = '{"i": ["llvm", "conv2d", [], {}, [], {}], "r": [[0.1], 0, 0.2, 1], "v": 0.1}'
    for name, line, says in (
        ("tvm.json", autotvm, "AutoTVM"),
        ("foreign.json", "hello", r"foreign.json, line 1: no JSON"),
        ("empty.json", "", "there is no record"),
    ):
        with pytest.raises(RecordsError, match=says):
            import_logs([write_log(tmp_path / name, line)], tmp_path / "out")
        with pytest.raises(RecordsError, match="no data set"):
            tlp.records.open(tmp_path / "out")


def test_platforms_networks_and_weights(tmp_path):
    folder = tmp_path / "logs"
    write_log(folder / "own__one__a.json", record("k"), record("k", target="cuda"))
    write_log(folder / "own__two__b.json", record("k"))
    write_log(folder / "ResNet-18.json", record("k"), record("l"))
    networks = tmp_path / "map.json"
    key = json.dumps(["k", [1, 512]])
    content = {"own__one__a": None, "resnet18": {"name": "r18", "weights": {key: 3}}}
    networks.write_text(json.dumps(content))
    import_logs([folder], tmp_path / "out", networks=NetworkMap.read(networks))
    data = tlp.records.open(tmp_path / "out")
    hardware = "4,64,64,0,0,0,0,0"
    assert data.platforms == (
        f"llvm | {hardware} | logs",
        f"llvm | {hardware} | own/one",
        f"cuda | {hardware} | own/one",
        f"llvm | {hardware} | own/two",
    )
    assert [(task.network, task.weight) for task in data.tasks] == [
        ("r18", 3.0),
        ("r18", None),
        (None, None),
        (None, None),
        ("own__two__b", None),
    ]
    assert json.loads(data.tasks[0].arguments) == [[1, 512]]
    import_logs([folder], tmp_path / "named", platform="mine")
    assert tlp.records.open(tmp_path / "named").platforms == ("mine",)
    networks.write_text(json.dumps({"resnet": "x"}))
    with pytest.raises(RecordsError, match=r"did you mean ResNet-18\? Known are: ResNet-18, own"):
        import_logs([folder], tmp_path / "bad", networks=NetworkMap.read(networks))


def test_a_database_without_or_with_damaged_workloads(tmp_path):
    path = tmp_path / "db" / "database_tuning_record.json"
    write_log(path, *METASCHEDULE)
    done = import_logs([path], tmp_path / "without")
    assert done.manifest["rows"] == 4
    keys = {task.workload for task in tlp.records.open(tmp_path / "without").tasks}
    assert len(keys) == 4
    assert all(key.startswith("unknown-") for key in keys)
    write_log(path.with_name("database_workload.json"), '["1", "AAAA"]', "x", "")
    with pytest.raises(RecordsError, match="cut off"):
        import_logs([path], tmp_path / "with")
    counts = write_log(path, *METASCHEDULE, ANSOR[0])
    done = import_logs([counts], tmp_path / "with")
    found = done.manifest["counts"]
    assert (found["rows"], found["rejected"]) == (1, 4)
    assert (found["workload_lines"], found["workloads_rejected"]) == (3, 2)
    assert found["workloads_blank"] == 1
    rejected = tlp.records.open(tmp_path / "with").rejected.read_text()
    assert "db/database_workload.json" not in rejected  # A single file has no folder's name.
    assert "database_workload.json" in rejected


def handed_counts():
    """Rows of the handed README's table of Ansor logs: name, lines and the rest."""
    for line in shared("logs/README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].endswith(".json.zst") and len(cells) >= 8:
            yield cells


def plain(path):
    """Values of a handed log's lines by number, decoded by the standard library."""
    with pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as stream:
        text = stream.read().decode()
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            yield number, json.loads(line)


@pytest.fixture(scope="module")
def handed(tmp_path_factory):
    out = tmp_path_factory.mktemp("handed") / "out"
    import_logs([shared("logs")], out)
    return tlp.records.open(out)


def test_counts_of_the_handed_ansor_logs(handed):
    sources = {source["file"].rpartition("/")[2]: source for source in handed.manifest["sources"]}
    rows = {}
    for row in handed:
        rows.setdefault(row.task.file.rpartition("/")[2], []).append(row)
    checked = 0
    for name, _, target, lines, workloads, versions, errors, longest, *rest in handed_counts():
        found, counts = rows[name], sources[name]["counts"]
        assert (counts["rows"], counts["rejected"]) == (int(lines), 0)
        comments = re.search(r"comment-line (\d+)", " ".join(rest))
        assert counts["comments"] == (int(comments[1]) if comments else 0)
        assert len({(row.task.workload, row.task.target) for row in found}) == int(workloads)
        assert {row.task.version for row in found} == set(re.split(r"[;,]\s*", versions))
        texts = {text.strip() for text in target.split(";")}
        assert all(
            any(task.target.startswith(text) for text in texts)
            for task in {row.task for row in found}
        )
        numbers = {}
        for row in found:
            number = int(re.search(r"error (\d)", row.error)[1]) if row.error else 0
            numbers[number] = numbers.get(number, 0) + 1
        assert numbers == {int(k): int(v) for k, v in re.findall(r"(\d+):(\d+)", errors)}
        assert max(len(row.sequence) for row in found) == int(longest)
        checked += 1
    assert checked == 60


def test_counts_of_the_handed_databases(handed):
    wanted = {}
    for line in shared("logs/README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 9 and " / " in cells[4] and cells[3].isdigit():
            wanted[cells[0]] = (int(cells[3]), cells[4].split(" / ")[0], int(cells[5]))
    assert len(wanted) == 6
    found = {}
    for row in handed:
        if row.task.framework.value == "metaschedule":
            found.setdefault(row.task.file.split("/")[-2], []).append(row)
    for folder, (records, used, failed) in wanted.items():
        rows = found[folder]
        keys = {row.task.workload for row in rows}
        assert (len(rows), len(keys)) == (records, int(used))
        assert sum(row.status is Status.FAILED for row in rows) == failed


def test_spot_values_of_the_handed_logs(handed):
    """Every row of every tenth file, against the standard library."""
    root = shared("logs").parent
    chosen = [source["file"] for source in handed.manifest["sources"]][::10]
    rows = {(row.task.file, row.line): row for row in handed if row.task.file in chosen}
    checked = 0
    for file in chosen:
        for number, value in plain(root / file):
            row = rows.pop((file, number))
            checked += 1
            if isinstance(value, dict):
                (task, (_, steps)), (costs, error, _, stamp) = value["i"], value["r"]
                assert [write_step(one) for one in row.sequence] == steps
                assert row.task.workload == task[0]
                assert row.time == stamp
                assert (row.status is Status.OK) == (error == 0)
            else:
                (instructions, _), costs, _, _ = value[1]
                written = write_trace(row.sequence)[0]
                assert written == instructions[: len(written)]
            assert list(row.latencies) == [cost for cost in costs if cost < 1e10]
    assert not rows
    assert checked > 2000


@pytest.mark.slow
def test_the_whole_handed_data(tmp_path):
    folder = shared("ansor-x86")
    import_logs([folder], tmp_path / "out", jobs=2)
    data = tlp.records.open(tmp_path / "out")
    assert len(data) == data.manifest["counts"]["lines"] == 712_474
    # Latencies of whole networks by an independent path.
    sequences, latencies, groups = data.arrays()
    assert sequences.shape[0] == len(latencies) == len(groups) == 712_474
    best = {}
    for _, value in plain(folder / "resnet_18.json.zst"):
        if value["r"][1] == 0:
            key, seconds = value["i"][0][0], statistics.median(value["r"][0])
            best[key] = min(seconds, best.get(key, 1.0))
    for key in data.networks["resnet_18"]:
        lists = [number for number, (workload, _) in enumerate(data.groups) if workload == key]
        chosen = [latencies[groups == number].min() for number in lists]
        assert min(chosen) <= best[key]
    only = data.arrays(workloads=set(data.networks["resnet_18"]))[1]
    assert len(only) >= 14_160


def test_packed_logs_are_read(tmp_path):
    path = tmp_path / "log.json.gz"
    path.write_bytes(gzip.compress(b"\n".join(ANSOR)))
    assert import_logs([path], tmp_path / "out").manifest["rows"] == 3
