"""Primitives as rows of numbers, sequences as arrays.

An `Encoding` is a plain value that says what the rows look like; data sets and checkpoints keep it.
An `Encoder` computes the row of each distinct primitive once, so that encoding sequences is a
look-up in that table.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tlp.errors import EncodingError
from tlp.primitives import rows
from tlp.primitives.primitive import Framework, Primitive
from tlp.primitives.table import pad
from tlp.primitives.vocabulary import KINDS, UNKNOWN, VOCABULARY_VERSION

ENCODING_VERSION = 1
_MAX_TOKENS = 64


@dataclass(frozen=True)
class Encoding:
    """What a primitive's row and a sequence's array look like.

    Parameters
    ----------
    name
        What people call it.
    layout
        ``features``: kind one-hot, tokens counted, numbers. ``steps``: TLP's layout of Ansor's
        steps: name one-hot, then the fields with words replaced by numbers.
    kinds
        Columns of the one-hot part: kinds of the vocabulary, or Ansor's step names.
    tokens
        Columns of tokens (``features``); one more column counts all others.
    words
        ``(step name, word, number)``: what stands for a word (``steps``).
    numbers
        Columns of numbers; further numbers of a primitive are cut off.
    length
        Primitives of a sequence; further ones are cut off.
    scale
        ``raw`` numbers, or ``log2`` for sign(x) log2(1 + abs(x)).
    version
        Of this format.
    vocabulary
        Version of the vocabulary.
    """

    name: str
    layout: str
    kinds: tuple[str, ...]
    numbers: int
    length: int
    tokens: tuple[str, ...] = ()
    words: tuple[tuple[str, str, int], ...] = ()
    scale: str = "raw"
    version: int = ENCODING_VERSION
    vocabulary: int = VOCABULARY_VERSION

    def __post_init__(self) -> None:
        if self.version != ENCODING_VERSION or self.vocabulary != VOCABULARY_VERSION:
            raise EncodingError(
                f"encoding {self.name!r} has version {self.version} and vocabulary "
                f"{self.vocabulary}; this version of tlp reads {ENCODING_VERSION} and "
                f"{VOCABULARY_VERSION}"
            )
        if self.layout not in ("features", "steps"):
            raise EncodingError(
                f"encoding {self.name!r}: layout is features or steps, not {self.layout!r}"
            )
        if self.scale not in ("raw", "log2"):
            raise EncodingError(f"encoding {self.name!r}: scale is raw or log2, not {self.scale!r}")
        for field in ("numbers", "length"):
            if not isinstance(getattr(self, field), int):
                raise EncodingError(f"encoding {self.name!r}: {field} is a whole number")
        if self.numbers < 0 or self.length < 1:
            raise EncodingError(
                f"encoding {self.name!r}: length must be positive and numbers not negative"
            )

    @property
    def width(self) -> int:
        """Columns of a row."""
        tokens = len(self.tokens) + 1 if self.layout == "features" else 0
        return len(self.kinds) + tokens + self.numbers

    @property
    def hash(self) -> str:
        """16 hexadecimal digits that differ for any two encodings of different rows.

        The name does not count.
        """
        content = {key: value for key, value in asdict(self).items() if key != "name"}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a manifest or a checkpoint's header."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Encoding:
        """The encoding that `to_json` was called on.

        Raises
        ------
        EncodingError
            If a field is missing, unknown or has a value that this version does not know.
        """
        known = {field.name for field in fields(cls)}
        if not isinstance(content, dict) or set(content) != known:
            found = sorted(content) if isinstance(content, dict) else content
            raise EncodingError(f"an encoding has the fields {sorted(known)}, found {found}")
        try:
            return cls(
                **{
                    **content,
                    "kinds": _texts(content["kinds"]),
                    "tokens": _texts(content["tokens"]),
                    "words": tuple((str(s), str(w), int(n)) for s, w, n in content["words"]),
                }
            )
        except (TypeError, ValueError) as error:
            raise EncodingError(f"malformed encoding: {error}") from error


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"expected a list of words, found {values!r}")
    return tuple(values)


PAPER_CPU = Encoding(
    name="paper-cpu",
    layout="steps",
    kinds=("SP", "FSP", "RE", "FU", "AN", "PR", "CA", "CI", "CR", "CHW", "RF"),
    words=rows.paper_words(unroll_steps=(0, 16, 64, 512)),
    numbers=11,
    length=25,
)
PAPER_GPU = Encoding(
    name="paper-gpu",
    layout="steps",
    kinds=("SP", "FSP", "FFSP", "RE", "FU", "AN", "PR", "CA", "CI", "CHR", "CHW"),
    words=rows.paper_words(unroll_steps=(0, 16, 64, 512, 1024)),
    numbers=9,
    length=40,
)
NAMED = {encoding.name: encoding for encoding in (PAPER_CPU, PAPER_GPU)}
"""TLP's published layouts: 25 x 22 and 40 x 20."""


