"""What a sketch's trace says about threads and shared memory, as plain integers.

The trace is read without being applied: which tile factors are fused into ``threadIdx``, which
buffers are read through shared memory and inside which loops. Only the index expressions of
those buffers come from a schedule, to which the instructions before the read are applied.
Where a trace does something that is not understood, no limit follows from it: replay and the
postprocessors have the last word. Unroll steps, virtual threads and the width of vectorised
copies have no limit: the postprocessors refuse none of them (too wide a copy is narrowed).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tlp.tuning.decisions import Decisions
from tlp.tuning.limits import Extent, Product, Range, SharedBuffer, SketchLimits, Span

_LOW = "meta_schedule.thread_extent_low_inclusive"
_HIGH = "meta_schedule.thread_extent_high_inclusive"
_WARP = "warp_execution"
_STAGES = "software_pipeline_stage"


@dataclass(frozen=True)
class _Loop:
    """A loop of a block: for each of the block's axes, how much of it the loop covers."""

    parts: tuple[tuple[int, Product | None], ...]
    thread: bool = False

    @property
    def extent(self) -> Product | None:
        total = Product()
        for _, product in self.parts:
            if product is None:
                return None
            total *= product
        return total


@dataclass
class _Block:
    """A block whose loops are tiled: its loops from outside to inside."""

    order: list[Any] = field(default_factory=list)
    loops: dict[Any, _Loop] = field(default_factory=dict)
    threads: list[Product | None] = field(default_factory=list)
    lanes: int = 1
    low: int = 1
    high: int | None = None
    copies: int = 1
    shared: list[SharedBuffer] = field(default_factory=list)


def read_limits(
    mod: Any,
    instructions: Sequence[Any],
    sampling: Sequence[Any],
    example: Decisions,
    target: dict[str, Any],
) -> SketchLimits:
    """Limits of one sketch on a GPU.

    Parameters
    ----------
    mod
        The unscheduled workload.
    instructions, sampling, example
        As in a :class:`~tlp.metaschedule.sketches.Sketch`.
    target
        TVM's JSON form, with ``max_threads_per_block`` and ``max_shared_memory_per_block``.
    """
    reader = _Reader(mod, instructions, sampling, example, target)
    for position, instruction in enumerate(instructions):
        reader.read(position, instruction)
    return reader.limits()


