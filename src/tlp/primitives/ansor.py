"""Ansor's transform steps as primitives, and back.

A step is a JSON list: its name and its fields. Reading needs no context, so that whoever reads
many lines can keep the primitive of each distinct text.
"""

from __future__ import annotations

from typing import Any

from tlp.errors import StepError
from tlp.primitives.form import Parts, fill
from tlp.primitives.primitive import Framework, Primitive
from tlp.primitives.vocabulary import ANSOR_KINDS, UNKNOWN

FIELDS: dict[str, dict[str, str]] = {
    "SP": {
        "stage": "integer",
        "iterator": "integer",
        "extent": "integer",
        "lengths": "integers",
        "inner_to_outer": "integer",
    },
    "FSP": {
        "stage": "integer",
        "iterator": "integer",
        "source_step": "integer",
        "parts": "integer",
    },
    "FFSP": {
        "stage": "integer",
        "iterator": "integer",
        "source_steps": "integers",
        "level": "integer",
        "factor_or_parts": "integer",
    },
    "RE": {"stage": "integer", "order": "integers"},
    "FU": {"stage": "integer", "iterators": "integers"},
    "AN": {"stage": "integer", "iterator": "integer", "annotation": "annotation"},
    "PR": {"stage": "integer", "iterator": "integer", "pragma": "pragma"},
    "CA": {"stage": "integer", "target_stage": "integer", "target_iterator": "integer"},
    "CI": {"stage": "integer"},
    "CR": {"stage": "integer"},
    "CHR": {"stage": "integer", "scope": "token", "reader_stages": "integers"},
    "CHW": {"stage": "integer", "scope": "token"},
    "RF": {"stage": "integer", "iterator": "integer", "factor_iterator": "integer"},
    "SA": {"stage": "integer", "iterator": "integer", "factor": "integer", "offset": "integer"},
}
"""Fields of each step in their order in the JSON, and their types."""


def read_step(step: list[Any]) -> Primitive:
    """One transform step as a primitive.

    Parameters
    ----------
    step
        As the log has it: ``["SP", 3, 0, 512, [4, 1], 1]``.

    Raises
    ------
    StepError
        If it is no step, or a step of a known kind has other fields than `FIELDS` says.
    """
    if not isinstance(step, list) or not step or not isinstance(step[0], str):
        raise StepError("step", "", "a list that begins with the step's name", step)
    opcode, *values = step
    parts = Parts(opcode)
    fields = FIELDS.get(opcode)
    if fields is None:
        form = "".join(parts.value(value, str(i)) for i, value in enumerate(values, start=1))
    elif len(values) != len(fields):
        raise StepError(opcode, "", f"{len(fields)} fields ({', '.join(fields)})", values)
    else:
        form = "".join(
            _read_field(parts, value, field, fields[field])
            for value, field in zip(values, fields, strict=True)
        )
    return Primitive(
        framework=Framework.ANSOR,
        opcode=opcode,
        kind=ANSOR_KINDS.get(opcode, UNKNOWN),
        numbers=tuple(parts.numbers),
        tokens=tuple(parts.tokens),
        names=tuple(parts.names),
        form=form,
    )


def _read_field(parts: Parts, value: Any, field: str, type_: str) -> str:
    if type_ == "integers":
        if not isinstance(value, list):
            raise StepError(parts.opcode, field, "a list of integers", value)
        return f"[{''.join(parts.integer(item, field) for item in value)}]"
    read = {
        "integer": parts.integer,
        "token": parts.token,
        "annotation": parts.annotation,
        "pragma": parts.pragma,
    }[type_]
    return read(value, field)


def write_step(primitive: Primitive) -> list[Any]:
    """The step that `read_step` read: an equal JSON value.

    Raises
    ------
    StepError
        If the primitive is not Ansor's, or was not made by `read_step`.
    """
    if primitive.framework is not Framework.ANSOR:
        raise StepError(primitive.opcode, "framework", "ansor", primitive.framework.value)
    return [primitive.opcode, *fill(primitive)[0]]