def fit_encoding(
    primitives: Sequence[Primitive],
    flat: NDArray[np.integer],
    offsets: NDArray[np.integer],
    *,
    coverage: float = 0.999,
    length: int | None = None,
    numbers: int | None = None,
    scale: str = "raw",
    name: str = "tlp",
) -> Encoding:
    """The default encoding for a data set.

    Length is the smallest that holds at least ``coverage`` of the sequences whole; columns of
    numbers are the fewest that hold at least ``coverage`` of all occurrences of primitives whole.
    Kinds are those that occur, in the vocabulary's order, and ``unknown``; tokens the 64 that occur
    most often, by name.

    Parameters
    ----------
    primitives
        Distinct primitives.
    flat, offsets
        Sequences of indices into them (`tlp.primitives.table.ragged`).
    length, numbers
        Given instead of found.

    Raises
    ------
    EncodingError
        If there is nothing to fit to and something is not given, or the coverage is not in (0, 1].
    """
    used = np.bincount(np.asarray(flat, np.int64), minlength=len(primitives))
    sizes, times = np.unique(np.diff(offsets), return_counts=True)
    return fit_counts(
        primitives,
        used,
        (sizes, times),
        coverage=coverage,
        length=length,
        numbers=numbers,
        scale=scale,
        name=name,
    )


def fit_counts(
    primitives: Iterable[Primitive],
    used: NDArray[np.integer],
    lengths: tuple[NDArray[np.integer], NDArray[np.integer]],
    *,
    coverage: float = 0.999,
    length: int | None = None,
    numbers: int | None = None,
    scale: str = "raw",
    name: str = "tlp",
) -> Encoding:
    """`fit_encoding` for sequences that were only counted.

    Parameters
    ----------
    primitives
        Distinct primitives, gone through once.
    used
        Occurrences of each primitive.
    lengths
        Lengths of sequences, and how many have each.
    """
    if not 0 < coverage <= 1:
        raise EncodingError(f"coverage is a share above 0 and up to 1, not {coverage}")
    if length is None:
        length = max(1, _covering(*lengths, coverage, "length"))
    tokens: Counter[str] = Counter()
    kinds = set()
    counts = np.zeros(len(used), np.int64)
    for place, (primitive, times) in enumerate(zip(primitives, used, strict=True)):
        counts[place] = len(primitive.numbers)
        if times:
            kinds.add(primitive.kind)
            for token in primitive.tokens:
                tokens[token] += int(times)
    if numbers is None:
        numbers = _covering(counts, used, coverage, "numbers")
    often = sorted(tokens, key=lambda token: (-tokens[token], token))[:_MAX_TOKENS]
    return Encoding(
        name=name,
        layout="features",
        kinds=(*(kind for kind in KINDS if kind in kinds and kind != UNKNOWN), UNKNOWN),
        tokens=tuple(sorted(often)),
        numbers=numbers,
        length=length,
        scale=scale,
    )


def _covering(sizes: NDArray[np.integer], weights: NDArray[Any], coverage: float, what: str) -> int:
    """The smallest size such that at least ``coverage`` of the weight is no larger."""
    total = weights.sum()
    if total == 0:
        raise EncodingError(f"the data set is empty: give the encoding's {what} yourself")
    order = np.argsort(sizes, kind="stable")
    reached = np.cumsum(weights[order])
    # Whole weights: the tolerance only absorbs the rounding of coverage times total.
    return int(sizes[order][np.searchsorted(reached, coverage * total - 1e-6)])


class Encoder:
    """Encodes sequences of indices into a table of distinct primitives.

    Parameters
    ----------
    encoding
        What rows look like.
    primitives
        Distinct primitives; sequences refer to them by index.

    Attributes
    ----------
    table
        ``float32 [d + 1, width]``; the last row is zero and stands for padding (index -1).
    known
        ``bool [d]``: whether the encoding has a column for the primitive's kind.

    Raises
    ------
    EncodingError
        If the layout is for steps and a primitive is not Ansor's.
    """

    def __init__(self, encoding: Encoding, primitives: Sequence[Primitive]) -> None:
        self.encoding = encoding
        self.table = np.zeros((len(primitives) + 1, encoding.width), np.float32)
        columns = {kind: column for column, kind in enumerate(encoding.kinds)}
        if encoding.layout == "steps":
            for primitive in primitives:
                if primitive.framework is not Framework.ANSOR:
                    raise EncodingError(
                        f"encoding {encoding.name!r} is for Ansor's steps; {primitive.opcode} is "
                        f"{primitive.framework.value}'s. Use another encoding"
                    )
            rows.fill_steps(self.table, primitives, columns, encoding.words)
            names = [primitive.opcode for primitive in primitives]
        else:
            rows.fill_features(self.table, primitives, columns, encoding.tokens, encoding.scale)
            names = [primitive.kind for primitive in primitives]
        if encoding.layout == "steps" and encoding.scale == "log2":
            rows.scale_log2(self.table[:, len(columns) :])
        self.known = np.array([name in columns and name != UNKNOWN for name in names], bool)

    def encode(
        self, flat: NDArray[np.integer], offsets: NDArray[np.integer]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Rows of ragged sequences.

        Returns
        -------
        tuple
            ``float32 [n, length, width]``, and the mask ``bool [n, length]``: true where a
            primitive stands, false for padding.
        """
        indices = pad(flat, offsets, self.encoding.length)
        return self.table[indices], indices >= 0

    def count_unknown(self, flat: NDArray[np.integer]) -> int:
        """How many of the primitives in sequences have no column for their kind."""
        return int(np.count_nonzero(~self.known[flat]))
