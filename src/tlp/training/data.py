"""From a data set on disk to what models learn from and are judged on."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt

from tlp.errors import CheckpointError, TrainingError
from tlp.models.checkpoint import Header
from tlp.models.config import ARCHITECTURES
from tlp.primitives.encoding import NAMED, PAPER_CPU, PAPER_GPU, Encoder, Encoding
from tlp.primitives.primitive import Framework
from tlp.primitives.vocabulary import VOCABULARY_VERSION
from tlp.records.dataset import DataSet, Reduction, TaskRow
from tlp.records.labels import identities, merge
from tlp.records.splits import Split
from tlp.training.programs import Programs

Side = Literal["train", "valid", "test"]
_GPUS = ("cuda", "nvidia", "rocm", "opencl", "vulkan", "metal")


def load_side(
    data: DataSet,
    split: Split,
    side: Side,
    encoding: Encoding,
    *,
    platforms: Collection[str] | None = None,
    latency: Reduction = "median",
) -> Programs:
    """The programs of one side of a split.

    What a model learns from has one label for all programs of a workload that look alike once they
    are encoded: the best of their latencies, as TLP has it. What it is judged on keeps the latency
    of each program, whatever the encoding: else a coarse encoding would judge itself. Only one
    program that was measured several times has the best of its latencies.

    Sequences are rows of the table of distinct primitives; no more is kept of them. Weights are
    those of the networks that use the workload, of those held out on the test side.

    Parameters
    ----------
    platforms
        Only programs measured on these; all by default.
    latency
        What stands for a program's repeats.

    Raises
    ------
    TrainingError
        If nothing is left on the train or test side.
    EncodingError
        If the encoding is for another framework's primitives.
    """
    keys = frozenset(getattr(split, side))
    networks = frozenset(split.held_out) if side == "test" else None
    found = load_programs(
        data,
        keys,
        encoding,
        merged="encoded" if side == "train" else "exact",
        networks=networks,
        platforms=platforms,
        latency=latency,
    )
    if not len(found) and side != "valid":
        there = ", ".join(data.platforms)
        raise TrainingError(
            f"the {side} side has no program: {len(keys)} workloads, platforms "
            f"{', '.join(platforms) if platforms is not None else 'all'}. The data set has the "
            f"platforms {there}"
        )
    return found


def load_programs(
    data: DataSet,
    workloads: Collection[str],
    encoding: Encoding,
    *,
    merged: Literal["encoded", "exact"] = "encoded",
    networks: Collection[str] | None = None,
    platforms: Collection[str] | None = None,
    latency: Reduction = "median",
) -> Programs:
    """The programs of some workloads, in the order of the logs.

    Parameters
    ----------
    merged
        Which programs of a workload on a platform share the best of their latencies: those equal
        after encoding and cropping, or those of exactly the same primitives.
    networks
        Whose weights count; all by default.
    platforms, latency
        As in `load_side`.
    """
    encoder = Encoder(encoding, data.primitives)
    length = encoding.length
    exact = merged == "exact"
    sequences, latencies, groups = data.arrays(
        length=None if exact else length,
        workloads=workloads,
        platforms=platforms,
        latency=latency,
    )
    alike = sequences if exact else identities(encoder)[sequences]
    latencies = merge(alike, latencies, groups).latencies
    del alike
    missing = max(0, length - sequences.shape[1])
    sequences = np.pad(sequences[:, :length], ((0, 0), (0, missing)), constant_values=-1)
    table, place = np.unique(encoder.table, axis=0, return_inverse=True)
    workload_of = _numbers(data.workloads)
    platform_of = _numbers(data.platforms)
    of_groups = np.array(
        [(workload_of[workload], platform_of[platform]) for workload, platform in data.groups],
        np.int64,
    ).reshape(-1, 2)
    return Programs(
        table=table,
        indices=place.ravel().astype(np.int32)[sequences],
        mask=sequences >= 0,
        latencies=latencies,
        workloads=of_groups[groups, 0],
        platforms=of_groups[groups, 1],
        weights=_weights(data, networks)[groups],
    )


def _numbers(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


def _weights(data: DataSet, networks: Collection[str] | None) -> npt.NDArray[np.float64]:
    """How often networks use the workload of each list; 1 where no log says it."""
    found: list[dict[str, float]] = [{} for _ in data.groups]
    for task, group in zip(data.tasks, data.group_of_task.tolist(), strict=True):
        if task.network is not None and (networks is None or task.network in networks):
            # Several files may measure the same network.
            known = found[group].get(task.network, 0.0)
            weight = 1.0 if task.weight is None else task.weight
            found[group][task.network] = max(known, weight)
    return np.array([sum(one.values()) or 1.0 for one in found], np.float64)


def _tasks(data: DataSet, workloads: Collection[str]) -> list[TaskRow]:
    return [task for task in data.tasks if task.workload in workloads]


def framework_of(data: DataSet, workloads: Collection[str]) -> Framework:
    """Whose schedules the workloads' programs are.

    Raises
    ------
    TrainingError
        If they are of several frameworks: their sequences do not compare.
    """
    found = sorted({task.framework.value for task in _tasks(data, workloads)})
    if len(found) != 1:
        raise TrainingError(
            f"{data.path} has programs of {' and '.join(found) or 'no framework'}, a model reads "
            "those of one. Import the logs of each into a data set of its own"
        )
    return Framework(found[0])


def choose_encoding(
    data: DataSet, workloads: Collection[str], model: str, name: str | None = None
) -> Encoding:
    """The encoding to train a model with.

    Parameters
    ----------
    name
        ``default`` for the data set's own, or one of `tlp.primitives.encoding.NAMED`. If it is not
        given, models that read numbers as they are, as TLP was published, get the paper's layout
        where the schedules are Ansor's, for a GPU where a target is one; all others the default.

    Raises
    ------
    TrainingError
        If the name is unknown.
    """
    if name == "default":
        return data.encoding
    if name is not None:
        if name not in NAMED:
            raise TrainingError(f"unknown encoding {name!r}; there are default, {', '.join(NAMED)}")
        return NAMED[name]
    config = ARCHITECTURES.get(model)
    if config is None or config.log2 or framework_of(data, workloads) is not Framework.ANSOR:
        return data.encoding
    targets = {task.target for task in _tasks(data, workloads)}
    return PAPER_GPU if any(gpu in one for one in targets for gpu in _GPUS) else PAPER_CPU


def make_header(
    data: DataSet, split: Split, encoding: Encoding, platforms: Collection[str] | None = None
) -> Header:
    """The part of a checkpoint's header that the data decides.

    Its training part names the learned workloads by hashes of their keys (see `learned`).
    """
    keys = frozenset(split.train)
    measured = dict.fromkeys(task.platform for task in _tasks(data, keys))
    return Header(
        framework=framework_of(data, keys).value,
        vocabulary=VOCABULARY_VERSION,
        encoding=encoding.to_json(),
        encoding_hash=encoding.hash,
        model="",
        platforms=tuple(name for name in measured if platforms is None or name in platforms),
        training={
            "data_set": data.fingerprint,
            "held_out": list(split.held_out),
            "workloads": sorted(_short_hash(key) for key in keys),
        },
    )


def learned(header: Header, workloads: Iterable[str]) -> list[str]:
    """Those of the workloads from which a checkpoint's model has learned."""
    known = set(header.training.get("workloads", ()))
    return [key for key in workloads if _short_hash(key) in known]


def encoding_of(header: Header) -> Encoding:
    """The encoding that a checkpoint's model reads.

    Raises
    ------
    CheckpointError
        If the header's hash is not that of its encoding.
    EncodingError
        If this version of tlp does not read it.
    """
    encoding = Encoding.from_json(header.encoding)
    if encoding.hash != header.encoding_hash:
        raise CheckpointError(
            f"the checkpoint of {header.model} is damaged: its encoding has the hash "
            f"{encoding.hash}, the header says {header.encoding_hash}"
        )
    return encoding


def _short_hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:12]
