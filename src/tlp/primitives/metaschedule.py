"""MetaSchedule's traces as primitives, and back.

A trace is ``[instructions, decisions]`` as TVM stores it: an instruction is
``[kind, inputs, attributes, outputs]``, a decision ``[index of the instruction, value]``. TVM calls
variables by a letter and the number of their first appearance: ``b0`` is a block, ``l3`` a loop,
``v7`` an expression. What follows `EnterPostproc` is the postprocessors' work and is cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tlp.errors import StepError
from tlp.primitives.form import Parts, fill
from tlp.primitives.primitive import Framework, Primitive, Schedule
from tlp.primitives.vocabulary import METASCHEDULE_KINDS, METASCHEDULE_LOOP_TOKENS, UNKNOWN

POSTPROCESSING = "EnterPostproc"

# Attributes that are words of closed meaning, by position; other text may name the workload.
_WORDS: dict[str, frozenset[int]] = {
    "Annotate": frozenset({0}),
    "AnnotateBufferAccess": frozenset({1}),
    "Bind": frozenset({0}),
    "CacheIndex": frozenset({0}),
    "CacheInplace": frozenset({1}),
    "CacheRead": frozenset({1}),
    "CacheWrite": frozenset({1}),
    "ReadAt": frozenset({1}),
    "ReindexCacheRead": frozenset({1}),
    "ReindexCacheWrite": frozenset({1}),
    "SetScope": frozenset({1}),
    "Tensorize": frozenset({0}),
    "Unannotate": frozenset({0}),
    "UnsafeSetDType": frozenset({1}),
    "WriteAt": frozenset({1}),
}
# Quoted inputs of these are words too: a tiling structure, an intrinsic, read or write.
_QUOTED_WORDS = frozenset({"Annotate", "UnsafeHideBufferAccess"})
_MAX_DEPTH = 8
_MISSING = object()
_VARIABLE = re.compile(r"([blv])(0|[1-9][0-9]{0,8})")


class _Variables:
    """Variables of one trace: class, number of first appearance, value if it was decided."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, int, float | None]] = {}

    def __contains__(self, text: str) -> bool:
        return text in self._known

    def read(self, parts: Parts, text: str, field: str) -> str:
        found = self._known.get(text)
        if found is None:
            raise StepError(parts.opcode, field, "a variable that was defined before", text)
        letter, number, value = found
        return parts.variable(letter, number, value, _odd(text, letter, number))

    def define(self, parts: Parts, texts: list[Any], values: list[float | None]) -> str:
        first = len(self._known)
        for text, value in zip(texts, values, strict=True):
            letter = text[:1] if isinstance(text, str) else ""
            if letter not in ("b", "l", "v"):
                raise StepError(parts.opcode, "outputs", "variables (b0, l1, v2)", text)
            if text in self._known:
                raise StepError(parts.opcode, "outputs", "new variables", text)
            if value is not None and letter == "b":
                raise StepError(parts.opcode, "outputs", "loops or expressions", text)
            self._known[text] = (letter, len(self._known), value)
        known = [self._known[text] for text in texts]
        # The decision stands before the outputs: its values are not said twice.
        letters = {letter for letter, _, _ in known}
        if len(letters) == 1:
            return parts.run(letters.pop(), first, texts)
        return "".join(
            parts.variable(letter, number, None, _odd(text, letter, number))
            for text, (letter, number, _) in zip(texts, known, strict=True)
        )


def _odd(text: str, letter: str, number: int) -> str | None:
    return None if text == f"{letter}{number}" else text


def read_trace(trace: Any) -> Schedule:
    """The primitives of a trace before its postprocessing.

    Parameters
    ----------
    trace
        ``[instructions, decisions]``, as in a tuning record or `Trace.as_json`.

    Raises
    ------
    StepError
        If it is no trace, uses a variable that is not defined, or has a decision that does not
        fit its instruction.
    """
    if not isinstance(trace, list) or len(trace) != 2:
        raise StepError("trace", "", "a list of instructions and decisions", trace)
    instructions, decisions = trace
    if not isinstance(instructions, list):
        raise StepError("trace", "instructions", "a list", instructions)
    decided = _read_decisions(decisions, len(instructions))
    variables = _Variables()
    primitives = []
    for index, instruction in enumerate(instructions):
        if not isinstance(instruction, list) or len(instruction) != 4:
            raise StepError("trace", str(index), "[kind, inputs, attributes, outputs]", instruction)
        opcode, inputs, attributes, outputs = instruction
        if not isinstance(opcode, str):
            raise StepError("trace", str(index), "the instruction's name", opcode)
        if opcode == POSTPROCESSING:
            break
        for field, value in (("inputs", inputs), ("attributes", attributes), ("outputs", outputs)):
            if not isinstance(value, list):
                raise StepError(opcode, field, "a list", value)
        primitives.append(
            _read_instruction(
                variables, opcode, inputs, attributes, outputs, decided.get(index, _MISSING)
            )
        )
    return tuple(primitives)


