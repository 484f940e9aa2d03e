"""Finding logs, and their lines in blocks."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from log_files import METASCHEDULE, record, write_log

from tlp.errors import RecordsError
from tlp.records import logs
from tlp.records.importer import import_logs
from tlp.records.logs import find_logs, read_blocks


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


def lines_of(path, **where):
    """Number, bytes or what is said instead, of every line."""
    for block, _ in read_blocks(path, **where):
        if block.damage or block.skipped:
            yield block.first, block.damage or block.skipped
        else:
            found = block.data.split(b"\n")
            assert len(found) == block.lines
            yield from enumerate(found, block.first)


def in_two(data: bytes) -> bytes:
    return zstd(data[:5]) + zstd(data[5:])


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd, in_two])
def test_lines_of_packed_files_whatever_their_name(tmp_path, pack):
    path = tmp_path / "log"
    path.write_bytes(pack(b"one\n\ntwo\nthree"))
    assert list(lines_of(path)) == [(1, b"one"), (2, b""), (3, b"two"), (4, b"three")]


@pytest.mark.parametrize("data", [b"", b"\n", b"a\n", b"a", b"a\n\n", b"\n\nab\ncdefgh\n\n\ni"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("lines", [1, 2, 100])
def test_blocks_of_any_size_have_the_lines_of_the_file(tmp_path, monkeypatch, data, size, lines):
    monkeypatch.setattr(logs, "BLOCK", size)
    monkeypatch.setattr(logs, "BLOCK_LINES", lines)
    path = tmp_path / "log"
    path.write_bytes(data)
    wanted = data.removesuffix(b"\n").split(b"\n") if data else []
    assert list(lines_of(path)) == list(enumerate(wanted, 1))
    for block, _ in read_blocks(path):
        assert block.lines <= lines
        rest = [(n, line) for n, line in enumerate(wanted, 1) if n >= block.first + block.lines]
        place = {"offset": block.end, "first": block.first + block.lines}
        assert list(lines_of(path, **place)) == rest


def test_a_line_that_is_too_long_is_counted_and_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "BLOCK", 8)
    monkeypatch.setattr(logs, "LONGEST_LINE", 20)
    path = tmp_path / "log"
    path.write_bytes(b"one\n" + b"x" * 50 + b"\ntwo\n" + b"y" * 33)
    assert list(lines_of(path)) == [(1, b"one"), (2, 50), (3, b"two"), (4, 33)]


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_lines_before_a_damage_are_kept(tmp_path, pack):
    whole = "".join(f"{i * 7919 % 10007} line {i}\n" for i in range(20_000)).encode()
    packed = pack(whole)
    path = tmp_path / "log"
    path.write_bytes(packed[: len(packed) // 2])
    *good, (number, reason) = lines_of(path)
    assert "damaged" in reason
    assert number == len(good) + 1
    assert len(good) > 2000
    assert [line for _, line in good] == whole.split(b"\n")[: len(good)]


def test_what_follows_an_archive_takes_no_line_along(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(b"one\ntwo\n") + gzip.compress(b"three\n") + bytes(100))
    *good, (number, reason) = lines_of(path)
    assert good == [(1, b"one"), (2, b"two"), (3, b"three")]
    assert number == 4
    assert "damaged" in reason


def test_folders_databases_repositories_and_other_files(tmp_path):
    root = tmp_path / "logs"
    write_log(root / "own__repo__results_net.json", record())
    write_log(root / "deep" / "ResNet-18.json.gz", record())
    write_log(root / "db" / "database_tuning_record.json", "[]")
    write_log(root / "db" / "database_workload.json", "[]")
    write_log(root / "notes.md", "text")
    write_log(root / "data" / "manifest.json", '{"format": "tlp data set"}')
    found, others = find_logs([root, root / "deep" / "ResNet-18.json.gz"])
    assert [(log.name, log.origin, log.stem) for log in found] == [
        ("logs/db/database_tuning_record.json", "db", "db"),
        ("logs/deep/ResNet-18.json.gz", "deep", "ResNet-18"),
        ("logs/own__repo__results_net.json", "own/repo", "own__repo__results_net"),
    ]
    assert found[0].workloads == root / "db" / "database_workload.json"
    assert [path.name for path in others] == ["notes.md"]


def test_names_that_are_no_text_and_links_back_up(tmp_path):
    root = tmp_path / "logs"
    name = os.fsdecode(b"o\xff__r\xfe__n\xfdet.json")
    write_log(root / name, record())
    (root / "loop").symlink_to(root)
    (root / "nowhere.json").symlink_to(root / "gone")
    (found,), others = find_logs([root])
    assert found.name == r"logs/o\xff__r\xfe__n\xfdet.json"
    assert found.stem == r"o\xff__r\xfe__n\xfdet"
    assert not others
    assert import_logs([root], tmp_path / "out").manifest["rows"] == 1


def test_links_keep_their_names_wherever_they_lead(tmp_path):
    """Stores of large files keep them under digests and link to them."""
    store, root = tmp_path / "store", tmp_path / "logs"
    write_log(store / "f3a1", *METASCHEDULE)
    write_log(store / "07bc", "x")
    write_log(store / "more" / "net.json", record())
    for name, target in {
        "db/database_tuning_record.json": "f3a1",
        "db/database_workload.json": "07bc",
        "more": "more",
        "again": "more",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(store / target)
    found, others = find_logs([root])
    assert [(log.name, log.stem) for log in found] == [
        ("logs/again/net.json", "net"),
        ("logs/db/database_tuning_record.json", "db"),
    ]
    assert found[1].workloads == root / "db" / "database_workload.json"
    assert not others
    (alone,), _ = find_logs([root / "db" / "database_tuning_record.json"])
    assert (alone.stem, alone.workloads) == ("db", found[1].workloads)


def test_folders_that_link_to_each_other_are_read_once(tmp_path):
    folders = [tmp_path / "logs" / str(number) for number in range(12)]
    for folder in folders:
        write_log(folder / "a.json", record())
    for folder in folders:
        for other in folders:
            (folder / other.name).symlink_to(other)
    assert len(find_logs([tmp_path / "logs"])[0]) == 12


def test_folders_of_one_name_are_different_origins(tmp_path):
    for machine, seconds in (("one", 1e-3), ("two", 2e-3)):
        write_log(tmp_path / "all" / machine / "logs" / "net.json", record(costs=[seconds]))
    write_log(tmp_path / "all" / "own__repo" / "a" / "x.json", record())
    write_log(tmp_path / "all" / "own__repo" / "b" / "x.json", record())
    for given in ([tmp_path / "all"], [tmp_path / "all" / one / "logs" for one in ("one", "two")]):
        origins = {log.origin for log in find_logs(given)[0]}
        folders = {str(tmp_path / "all" / one / "logs") for one in ("one", "two")}
        assert origins - {"own/repo"} == folders


def test_what_is_neither_file_nor_folder_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecordsError, match="neither a file nor a folder"):
        find_logs([tmp_path / "pipe"])


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    def refuse(folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(RecordsError, match="cannot be read"):
        find_logs([tmp_path])


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(RecordsError, match="does not exist"):
        find_logs([tmp_path / "nowhere"])
    with pytest.raises(RecordsError, match=r"\.json"):
        find_logs([tmp_path])


# Not getrusage: its peak begins with that of the process that was forked.
PEAK = """
import re, sys
from pathlib import Path
from tlp.records.importer import import_logs
done = import_logs([Path(sys.argv[1])], Path(sys.argv[2]), jobs=1)
counts = done.manifest["counts"]
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]
print(counts["rows"], counts["rejected"], peak)
"""


@pytest.mark.parametrize(
    ("filling", "times", "rejected", "most"),
    [(b"[" * 2**20, 400, 1, 400), (b"x\n" * 2**16, 12, 12 * 2**16, 200)],
    ids=["one long line", "many short lines"],
)
def test_memory_does_not_grow_with_what_is_refused(tmp_path, filling, times, rejected, most):
    path = tmp_path / "long.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(record().encode() + b"\n")
        for _ in range(times):
            stream.write(filling)
        stream.write(b"\n" + record(factor=8).encode())
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=True,
    )
    rows, refused, peak = map(int, done.stdout.split())
    assert (rows, refused) == (2, rejected)
    assert peak < most * 1024
