"""Reading somebody else's store: without writing to it, and past its damaged places."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tlp.errors import WorkDirError
from tlp.records.store import Candidate, StoredTask, candidate_of, task_of

_DAMAGE = (sqlite3.DatabaseError, ValueError, TypeError, zlib.error)
_MOST_MISSES = 10_000

Row = TypeVar("Row")


@dataclass(frozen=True)
class Contents:
    """What can be read of a store.

    Parameters
    ----------
    damaged
        Rows that are there and cannot be read, as far as they can be counted.
    """

    tasks: tuple[StoredTask, ...]
    candidates: tuple[Candidate, ...]
    damaged: int = 0


def read_all(path: Path) -> Contents:
    """Read the tasks and candidates of a store, which may be in use or damaged.

    Raises
    ------
    WorkDirError
        If nothing can be read at all.
    """
    try:
        with _opened(path) as db:
            tasks, lost_tasks = _rows(db, "tasks", "rowid", task_of)
            candidates, lost = _rows(db, "candidates", "id", candidate_of)
    except sqlite3.DatabaseError as error:
        raise WorkDirError(
            f"{path} cannot be read at all ({error}); a complete run's best programs are in "
            f"{path.parent / 'database'}, which --reuse takes, too"
        ) from error
    return Contents(tuple(tasks), tuple(candidates), lost + lost_tasks)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that only reads; of a file that was cut off, a copy with empty pages added."""
    with contextlib.ExitStack() as stack:
        try:
            db = _connect(path)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            db = _connect(_padded(path, folder))
        stack.enter_context(contextlib.closing(db))
        yield db


def _connect(path: Path) -> sqlite3.Connection:
    # On a medium that cannot be written to there are no locks to respect.
    for option in ("mode=ro", "mode=ro&immutable=1"):
        db = sqlite3.connect(f"{path.resolve().as_uri()}?{option}", uri=True, timeout=30)
        try:
            db.execute("SELECT COUNT(*) FROM candidates WHERE id < 0").fetchone()
            return db
        except sqlite3.OperationalError:
            db.close()
            if "immutable" in option:
                raise
        except sqlite3.DatabaseError:
            db.close()
            raise
    raise AssertionError("unreachable")


def _padded(path: Path, folder: Path) -> Path:
    """Copy a file and make it as long as its header says (SQLite's file format, 1.3)."""
    copy = Path(shutil.copy(path, folder))
    wal = path.with_name(f"{path.name}-wal")
    if wal.exists():
        shutil.copy(wal, folder)
    with copy.open("rb") as stream:
        header = stream.read(100)
    size = int.from_bytes(header[16:18], "big") * int.from_bytes(header[28:32], "big")
    if header[:15] == b"SQLite format 3" and copy.stat().st_size < size < 2**32:
        os.truncate(copy, size)
    return copy


def _rows(
    db: sqlite3.Connection, table: str, number: str, parse: Callable[[Sequence[Any]], Row]
) -> tuple[list[Row], int]:
    """All rows of a table that can be read, and how many cannot."""
    found: list[Row] = []
    damaged = 0
    for row in _each(db, table, number):
        try:
            if row is None:
                raise ValueError("unreadable page")
            found.append(parse(row))
        except _DAMAGE:
            damaged += 1
    return found, damaged


def _each(db: sqlite3.Connection, table: str, number: str) -> Iterator[Sequence[Any] | None]:
    """Rows in order; behind a damaged page they are looked up one by one, None where in vain."""
    last = 0
    try:
        for position, *row in db.execute(f"SELECT {number}, * FROM {table} ORDER BY {number}"):
            last = position
            yield row
        return
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        pass
    try:
        top = db.execute(f"SELECT MAX({number}) FROM {table}").fetchone()[0] or 0
    except sqlite3.DatabaseError:
        top = None
    misses = 0
    while (last < top) if top is not None else (misses < _MOST_MISSES):
        last += 1
        try:
            row = db.execute(f"SELECT * FROM {table} WHERE {number} = ?", (last,)).fetchone()
        except sqlite3.DatabaseError:
            row = None
        misses = 0 if row is not None else misses + 1
        if row is not None or top is not None:
            yield row
