"""The state of a run: one SQLite file that holds every candidate as soon as it is known.

The file is in WAL mode and each candidate is a transaction, so a killed process loses nothing
that it had measured.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import statistics
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tlp.disk import says_full
from tlp.errors import DiskFullError, WorkDirError
from tlp.records.status import Status
from tlp.tuning.decisions import Decisions

VERSION = 3

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
    latencies TEXT NOT NULL,     -- JSON list of seconds
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
    host TEXT NOT NULL,
    origin TEXT NOT NULL DEFAULT '', -- folder that the row was reused from, empty if measured here
    disturbed TEXT NOT NULL DEFAULT '[]' -- repeats during which the core was slowed, JSON
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
# What brings a file of an earlier format to the next one.
_UPGRADES = {
    1: "ALTER TABLE candidates ADD COLUMN origin TEXT NOT NULL DEFAULT '';",
    2: "ALTER TABLE candidates ADD COLUMN disturbed TEXT NOT NULL DEFAULT '[]';",
}


@dataclass(frozen=True)
class Candidate:
    """One row of the store.

    ``latencies`` are seconds, one a repeat; empty unless the program was timed. ``disturbed`` are
    the repeats that do not count, since the core was slowed meanwhile. ``origin`` names the folder
    that the row was reused from; it is empty for a trial of this folder.
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
    origin: str = ""
    disturbed: tuple[float, ...] = ()
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


def candidate_of(row: Sequence[Any]) -> Candidate:
    """The candidate of a table row of any format.

    Raises
    ------
    ValueError, TypeError
        If the row is damaged.
    """
    return Candidate(
        id=row[0],
        task=row[1],
        sketch=row[2],
        decisions=_decisions(row[3]),
        program=row[4],
        status=Status(row[5]),
        latencies=tuple(float(value) for value in json.loads(row[6])),
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
        origin=row[19] if len(row) > 19 else "",
        disturbed=tuple(float(value) for value in json.loads(row[20])) if len(row) > 20 else (),
    )


