"""Sketches of a task, their decisions, and back from any trace."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tlp.errors import TlpError
from tlp.metaschedule.limits import read_limits
from tlp.metaschedule.targets import is_cuda
from tlp.tuning.decisions import Decision, DecisionKind, Decisions, factorisations
from tlp.tuning.limits import SketchLimits
from tlp.tuning.space import DecisionSpace

_KINDS = {
    "SamplePerfectTile": DecisionKind.TILE,
    "SampleCategorical": DecisionKind.CATEGORY,
    "SampleComputeLocation": DecisionKind.LOCATION,
}
# Of x86 and of the Arm cores that networks run on; as wide as the widest vectors of AVX-512.
_LINE_BYTES = 64
# Locations offered before any replay has said which ones there are; -2 inlines, -1 is the root.
_FIRST_LOCATIONS = range(-2, 12)


@dataclass(frozen=True)
class Sketch:
    """One sketch: its instructions, and which of them sample.

    Parameters
    ----------
    instructions
        TVM instructions up to the postprocessing.
    sampling
        Those of them that take a decision, in order.
    skeleton
        Text that is equal for two traces exactly if they differ in decisions only.
    example
        The decisions that TVM took when it made the sketch.
    limits
        What rows must keep to; nothing on a CPU.
    """

    instructions: tuple[Any, ...]
    sampling: tuple[Any, ...]
    skeleton: str
    example: Decisions
    limits: SketchLimits


@dataclass(frozen=True)
class Design:
    """What is searched for one task: its workload, sketches and postprocessors."""

    mod: Any
    target: Any
    sketches: tuple[Sketch, ...]
    postprocs: tuple[Any, ...]

    def sketch_of(self, trace: Any) -> tuple[int, Decisions]:
        """Sketch and decisions of any MetaSchedule trace of this task.

        Raises
        ------
        ValueError
            If the trace belongs to none of the sketches.
        """
        index, exact = self.find(skeleton(trace))
        if not exact:
            raise ValueError("the trace belongs to none of the task's sketches")
        return index, read_decisions(trace)

    def find(self, text: str) -> tuple[int, bool]:
        """Sketch with a skeleton, or the first that differs in a target's constants only.

        Returns its index and whether it is the very same.

        Raises
        ------
        ValueError
            If no sketch has this structure.
        """
        for exact, form in ((True, str), (False, _without_constants)):
            for index, sketch in enumerate(self.sketches):
                if form(sketch.skeleton) == form(text):
                    return index, exact
        raise ValueError("the trace belongs to none of the task's sketches")


def _before_postproc(trace: Any) -> list[Any]:
    instructions = []
    for instruction in trace.insts:
        if instruction.kind.name == "EnterPostproc":
            break
        instructions.append(instruction)
    return instructions


def _plain(value: Any) -> Any:
    """TVM's JSON with its boxed numbers as plain ones."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    inner = getattr(value, "value", None)
    return inner if inner is not None else str(value)


def skeleton(trace: Any) -> str:
    """Text of a trace's instructions before the postprocessing, without their decisions.

    Instructions whose results nothing uses are left out: TVM's own search drops them.
    """
    instructions, _ = trace.simplified(True).as_json(True)
    return json.dumps(_plain(list(instructions)), separators=(",", ":"))


def _without_constants(text: str) -> str:
    """A skeleton without what depends on the target: parallelism, vector width, tile limits."""
    instructions = json.loads(text)
    for instruction in instructions:
        kind, inputs, attributes, _ = instruction
        if kind == "Annotate":
            instruction[1] = [value for value in inputs if not isinstance(value, int)]
        elif kind == "SamplePerfectTile":
            instruction[2] = attributes[:1]
    return json.dumps(instructions, separators=(",", ":"))


def rename_blocks(instructions: Sequence[Any], names: Mapping[str, str]) -> list[Any]:
    """Instructions of a trace in JSON form, for a workload whose blocks have other names."""
    return [
        [kind, inputs, [names.get(attributes[0], attributes[0]), *attributes[1:]], outputs]
        if kind == "GetSBlock"
        else [kind, inputs, attributes, outputs]
        for kind, inputs, attributes, outputs in instructions
    ]


