"""Tune networks on TVM's MetaSchedule by scoring schedules before they are built."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "load", "records", "tune"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: `import tlp` must not load TVM, torch or NumPy.
    if name in ("tune", "load"):
        from tlp.tuning import api

        return getattr(api, name)
    if name == "records":
        import importlib

        return importlib.import_module("tlp.records")
    raise AttributeError(f"module 'tlp' has no attribute {name!r}")
