"""Reading a data set: rows, and arrays for a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tlp.primitives.encoding import Encoding, fit_counts
from tlp.primitives.primitive import Framework, Primitive
from tlp.primitives.table import pad
from tlp.records.parts import read_batches, read_part
from tlp.records.status import Status
from tlp.records.writer import read_manifest

Reduction = Literal["median", "mean", "min"]


@dataclass(frozen=True)
class TaskRow:
    """What a program computes, where it was measured, and which file says so.

    ``arguments`` is JSON; None stands for what the log does not say.
    """

    framework: Framework
    version: str
    file: str
    origin: str
    network: str | None
    weight: float | None
    platform: str
    target: str
    hardware: str | None
    workload: str
    arguments: str | None
    flops: float | None
    layout: str | None
    host: str | None


@dataclass(frozen=True)
class Row:
    """A measured program; ``latencies`` are seconds, all repeats, ``time`` seconds since 1970."""

    task: TaskRow
    line: int
    sequence: tuple[Primitive, ...]
    latencies: tuple[float, ...]
    status: Status
    error: str
    time: int | None


@dataclass(frozen=True)
class Part:
    """Columns of some rows.

    Parameters
    ----------
    tasks, statuses
        ``[n]``: positions in the task table; statuses as text.
    flat, offsets
        Sequences as positions in the table of primitives, and where each begins: ``[n + 1]``.
    latencies, starts
        Seconds of all repeats, and where each row's begin: ``[n + 1]``.
    """

    tasks: NDArray[np.int32]
    statuses: NDArray[Any]
    flat: NDArray[np.int32]
    offsets: NDArray[np.int64]
    latencies: NDArray[np.float64]
    starts: NDArray[np.int64]

    def reduced(self, how: Reduction) -> NDArray[np.float64]:
        """One latency a row, infinite for programs that failed: ``float64 [n]``."""
        found = np.full(len(self.tasks), np.inf)
        timed = np.isin(self.statuses, [status.value for status in Status if status.timed])
        counts = np.diff(self.starts)
        for repeats in np.unique(counts[timed]).tolist():
            if repeats:
                rows = np.flatnonzero(timed & (counts == repeats))
                values = self.latencies[self.starts[rows, None] + np.arange(repeats)]
                if how == "median":
                    found[rows] = np.median(values, axis=1)
                else:
                    found[rows] = values.mean(axis=1) if how == "mean" else values.min(axis=1)
        return found


class DataSet:
    """A data set on disk.

    Parameters
    ----------
    path
        Its folder.

    Raises
    ------
    RecordsError
        If it holds none.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.manifest = read_manifest(self.path)
        self._folder = self.path / self.manifest["parts"]

    def __len__(self) -> int:
        return int(self.manifest["rows"])

    def __iter__(self) -> Iterator[Row]:
        return self.rows()

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits of the contents of the logs and how they were read."""
        return str(self.manifest["fingerprint"])

    @property
    def rejected(self) -> Path:
        """Lines that became no rows: JSON lines with file, line and reason."""
        return self._folder / "rejected.jsonl"

    @cached_property
    def primitives(self) -> tuple[Primitive, ...]:
        """Distinct primitives; sequences are positions in it."""
        return tuple(Primitive.from_row(row) for row in self._table("primitives"))

    @cached_property
    def tasks(self) -> tuple[TaskRow, ...]:
        """Tasks; rows are of positions in it."""
        return tuple(
            TaskRow(**{**row, "framework": Framework(row["framework"])})
            for row in self._table("tasks")
        )

    @cached_property
    def groups(self) -> tuple[tuple[str, str], ...]:
        """(workload, platform) of each ranked list, by its number."""
        return tuple(dict.fromkeys((task.workload, task.platform) for task in self.tasks))

    @cached_property
    def group_of_task(self) -> NDArray[np.int32]:
        """Number of the ranked list of each task."""
        numbers = {group: number for number, group in enumerate(self.groups)}
        found = [numbers[task.workload, task.platform] for task in self.tasks]
        return np.array(found, np.int32)

    @property
    def platforms(self) -> tuple[str, ...]:
        """Platforms in the order in which they come."""
        return tuple(dict.fromkeys(task.platform for task in self.tasks))

    @property
    def workloads(self) -> tuple[str, ...]:
        """Workload keys in the order in which they come."""
        return tuple(dict.fromkeys(task.workload for task in self.tasks))

    @cached_property
    def networks(self) -> dict[str, tuple[str, ...]]:
        """Workload keys of each network, by name."""
        found: dict[str, dict[str, None]] = {}
        for task in self.tasks:
            if task.network is not None:
                found.setdefault(task.network, {})[task.workload] = None
        return {name: tuple(found[name]) for name in sorted(found)}

    @cached_property
    def encoding(self) -> Encoding:
        """The default encoding, as the manifest states it."""
        return Encoding.from_json(self.manifest["encoding"])

    def _table(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for part in range(self.manifest["number_of_parts"]):
            rows += read_part(self._folder, name, part).to_pylist()
        return rows

    def parts(self) -> Iterator[Part]:
        """Columns of the rows, one part after the other."""
        columns = ["task", "sequence", "latencies", "status"]
        for part in range(self.manifest["number_of_parts"]):
            table = read_part(self._folder, "rows", part, columns)
            sequence, latencies = (table[name].combine_chunks() for name in columns[1:3])
            yield Part(
                table["task"].to_numpy(),
                table["status"].to_numpy(),
                sequence.flatten().to_numpy(),
                _starts(sequence),
                latencies.flatten().to_numpy(),
                _starts(latencies),
            )

    def rows(self) -> Iterator[Row]:
        """Iterate over all rows in the order of the logs."""
        for part in range(self.manifest["number_of_parts"]):
            for batch in read_batches(self._folder, "rows", part, 4096):
                columns = [batch.column(name).to_pylist() for name in batch.schema.names]
                for task, line, sequence, latencies, status, error, time in zip(
                    *columns, strict=True
                ):
                    yield Row(
                        self.tasks[task],
                        line,
                        tuple(self.primitives[number] for number in sequence),
                        tuple(latencies),
                        Status(status),
                        error,
                        None if time is None else int(time.timestamp()),
                    )

    def arrays(
        self,
        *,
        length: int | None = None,
        workloads: Collection[str] | None = None,
        platforms: Collection[str] | None = None,
        latency: Reduction = "median",
    ) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.int32]]:
        """Sequences, latencies and groups.

        Parameters
        ----------
        length
            Longer sequences are cropped to it; the longest's if it is not given.
        workloads, platforms
            Only rows of these.
        latency
            What stands for a program's repeats.

        Returns
        -------
        tuple
            Sequences as positions in `primitives`, ``int32 [n, length]`` filled up with -1;
            latencies in seconds, ``float64 [n]``, infinite where the program failed; number of the
            row's (workload, platform) in `groups`, ``int32 [n]``.
        """
        chosen = np.array(
            [
                (workloads is None or task.workload in workloads)
                and (platforms is None or task.platform in platforms)
                for task in self.tasks
            ],
            bool,
        )
        sequences, latencies, groups = [], [], []
        for part in self.parts():
            rows = chosen[part.tasks]
            lengths = np.diff(part.offsets)
            flat = part.flat[np.repeat(rows, lengths)]
            offsets = np.concatenate([[0], np.cumsum(lengths[rows])])
            width = length or int(lengths[rows].max(initial=0))
            sequences.append(pad(flat, offsets, width))
            latencies.append(part.reduced(latency)[rows])
            groups.append(self.group_of_task[part.tasks[rows]])
        width = max((found.shape[1] for found in sequences), default=0)
        padded = [
            np.pad(found, ((0, 0), (0, width - found.shape[1])), constant_values=-1)
            for found in sequences
        ]
        return (
            np.concatenate([np.zeros((0, width), np.int32), *padded]),
            np.concatenate([np.zeros(0), *latencies]),
            np.concatenate([np.zeros(0, np.int32), *groups]),
        )

    def fit(self, **options: Any) -> Encoding:
        """An encoding fitted to all sequences; options as `fit_encoding` takes them."""
        used = np.zeros(len(self.primitives), np.int64)
        lengths: Counter[int] = Counter()
        for part in self.parts():
            used += np.bincount(part.flat, minlength=len(used))
            sizes, times = np.unique(np.diff(part.offsets), return_counts=True)
            lengths.update(dict(zip(sizes.tolist(), times.tolist(), strict=True)))
        counted = np.array(sorted(lengths.items()), np.int64).reshape(-1, 2)
        return fit_counts(self.primitives, used, (counted[:, 0], counted[:, 1]), **options)


def _starts(column: Any) -> NDArray[np.int64]:
    offsets = column.offsets.to_numpy()
    return (offsets - offsets[0]).astype(np.int64)
