"""Work folders as runs leave them, with a real store and without TVM."""

from __future__ import annotations

import json

import numpy as np

from tlp.records.status import Status
from tlp.records.store import Candidate, Store, StoredTask

HOST = "here"
MS = 1e-3


def candidate(task, round, latency=None, status=Status.OK, **more):
    """A candidate; ``latency`` in milliseconds."""
    timed = status.timed and latency is not None
    values = {
        "task": task,
        "sketch": 0,
        "decisions": ((1, 2),),
        "program": "p" if status.replayed else "",
        "status": status,
        "latencies": (latency * MS,) if timed else (),
        "verified": status is Status.OK,
        "round": round,
        "host": HOST,
        "measured_at": 1.0,
    }
    return Candidate(**{**values, **more})


class Folder:
    """Writes a work folder piece by piece."""

    def __init__(self, root):
        self.root = root
        (root / "references").mkdir(parents=True)
        self.store = Store(root / "state.sqlite")

    def task(self, key, weight=1, start=None, name=None, sketches=("s",)):
        name = f"conv_{key}" if name is None else name
        self.store.add_task(StoredTask(key, name, weight, 4e6, "{}", sketches))
        if start is not None:
            np.savez(
                self.root / "references" / f"{key}.npz",
                latency=np.float64(start * MS),
                positive=np.bool_(False),
            )
        return self

    def add(self, *candidates):
        for found in candidates:
            self.store.add(found)
        return self

    def json(self, name, value):
        (self.root / name).write_text(json.dumps(value))
        return self

    def config(self, source="mobilenet_v2"):
        return self.json(
            "used_config.json",
            {
                "identity": {
                    "network": {"source": source, "batch": 1, "input_shape": None, "seed": 0},
                    "target": {"kind": "llvm", "mcpu": "znver3", "num-cores": 2},
                    "weight_layouts": True,
                },
                "minutes": 1.0,
                "seed": 0,
                "versions": {"tlp": "0.1.0"},
                "host": {"cpu": "A CPU", "cores": 2},
                "platform": HOST,
            },
        )

    def summary(self, trials, host=HOST):
        return self.json(
            "summary.json",
            {
                "network": {"source": "mobilenet_v2", "batch": 1},
                "target": {"kind": "llvm", "num-cores": 2},
                "host": {"cpu": "A CPU", "cores": 2},
                "platform": host,
                "framework": "pytorch",
                "trials": trials,
                "finished": "2026-01-02T03:04:05+0000",
                "latency_ms": {"tuned": 8.0, "pytorch": 16.0, "untuned": 24.0},
                "output_error": 2e-5,
                "output_tolerance": 1e-3,
                "stopped": "the budget is spent",
                "tasks": [{"key": "a", "anchor": "conv2d 1x2x3", "rows": 12, "note": ""}],
            },
        )