def _read_decisions(decisions: Any, count: int) -> dict[int, Any]:
    if not isinstance(decisions, list):
        raise StepError("trace", "decisions", "a list", decisions)
    decided: dict[int, Any] = {}
    for item in decisions:
        if (
            not isinstance(item, list)
            or len(item) != 2
            or isinstance(item[0], bool)
            or not isinstance(item[0], int)
            or not 0 <= item[0] < count
            or item[0] in decided
        ):
            raise StepError("trace", "decisions", "[index of an instruction, value]", item)
        decided[item[0]] = item[1]
    return decided


def _read_instruction(
    variables: _Variables,
    opcode: str,
    inputs: list[Any],
    attributes: list[Any],
    outputs: list[Any],
    decision: Any,
) -> Primitive:
    parts = Parts(opcode)
    kind = METASCHEDULE_KINDS.get(opcode, UNKNOWN)
    values: list[float | None] = [None] * len(outputs)
    decision_form = ""
    if decision is not _MISSING:
        decision_form, values = _read_decision(parts, decision, attributes, len(outputs))
    words = _WORDS.get(opcode, frozenset())
    loop_form = parts.implied_token(METASCHEDULE_LOOP_TOKENS.get(opcode))
    form = ";".join(
        (
            decision_form,
            variables.define(parts, outputs, values),
            "".join(_read_input(variables, parts, value) for value in inputs),
            loop_form
            + "".join(
                parts.token(value, f"attribute {i}")
                if i in words and isinstance(value, str)
                else parts.value(value, f"attribute {i}")
                for i, value in enumerate(attributes)
            ),
        )
    )
    return Primitive(
        framework=Framework.METASCHEDULE,
        opcode=opcode,
        kind=kind,
        numbers=tuple(parts.numbers),
        tokens=tuple(parts.tokens),
        names=tuple(parts.names),
        variables=tuple(parts.variables),
        form=form,
    )


def _read_decision(
    parts: Parts, decision: Any, attributes: list[Any], outputs: int
) -> tuple[str, list[float | None]]:
    """Form of a decision, and the values that its instruction's outputs get by it."""
    opcode = parts.opcode
    if opcode == "SampleCategorical":
        candidates = attributes[0] if attributes else None
        if outputs != 1 or not isinstance(candidates, list) or not candidates:
            raise StepError(opcode, "attributes", "candidates, and one output", attributes)
        return parts.choice(decision, candidates), [candidates[decision]]
    if opcode == "SampleComputeLocation":
        if outputs != 1:
            raise StepError(opcode, "outputs", "one loop", outputs)
        return parts.integer(decision, "decision"), [decision]
    if opcode in ("SamplePerfectTile", "SamplePartitionedTile"):
        if not isinstance(decision, list) or len(decision) != outputs:
            raise StepError(opcode, "decision", f"a list of {outputs} factors", decision)
        form = "".join(parts.integer(factor, "decision") for factor in decision)
        return f"[{form}]", list(decision)
    return parts.value(decision, "decision"), [None] * outputs


def _read_input(variables: _Variables, parts: Parts, value: Any, depth: int = 0) -> str:
    if isinstance(value, list):
        if depth == _MAX_DEPTH:
            raise StepError(parts.opcode, "inputs", f"at most {_MAX_DEPTH} nested lists", value)
        items = (_read_input(variables, parts, item, depth + 1) for item in value)
        return f"[{''.join(items)}]"
    if not isinstance(value, str):
        return parts.value(value, "inputs")
    if value == "None":
        return "n"
    if len(value) >= 2 and value[0] == value[-1] == '"':
        if parts.opcode in _QUOTED_WORDS:
            parts.token(value[1:-1], "inputs")
            return "q"
        return parts.name(value[1:-1], "inputs", "Q")
    if value in variables or _VARIABLE.fullmatch(value):
        return variables.read(parts, value, "inputs")
    return parts.name(value, "inputs")


def write_trace(primitives: Iterable[Primitive]) -> list[Any]:
    """The trace that `read_trace` read, up to its postprocessing: an equal JSON value.

    Raises
    ------
    StepError
        If a primitive is not MetaSchedule's, or was not made by `read_trace`.
    """
    instructions: list[Any] = []
    decisions: list[Any] = []
    for index, primitive in enumerate(primitives):
        if primitive.framework is not Framework.METASCHEDULE:
            raise StepError(
                primitive.opcode, "framework", "metaschedule", primitive.framework.value
            )
        segments = fill(primitive)
        if len(segments) != 4:
            raise StepError(primitive.opcode, "form", "four segments", primitive.form)
        decision, outputs, inputs, attributes = segments
        instructions.append([primitive.opcode, inputs, attributes, outputs])
        if primitive.form[:1] != ";":
            decisions.append([index, decision[0]])
    return [instructions, decisions]
