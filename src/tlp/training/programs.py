"""What models learn from: encoded schedules and their latencies, as arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tlp.errors import TrainingError
from tlp.ranking.lists import relative_speeds


@dataclass(frozen=True)
class Programs:
    """Measured programs of many workloads.

    Attributes
    ----------
    table
        Rows of distinct primitives, ``float32 [d, w]``.
    indices
        Each program's primitives as rows of the table, integers ``[n, L]``; what stands where the
        mask is false does not matter.
    mask
        ``bool [n, L]``, true where a primitive stands; padding comes last.
    latencies
        Seconds, ``float64 [n]``; infinite where the program failed.
    workloads, platforms
        Integers ``[n]``. Programs of one workload on one platform form a group: they compete.
    weights
        How often the network uses the workload, ``float64 [n]``; 1 where it is not given.

    Raises
    ------
    TrainingError
        If shapes do not fit, an index lies outside of the table, or the table is not finite.
    """

    table: npt.NDArray[np.float32]
    indices: npt.NDArray[np.integer[Any]]
    mask: npt.NDArray[np.bool_]
    latencies: npt.NDArray[np.float64]
    workloads: npt.NDArray[np.integer[Any]]
    platforms: npt.NDArray[np.integer[Any]]
    weights: npt.NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        count = len(self.indices)
        for name in ("mask", "latencies", "workloads", "platforms", "weights"):
            values = getattr(self, name)
            if values is not None and len(values) != count:
                raise TrainingError(f"{name} has {len(values)} rows, indices has {count}")
        if self.indices.ndim != 2 or self.table.ndim != 2 or self.mask.shape != self.indices.shape:
            raise TrainingError(
                "indices and mask must be [n, L] and the table [d, w], got "
                f"{self.indices.shape}, {self.mask.shape} and {self.table.shape}"
            )
        if not np.isfinite(self.table).all():
            bad = int(np.flatnonzero(~np.isfinite(self.table).all(-1))[0])
            raise TrainingError(f"row {bad} of the table of primitives is not finite")
        used = self.indices[self.mask]
        if len(used) and not 0 <= used.min() <= used.max() < len(self.table):
            raise TrainingError(
                f"indices reach from {used.min()} to {used.max()}, "
                f"the table has {len(self.table)} rows"
            )

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def groups(self) -> npt.NDArray[np.int64]:
        """A number for each pair of workload and platform, ``[n]``; the same in every subset."""
        return np.asarray(self.workloads, np.int64) * 4096 + np.asarray(self.platforms, np.int64)

    @cached_property
    def labels(self) -> npt.NDArray[np.float64]:
        """Relative speed within the group, ``[n]`` in [0, 1]; 0 where the program failed."""
        return relative_speeds(self.latencies, self.groups)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits over all arrays."""
        digest = hashlib.sha256()
        for name in ("table", "indices", "mask", "latencies", "workloads", "platforms", "weights"):
            values = getattr(self, name)
            if values is not None:
                digest.update(f"{name}{values.shape}".encode())
                kind = np.float64 if values.dtype.kind == "f" else np.int64
                for start in range(0, len(values), 2**16):
                    digest.update(
                        np.ascontiguousarray(values[start : start + 2**16], kind).tobytes()
                    )
        return digest.hexdigest()[:16]

    def take(self, rows: npt.NDArray[Any]) -> Programs:
        """Some of the programs; the table stays whole."""
        return replace(
            self,
            indices=self.indices[rows],
            mask=self.mask[rows],
            latencies=self.latencies[rows],
            workloads=self.workloads[rows],
            platforms=self.platforms[rows],
            weights=None if self.weights is None else self.weights[rows],
        )

    def split(self, held_out: Iterable[int]) -> tuple[Programs, Programs]:
        """Programs of all other workloads, and those of the workloads held out."""
        out = np.isin(self.workloads, np.fromiter(held_out, np.int64))
        return self.take(~out), self.take(out)
