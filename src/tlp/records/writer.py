"""Writes a data set part by part, so that a killed import can go on after the last part."""

from __future__ import annotations

import hashlib
import json
import marshal
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tlp.errors import RecordsError
from tlp.primitives.encoding import Encoding, fit_counts
from tlp.primitives.primitive import Primitive
from tlp.processes import require
from tlp.records.ansor_log import TaskInfo
from tlp.records.logs import MANIFEST
from tlp.records.parts import part_path, read_part
from tlp.records.reader import STATUSES, Batch
from tlp.records.schema import FORMAT, ROWS, TASKS, VERSION, arrow_schema, primitive_schema
from tlp.tuning.workdir import write_json

PART_ROWS = 131_072
_PART_VALUES = 8_000_000
_PART_PRIMITIVES = 50_000
_PART_TEXT = 64 * 2**20
_PROGRESS = "progress.json"
# What the manifest of a data set has, whoever reads it.
_NEEDED: dict[str, type] = {
    "parts": str,
    "identity": str,
    "fingerprint": str,
    "rows": int,
    "number_of_parts": int,
    "encoding": dict,
    "counts": dict,
    "sources": list,
}


@dataclass
class Counts:
    """Lines of one file, every one of them accounted for."""

    lines: int = 0
    rows: int = 0
    rejected: int = 0
    blank: int = 0
    comments: int = 0
    autotvm: int = 0
    workload_lines: int = 0
    workloads: int = 0
    workloads_blank: int = 0
    workloads_rejected: int = 0

    @property
    def balanced(self) -> bool:
        """Every line is a row, rejected, blank or a comment."""
        told = self.workloads + self.workloads_blank + self.workloads_rejected
        return (
            self.lines == self.rows + self.rejected + self.blank + self.comments
            and self.workload_lines == told
        )


@dataclass
class Progress:
    """Up to where the parts on disk go.

    Parameters
    ----------
    source, offset, line
        Next bytes to be read: of which file, where in its unpacked bytes, and that line's number.
    rejected
        Bytes of ``rejected.jsonl`` that belong to it.
    """

    source: int = 0
    offset: int = 0
    line: int = 1
    parts: int = 0
    rejected: int = 0
    rows: int = 0
    tasks: int = 0
    primitives: int = 0
    values: int = 0
    counts: list[Counts] = field(default_factory=list)


