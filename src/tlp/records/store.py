"""The state of a run: one SQLite file that holds every candidate as soon as it is known.

The file is in WAL mode and each candidate is a transaction, so a killed process loses nothing
that it had measured.
"""

from __future__ import annotations

import json
import math
import sqlite3
import statistics
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tlp.errors import WorkDirError
from tlp.records.status import Status
from tlp.tuning.space import Decisions

VERSION = 1

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE tasks (
    key TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    weight INTEGER NOT NULL,
    flops REAL NOT NULL,
    workload BLOB NOT NULL,      -- TVM's JSON of the module, zlib
    sketches BLOB NOT NULL       -- JSON list of sketch skeletons, zlib
);
CREATE TABLE candidates (
    id INTEGER PRIMARY KEY,
    task TEXT NOT NULL REFERENCES tasks(key),
    sketch INTEGER NOT NULL,
    decisions TEXT NOT NULL,     -- JSON, as read back after replay
    program TEXT NOT NULL,       -- structural hash after postprocessing, empty if refused
    status TEXT NOT NULL,
    latencies TEXT NOT NULL,     -- JSON list of seconds, every repeat
    verified INTEGER NOT NULL,   -- output compared with the unscheduled workload's
    error TEXT NOT NULL,
    cause TEXT NOT NULL,         -- postprocessor or class of error
    predicted REAL,
    picked_by TEXT NOT NULL,
    round INTEGER NOT NULL,
    replay_s REAL NOT NULL,
    build_s REAL NOT NULL,
    run_s REAL NOT NULL,
    elapsed_s REAL NOT NULL,     -- tuning time of the whole folder when the row was known
    measured_at REAL NOT NULL,   -- wall clock, for people
    host TEXT NOT NULL
);
CREATE INDEX candidates_of_task ON candidates(task);
CREATE TABLE aliases (
    task TEXT NOT NULL,
    sketch INTEGER NOT NULL,
    asked TEXT NOT NULL,
    granted TEXT NOT NULL,
    PRIMARY KEY (task, sketch, asked)
);
CREATE TABLE phases (
    id INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    round INTEGER NOT NULL,
    phase TEXT NOT NULL,         -- search, replay, build, run, learn, wait
    seconds REAL NOT NULL
);
"""


@dataclass(frozen=True)
class Candidate:
    """One row of the store.

    ``latencies`` are seconds, all repeats; empty unless the program was timed.
    """

    task: str
    sketch: int
    decisions: Decisions
    program: str
    status: Status
    latencies: tuple[float, ...] = ()
    verified: bool = False
    error: str = ""
    cause: str = ""
    predicted: float | None = None
    picked_by: str = "random"
    round: int = 0
    replay_s: float = 0.0
    build_s: float = 0.0
    run_s: float = 0.0
    elapsed_s: float = 0.0
    host: str = ""
    measured_at: float = field(default_factory=time.time)
    id: int | None = None

    @property
    def latency(self) -> float:
        """Median of the repeats in seconds; infinite where there is none."""
        return statistics.median(self.latencies) if self.latencies else math.inf

    @property
    def good(self) -> bool:
        """Timed to the end, and its output is right: it may be the task's best."""
        return self.status is Status.OK and self.verified and bool(self.latencies)


@dataclass(frozen=True)
class StoredTask:
    """A task as the store knows it: enough to replay its rows."""

    key: str
    name: str
    weight: int
    flops: float
    workload: str
    sketches: tuple[str, ...]


