"""Made programs whose order can be learned, and a small model."""

from __future__ import annotations

import numpy as np

from tlp.models.config import architecture
from tlp.models.sequence import SequenceModel
from tlp.training.programs import Programs
from tlp.training.settings import TrainSettings

CONFIG = architecture("tlp", width=16, heads=2, encoder=(16,), decoder=(16,), log2=False)


def programs(groups=8, each=40, seed=0, first=0, noise=0.0, failed=0.1):
    """Sequences whose latency is the sum of a number that each primitive has."""
    rng = np.random.default_rng([seed, first])
    table = np.random.default_rng(7).integers(-3, 9, size=(20, 3)).astype(np.float32)
    count = groups * each
    indices = rng.integers(20, size=(count, 5)).astype(np.int32)
    mask = np.arange(5) < rng.integers(1, 6, count)[:, None]
    cost = np.where(mask, table[indices, 0], 0).sum(1) + noise * rng.normal(size=count)
    workloads = first + np.repeat(np.arange(groups), each)
    latencies = np.exp(0.1 * cost) * 1e-3 * (1 + workloads)
    latencies[rng.random(count) < failed] = np.inf
    order = rng.permutation(count)
    return Programs(
        table,
        indices[order],
        mask[order],
        latencies[order],
        workloads[order],
        np.zeros(count, np.int64),
    )


def model(seed=0):
    return SequenceModel(CONFIG, 3, 5, seed)


def settings(**changes):
    given = {"epochs": 3, "batch_rows": 64, "list_rows": 32, "warmup": 5, "device": "cpu"}
    return TrainSettings(**(given | changes))
