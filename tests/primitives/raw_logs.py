"""Real tuning logs as plain JSON: the few in the project, and the handed ones where they are."""

from __future__ import annotations

import io
import json
import os
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

DATA = Path(__file__).parents[1] / "data" / "primitives"
SHARED = Path(os.environ.get("TLP_SHARED", Path(__file__).parents[3] / "shared"))

ANSOR_STEPS = [
    json.loads(line)["i"][1][1] for line in (DATA / "ansor_records.jsonl").read_text().splitlines()
]
TRACES = [
    json.loads(line)[1][0]
    for line in (DATA / "metaschedule_records.jsonl").read_text().splitlines()
]


def handed_files(pattern: str) -> list[Path]:
    """Files below the folder of handed logs; skips the test where there are none."""
    files = sorted(SHARED.glob(pattern))
    if not files:
        pytest.skip(f"no handed logs {pattern} under {SHARED} (set TLP_SHARED)")
    return files


def json_lines(path: Path, limit: int | None = None):
    """JSON values of a compressed log, without comments and blank lines."""
    with pa.CompressedInputStream(str(path), "zstd") as stream:
        lines = io.TextIOWrapper(io.BufferedReader(stream), encoding="utf-8")
        yield from islice(
            (json.loads(line) for line in lines if line.strip() and not line.startswith("#")),
            limit,
        )


def text(value) -> str:
    """JSON text: unlike ==, it tells 1 from 1.0 and from true."""
    return json.dumps(value)


def before_postprocessing(trace):
    instructions, decisions = trace
    end = next(
        (i for i, item in enumerate(instructions) if item and item[0] == "EnterPostproc"),
        len(instructions),
    )
    return [instructions[:end], [decision for decision in decisions if decision[0] < end]]
