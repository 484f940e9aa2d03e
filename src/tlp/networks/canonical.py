"""A text of a TensorIR module that does not depend on anybody's names."""

from __future__ import annotations

import ast
import hashlib
import io
import itertools
import keyword
import tokenize
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tvm

_FIXED = frozenset({"T", "I", "R", "metadata", "range", "Module", "main"})
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_LAYOUT = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER})
_LINES = {tokenize.NEWLINE: "\n", tokenize.INDENT: ">", tokenize.DEDENT: "<"}


def workload_key(mod: tvm.ir.IRModule) -> str:
    """16 hexadecimal digits that name a workload, the same in every process."""
    return hashlib.sha256(canonical_text(mod).encode()).hexdigest()[:16]


def canonical_text(mod: tvm.ir.IRModule) -> str:
    """Script of the module with variables, buffers and blocks numbered by appearance."""
    text = mod.script()
    if "metadata[" in text:
        # What is printed as a reference belongs to the workload too.
        text = mod.script(show_meta=True)
    return rename(text)


def block_names(mod: tvm.ir.IRModule) -> list[str]:
    """Names of a module's blocks in the order in which the canonical text numbers them.

    Modules with equal keys have as many, so that the lists translate names of one into the other.
    """
    tokens = _tokens(mod.script())
    return [
        ast.literal_eval(tokens[start + position].string)
        for start, end in _statements(tokens)
        for position in _block_names(tokens[start:end])
    ]


def plain_key(mod: tvm.ir.IRModule) -> str:
    """Key of what a workload computes, whatever is said about layouts and aliasing."""
    function = mod["main"]
    for name in list(function.attrs.keys()) if function.attrs else ():
        if name != "global_symbol":
            function = function.without_attr(name)
    plain = type(mod)({"main": function})
    return workload_key(plain)


def _tokens(script: str) -> list[tokenize.TokenInfo]:
    return [
        token
        for token in tokenize.generate_tokens(io.StringIO(script).readline)
        if token.type not in _LAYOUT
    ]


def rename(script: str) -> str:
    """Replace the names in a script by numbers, a new one for every definition."""
    tokens = _tokens(script)
    numbers: dict[str, str] = {}
    names, blocks = itertools.count(), itertools.count()
    result: list[str] = []
    for start, end in _statements(tokens):
        line = tokens[start:end]
        words = [_LINES.get(token.type, token.string) for token in line]
        defined = _defined(line)
        # What a statement reads still means the earlier definitions: `i = f(i)`.
        for position in [*sorted(_names(line) - defined), *sorted(defined)]:
            name = words[position]
            if position in defined or name not in numbers:
                numbers[name] = f"v{next(names)}"
            words[position] = numbers[name]
        for position in _block_names(line):
            words[position] = f"block{next(blocks)}"
        result.append(" ".join(words))
    return "".join(result)


def _statements(tokens: list[tokenize.TokenInfo]) -> list[tuple[int, int]]:
    ends = [index + 1 for index, token in enumerate(tokens) if token.type == tokenize.NEWLINE]
    starts = [0, *ends]
    return [(start, end) for start, end in zip(starts, [*ends, len(tokens)], strict=True)]


def _defined(line: list[tokenize.TokenInfo]) -> set[int]:
    """Positions of the names that a statement defines."""
    first = next((i for i, token in enumerate(line) if token.type not in _LINES), len(line))
    word = line[first].string if first < len(line) else ""
    if word == "def":
        return {
            index
            for index in range(first + 2, len(line) - 1)
            if line[index].type == tokenize.NAME and line[index + 1].string == ":"
        }
    if word == "for":
        return _names_until(line, first + 1, "in")
    if word == "with":
        return {
            index
            for index in range(first + 1, len(line))
            if line[index].type == tokenize.NAME and line[index - 1].string == "as"
        }
    targets = _names_until(line, first, "=")
    return targets or _names_until(line, first, ":")


def _names_until(line: list[tokenize.TokenInfo], first: int, stop: str) -> set[int]:
    """Positions of a plain list of names that ends in ``stop``; empty if it is anything else."""
    found: set[int] = set()
    for index in range(first, len(line)):
        token = line[index]
        if token.string == stop:
            return found
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            found.add(index)
        elif token.string not in (",", "(", ")"):
            return set()
    return set()


def _names(line: list[tokenize.TokenInfo]) -> set[int]:
    """Positions of variables and buffers: not of attributes, keyword arguments or TVM's words."""
    found = set()
    depth = 0
    for index, token in enumerate(line):
        depth += (token.string in _OPENING) - (token.string in _CLOSING)
        if token.type != tokenize.NAME or token.string in _FIXED or keyword.iskeyword(token.string):
            continue
        attribute = index > 0 and line[index - 1].string == "."
        argument = depth > 0 and index + 1 < len(line) and line[index + 1].string == "="
        if not attribute and not argument:
            found.add(index)
    return found


def _block_names(line: list[tokenize.TokenInfo]) -> list[int]:
    return [
        index
        for index in range(2, len(line))
        if line[index].type == tokenize.STRING
        and line[index - 1].string == "("
        and line[index - 2].string in ("sblock", "block")
    ]
