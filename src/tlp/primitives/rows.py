"""The rows of distinct primitives, for each layout of an encoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tlp.primitives.ansor import write_step
from tlp.primitives.primitive import Primitive
from tlp.primitives.vocabulary import UNKNOWN

_LIMIT = float(np.finfo(np.float32).max)


def paper_words(unroll_steps: Sequence[int]) -> tuple[tuple[str, str, int], ...]:
    """What TLP writes for words: scopes by a fixed number, unroll steps numbered from 1.

    Source: Zhai et al., TLP (ASPLOS'23), section 4, and the authors' published data preparation.
    """
    return (
        ("CHW", "local", 1),
        ("CHW", "shared", 2),
        ("CHW", "global", 3),
        ("CHR", "shared", 1),
        *(
            ("PR", f"auto_unroll_max_step${step}", number)
            for number, step in enumerate(unroll_steps, start=1)
        ),
    )


def fill_steps(
    table: NDArray[np.float32],
    primitives: Sequence[Primitive],
    columns: Mapping[str, int],
    words: Sequence[tuple[str, str, int]],
) -> None:
    """Rows of Ansor's steps: name one-hot, then all fields in order, lists spread, cropped.

    A step of another name has no bit set, a word that is not listed is 0.
    """
    numbers = {(step, word): number for step, word, number in words}
    for row, primitive in zip(table, primitives, strict=False):
        opcode, *fields = write_step(primitive)
        flat = [
            item for field in fields for item in (field if isinstance(field, list) else [field])
        ]
        values = [_plain(opcode, item, numbers) for item in flat]
        if opcode in columns:
            row[columns[opcode]] = 1
        _set(row[len(columns) :], values)


def _plain(opcode: str, item: object, numbers: Mapping[tuple[str, str], int]) -> float:
    if isinstance(item, str):
        return numbers.get((opcode, item), 0)
    # Lists in lists and the like are found in steps of unknown names only.
    return float(item) if isinstance(item, int | float) else 0.0


def fill_features(
    table: NDArray[np.float32],
    primitives: Sequence[Primitive],
    columns: Mapping[str, int],
    tokens: Sequence[str],
    scale: str,
) -> None:
    """Rows of any primitives: kind one-hot, tokens counted, numbers in order, cropped.

    A kind without a column counts as unknown, a token without one as other.
    """
    places = {token: len(columns) + place for place, token in enumerate(tokens)}
    other = len(columns) + len(tokens)
    for row, primitive in zip(table, primitives, strict=False):
        column = columns.get(primitive.kind, columns.get(UNKNOWN))
        if column is not None:
            row[column] = 1
        for token in primitive.tokens:
            row[places.get(token, other)] += 1
        _set(row[other + 1 :], primitive.numbers)
    if scale == "log2":
        scale_log2(table[:, other + 1 :])


def _set(row: NDArray[np.float32], values: Sequence[float]) -> None:
    kept = np.array(values[: len(row)], np.float64)
    row[: len(kept)] = np.clip(kept, -_LIMIT, _LIMIT)


def scale_log2(values: NDArray[np.float32]) -> None:
    """Replace x by sign(x) log2(1 + abs(x)), in place."""
    values[...] = np.sign(values) * np.log2(1 + np.abs(values.astype(np.float64)))
