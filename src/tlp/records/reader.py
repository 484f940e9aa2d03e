"""Lines of logs as arrays: numbers of distinct primitives, latencies, statuses.

Ansor's lines are not decoded as a whole. A line is cut where its steps begin and end, and before
each split; a piece that was not seen before is cut into steps, each of which is decoded and
validated, and is then known by its bytes. Steps that are valid JSON by themselves are valid
together, so the result is that of decoding the line. Whatever cannot be cut so is decoded in the
ordinary way.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from tlp.errors import TlpError
from tlp.primitives.ansor import read_step
from tlp.primitives.primitive import Primitive
from tlp.records import ansor_log, metaschedule_log
from tlp.records.ansor_log import AUTOTVM, NEVER, Outcome, TaskInfo
from tlp.records.logs import LONGEST_LINE, Block
from tlp.records.status import Status
from tlp.records.workload_key import Workload

STATUSES = tuple(Status)

_STEPS = b", [[], [["
_STEP = b'], ["'
_SPLIT = b'], ["SP", '
_RESULT = b']]]], "r": '
_MARK = b"\xef\xbb\xbf"
"""With which some editors begin a file."""
_REMEMBERED = 128 * 2**20
"""Bytes of pieces after which a reader forgets and begins anew."""
_OK = STATUSES.index(Status.OK)
_LARGE = re.compile(rb"(?<![0-9.])[0-9]{19,}(?![0-9.eE])")
_reader_numbers = itertools.count()


@dataclass
class Batch:
    """Rows of one block.

    Parameters
    ----------
    reader
        Who numbered tasks and primitives: numbers of one reader go on from batch to batch.
    lines, tasks, lengths, repeats, statuses, errors, stamps
        ``[n]``: line, number of the task, primitives of the sequence, number of latencies, position
        in `STATUSES`, position in ``texts``, seconds since 1970 or -1.
    primitives, latencies
        Sequences and latencies (seconds) one after the other.
    new_primitives, new_tasks
        Those that the reader numbered in this block, in order.
    rejected
        Line and reason.
    """

    reader: tuple[int, int, int]
    lines: NDArray[np.int64]
    tasks: NDArray[np.int32]
    lengths: NDArray[np.int32]
    repeats: NDArray[np.int32]
    statuses: NDArray[np.int8]
    errors: NDArray[np.int32]
    stamps: NDArray[np.int64]
    primitives: NDArray[np.int32]
    latencies: NDArray[np.float64]
    texts: list[str]
    new_primitives: list[Primitive]
    new_tasks: list[TaskInfo]
    rejected: list[tuple[int, str]] = field(default_factory=list)
    blank: int = 0
    comments: int = 0
    autotvm: int = 0


class LogReader:
    """Reads blocks of any log; what it has seen before it recognises by its bytes."""

    def __init__(self) -> None:
        self._name = next(_reader_numbers)
        self._round = 0
        self._forget()

    def _forget(self) -> None:
        self._round += 1
        self._bytes = 0
        # Numbers as four bytes: sequences are joined, not converted.
        self._steps: dict[bytes, bytes] = {}
        self._runs: dict[bytes, bytes] = {}
        self._primitives: dict[Primitive, bytes] = {}
        self._tasks: dict[TaskInfo, int] = {}
        self._heads: dict[bytes, dict[str, int]] = {}
        self._new_primitives: list[Primitive] = []
        self._new_tasks: list[TaskInfo] = []

    def read(
        self, block: Block, workloads: Sequence[Workload | str] | None = None, place: str = ""
    ) -> Batch:
        """Rows of a block's lines.

        Parameters
        ----------
        workloads, place
            Of the MetaSchedule database that the lines are of.
        """
        if self._bytes > _REMEMBERED:
            self._forget()
        rows = _Rows()
        if block.damage:
            rows.rejected.append((block.first, block.damage))
        elif block.skipped:
            rows.rejected.append((block.first, _too_long(block.skipped)))
        else:
            self._read_lines(block.data, block.first, rows, workloads, place)
            if not rows.plausible():
                rows = _Rows()
                for number, line in enumerate(block.data.split(b"\n"), block.first):
                    self._read_line(line, number, rows, workloads, place)
        new_primitives, self._new_primitives = self._new_primitives, []
        new_tasks, self._new_tasks = self._new_tasks, []
        reader = (os.getpid(), self._name, self._round)
        return rows.batch(reader, new_primitives, new_tasks)

    def _read_lines(
        self,
        data: bytes,
        number: int,
        rows: _Rows,
        workloads: Sequence[Workload | str] | None,
        place: str,
    ) -> None:
        run, join, loads = self._runs.__getitem__, b"".join, orjson.loads
        find, find_last, starts = data.find, data.rfind, data.startswith
        head, tasks = b"\n", {}  # No line starts so.
        number -= 1
        end, size = -1, len(data)
        while end < size:
            # Only what is looked up or decoded is copied out of the block.
            start = end + 1
            end = find(b"\n", start)
            end = size if end < 0 else end
            number += 1
            try:
                if starts(head, start):
                    first = start + len(head)
                else:
                    first = find(_STEPS, start, end) + len(_STEPS)
                    if first < start + len(_STEPS):
                        raise ValueError
                    head = data[start:first]
                    tasks = self._heads.setdefault(head, {})
                last = find_last(_RESULT, first, end)
                if last < 0 or end - start > LONGEST_LINE:
                    raise ValueError
                pieces = data[first:last].split(_SPLIT)
                try:
                    sequence = join(map(run, pieces))
                except KeyError:
                    self._learn(pieces)
                    sequence = join(map(run, pieces))
                tail = data[last + len(_RESULT) : end]
                value = loads(b'{"r": ' + tail)
                costs, error, seconds, stamp = value["r"]
                version = value["v"]
                task = tasks.get(version)
                if task is None:
                    task = tasks[version] = self._learn_head(head, version)
                # Whatever is not exactly as Ansor writes it is left to those who look closely.
                if (
                    len(value) != 2
                    or error.__class__ is not int
                    or stamp.__class__ is not int
                    or (seconds.__class__ is not float and seconds.__class__ is not int)
                    or not 0 <= stamp < 2**40
                    or b"u" in tail
                    or not costs
                ):
                    raise ValueError
                if error:
                    if len(costs) != 1 or costs[0] < NEVER:
                        raise ValueError
                    status, text = ansor_log.ERRORS[error]
                    rows.add(number, task, sequence, (), status, text, stamp)
                    continue
                rows.latencies.extend(costs)
            except (ValueError, TypeError, KeyError, TlpError):
                self._read_line(data[start:end], number, rows, workloads, place)
                continue
            rows.lines.append(number)
            rows.tasks.append(task)
            rows.sequences.append(sequence)
            rows.repeats.append(len(costs))
            rows.statuses.append(_OK)
            rows.errors.append(0)
            rows.stamps.append(stamp)

    def _learn(self, pieces: list[bytes]) -> None:
        """Learn runs of steps: the first as it is, the others without the name of their split.

        The first begins with a quotation mark. The others cannot, since the first field of a split
        is a number, so that one dict holds both.
        """
        for place, piece in enumerate(pieces):
            if piece not in self._runs:
                if (piece[:1] == b'"') != (place == 0):
                    raise ValueError
                steps = (piece[1:] if place == 0 else b'SP", ' + piece).split(_STEP)
                try:
                    known = b"".join(map(self._steps.__getitem__, steps))
                except KeyError:
                    known = b"".join(map(self._learn_step, steps))
                self._runs[piece] = known
                self._bytes += len(piece) + 150

    def _learn_step(self, text: bytes) -> bytes:
        number = self._steps.get(text)
        if number is None:
            number = self._number(read_step(_decoded(b'["' + text + b"]")))
            self._steps[text] = number
            self._bytes += len(text) + 200
        return number

    def _learn_head(self, head: bytes, version: str) -> int:
        value = orjson.loads(head[: -len(_STEPS)] + b"]}")
        if set(value) != {"i"} or len(value["i"]) != 1:
            raise ValueError
        self._bytes += len(head) + 200
        return self._task(ansor_log.read_task(value["i"][0], version))

    def _number(self, primitive: Primitive) -> bytes:
        number = self._primitives.get(primitive)
        if number is None:
            number = len(self._primitives).to_bytes(4, "little")
            self._primitives[primitive] = number
            self._new_primitives.append(primitive)
            self._bytes += 1000 + len(primitive.form) + 40 * len(primitive.numbers)
            self._bytes += sum(map(len, primitive.names)) + sum(map(len, primitive.tokens))
        return number

    def _task(self, task: TaskInfo) -> int:
        number = self._tasks.get(task)
        if number is None:
            number = self._tasks[task] = len(self._tasks)
            self._new_tasks.append(task)
            self._bytes += 1000 + len(task.workload) + len(task.arguments) + len(task.target)
        return number

    def _read_line(
        self,
        line: bytes,
        number: int,
        rows: _Rows,
        workloads: Sequence[Workload | str] | None,
        place: str,
    ) -> None:
        """One line, decoded as a whole."""
        if len(line) > LONGEST_LINE:
            rows.rejected.append((number, _too_long(len(line))))
            return
        if number == 1:
            line = line.removeprefix(_MARK)
        start = line.lstrip()[:1]
        if not start:
            rows.blank += 1
            return
        if start == b"#":
            rows.comments += 1
            return
        try:
            value = _decoded(line)
        except (ValueError, RecursionError) as error:
            rows.rejected.append((number, f"no JSON: {error}"))
            return
        try:
            task, sequence, outcome = self._record(value, workloads, place)
        except (TlpError, ValueError, TypeError, RecursionError, OverflowError) as error:
            text = str(error) if isinstance(error, TlpError) else f"malformed: {error}"
            rows.autotvm += text == AUTOTVM
            rows.rejected.append((number, text))
            return
        rows.latencies.extend(outcome.latencies)
        stamp = -1 if outcome.stamp is None else outcome.stamp
        rows.add(
            number,
            self._task(task),
            b"".join(sequence),
            outcome.latencies,
            outcome.status,
            outcome.error,
            stamp,
        )

    def _record(
        self, value: Any, workloads: Sequence[Workload | str] | None, place: str
    ) -> tuple[TaskInfo, list[bytes], Outcome]:
        if isinstance(value, dict):
            task, steps, result, version = ansor_log.read_record(value)
            outcome = ansor_log.read_outcome(result)
            info = ansor_log.read_task(task, version)
            # Read them all before any is numbered: a refused line leaves nothing behind.
            primitives = tuple(map(read_step, steps))
        elif isinstance(value, list):
            info, primitives, outcome = metaschedule_log.read_record(value, workloads, place)
        else:
            raise TlpError("no record: neither an object nor a list")
        return info, list(map(self._number, primitives)), outcome


class _Rows:
    """Columns that grow."""

    def __init__(self) -> None:
        self.lines: list[int] = []
        self.tasks: list[int] = []
        self.sequences: list[bytes] = []
        self.repeats: list[int] = []
        self.statuses: list[int] = []
        self.errors: list[int] = []
        self.stamps: list[int] = []
        self.latencies = array("d")
        self.texts: dict[str, int] = {"": 0}
        self.rejected: list[tuple[int, str]] = []
        self.blank = self.comments = self.autotvm = 0

    def add(
        self,
        line: int,
        task: int,
        sequence: bytes,
        latencies: Sequence[float],
        status: Status,
        error: str,
        stamp: int,
    ) -> None:
        self.lines.append(line)
        self.tasks.append(task)
        self.sequences.append(sequence)
        self.repeats.append(len(latencies))
        self.statuses.append(STATUSES.index(status))
        self.errors.append(self.texts.setdefault(error, len(self.texts)))
        self.stamps.append(stamp)

    def plausible(self) -> bool:
        """Whether all costs are times, and as many as the rows say.

        Costs that are no numbers leave some of their neighbours behind.
        """
        found = np.frombuffer(self.latencies, np.float64)
        return len(found) == sum(self.repeats) and bool(np.all((found > 0) & (found < NEVER)))

    def batch(
        self,
        reader: tuple[int, int, int],
        new_primitives: list[Primitive],
        new_tasks: list[TaskInfo],
    ) -> Batch:
        return Batch(
            reader=reader,
            lines=np.array(self.lines, np.int64),
            tasks=np.array(self.tasks, np.int32),
            lengths=np.fromiter(map(len, self.sequences), np.int32, len(self.sequences)) // 4,
            repeats=np.array(self.repeats, np.int32),
            statuses=np.array(self.statuses, np.int8),
            errors=np.array(self.errors, np.int32),
            stamps=np.array(self.stamps, np.int64),
            primitives=np.frombuffer(b"".join(self.sequences), "<i4"),
            latencies=np.frombuffer(self.latencies, np.float64).copy(),
            texts=list(self.texts),
            new_primitives=new_primitives,
            new_tasks=new_tasks,
            rejected=self.rejected,
            blank=self.blank,
            comments=self.comments,
            autotvm=self.autotvm,
        )


def _decoded(text: bytes) -> Any:
    """A JSON value with integers of any size: orjson makes large ones floats."""
    value = orjson.loads(text)
    return json.loads(text) if _LARGE.search(text) else value


def _too_long(length: int) -> str:
    return f"a line of {length:,} bytes, more than {LONGEST_LINE:,}: not parsed"
