"""JSON taken apart into numbers, tokens and names, and put together again.

A *form* is the JSON's shape as text; each letter stands for one value:

==== ======================================================================================
``#`` an integer, ``%`` another number, ``?`` true or false: one of ``numbers``
``~`` null
``$`` a word that is a feature: one of ``tokens``; ``q`` the same between quotation marks
``@`` a text that is none: one of ``names``; ``Q`` the same between quotation marks
``j`` any other JSON, kept as text in ``names``
``a`` an annotation by Ansor's number: one of ``tokens``
``p`` a pragma ``word$integer``: one of ``tokens`` and one of ``numbers``
``c`` an index, and the number that it chooses: two of ``numbers``
``w`` nothing in the JSON: one of ``tokens`` that the opcode says
``n`` the word ``None``
``b`` ``l`` a block or loop variable: its number in ``numbers``; ``d`` a loop that was decided:
  its number and value in ``numbers``
``v`` a decided expression variable: its number in ``variables``, its value in ``numbers``; ``u``
  one that was not decided, with zero for the value
``B`` ``L`` ``V`` new variables with consecutive numbers: the first and how many, in ``numbers``
  (``V``: in ``variables``)
``!`` before variables that are not called by their numbers: their texts are in ``names``
``[`` ``]`` a list
==== ======================================================================================
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from tlp.errors import StepError
from tlp.primitives.primitive import Primitive
from tlp.primitives.vocabulary import LOOP_ANNOTATIONS

# Integers above this are not kept by float64, in which numbers are stored.
MAX_INTEGER = 2**53
_MAX_DEPTH = 8
_PRAGMA = re.compile(r"([^$]*)\$(0|-?[1-9][0-9]{0,14})")


class Parts:
    """Collects what one primitive consists of; every method returns the form of its value."""

    def __init__(self, opcode: str) -> None:
        self.opcode = _text("step", "name", opcode)
        self.numbers: list[float] = []
        self.tokens: list[str] = []
        self.names: list[str] = []
        self.variables: list[int] = []

    def number(self, value: Any, field: str) -> str:
        """An integer or a finite float."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise StepError(self.opcode, field, "a number", value)
        if isinstance(value, float):
            if not math.isfinite(value):
                raise StepError(self.opcode, field, "a finite number", value)
            self.numbers.append(value)
            return "%"
        if abs(value) > MAX_INTEGER:
            raise StepError(self.opcode, field, "an integer of at most 2^53", value)
        self.numbers.append(value)
        return "#"

    def integer(self, value: Any, field: str) -> str:
        """An integer, no other number."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise StepError(self.opcode, field, "an integer", value)
        return self.number(value, field)

    def token(self, value: Any, field: str) -> str:
        """A word that is a feature."""
        if not isinstance(value, str):
            raise StepError(self.opcode, field, "a word", value)
        self.tokens.append(_text(self.opcode, field, value))
        return "$"

    def name(self, value: str, field: str, form: str = "@") -> str:
        """A text that is no feature."""
        self.names.append(_text(self.opcode, field, value))
        return form

    def annotation(self, value: Any, field: str) -> str:
        """Ansor's number of an annotation."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise StepError(self.opcode, field, "an integer", value)
        if not 0 <= value < len(LOOP_ANNOTATIONS):
            raise StepError(
                self.opcode, field, f"an annotation from 0 to {len(LOOP_ANNOTATIONS) - 1}", value
            )
        self.tokens.append(LOOP_ANNOTATIONS[value])
        return "a"

    def pragma(self, value: Any, field: str) -> str:
        """A pragma: ``word$integer``, or any other word."""
        found = _PRAGMA.fullmatch(value) if isinstance(value, str) else None
        if found is None or found[2] == "-0":
            return self.token(value, field)
        self.tokens.append(_text(self.opcode, field, found[1]))
        self.numbers.append(int(found[2]))
        return "p"

    def choice(self, index: Any, candidates: list[Any]) -> str:
        """An index into a list of numbers, together with what it chooses."""
        self.integer(index, "decision")
        if not 0 <= index < len(candidates):
            raise StepError(self.opcode, "decision", f"an index below {len(candidates)}", index)
        self.number(candidates[index], "candidates")
        return "c"

    def implied_token(self, token: str | None) -> str:
        """A token that the JSON does not hold, if there is one."""
        if token is None:
            return ""
        self.tokens.append(token)
        return "w"

    def value(self, value: Any, field: str, depth: int = 0) -> str:
        """Any JSON value; text is taken for a name."""
        if value is None:
            return "~"
        if isinstance(value, bool):
            self.numbers.append(int(value))
            return "?"
        if isinstance(value, int | float) and (
            isinstance(value, float) or abs(value) <= MAX_INTEGER
        ):
            return self.number(value, field)
        if isinstance(value, str):
            return self.name(value, field)
        if isinstance(value, list) and depth < _MAX_DEPTH:
            return f"[{''.join(self.value(item, field, depth + 1) for item in value)}]"
        try:
            text = json.dumps(value, allow_nan=False, separators=(",", ":"))
        except (ValueError, TypeError, RecursionError) as error:
            raise StepError(self.opcode, field, "plain JSON", value) from error
        return self.name(text, field, "j")

    def variable(self, letter: str, number: int, value: float | None, text: str | None) -> str:
        """A variable of class ``letter``: its number, its value if decided, its odd text if any."""
        form = letter
        if letter == "v":
            self.variables.append(number)
            self.numbers.append(0 if value is None else value)
            form = "u" if value is None else "v"
        else:
            self.numbers.append(number)
            if value is not None:
                self.numbers.append(value)
                form = "d"
        if text is None:
            return form
        self.names.append(text)
        return f"!{form}"

    def run(self, letter: str, first: int, texts: list[str]) -> str:
        """New variables of one class with consecutive numbers."""
        (self.variables if letter == "v" else self.numbers).extend([first, len(texts)])
        if texts == _usual(letter, first, len(texts)):
            return letter.upper()
        self.names.extend(texts)
        return f"!{letter.upper()}"


