"""Log files: which there are, and their lines in blocks of bounded size."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tlp.errors import RecordsError
from tlp.processes import require

LONGEST_LINE = 16 * 2**20
"""Bytes of a line above which it is not parsed."""
BLOCK = 4 * 2**20
MANIFEST = "manifest.json"

_ENDINGS = (".json", ".jsonl", ".log")
_PACKED = (".gz", ".zst")
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_TUNING, _WORKLOAD = "database_tuning_record", "database_workload"
# Collections of logs name files so: owner, repository, folders.
_REPOSITORY = re.compile(r"([A-Za-z0-9][\w.-]*?)__([A-Za-z0-9][\w.-]*?)(?:__.*)?")


@dataclass(frozen=True)
class LogFile:
    """A file of records.

    Parameters
    ----------
    name
        What it is called in data sets: the path from the folder that was given on.
    origin
        Repository or folder it comes from; latencies of different origins are never compared.
    stem
        Name without endings; of a MetaSchedule database, its folder's. Names the network.
    workloads
        File of a MetaSchedule database's workloads.
    """

    path: Path
    name: str
    origin: str
    stem: str
    workloads: Path | None = None

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self.path.stat().st_size


@dataclass(frozen=True)
class Block:
    """Whole lines of a file.

    Parameters
    ----------
    first
        Number of the first line, from 1.
    data
        Lines with a newline between each two; empty where ``skipped`` is set.
    lines
        How many they are.
    end
        Offset in the unpacked file of what follows.
    skipped
        Length in bytes of a single line that is too long to be kept.
    damage
        Why nothing follows although the file was not at its end.
    """

    first: int
    data: bytes
    lines: int
    end: int
    skipped: int = 0
    damage: str = ""


def find_logs(paths: Sequence[Path], but: Path | None = None) -> tuple[list[LogFile], list[Path]]:
    """Log files among files and in folders, and files in folders that are none.

    Parameters
    ----------
    but
        A folder to leave out, with all that is in it.

    Raises
    ------
    RecordsError
        If a path does not exist, or there is no log at all.
    """
    found: dict[Path, LogFile] = {}
    others: list[Path] = []
    names: set[str] = set()
    left_out = None if but is None else but.resolve()
    for given in paths:
        if not given.exists():
            raise RecordsError(f"{given} does not exist; give a log file or a folder of logs")
        root = given.resolve()
        for path in [root] if root.is_file() else _files(root, left_out):
            if path in found or (root.is_dir() and not _ends_like_a_log(path.name)):
                others += [path] if path not in found else []
                continue
            if _WORKLOAD in path.name and _partner(path, _WORKLOAD, _TUNING) is not None:
                continue
            log = _describe(path, root)
            if log.name in names:
                log = LogFile(path, _text(path), log.origin, log.stem, log.workloads)
            names.add(log.name)
            found[path] = log
    if not found:
        raise RecordsError(
            f"there is no log in {', '.join(map(str, paths))}: files end in "
            f"{', '.join(_ENDINGS)}, also packed as {' or '.join(_PACKED)}"
        )
    return list(found.values()), others


def _files(folder: Path, left_out: Path | None, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Files below a folder in order, without those of data sets."""
    real = folder.resolve()
    # A link may lead back up.
    if real == left_out or real in above or is_data_set(folder):
        return
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _files(entry, left_out, (*above, real))
        elif entry.is_file():
            yield entry.resolve()


def _text(path: Path | str) -> str:
    """A path as text; bytes of its name that are no UTF-8 are written out."""
    return os.fsencode(path).decode(errors="backslashreplace")


def is_data_set(folder: Path) -> bool:
    """Whether a folder holds an imported data set."""
    with contextlib.suppress(OSError):
        path = folder / MANIFEST
        return path.is_file() and b'"tlp data set"' in path.read_bytes()[:4096]
    return False


def _ends_like_a_log(name: str) -> bool:
    for packed in _PACKED:
        name = name.removesuffix(packed)
    return name.endswith(_ENDINGS)


def _stem(name: str) -> str:
    for ending in (*_PACKED, *_ENDINGS):
        name = name.removesuffix(ending)
    return name


def _partner(path: Path, word: str, other: str) -> Path | None:
    """The other file of a MetaSchedule database, packed or not."""
    plain = path.name.replace(word, other)
    for ending in _PACKED:
        plain = plain.removesuffix(ending)
    for name in (plain, *(plain + ending for ending in _PACKED)):
        if (path.parent / name).is_file():
            return path.parent / name
    return None


