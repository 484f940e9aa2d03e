"""The tasks of a prepared module: its distinct workloads and how often each is used."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tlp.metaschedule.imports import load_tvm
from tlp.networks.canonical import workload_key

if TYPE_CHECKING:
    import tvm

_REDUCTION = 2  # tvm.tirx.IterVar.CommReduce


@dataclass(frozen=True)
class Task:
    """One workload of a network.

    Parameters
    ----------
    key
        Names the workload, in every process and under any names of blocks and buffers.
    name
        Name of the fused function in the module, for people.
    weight
        How many calls in the network.
    flops
        Arithmetic operations of one call, 0 where TVM cannot count them.
    mod
        The workload as a module with one function, ``main``.
    arguments
        Data type and shape of each argument, outputs last.
    reduction_length
        Largest number of values that one output element of a block sums or compares.
    anchor
        The heaviest block and what it computes, such as ``conv2d_nchw 1x64x56x56``.
    """

    key: str
    name: str
    weight: int
    flops: float
    mod: tvm.ir.IRModule
    arguments: tuple[tuple[str, tuple[int, ...]], ...]
    reduction_length: int
    anchor: str


@dataclass(frozen=True)
class _Block:
    name: str
    spatial: tuple[int, ...]
    reduction: int

    @property
    def size(self) -> int:
        return math.prod(self.spatial) * self.reduction


def extract_tasks(mod: tvm.ir.IRModule, target: Mapping[str, Any]) -> list[Task]:
    """List the tasks of a prepared module, those with most operations in the network first."""
    tvm = load_tvm()
    from tvm.s_tir import meta_schedule

    extracted = meta_schedule.relax_integration.extract_tasks(
        mod, tvm.target.Target(dict(target)), module_equality="structural"
    )
    tasks: dict[str, Task] = {}
    # The order of extraction follows hashes; names are unique in a module.
    for found in sorted(extracted, key=lambda found: str(found.task_name)):
        task = make_task(found.dispatched[0], str(found.task_name), int(found.weight))
        known = tasks.get(task.key)
        if known is not None:
            task = dataclasses.replace(known, weight=known.weight + task.weight)
        tasks[task.key] = task
    return sorted(tasks.values(), key=lambda task: (-task.weight * task.flops, task.key))


def make_task(mod: tvm.ir.IRModule, name: str, weight: int = 1) -> Task:
    """Describe a module with one function ``main`` as a task."""
    function = mod["main"]
    blocks = list(_blocks(function.body))
    # A later block wins over an equal one: padding and copies come first.
    anchor = max(
        reversed(blocks), key=lambda block: (block.reduction > 1, block.size), default=None
    )
    return Task(
        key=workload_key(mod),
        name=name,
        weight=weight,
        flops=_flops(mod),
        mod=mod,
        arguments=tuple(_argument(parameter) for parameter in function.params),
        reduction_length=max((block.reduction for block in blocks), default=1),
        anchor=name if anchor is None else f"{anchor.name} {'x'.join(map(str, anchor.spatial))}",
    )


def _flops(mod: tvm.ir.IRModule) -> float:
    from tvm.s_tir.analysis import estimate_tir_flops

    try:
        return float(estimate_tir_flops(mod))
    except Exception:  # loops whose extents depend on data
        return 0.0


def _argument(parameter: Any) -> tuple[str, tuple[int, ...]]:
    shape = getattr(parameter.ty, "shape", ())
    return str(parameter.dtype), tuple(_extent(value) for value in shape)


def _extent(value: Any) -> int:
    constant = getattr(value, "value", value)
    return constant if isinstance(constant, int) else 1


def _blocks(statement: Any) -> Iterator[_Block]:
    """Describe all blocks of a statement but the root, in order."""
    from tvm.s_tir import SBlock

    if statement is None:
        return
    if isinstance(statement, SBlock) and len(statement.iter_vars):
        spatial = []
        reduction = 1
        for variable in statement.iter_vars:
            extent = _extent(variable.dom.extent)
            if int(variable.iter_type) == _REDUCTION:
                reduction *= extent
            else:
                spatial.append(extent)
        yield _Block(str(statement.name_hint), tuple(spatial), reduction)
    for child in getattr(statement, "seq", ()):
        yield from _blocks(child)
    for part in ("block", "body", "then_case", "else_case"):
        yield from _blocks(getattr(statement, part, None))
