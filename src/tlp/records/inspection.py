"""What is in a data set: counts, lengths, kinds, coinciding sequences, latencies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tlp.errors import EncodingError
from tlp.primitives.encoding import PAPER_CPU, PAPER_GPU, Encoder, Encoding
from tlp.records.dataset import DataSet
from tlp.records.labels import identities, scores


def inspect(data: DataSet) -> dict[str, Any]:
    """Plain values that describe a data set, for a table or as JSON.

    Memory grows by some bytes a row; the rows are read part by part.
    """
    used = np.zeros(len(data.primitives), np.int64)
    statuses: Counter[str] = Counter()
    per_task = np.zeros(len(data.tasks), np.int64)
    lengths, latencies, groups = [], [], []
    encodings = _encodings(data)
    keys: dict[str, list[NDArray[np.uint64]]] = {name: [] for name in encodings}
    full: list[NDArray[np.uint64]] = []
    same = {name: _sequence_numbers(data, encoding) for name, encoding in encodings.items()}
    for part in data.parts():
        used += np.bincount(part.flat, minlength=len(used))
        names, counts = np.unique(part.statuses.astype(str), return_counts=True)
        statuses.update(dict(zip(names.tolist(), counts.tolist(), strict=True)))
        per_task += np.bincount(part.tasks, minlength=len(per_task))
        lengths.append(np.diff(part.offsets))
        latencies.append(part.reduced("median"))
        group = data.group_of_task[part.tasks]
        groups.append(group)
        full.append(_hash(part.flat, part.offsets, None, group))
        for name, encoding in encodings.items():
            keys[name].append(_hash(same[name][part.flat], part.offsets, encoding.length, group))
    length, latency, group = map(np.concatenate, (lengths, latencies, groups))
    whole = np.concatenate(full)
    return {
        "fingerprint": data.fingerprint,
        "rows": len(data),
        "tasks": len(data.tasks),
        "workloads": len(data.workloads),
        "groups": len(data.groups),
        "primitives": len(data.primitives),
        "counts": data.manifest["counts"],
        "platforms": _platforms(data, per_task, latency, group),
        "networks": {name: len(found) for name, found in data.networks.items()},
        "versions": _by(data, per_task, "version"),
        "statuses": dict(statuses.most_common()),
        "lengths": _spread(length),
        "kinds": _kinds(data, used),
        "unknown": _unknown(data, used),
        "measured_again": len(whole) - len(np.unique(whole)),
        "collisions": {
            name: {
                "length": encodings[name].length,
                "width": encodings[name].width,
                **_collisions(whole, np.concatenate(found)),
            }
            for name, found in keys.items()
        },
        "latency_s": _spread(latency[np.isfinite(latency)]),
        "scores": _spread(scores(latency, group)),
    }


def _encodings(data: DataSet) -> dict[str, Encoding]:
    """The default encoding and, where they fit, those of the paper."""
    found = {"default": data.encoding}
    for encoding in (PAPER_CPU, PAPER_GPU):
        try:
            Encoder(encoding, data.primitives)
        except EncodingError:
            continue
        found[encoding.name] = encoding
    return found


def _sequence_numbers(data: DataSet, encoding: Encoding) -> NDArray[np.int64]:
    return identities(Encoder(encoding, data.primitives))[:-1].astype(np.int64)


def _hash(
    flat: NDArray[np.integer[Any]],
    offsets: NDArray[np.int64],
    length: int | None,
    groups: NDArray[np.int32],
) -> NDArray[np.uint64]:
    """64 bits that tell sequences of a list apart: a sum of random multiples by place.

    Padding counts nothing, as if there were nothing.
    """
    lengths = np.diff(offsets)
    rng = np.random.default_rng(0)
    most = int(lengths.max(initial=1)) if length is None else length
    # Drawn in one order, so that the first places are the same for every length.
    odd = rng.integers(0, 2**63, max(most, 1), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    place = np.arange(len(flat)) - np.repeat(offsets[:-1], lengths)
    inside = place < most
    value = (flat.astype(np.int64) + 1).astype(np.uint64)
    mixed = np.where(inside, value * odd[np.minimum(place, most - 1)], np.uint64(0))
    sums = np.concatenate([[np.uint64(0)], np.cumsum(mixed, dtype=np.uint64)])
    found = sums[offsets[1:]] - sums[offsets[:-1]]
    return found + (groups.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)


def _collisions(whole: NDArray[np.uint64], cropped: NDArray[np.uint64]) -> dict[str, Any]:
    """Distinct sequences that coincide with another one once they are encoded."""
    pairs = np.unique(np.column_stack([cropped, whole]), axis=0)
    _, place, counts = np.unique(pairs[:, 0], return_inverse=True, return_counts=True)
    coinciding = int(np.count_nonzero(counts[place.ravel()] > 1))
    return {"distinct": len(pairs), "coinciding": coinciding, "share": coinciding / len(pairs)}


def _spread(values: NDArray[Any]) -> dict[str, float]:
    if len(values) == 0:
        return {}
    shares = {"min": 0, "p10": 10, "median": 50, "p90": 90, "p99": 99, "max": 100}
    found = np.percentile(values, list(shares.values()))
    return dict(zip(shares, map(float, found), strict=True))


def _by(data: DataSet, per_task: NDArray[np.int64], column: str) -> dict[str, int]:
    found: Counter[str] = Counter()
    for task, rows in zip(data.tasks, per_task.tolist(), strict=True):
        found[str(getattr(task, column))] += rows
    return dict(found.most_common())


def _platforms(
    data: DataSet,
    per_task: NDArray[np.int64],
    latency: NDArray[np.float64],
    group: NDArray[np.int32],
) -> list[dict[str, Any]]:
    rows = _by(data, per_task, "platform")
    failed = np.bincount(group[~np.isfinite(latency)], minlength=len(data.groups))
    found = []
    for platform, number in rows.items():
        lists = [i for i, (_, name) in enumerate(data.groups) if name == platform]
        targets = {task.target for task in data.tasks if task.platform == platform}
        found.append(
            {
                "platform": platform,
                "rows": number,
                "failed": int(failed[lists].sum()),
                "workloads": len(lists),
                "targets": sorted(targets),
            }
        )
    return found


def _kinds(data: DataSet, used: NDArray[np.int64]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for primitive, times in zip(data.primitives, used.tolist(), strict=True):
        found[primitive.kind] += times
    return dict(found.most_common())


def _unknown(data: DataSet, used: NDArray[np.int64]) -> dict[str, int]:
    """Occurrences of instructions that the vocabulary does not have, by name."""
    found: Counter[str] = Counter()
    for primitive, times in zip(data.primitives, used.tolist(), strict=True):
        if primitive.kind == "unknown":
            found[primitive.opcode] += times
    return dict(found.most_common())