def _as_ints(decision: Any) -> tuple[int, ...]:
    if hasattr(decision, "__len__"):
        return tuple(int(factor) for factor in decision)
    return (int(decision),)


def read_decisions(trace: Any) -> Decisions:
    """Decisions of a trace before the postprocessing, in the order of its instructions."""
    trace = trace.simplified(True)
    return tuple(
        _as_ints(trace.decisions[instruction])
        for instruction in _before_postproc(trace)
        if instruction.kind.name in _KINDS
    )


def make_design(mod: Any, target: dict[str, Any], seed: int = 1) -> Design:
    """Generate the sketches of a workload with MetaSchedule's rules for the target.

    Parameters
    ----------
    mod
        Module with one unscheduled PrimFunc ``main``.
    target
        TVM's JSON form.

    Raises
    ------
    TlpError
        If a sketch samples in a way that the decision space does not know.
    """
    from tlp.metaschedule.imports import load_tvm

    tvm = load_tvm()
    from tvm.s_tir import meta_schedule as ms

    described = tvm.target.Target(target)
    context = ms.TuneContext(
        mod=mod,
        target=described,
        space_generator="post-order-apply",
        rand_state=seed,
        num_threads=1,
    )
    sketches = []
    for schedule in context.generate_design_space():
        trace = schedule.trace.simplified(True)
        instructions = _before_postproc(trace)
        unknown = {
            instruction.kind.name
            for instruction in instructions
            if instruction.kind.name.startswith("Sample") and instruction.kind.name not in _KINDS
        }
        if unknown:
            raise TlpError(
                f"sketches for {described.kind.name} sample by {', '.join(sorted(unknown))}, "
                "which the decision space does not support"
            )
        sampling = tuple(i for i in instructions if i.kind.name in _KINDS)
        example = read_decisions(trace)
        sketches.append(
            Sketch(
                instructions=tuple(instructions),
                sampling=sampling,
                skeleton=skeleton(trace),
                example=example,
                limits=(
                    read_limits(mod, instructions, sampling, example, target)
                    if is_cuda(target)
                    else SketchLimits()
                ),
            )
        )
    return Design(
        mod=mod,
        target=described,
        sketches=tuple(_distinct(sketches)),
        postprocs=tuple(context.space_generator.postprocs),
    )


def unscheduled(mod: Any, target: dict[str, Any]) -> Design:
    """The design of a workload that has no sketches: one without instructions stands in."""
    import tvm

    return Design(mod, tvm.target.Target(target), (Sketch((), (), "[]", (), SketchLimits()),), ())


def _distinct(sketches: Sequence[Sketch]) -> list[Sketch]:
    return list({sketch.skeleton: sketch for sketch in sketches}.values())


def _decision(instruction: Any, example: tuple[int, ...]) -> Decision:
    kind = _KINDS[instruction.kind.name]
    if kind is DecisionKind.TILE:
        limit = int(instruction.attrs[1])
        extent = int(np.prod(example))
        tiles = factorisations(extent, len(example), limit)
        # A prime extent above the limit has no legal tile; TVM then keeps the loop outermost.
        return Decision(kind, tiles or (example,), limit=limit)
    if kind is DecisionKind.CATEGORY:
        meaning = [float(_plain(candidate)) for candidate in instruction.attrs[0]]
        return Decision(kind, [(index,) for index in range(len(meaning))], meaning)
    return Decision(kind, [(location,) for location in sorted({*_FIRST_LOCATIONS, *example})])


def decision_space(design: Design) -> DecisionSpace:
    """Decision space of a task's sketches."""
    return DecisionSpace(
        [
            [
                _decision(instruction, example)
                for instruction, example in zip(sketch.sampling, sketch.example, strict=True)
            ]
            for sketch in design.sketches
        ],
        [sketch.limits for sketch in design.sketches],
        0 if design.target.kind.name == "cuda" else _values_in_line(design.mod),
    )


def _values_in_line(mod: Any) -> int:
    """How many values of the workload's output a cache line holds."""
    import tvm

    output = mod["main"].params[-1]
    return max(1, 8 * _LINE_BYTES // int(tvm.DataType(str(output.ty.dtype)).bits))