class Writer:
    """Collects batches and writes them as parts into a folder.

    Parameters
    ----------
    folder
        Holds the parts; if some are there, the writer goes on after them.
    describe
        The row of the task table for what a reader found in a file.
    part_rows
        Rows after which a part is written.
    """

    def __init__(
        self,
        folder: Path,
        describe: Callable[[int, TaskInfo], dict[str, Any]],
        part_rows: int = PART_ROWS,
    ) -> None:
        self.folder = folder
        self._part_rows = part_rows
        self._describe = describe
        self._pa = require("pyarrow", "records")
        self._parquet = require("pyarrow.parquet", "records")
        folder.mkdir(parents=True, exist_ok=True)
        self.progress = self._load()
        self._rejected = (folder / "rejected.jsonl").open("ab")
        self._rejected.truncate(self.progress.rejected)
        # Digests instead of primitives: many distinct ones must not fill the memory.
        self._primitives: dict[bytes, int] = {}
        self._tasks: dict[bytes, int] = {}
        self._known: dict[int, _Numbers] = {}
        # How often each primitive occurs, and how many sequences have each length.
        self.used = np.zeros(0, np.int64)
        self.lengths: Counter[int] = Counter()
        self._start()
        self._reload()

    def _load(self) -> Progress:
        path = self.folder / _PROGRESS
        if not path.exists():
            return Progress()
        content = json.loads(path.read_text())
        counts = [Counts(**value) for value in content.pop("counts")]
        return Progress(**content, counts=counts)

    def _reload(self) -> None:
        for part in range(self.progress.parts):
            for row in read_part(self.folder, "primitives", part).to_pylist():
                self._number_primitive(Primitive.from_row(row))
            for row in read_part(self.folder, "tasks", part).to_pylist():
                self._tasks[_task_digest(row)] = len(self._tasks)
            rows = read_part(self.folder, "rows", part, ["sequence"])
            for chunk in rows["sequence"].chunks:
                self._count(chunk.flatten().to_numpy(), chunk.value_lengths().to_numpy())
        self._start()
        for path in self.folder.glob("*-*.parquet"):
            if int(path.stem.rpartition("-")[2]) >= self.progress.parts:
                path.unlink()

    def _start(self) -> None:
        self._batches: list[tuple[Batch, NDArray[np.int32], NDArray[np.int32]]] = []
        self._new_primitives: list[Primitive] = []
        self._new_tasks: list[dict[str, Any]] = []
        # Bytes of the new primitives and tasks, any of which may be as long as a line.
        self._rows = self._values = self._text = 0

    def counts(self, source: int) -> Counts:
        """Counts of a file."""
        while len(self.progress.counts) <= source:
            self.progress.counts.append(Counts())
        return self.progress.counts[source]

    def reject(self, file: str, line: int, reason: str) -> None:
        """Write a line down that became no row."""
        entry = {"file": file, "line": line, "reason": reason[:400]}
        self._rejected.write(json.dumps(entry).encode() + b"\n")

    def add(
        self, source: int, file: str, batch: Batch, lines: int, then: tuple[int, int, int]
    ) -> None:
        """Take a batch over; ``then`` are the file, offset and line with which the next begins."""
        known = self._numbers_of(batch)
        for primitive in batch.new_primitives:
            known.primitives.append(self._number_primitive(primitive))
        for task in batch.new_tasks:
            known.infos.append(task)
        self._batches.append(
            (
                batch,
                known.map_primitives(batch.primitives),
                self._map_tasks(source, known, batch.tasks),
            )
        )
        for line, reason in batch.rejected:
            self.reject(file, line, reason)
        counts = self.counts(source)
        counts.lines += lines
        counts.rows += len(batch.lines)
        counts.rejected += len(batch.rejected)
        batch.rejected.clear()  # The batch is kept until its part is written.
        counts.blank += batch.blank
        counts.comments += batch.comments
        counts.autotvm += batch.autotvm
        self._rows += len(batch.lines)
        self._values += len(batch.primitives) + len(batch.latencies)
        self.progress.source, self.progress.offset, self.progress.line = then
        if (
            self._rows >= self._part_rows
            or self._values >= _PART_VALUES
            or len(self._new_primitives) >= _PART_PRIMITIVES
            or self._text >= _PART_TEXT
        ):
            self.flush()

    def _numbers_of(self, batch: Batch) -> _Numbers:
        process, name, round_ = batch.reader
        known = self._known.get(process)
        if known is None or known.of != (name, round_):
            known = self._known[process] = _Numbers((name, round_))
        return known

    def _number_primitive(self, primitive: Primitive) -> int:
        # Version 2 of marshal writes equal values as equal bytes.
        content = (primitive.framework.value, primitive.opcode, primitive.kind)
        numbers = tuple(map(float, primitive.numbers))
        parts = (primitive.tokens, primitive.names, primitive.variables, primitive.form)
        text = marshal.dumps((content, numbers, parts), 2)
        key = hashlib.blake2b(text, digest_size=16).digest()
        number = self._primitives.get(key)
        if number is None:
            number = self._primitives[key] = len(self._primitives)
            self._new_primitives.append(primitive)
            self._text += len(text)
        return number

    def _map_tasks(
        self, source: int, known: _Numbers, tasks: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        used, first = np.unique(tasks, return_index=True)
        numbers = np.zeros(len(known.infos), np.int32)
        # In the order of the lines: whoever read them may have numbered them otherwise.
        for local in used[np.argsort(first)].tolist():
            row = self._describe(source, known.infos[local])
            key = _task_digest(row)
            if key not in self._tasks:
                self._tasks[key] = len(self._tasks)
                self._new_tasks.append(row)
                self._text += sum(len(value) for value in row.values() if isinstance(value, str))
            numbers[local] = self._tasks[key]
        return numbers[tasks]

    def _count(self, flat: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
        found = np.bincount(flat, minlength=len(self.used))
        found[: len(self.used)] += self.used
        self.used = found
        sizes, times = np.unique(lengths, return_counts=True)
        self.lengths.update(dict(zip(sizes.tolist(), times.tolist(), strict=True)))

    def encoding(self) -> Encoding:
        """The default encoding of all that is on disk."""
        # One part at a time: many distinct ones must not fill the memory.
        primitives = (
            Primitive.from_row(row)
            for part in range(self.progress.parts)
            for row in read_part(self.folder, "primitives", part).to_pylist()
        )
        used = np.zeros(self.progress.primitives, np.int64)
        used[: len(self.used)] = self.used
        counted = np.array(sorted(self.lengths.items()), np.int64).reshape(-1, 2)
        return fit_counts(primitives, used, (counted[:, 0], counted[:, 1]), name="default")

    def flush(self) -> None:
        """Write what is pending as a part, and then how far it goes."""
        pa, progress = self._pa, self.progress
        part = progress.parts
        primitives = [primitive.to_row() for primitive in self._new_primitives]
        for table, rows, schema in (
            ("primitives", primitives, primitive_schema()),
            ("tasks", self._new_tasks, arrow_schema(TASKS)),
        ):
            self._write(table, pa.Table.from_pylist(rows, schema=schema), compression="zstd")
        self._write(
            "rows",
            self._row_table(),
            compression="zstd",
            compression_level=1,
            # Latencies hardly repeat: a dictionary of them costs time and room, and only their high
            # bytes are alike.
            use_dictionary=["task", "sequence.list.element", "status", "error"],
            column_encoding={"latencies.list.element": "BYTE_STREAM_SPLIT"},
            write_statistics=["task", "line", "status"],
        )
        self._rejected.flush()
        os.fsync(self._rejected.fileno())
        progress.parts = part + 1
        progress.rejected = self._rejected.tell()
        progress.rows += self._rows
        progress.values += sum(len(batch.primitives) for batch, _, _ in self._batches)
        progress.tasks, progress.primitives = len(self._tasks), len(self._primitives)
        write_json(self.folder / _PROGRESS, asdict(progress))
        self._start()

    def _write(self, table: str, content: Any, **options: Any) -> None:
        self._parquet.write_table(
            content, part_path(self.folder, table, self.progress.parts), **options
        )

    def _row_table(self) -> Any:
        pa = self._pa
        batches = [batch for batch, _, _ in self._batches]

        def joined(name: str, type_: Any) -> NDArray[Any]:
            arrays = [getattr(batch, name) for batch in batches]
            return np.concatenate(arrays) if arrays else np.zeros(0, type_)

        nothing = np.zeros(0, np.int32)
        sequence = np.concatenate([nothing, *(found for _, found, _ in self._batches)])
        tasks = np.concatenate([nothing, *(found for _, _, found in self._batches)])
        texts: dict[str, int] = {}
        errors = []
        for batch in batches:
            places = [texts.setdefault(text, len(texts)) for text in batch.texts]
            errors.append(np.array(places, np.int32)[batch.errors])
        error = np.concatenate([nothing, *errors])
        lengths = joined("lengths", np.int32)
        self._count(sequence, lengths)
        stamps = joined("stamps", np.int64)
        schema = arrow_schema(ROWS)
        return pa.Table.from_arrays(
            [
                pa.array(tasks),
                pa.array(joined("lines", np.int64)),
                pa.ListArray.from_arrays(_offsets(lengths), sequence),
                pa.ListArray.from_arrays(
                    _offsets(joined("repeats", np.int32)), joined("latencies", np.float64)
                ),
                pa.DictionaryArray.from_arrays(
                    joined("statuses", np.int8).astype(np.int32),
                    pa.array([status.value for status in STATUSES]),
                ),
                pa.DictionaryArray.from_arrays(error, pa.array(list(texts), pa.string())),
                pa.array(stamps, mask=stamps < 0).cast(schema.field("time").type),
            ],
            schema=schema,
        )

    def close(self) -> None:
        """Close the files; what is not flushed is given up."""
        self._rejected.close()


class _Numbers:
    """What a reader's numbers mean here."""

    def __init__(self, of: tuple[int, int]) -> None:
        self.of = of
        self.primitives: list[int] = []
        self.infos: list[TaskInfo] = []
        self._array = np.zeros(0, np.int32)

    def map_primitives(self, numbers: NDArray[np.int32]) -> NDArray[np.int32]:
        if len(self._array) < len(self.primitives):
            self._array = np.array(self.primitives, np.int32)
        return self._array[numbers]


def _offsets(lengths: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def _task_digest(row: dict[str, Any]) -> bytes:
    text = json.dumps([row[name] for name in TASKS]).encode()
    return hashlib.blake2b(text, digest_size=16).digest()


def commit(out: Path, parts: Path, manifest: dict[str, Any]) -> None:
    """Make the parts the data set of a folder; before that moment it is what it was before."""
    write_json(
        out / MANIFEST, {"format": FORMAT, "version": VERSION, "parts": parts.name, **manifest}
    )
    (parts / _PROGRESS).unlink(missing_ok=True)
    for entry in out.iterdir():
        if entry.is_dir() and entry.name.startswith("parts-") and entry != parts:
            shutil.rmtree(entry)


def read_manifest(out: Path) -> dict[str, Any]:
    """The manifest of a data set.

    Raises
    ------
    RecordsError
        If the folder holds no complete data set, or one of another version.
    """
    path = out / MANIFEST
    if not path.is_file():
        begun = out.is_dir() and any(out.glob("parts-*"))
        raise RecordsError(
            f"{out} holds {'an import that was stopped: repeat it' if begun else 'no data set'}"
            f"{'' if begun else '; make one with: tlp import LOGS --out ' + str(out)}"
        )
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise RecordsError(
            f"{path} is damaged ({error}); import the logs anew with --replace"
        ) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise RecordsError(f"{path} is not the manifest of a data set of tlp")
    missing = [name for name, type_ in _NEEDED.items() if not isinstance(found.get(name), type_)]
    if found.get("version") == VERSION and missing:
        raise RecordsError(
            f"{path} is damaged (no {', '.join(missing)}); import the logs anew with --replace"
        )
    if found.get("version") != VERSION:
        raise RecordsError(
            f"{out} has version {found.get('version')}, this tlp reads {VERSION}: import anew"
        )
    return found
