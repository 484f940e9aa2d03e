"""Columns of a data set's tables.

A data set is a folder: ``manifest.json`` and a folder of parts that it names. Three tables lie in
numbered Parquet files: distinct primitives, tasks, and rows that refer to both by position.
"""

from __future__ import annotations

from typing import Any

from tlp.primitives.primitive import PRIMITIVE_SCHEMA
from tlp.processes import require

FORMAT = "tlp data set"
VERSION = 1

TASKS = {
    "framework": "string",
    "version": "string",
    "file": "string",
    "origin": "string",
    "network": "string",
    "weight": "float64",
    "platform": "string",
    "target": "string",
    "hardware": "string",
    "workload": "string",
    "arguments": "string",
    "flops": "float64",
    "layout": "string",
    "host": "string",
}
"""A program's task: file, workload, platform; null where something is not known.

``arguments`` and ``layout`` are JSON; ``host`` is the fingerprint of the machine.
"""

ROWS = {
    "task": "int32",
    "line": "int64",
    "sequence": "list<int32>",
    "latencies": "list<float64>",
    "status": "dictionary<string>",
    "error": "dictionary<string>",
    "time": "timestamp",
}
"""A measured program: task and primitives by position, seconds of every repeat."""


def arrow_schema(columns: dict[str, str]) -> Any:
    """The columns as an Arrow schema."""
    pa = require("pyarrow", "records")
    types = {
        "string": pa.string(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "timestamp": pa.timestamp("s", "UTC"),
        "dictionary<string>": pa.dictionary(pa.int32(), pa.string()),
    }
    types |= {f"list<{name}>": pa.list_(type_) for name, type_ in list(types.items())}
    return pa.schema([(name, types[type_]) for name, type_ in columns.items()])


def primitive_schema() -> Any:
    """The Arrow schema of the table of distinct primitives."""
    return arrow_schema(PRIMITIVE_SCHEMA)
