"""Measured programs: the run's store, logs of other tuners, data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tlp.records.dataset import DataSet

__all__ = ["check_extra", "open"]


def check_extra() -> None:
    """Import what logs and data sets need.

    Raises
    ------
    MissingExtraError
        If the extra ``records`` is not installed.
    """
    from tlp.processes import require

    for module in ("pyarrow", "orjson"):
        require(module, "records")


def open(path: Path | str) -> DataSet:
    """Open a data set that `tlp import` made.

    Raises
    ------
    RecordsError
        If the folder holds none.
    MissingExtraError
        If the extra ``records`` is not installed.
    """
    check_extra()
    from tlp.records.dataset import DataSet

    return DataSet(path)