def _usual(letter: str, first: int, count: int) -> list[str]:
    return [f"{letter}{number}" for number in range(first, first + count)]


def _text(opcode: str, field: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise StepError(opcode, field, "text in Unicode", value) from error
    return value


def fill(primitive: Primitive) -> list[list[Any]]:
    """The values of each ``;``-separated segment of a primitive's form."""
    return _Filler(primitive).segments()


class _Filler:
    def __init__(self, primitive: Primitive) -> None:
        self._primitive = primitive
        self._numbers = iter(primitive.numbers)
        self._tokens = iter(primitive.tokens)
        self._names = iter(primitive.names)
        self._variables = iter(primitive.variables)

    def segments(self) -> list[list[Any]]:
        try:
            segments = [self._items(iter(part)) for part in self._primitive.form.split(";")]
        except (StopIteration, LookupError, ValueError, TypeError, ArithmeticError) as error:
            raise StepError(
                self._primitive.opcode, "form", "a form that fits", self._primitive.form
            ) from error
        parts = (self._numbers, self._tokens, self._names, self._variables)
        if any(next(part, None) is not None for part in parts):
            raise StepError(
                self._primitive.opcode, "form", "a form for all parts", self._primitive.form
            )
        return segments

    def _items(self, letters: Iterator[str]) -> list[Any]:
        items: list[Any] = []
        for letter in letters:
            if letter == "]":
                break
            if letter == "[":
                items.append(self._items(letters))
            elif letter == "w":
                next(self._tokens)
            elif letter in "BLV":
                items.extend(self._run(letter))
            elif letter == "!":
                items.extend(self._renamed(next(letters)))
            else:
                items.append(self._item(letter))
        return items

    def _renamed(self, letter: str) -> list[str]:
        usual = self._run(letter) if letter in "BLV" else [self._item(letter)]
        return [next(self._names) for _ in usual]

    def _run(self, letter: str) -> list[str]:
        source = self._variables if letter == "V" else self._numbers
        return _usual(letter.lower(), int(next(source)), int(next(source)))

    def _item(self, letter: str) -> Any:
        if letter == "#":
            return int(next(self._numbers))
        if letter == "%":
            return float(next(self._numbers))
        if letter == "?":
            return bool(next(self._numbers))
        if letter in "$q":
            token = next(self._tokens)
            return token if letter == "$" else f'"{token}"'
        if letter in "@Q":
            name = next(self._names)
            return name if letter == "@" else f'"{name}"'
        if letter == "j":
            return json.loads(next(self._names))
        if letter == "a":
            return LOOP_ANNOTATIONS.index(next(self._tokens))
        if letter == "p":
            return f"{next(self._tokens)}${int(next(self._numbers))}"
        if letter in "bl":
            return f"{letter}{int(next(self._numbers))}"
        if letter == "d":
            number = int(next(self._numbers))
            next(self._numbers)
            return f"l{number}"
        if letter == "c":
            index = int(next(self._numbers))
            next(self._numbers)
            return index
        if letter in "vu":
            next(self._numbers)
            return f"v{next(self._variables)}"
        return {"~": None, "n": "None"}[letter]