def _describe(path: Path, root: Path) -> LogFile:
    database = _TUNING in path.name
    name = path.name if root.is_file() else Path(root.name) / path.relative_to(root)
    stem = path.parent.name if database else _stem(path.name)
    workloads = _partner(path, _TUNING, _WORKLOAD) if database else None
    return LogFile(path, _text(name), _text(_origin(path, root)), _text(stem), workloads)


def _origin(path: Path, root: Path) -> str:
    last = root.parent if root.is_file() else root
    place = path
    while True:
        match = _REPOSITORY.fullmatch(place.name)
        if match:
            return f"{match[1]}/{match[2]}"
        if place == last or place == place.parent:
            return path.parent.name
        place = place.parent


@contextlib.contextmanager
def _unpacked(path: Path) -> Iterator[tuple[Any, BinaryIO]]:
    """A stream of the unpacked bytes, and the file itself."""
    with path.open("rb") as raw:
        start = raw.read(4)
        raw.seek(0)
        kinds = [kind for magic, kind in _MAGIC.items() if start.startswith(magic)]
        if not kinds:
            yield raw, raw
            return
        arrow = require("pyarrow", "records")
        with arrow.CompressedInputStream(arrow.PythonFile(raw, "r"), kinds[0]) as stream:
            yield stream, raw


def read_blocks(path: Path, offset: int = 0, first: int = 1) -> Iterator[tuple[Block, int]]:
    """Blocks of a file's lines, and how many bytes of the file on disk were read until then.

    Parameters
    ----------
    offset, first
        Where to begin in the unpacked bytes: at the start of line ``first``.

    Raises
    ------
    RecordsError
        If the file cannot be opened.
    """
    splitter = _Splitter(offset, first)
    size = BLOCK
    while True:
        try:
            with _unpacked(path) as (stream, raw):
                _skip(stream, splitter.read)
                while chunk := stream.read(size):
                    for block in splitter.add(chunk):
                        yield block, raw.tell()
                last = splitter.last()
                if last is not None:
                    yield last, raw.tell()
                return
        except FileNotFoundError:
            raise RecordsError(f"{path} is gone while it was read") from None
        except PermissionError:
            raise RecordsError(f"{path} may not be read; check its permissions") from None
        except OSError as error:
            # What was unpacked before the damage is lost with a large chunk: come nearer.
            if size > 1024:
                size = 1024
                continue
            reason = f"the file is damaged: {str(error).strip()}"
            yield splitter.damaged(reason), path.stat().st_size
            return


def _skip(stream: Any, bytes_: int) -> None:
    while bytes_ > 0:
        chunk = stream.read(min(bytes_, BLOCK))
        if not chunk:
            raise OSError("it is shorter than before")
        bytes_ -= len(chunk)


class _Splitter:
    """Cuts chunks into blocks of whole lines."""

    def __init__(self, offset: int, first: int) -> None:
        self.read = offset
        self._line = first
        self._rest = b""
        self._skipped = 0

    def add(self, chunk: bytes) -> Iterator[Block]:
        self.read += len(chunk)
        if self._skipped:
            end = chunk.find(b"\n")
            if end < 0:
                self._skipped += len(chunk)
                return
            self._skipped += end
            chunk = chunk[end + 1 :]
            yield self._skip(self.read - len(chunk))
        cut = chunk.rfind(b"\n")
        if cut < 0:
            self._rest += chunk
            if len(self._rest) > LONGEST_LINE:
                self._skipped, self._rest = len(self._rest), b""
            return
        data = self._rest + chunk[:cut]
        self._rest = chunk[cut + 1 :]
        yield self._block(data, self.read - len(self._rest))

    def last(self) -> Block | None:
        """The line that no newline ends."""
        if self._skipped:
            return self._skip(self.read)
        rest, self._rest = self._rest, b""
        return self._block(rest, self.read) if rest else None

    def damaged(self, reason: str) -> Block:
        """What cannot be read counts as one line."""
        return Block(self._line, b"", 1, self.read, 0, reason)

    def _block(self, data: bytes, end: int) -> Block:
        first = self._line
        lines = data.count(b"\n") + 1
        self._line += lines
        return Block(first, data, lines, end)

    def _skip(self, end: int) -> Block:
        skipped, self._skipped = self._skipped, 0
        self._line += 1
        return Block(self._line - 1, b"", 1, end, skipped)


def digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    found = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(BLOCK):
            found.update(chunk)
    return found.hexdigest()
