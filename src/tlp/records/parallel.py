"""Reading blocks here or in several processes; batches come in the order of the blocks."""

from __future__ import annotations

import mmap
import multiprocessing
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tlp.errors import MeasureError
from tlp.processes import die_with_parent
from tlp.records.logs import BLOCK, Block
from tlp.records.metaschedule_log import WorkloadFile
from tlp.records.reader import Batch, LogReader
from tlp.records.workload_key import Workload

_SLOT = 2 * BLOCK
_AHEAD = 8
"""Blocks for each reader that are read while a part is written."""


@dataclass(frozen=True)
class Item:
    """A block of a file, or the beginning of the file (no block).

    Parameters
    ----------
    read
        Bytes of the file on disk that were read until then.
    """

    source: int
    block: Block | None
    read: int
    workloads: WorkloadFile | None
    name: str

    @property
    def arguments(self) -> tuple[Sequence[Workload | None] | None, str]:
        """What the reader is told beside the block."""
        return self.workloads.workloads if self.workloads else None, self.name


def read_here(items: Iterator[Item]) -> Iterator[tuple[Item, Batch | None]]:
    """Batches of the items, read in this process."""
    reader = LogReader()
    for item in items:
        block = item.block
        yield item, None if block is None else reader.read(block, *item.arguments)


def read_elsewhere(items: Iterator[Item], jobs: int) -> Iterator[tuple[Item, Batch | None]]:
    """Batches of the items, read by several processes.

    The bytes of a block go through memory that the processes share, and the arrays of its batch
    come back there; a pipe would cost about as much as reading them. Readers are forked before
    anything else runs here.

    Raises
    ------
    MeasureError
        If one of the processes dies.
    """
    context = multiprocessing.get_context("fork")
    waiting: deque[tuple[Item, Future[_Packed] | None]] = deque()
    slots = [mmap.mmap(-1, _SLOT) for _ in range(_AHEAD * jobs + 1)]
    turn = 0
    pool = ProcessPoolExecutor(jobs, context, _start_reader, (os.getpid(), slots))
    try:
        for item in items:
            future, block = None, item.block
            if block is not None:
                slot = -1
                if 0 < len(block.data) <= _SLOT:
                    # As many wait at most as there are other slots: this one was read.
                    turn = slot = (turn + 1) % len(slots)
                    slots[slot][: len(block.data)] = block.data
                    size = len(block.data)
                    block = replace(block, data=b"")
                    item = replace(item, block=block)
                else:
                    size = 0
                future = pool.submit(_read, slot, size, block, *item.arguments)
            waiting.append((item, future))
            while len(waiting) > _AHEAD * jobs:
                yield _next(waiting, slots)
        while waiting:
            yield _next(waiting, slots)
    except BrokenProcessPool:
        raise MeasureError(
            "a process that reads was killed; repeat the command: it goes on from there"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
        for shared in slots:
            shared.close()


@dataclass(frozen=True)
class _Packed:
    """A batch whose arrays lie one after the other in a slot, each as its type says."""

    batch: Batch
    slot: int
    arrays: tuple[tuple[str, str, int], ...]


def _next(
    waiting: deque[tuple[Item, Future[_Packed] | None]], slots: list[mmap.mmap]
) -> tuple[Item, Batch | None]:
    item, future = waiting.popleft()
    if future is None:
        return item, None
    packed = future.result()
    arrays: dict[str, Any] = {}
    start = 0
    for name, type_, size in packed.arrays:
        content = slots[packed.slot][start : start + size]
        arrays[name] = np.frombuffer(content, type_)
        start += size
    return item, replace(packed.batch, **arrays)


_reader: LogReader
_slots: list[mmap.mmap]


def _start_reader(parent: int, slots: list[mmap.mmap]) -> None:
    global _reader, _slots
    die_with_parent(parent)
    _reader, _slots = LogReader(), slots


def _read(slot: int, size: int, block: Block, *arguments: Any) -> _Packed:
    if slot >= 0:
        block = replace(block, data=_slots[slot][:size])
    batch = _reader.read(block, *arguments)
    found: dict[str, NDArray[Any]] = {
        field.name: value
        for field in fields(batch)
        if isinstance(value := getattr(batch, field.name), np.ndarray)
    }
    if slot < 0 or sum(array.nbytes for array in found.values()) > _SLOT:
        return _Packed(batch, -1, ())
    # The block was read: its place is free.
    start = 0
    for array in found.values():
        _slots[slot][start : start + array.nbytes] = array.tobytes()
        start += array.nbytes
    empty: dict[str, Any] = {name: array[:0].copy() for name, array in found.items()}
    told = tuple((name, array.dtype.str, array.nbytes) for name, array in found.items())
    return _Packed(replace(batch, **empty), slot, told)