def task_of(row: Sequence[Any]) -> StoredTask:
    """The task of a table row.

    Raises
    ------
    ValueError, TypeError, zlib.error
        If the row is damaged.
    """
    key, name, weight, flops, workload, sketches = row
    return StoredTask(
        key,
        name,
        weight,
        flops,
        zlib.decompress(workload).decode(),
        tuple(json.loads(zlib.decompress(sketches))),
    )


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Turn what SQLite and damaged rows raise into errors that name the file and the way out."""
    try:
        yield
    except (sqlite3.DatabaseError, ValueError, TypeError, zlib.error) as error:
        folder = path.parent
        if says_full(error):
            raise DiskFullError(f"{path}: {error}") from error
        if isinstance(error, sqlite3.OperationalError):
            raise WorkDirError(
                f"{path} cannot be used ({error}); see that its disk works and may be written to, "
                "then repeat the command: it goes on from there"
            ) from error
        raise WorkDirError(
            f"{path} is damaged ({error}); it was left as it is. Repeat the command with "
            f"--work-dir NEW --reuse {folder} to take over what can still be read of it; "
            f"--reuse {folder / 'database'} starts from the best programs of its last complete run"
        ) from error


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
    DiskFullError
        If a row cannot be written for lack of space; rows written before are kept.
    """

    def __init__(self, path: Path, read_only: bool = False) -> None:
        self.path = path
        if not path.exists():
            if read_only:
                raise WorkDirError(
                    f"{path.parent} holds no measurements yet ({path.name} is missing); "
                    "give the --work-dir of a tlp tune that has begun to measure"
                )
            self._make()
        with _reported(path):
            if path.stat().st_size == 0:
                raise sqlite3.DatabaseError("the file is empty")
            self._db = _read_only(path) if read_only else _writable(path)
            found = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise sqlite3.DatabaseError(found)
            version = self.get_meta("version")
            while version in _UPGRADES and not read_only:
                upgrade = _UPGRADES[version]
                version += 1
                self._db.executescript(
                    f"BEGIN;{upgrade}UPDATE meta SET value='{version}' WHERE key='version';COMMIT;"
                )
        if version != VERSION:
            raise WorkDirError(
                f"{path} was written in format {version}, this version reads {VERSION}; "
                "use another --work-dir"
            )

    def _make(self) -> None:
        """Write an empty store under another name: a file is whole or absent."""
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        with _reported(self.path), contextlib.closing(sqlite3.connect(temporary)) as db:
            db.executescript(
                f"BEGIN;{_SCHEMA}INSERT INTO meta VALUES ('version', '{VERSION}');COMMIT;"
            )
        temporary.replace(self.path)

    def _write(self, statement: str, values: Sequence[Any]) -> None:
        with _reported(self.path):
            self._db.execute(statement, values)

    def _read(self, query: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        with _reported(self.path):
            yield from self._db.execute(query, values)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def set_meta(self, key: str, value: Any) -> None:
        """Remember a JSON value under a name."""
        self._write("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, _dump(value)))

    def get_meta(self, key: str) -> Any:
        """The JSON value under a name, or None."""
        for row in self._read("SELECT value FROM meta WHERE key = ?", (key,)):
            return json.loads(row[0])
        return None

    def add_task(self, task: StoredTask) -> None:
        """Add a task, or check that the known one has the same sketches.

        Raises
        ------
        WorkDirError
            If the sketches differ: rows measured before could not be replayed.
        """
        known = self.task(task.key)
        if known is None:
            self._write(
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
        return next((task for task in self.tasks() if task.key == key), None)

    def tasks(self) -> list[StoredTask]:
        """All tasks, in the order in which they were added."""
        with _reported(self.path):
            return [task_of(row) for row in self._read("SELECT * FROM tasks ORDER BY rowid")]

    def add(self, candidate: Candidate) -> None:
        """Commit one candidate."""
        c = candidate
        self._write(
            "INSERT INTO candidates VALUES (NULL,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
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
                c.origin,
                _dump(c.disturbed),
            ),
        )

    def add_alias(self, task: str, sketch: int, asked: Decisions, granted: Decisions) -> None:
        """Remember that replay turns one row into another."""
        self._write(
            "INSERT OR IGNORE INTO aliases VALUES (?, ?, ?, ?)",
            (task, sketch, _dump(asked), _dump(granted)),
        )

    def add_phase(self, task: str, round: int, phase: str, seconds: float) -> None:
        """Remember where time went."""
        self._write("INSERT INTO phases VALUES (NULL, ?, ?, ?, ?)", (task, round, phase, seconds))

    def candidates(self, task: str | None = None) -> Iterator[Candidate]:
        """Candidates of a task, or all, in the order in which they became known."""
        where, values = ("WHERE task = ?", (task,)) if task is not None else ("", ())
        with _reported(self.path):
            for row in self._read(f"SELECT * FROM candidates {where} ORDER BY id", values):
                yield candidate_of(row)

    def aliases(self, task: str) -> Iterator[tuple[int, Decisions, Decisions]]:
        """Sketch, asked and granted decisions of a task's aliases."""
        rows = self._read("SELECT sketch, asked, granted FROM aliases WHERE task=?", (task,))
        for sketch, asked, granted in rows:
            yield sketch, _decisions(asked), _decisions(granted)

    def phases(self) -> Iterator[tuple[str, int, str, float]]:
        """Task, round, phase and seconds, in the order in which they were booked."""
        yield from self._read("SELECT task, round, phase, seconds FROM phases ORDER BY id")

    def phase_seconds(self) -> dict[str, float]:
        """Seconds by phase over the life of the folder."""
        return dict(self._read("SELECT phase, SUM(seconds) FROM phases GROUP BY phase"))

    def best(self, task: str) -> Candidate | None:
        """Fastest verified candidate of a task."""
        found = (c for c in self.candidates(task) if c.good)
        return min(found, key=lambda c: c.latency, default=None)
