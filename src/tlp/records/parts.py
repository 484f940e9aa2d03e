"""The numbered Parquet files of a data set."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tlp.errors import RecordsError
from tlp.processes import require


def part_path(folder: Path, table: str, part: int) -> Path:
    """File of one part of a table."""
    return folder / f"{table}-{part:05d}.parquet"


def read_part(folder: Path, table: str, part: int, columns: Sequence[str] | None = None) -> Any:
    """One part of a table, as Arrow's table.

    Raises
    ------
    RecordsError
        If the file is missing or damaged.
    """
    parquet = require("pyarrow.parquet", "records")
    path = part_path(folder, table, part)
    with _named(path):
        return parquet.read_table(path, columns=None if columns is None else list(columns))


def read_batches(folder: Path, table: str, part: int, rows: int) -> Iterator[Any]:
    """Batches of so many rows of one part of a table.

    Raises
    ------
    RecordsError
        If the file is missing or damaged.
    """
    parquet = require("pyarrow.parquet", "records")
    path = part_path(folder, table, part)
    with _named(path):
        file = parquet.ParquetFile(path)
    batches = file.iter_batches(rows)
    while True:
        with _named(path):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    arrow = require("pyarrow", "records")
    try:
        yield
    except FileNotFoundError:
        raise RecordsError(
            f"{path} is missing: the data set is damaged; import the logs anew with --replace"
        ) from None
    except (arrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RecordsError(
            f"{path} is damaged ({reason}); import the logs anew with --replace"
        ) from None
