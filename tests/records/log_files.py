"""Logs for the tests of records: excerpts of the project, made ones, and the handed ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data" / "primitives"
SHARED = Path(os.environ.get("TLP_SHARED", Path(__file__).parents[3] / "shared"))
ANSOR = (DATA / "ansor_records.jsonl").read_bytes().splitlines()
METASCHEDULE = (DATA / "metaschedule_records.jsonl").read_bytes().splitlines()


def shared(name: str) -> Path:
    """A handed file or folder; the test is skipped where there is none."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"no handed {name} under {SHARED} (set TLP_SHARED)")
    return path


def record(
    key="k0", costs=(2e-3,), error=0, stamp=1600000000, factor=4, target="llvm", steps=None
) -> str:
    """A made measure record with two steps."""
    if steps is None:
        steps = [["SP", 2, 0, 512, [factor, 1], 1], ["AN", 2, 0, 3]]
    task = [json.dumps([key, [1, 512]]), target, [4, 64, 64, 0, 0, 0, 0, 0], "", 1, []]
    return json.dumps(
        {"i": [task, [[], steps]], "r": [list(costs), error, 0.5, stamp], "v": "v0.6"}
    )


def write_log(path: Path, *lines: str | bytes) -> Path:
    """A log of these lines."""
    packed = [line.encode() if isinstance(line, str) else line for line in lines]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(line + b"\n" for line in packed))
    return path
