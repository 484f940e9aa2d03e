"""One schedule primitive of either framework: what a model may see, and the way back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Framework(str, Enum):
    """Where a primitive comes from."""

    ANSOR = "ansor"
    METASCHEDULE = "metaschedule"


@dataclass(frozen=True)
class Primitive:
    """One transformation command.

    Equal primitives have equal features and are written as equal JSON, so a table of distinct
    primitives and rows of indices into it hold any number of sequences.

    Parameters
    ----------
    framework
        Which language it was written in.
    opcode
        The name that language gives it: ``SP``, ``GetSBlock``.
    kind
        What it does, from `tlp.primitives.vocabulary`; ``unknown`` for what that does not list.
    numbers
        Its numbers in order: integers, factors, decided values, variables' numbers. Features.
    tokens
        Words of closed meaning: annotations, scopes, intrinsics. Features.
    names
        Text that names a workload's parts, or that nothing is known about. No features.
    variables
        Numbers of expression variables, whose values stand in ``numbers``. No features.
    form
        The JSON's shape with a letter for each of the above (`tlp.primitives.form`).
    """

    framework: Framework
    opcode: str
    kind: str
    numbers: tuple[float, ...] = ()
    tokens: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    variables: tuple[int, ...] = ()
    form: str = ""

    def to_row(self) -> dict[str, Any]:
        """Plain values by column, as `PRIMITIVE_SCHEMA` lists them."""
        return {
            "framework": self.framework.value,
            "opcode": self.opcode,
            "kind": self.kind,
            "numbers": [float(number) for number in self.numbers],
            "tokens": list(self.tokens),
            "names": list(self.names),
            "variables": list(self.variables),
            "form": self.form,
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Primitive:
        """The primitive that `to_row` was called on; it compares and hashes equal."""
        return cls(
            framework=Framework(row["framework"]),
            opcode=row["opcode"],
            kind=row["kind"],
            numbers=tuple(row["numbers"]),
            tokens=tuple(row["tokens"]),
            names=tuple(row["names"]),
            variables=tuple(row["variables"]),
            form=row["form"],
        )

    def describe(self) -> str:
        """One line for people: kind, numbers, tokens and names."""
        numbers = ", ".join(f"{number:g}" for number in self.numbers)
        return " ".join([f"{self.opcode}[{numbers}]", *self.tokens, *map(json.dumps, self.names)])


Schedule = tuple[Primitive, ...]
"""A sequence of primitives of one framework: what was done to one workload."""

PRIMITIVE_SCHEMA: dict[str, str] = {
    "framework": "string",
    "opcode": "string",
    "kind": "string",
    "numbers": "list<float64>",
    "tokens": "list<string>",
    "names": "list<string>",
    "variables": "list<int64>",
    "form": "string",
}
"""Columns of a table of distinct primitives, and their types in Arrow's words."""