class _Reader:
    def __init__(
        self,
        mod: Any,
        instructions: Sequence[Any],
        sampling: Sequence[Any],
        example: Decisions,
        target: dict[str, Any],
    ) -> None:
        self._mod = mod
        self._instructions = instructions
        self._decisions = dict(zip(sampling, example, strict=True))
        self._decision_of = {instruction: i for i, instruction in enumerate(sampling)}
        self._numbers: dict[Any, Product] = {}
        self._blocks: dict[Any, _Block] = {}
        self._home: dict[Any, _Block] = {}
        self._reads: dict[Any, tuple[_Block, Any, Any]] = {}
        self._ranges: list[Range] = []
        self._target = target

    def read(self, position: int, instruction: Any) -> None:
        """Take in the next instruction."""
        match instruction.kind.name:
            case "SamplePerfectTile" | "SampleCategorical":
                self._sample(instruction)
            case "GetLoops":
                self._get_loops(instruction)
            case "Split":
                self._split(instruction)
            case "Reorder":
                self._reorder(instruction)
            case "Fuse":
                self._fuse(instruction)
            case "Bind":
                self._bind(instruction)
            case "Annotate":
                self._annotate(instruction)
            case "CacheRead":
                self._cache_read(position, instruction)
            case "ComputeAt":
                self._compute_at(instruction)

    # Numbers.

    def _sample(self, instruction: Any) -> None:
        decision = self._decision_of[instruction]
        for part, output in enumerate(instruction.outputs):
            self._numbers[output] = Product(1, ((decision, part),))

    def _number(self, value: Any) -> Product | None:
        if value is None:
            return None
        constant = value if isinstance(value, int) else getattr(value, "value", None)
        return Product(int(constant)) if constant is not None else self._numbers.get(value)

    # Loops.

    def _get_loops(self, instruction: Any) -> None:
        block = self._blocks.setdefault(instruction.inputs[0], _Block())
        if block.threads:
            return
        block.order = list(instruction.outputs)
        block.loops = {loop: _Loop(((axis, None),)) for axis, loop in enumerate(block.order)}
        self._home.update(dict.fromkeys(block.order, block))

    def _split(self, instruction: Any) -> None:
        loop, *factors = instruction.inputs
        block = self._home.get(loop)
        if block is None:
            return
        axes = [axis for axis, _ in block.loops[loop].parts]
        # The parts of a fused loop belong to no axis any more.
        axis = axes[0] if len(axes) == 1 else -1
        place = block.order.index(loop)
        block.order[place : place + 1] = instruction.outputs
        for output, factor in zip(instruction.outputs, factors, strict=True):
            block.loops[output] = _Loop(((axis, self._number(factor)),))
            self._home[output] = block

    def _reorder(self, instruction: Any) -> None:
        block = self._home.get(instruction.inputs[0])
        if block is None or not all(loop in block.order for loop in instruction.inputs):
            return
        places = sorted(block.order.index(loop) for loop in instruction.inputs)
        for place, loop in zip(places, instruction.inputs, strict=True):
            block.order[place] = loop

    def _fuse(self, instruction: Any) -> None:
        loops, (fused,) = list(instruction.inputs), instruction.outputs
        block = self._home.get(loops[0])
        if block is None or not all(loop in block.order for loop in loops):
            return
        block.order[block.order.index(loops[0])] = fused
        for loop in loops[1:]:
            block.order.remove(loop)
        block.loops[fused] = _Loop(tuple(p for loop in loops for p in block.loops[loop].parts))
        self._home[fused] = block

    def _bind(self, instruction: Any) -> None:
        (loop,) = instruction.inputs
        block, axis = self._home.get(loop), str(instruction.attrs[0])
        if block is None or axis.startswith("blockIdx"):
            return
        bound = block.loops[loop]
        block.loops[loop] = _Loop(bound.parts, thread=True)
        if axis.startswith("threadIdx"):
            block.threads.append(bound.extent)

    # Annotations.

    def _annotate(self, instruction: Any) -> None:
        subject, value = instruction.inputs
        key = str(instruction.attrs[0])
        block = self._blocks.get(subject) or self._home.get(subject)
        if key == _WARP:
            # The lanes of a warp run the block's tensor instruction together.
            block = self._blocks.setdefault(subject, _Block())
            block.lanes = int(self._target.get("thread_warp_size", 32))
        elif block is None:
            return
        elif key == _LOW:
            block.low = int(value)
        elif key == _HIGH:
            block.high = int(value)
        elif key == _STAGES:
            stages = [int(stage) for stage in value]
            block.copies = max(stages) - min(stages) + 1
            rounds = block.loops[subject].extent if subject in block.loops else None
            if rounds is not None:
                # The initialisation moves into a loop of one iteration, which then has a
                # statement more than there are stages.
                self._ranges.append(Range(rounds, 2))

    # Shared memory.

    def _cache_read(self, position: int, instruction: Any) -> None:
        consumer = instruction.inputs[0]
        block = self._blocks.get(consumer)
        scope = str(instruction.attrs[1])
        if block is None or not scope.startswith("shared"):
            return
        found = self._block_before(position, consumer)
        region = found.reads[int(instruction.attrs[0])]
        self._reads[instruction.outputs[0]] = (block, (found, region), _bits(region.source))

    def _compute_at(self, instruction: Any) -> None:
        cached, loop = instruction.inputs
        if cached not in self._reads or loop not in self._home:
            return
        block, (found, region), bits = self._reads[cached]
        if loop not in block.order:
            return
        place = block.order.index(loop)
        tiles: dict[int, Product | None] = {}
        for index, name in enumerate(block.order):
            inner = block.loops[name]
            # All threads of a block see the same shared memory.
            if index <= place and not inner.thread:
                continue
            for axis, product in inner.parts:
                known = tiles.get(axis, Product())
                tiles[axis] = None if known is None or product is None else known * product
        element = -(-bits // 8)
        extents = tuple(
            _extent(found, dimension, int(shape), tiles)
            for dimension, shape in zip(region.region, region.source.shape, strict=True)
        )
        block.shared.append(SharedBuffer(element, extents))

    def _block_before(self, position: int, block: Any) -> Any:
        """The block as it is when an instruction is reached."""
        from tvm.s_tir import Schedule
        from tvm.s_tir.schedule import Trace

        before = list(self._instructions[:position])
        decisions = {
            i: list(value) if i.kind.name == "SamplePerfectTile" else value[0]
            for i, value in self._decisions.items()
            if i in before
        }
        schedule = Schedule(self._mod, seed=1, error_render_level="none")
        Trace(before, decisions).apply_to_schedule(schedule, remove_postproc=True)
        for ours, theirs in zip(before, schedule.trace.insts, strict=True):
            for output, applied in zip(ours.outputs, theirs.outputs, strict=True):
                if output.same_as(block):
                    return schedule.get(applied)
        raise ValueError("the trace reads a block that it does not define")

    def limits(self) -> SketchLimits:
        """What was found."""
        most = int(self._target["max_threads_per_block"])
        ranges = []
        shared = []
        for block in self._blocks.values():
            threads: Product | None = Product(block.lanes)
            for extent in block.threads:
                threads = None if threads is None or extent is None else threads * extent
            if block.threads and threads is not None:
                high = most if block.high is None else min(most, block.high)
                ranges.append(Range(threads, block.low, high))
            shared += [
                SharedBuffer(buffer.element_bytes * block.copies, buffer.extents)
                for buffer in block.shared
            ]
        return SketchLimits(
            ranges=tuple(ranges + self._ranges),
            shared=tuple(shared),
            shared_bytes=int(self._target["max_shared_memory_per_block"]),
        )


def _bits(buffer: Any) -> int:
    from tvm import DataType

    dtype = DataType(str(buffer.dtype))
    return int(dtype.bits * dtype.lanes)


def _extent(block: Any, dimension: Any, shape: int, tiles: dict[int, Product | None]) -> Extent:
    """Reach of a tile along one dimension of what the block reads."""
    from tvm import sym

    analyzer = sym.analyzer.Analyzer()
    axes: dict[Any, Product | None] = {}
    for position, axis in enumerate(block.iter_vars):
        analyzer.bind(axis.var, axis.dom)
        axes[axis.var] = tiles.get(position, Product())
    try:
        index = _span(analyzer.simplify(dimension.min), axes)
    except _UnknownIndexError:
        index = None
    return Extent(int(dimension.extent), index, shape)


class _UnknownIndexError(Exception):
    """An index expression, or the tile of an axis in it, that is not understood."""


def _span(index: Any, axes: dict[Any, Product | None]) -> Span:
    from tvm import tirx

    match index:
        case tirx.IntImm():
            # Where a tile starts does not matter.
            return Span("+")
        case tirx.Var():
            tile = axes.get(index)
            if tile is None:
                raise _UnknownIndexError(str(index))
            return Span("tile", tile=tile)
        case tirx.Add():
            return Span("+", (_span(index.a, axes), _span(index.b, axes)))
        case tirx.Sub():
            negative = Span("*", (_span(index.b, axes),), -1)
            return Span("+", (_span(index.a, axes), negative))
        case tirx.Mul(b=tirx.IntImm()):
            return Span("*", (_span(index.a, axes),), int(index.b))
        case tirx.FloorDiv(b=tirx.IntImm()):
            return Span("//", (_span(index.a, axes),), int(index.b))
        case tirx.FloorMod(b=tirx.IntImm()):
            return Span("%", (_span(index.a, axes),), int(index.b))
    raise _UnknownIndexError(str(index))