def _writable(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def _read_only(path: Path) -> sqlite3.Connection:
    """Open one snapshot: all that is read later is of the same moment."""
    address = f"{path.absolute().as_uri()}?mode=ro"
    # Beside a file in WAL mode SQLite makes others, which a folder that cannot be written refuses.
    # Where no log was left, nobody writes and the file alone is complete.
    for flags in ("", "&immutable=1"):
        connection = sqlite3.connect(address + flags, timeout=30, isolation_level=None, uri=True)
        try:
            connection.execute("BEGIN")
            connection.execute("SELECT COUNT(*) FROM sqlite_master")
        except sqlite3.OperationalError:
            connection.close()
            if flags or path.with_name(f"{path.name}-wal").exists():
                raise
        else:
            return connection
    raise AssertionError("the last attempt returns or raises")


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _decisions(text: str) -> Decisions:
    return tuple(tuple(value) for value in json.loads(text))


class Store:
    """The SQLite file of a work folder.

    Parameters
    ----------
    path
        File to open or make.
    read_only
        Show the file as it is at this moment, also while a run writes it, and change nothing.

    Raises
    ------
    WorkDirError
        If the file is no SQLite file, is damaged, or has another version; if it is not there and
        only to be read.
    """

    def __init__(self, path: Path, read_only: bool = False) -> None:
        self.path = path
        fresh = not path.exists() or path.stat().st_size == 0
        if fresh and read_only:
            raise WorkDirError(
                f"{path.parent} holds no measurements yet ({path.name} is missing or empty); "
                "give the --work-dir of a tlp tune that has begun to measure"
            )
        try:
            self._db = _read_only(path) if read_only else _writable(path)
            if fresh:
                self._db.executescript(f"BEGIN;{_SCHEMA}COMMIT;")
                self.set_meta("version", VERSION)
            elif self._db.execute("PRAGMA quick_check").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("quick_check failed")
            version = self.get_meta("version")
        except sqlite3.DatabaseError as error:
            raise WorkDirError(
                f"{path} is damaged ({error}). What can be read of it is saved by: "
                f"sqlite3 {path} .recover | sqlite3 {path.with_suffix('.recovered.sqlite')}; "
                "put the recovered file in its place, or use another --work-dir"
            ) from error
        if version != VERSION:
            raise WorkDirError(
                f"{path} was written in format {version}, this version reads {VERSION}; "
                "use another --work-dir"
            )

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def set_meta(self, key: str, value: Any) -> None:
        """Remember a JSON value under a name."""
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, _dump(value)))

    def get_meta(self, key: str) -> Any:
        """The JSON value under a name, or None."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def add_task(self, task: StoredTask) -> None:
        """Add a task, or check that the known one has the same sketches.

        Raises
        ------
        WorkDirError
            If the sketches differ: rows measured before could not be replayed.
        """
        known = self.task(task.key)
        if known is None:
            self._db.execute(
                "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?)",
                (
                    task.key,
                    task.name,
                    task.weight,
                    task.flops,
                    zlib.compress(task.workload.encode()),
                    zlib.compress(_dump(list(task.sketches)).encode()),
                ),
            )
        elif known.sketches != task.sketches:
            raise WorkDirError(
                f"{self.path}: the sketches of task {task.name} differ from those that its "
                "measured rows belong to (another TVM, or another target); "
                "use another --work-dir"
            )

    def task(self, key: str) -> StoredTask | None:
        """A task by its key."""
        row = self._db.execute("SELECT * FROM tasks WHERE key = ?", (key,)).fetchone()
        return None if row is None else self._stored_task(row)

    def tasks(self) -> list[StoredTask]:
        """All tasks, in the order in which they were added."""
        rows = self._db.execute("SELECT * FROM tasks ORDER BY rowid").fetchall()
        return [self._stored_task(row) for row in rows]

    @staticmethod
    def _stored_task(row: Sequence[Any]) -> StoredTask:
        key, name, weight, flops, workload, sketches = row
        return StoredTask(
            key,
            name,
            weight,
            flops,
            zlib.decompress(workload).decode(),
            tuple(json.loads(zlib.decompress(sketches))),
        )

    def add(self, candidate: Candidate) -> None:
        """Commit one candidate."""
        c = candidate
        self._db.execute(
            "INSERT INTO candidates VALUES (NULL,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            (
                c.task,
                c.sketch,
                _dump(c.decisions),
                c.program,
                c.status.value,
                _dump(c.latencies),
                int(c.verified),
                c.error,
                c.cause,
                c.predicted,
                c.picked_by,
                c.round,
                c.replay_s,
                c.build_s,
                c.run_s,
                c.elapsed_s,
                c.measured_at,
                c.host,
            ),
        )

    def add_alias(self, task: str, sketch: int, asked: Decisions, granted: Decisions) -> None:
        """Remember that replay turns one row into another."""
        self._db.execute(
            "INSERT OR IGNORE INTO aliases VALUES (?, ?, ?, ?)",
            (task, sketch, _dump(asked), _dump(granted)),
        )

    def add_phase(self, task: str, round: int, phase: str, seconds: float) -> None:
        """Remember where time went."""
        self._db.execute(
            "INSERT INTO phases VALUES (NULL, ?, ?, ?, ?)", (task, round, phase, seconds)
        )

    def candidates(self, task: str | None = None) -> Iterator[Candidate]:
        """Candidates of a task, or all, in the order in which they became known."""
        where, values = ("WHERE task = ?", (task,)) if task is not None else ("", ())
        for row in self._db.execute(f"SELECT * FROM candidates {where} ORDER BY id", values):
            yield Candidate(
                id=row[0],
                task=row[1],
                sketch=row[2],
                decisions=_decisions(row[3]),
                program=row[4],
                status=Status(row[5]),
                latencies=tuple(json.loads(row[6])),
                verified=bool(row[7]),
                error=row[8],
                cause=row[9],
                predicted=row[10],
                picked_by=row[11],
                round=row[12],
                replay_s=row[13],
                build_s=row[14],
                run_s=row[15],
                elapsed_s=row[16],
                measured_at=row[17],
                host=row[18],
            )

    def aliases(self, task: str) -> Iterator[tuple[int, Decisions, Decisions]]:
        """Sketch, asked and granted decisions of a task's aliases."""
        rows = self._db.execute("SELECT sketch, asked, granted FROM aliases WHERE task=?", (task,))
        for sketch, asked, granted in rows:
            yield sketch, _decisions(asked), _decisions(granted)

    def phases(self) -> Iterator[tuple[str, int, str, float]]:
        """Task, round, phase and seconds, in the order in which they were booked."""
        yield from self._db.execute("SELECT task, round, phase, seconds FROM phases ORDER BY id")

    def phase_seconds(self) -> dict[str, float]:
        """Seconds by phase over the life of the folder."""
        rows = self._db.execute("SELECT phase, SUM(seconds) FROM phases GROUP BY phase")
        return dict(rows.fetchall())

    def best(self, task: str) -> Candidate | None:
        """Fastest verified candidate of a task."""
        found = (c for c in self.candidates(task) if c.good)
        return min(found, key=lambda c: c.latency, default=None)
