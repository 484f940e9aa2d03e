"""Keys of MetaSchedule workloads, from their stored JSON and without TVM.

A database keeps each workload as base64 of eight bytes of length and TVM's JSON of a graph of
nodes. Its own hash changes with TVM and machine, so equal workloads are found by a canonical text
instead: loops, blocks, indices, buffers and operators of the function ``main``, with variables and
buffers numbered by first appearance. Names, attributes, annotations and the widths of index
integers are left out; they differ between versions and frameworks and say nothing of what is
computed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tlp.errors import RecordsError

_MOST_NODES = 200_000
# Operators with the operands a and b.
_WORDS = "Add Sub Mul Div Mod FloorDiv FloorMod Min Max EQ NE LT LE GT GE And Or"
_BINARY = frozenset(re.findall(r"\w+", _WORDS))
_ARITHMETIC = _BINARY | {"Not"}


@dataclass(frozen=True)
class Workload:
    """What is known of a workload without compiling it.

    Parameters
    ----------
    key
        Names what is computed, the same on every machine and for every version.
    arguments
        Data types and shapes of the function's buffers, in order: ``float32[1,512]``.
    flops
        Arithmetic on values in one execution, without what chooses between them; None where loops
        have no constant extent.
    version
        Of the TVM that wrote the JSON.
    """

    key: str
    arguments: tuple[str, ...]
    flops: float | None
    version: str


def decode_workload(text: str) -> Workload:
    """The workload of a line's second item.

    Raises
    ------
    RecordsError
        If it is no base64, its length is wrong, or it is no module with a function ``main``.
    """
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RecordsError("the workload is not base64") from None
    if len(raw) < 8 or int.from_bytes(raw[:8], "little") != len(raw) - 8:
        raise RecordsError("the workload's text is cut off: its length is not the one it states")
    return read_workload(raw[8:])


def read_workload(text: bytes) -> Workload:
    """The workload of TVM's JSON of a module, in either format.

    Raises
    ------
    RecordsError
        If it is no module with a function ``main``.
    """
    try:
        graph = Graph(orjson.loads(text))
        function = graph.main()
        writer = _Writer(graph)
        arguments = writer.function(function)
    except RecordsError:
        raise
    except RecursionError:
        raise RecordsError("the workload is nested too deeply") from None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise RecordsError(
            f"the workload is not TVM's JSON of a module ({type(error).__name__})"
        ) from None
    key = hashlib.sha256(" ".join(writer.words).encode()).hexdigest()[:16]
    flops = writer.flops if math.isfinite(writer.flops) else None
    return Workload(key, arguments, flops, graph.version)


class Graph:
    """Nodes of TVM's JSON, its two formats made alike.

    Before 0.22 a node has ``type_key`` and its fields as strings; since then ``type`` and ``data``
    with numbers. A field that refers to a node is that node's position in both.
    """

    def __init__(self, value: Mapping[str, Any]) -> None:
        self.nodes: list[dict[str, Any]] = value["nodes"]
        self.new = "root_index" in value
        self.root = int(value["root_index" if self.new else "root"])
        facts = value.get("metadata" if self.new else "attrs") or {}
        self.version = str(facts.get("tvm_version", ""))

    def type(self, index: int) -> str:
        """Type of a node, without the namespace that changed over time: ``BufferStore``."""
        node = self.nodes[index]
        name = str(node["type" if self.new else "type_key"]).rpartition(".")[2]
        return {"SBlock": "Block", "SBlockRealize": "BlockRealize", "None": ""}.get(name, name)

    def fields(self, index: int) -> dict[str, Any]:
        """Fields of a node; which of them refer to nodes is for the reader to know."""
        value = self.nodes[index].get("data" if self.new else "attrs", {})
        return value if isinstance(value, dict) else {}

    def items(self, index: int) -> list[int]:
        """Positions of an array's items, or of a map's keys and values in turn."""
        found = self.nodes[index].get("data", [])
        return [int(item) for item in found] if isinstance(found, list) else []

    def text(self, index: int) -> str:
        """A string, or the name of an operator."""
        node = self.nodes[index]
        return str(node.get("data", "") if self.new else node.get("repr_str", ""))

    def main(self) -> dict[str, Any]:
        """Fields of the function ``main``, or of the only one there is."""
        if self.type(self.root) == "PrimFunc":
            return self.fields(self.root)
        if self.type(self.root) != "IRModule":
            raise RecordsError(f"the workload is a {self.type(self.root) or 'null'}, no module")
        pairs = self.items(int(self.fields(self.root)["functions"]))
        functions = {
            self.text(int(self.fields(name)["name_hint"])): self.fields(function)
            for name, function in zip(pairs[::2], pairs[1::2], strict=True)
            if self.type(function) == "PrimFunc"
        }
        if "main" in functions:
            return functions["main"]
        if len(functions) != 1:
            raise RecordsError("the workload has no function main")
        return next(iter(functions.values()))

    def dtype(self, fields: Mapping[str, Any]) -> str:
        """Data type of an expression, a variable or a buffer."""
        while "ty" in fields and "dtype" not in fields:
            fields = self.fields(int(fields["ty"]))
        value = fields.get("dtype", "")
        # In a buffer's type it is a node of its own.
        return self.dtype(self.fields(value)) if isinstance(value, int) else str(value)


class _Writer:
    """Writes the canonical words and counts operations on the way."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.words: list[str] = []
        self.flops = 0.0
        self._variables: dict[int, int] = {}
        self._buffers: dict[int, int] = {}
        self._times = 1.0
        self._visited = 0

    def function(self, fields: Mapping[str, Any]) -> tuple[str, ...]:
        graph = self.graph
        pairs = graph.items(int(fields["buffer_map"])) if "buffer_map" in fields else []
        buffers = dict(zip(pairs[::2], pairs[1::2], strict=True))
        arguments = []
        for parameter in graph.items(int(fields["params"])):
            buffer = buffers.get(parameter, parameter)
            if parameter in buffers or graph.type(buffer) != "Var" or self._is_buffer(buffer):
                self._buffer(buffer)
                arguments.append(self._describe(buffer))
            else:
                self.words.append(graph.dtype(graph.fields(parameter)))
                self._variable(parameter)
                arguments.append(graph.dtype(graph.fields(parameter)))
        self._statement(int(fields["body"]))
        return tuple(arguments)

    def _is_buffer(self, index: int) -> bool:
        fields = self.graph.fields(index)
        return "ty" in fields and self.graph.type(int(fields["ty"])) == "BufferType"

    def _layout(self, index: int) -> dict[str, Any]:
        """Fields with a buffer's shape: its own, or those of its type."""
        fields = self.graph.fields(index)
        return self.graph.fields(int(fields["ty"])) if "ty" in fields else fields

    def _describe(self, index: int) -> str:
        layout = self._layout(index)
        sizes = [self._constant(size) for size in self.graph.items(int(layout["shape"]))]
        shown = ",".join("?" if size is None else str(size) for size in sizes)
        return f"{self.graph.dtype(layout)}[{shown}]"

    def _constant(self, index: int) -> int | None:
        """An integer literal; None for any other expression."""
        graph = self.graph
        if graph.type(index) == "IntImm":
            fields = graph.fields(index)
            if "ty" not in fields:
                return int(fields["value"])
            # Since 0.27 the number is a node of its own.
            index = int(fields["value"])
        return int(graph.nodes[index]["data"]) if graph.type(index) == "int" else None

    def _variable(self, index: int) -> None:
        number = self._variables.setdefault(index, len(self._variables))
        self.words.append(f"v{number}")

    def _buffer(self, index: int) -> None:
        if index in self._buffers:
            self.words.append(f"b{self._buffers[index]}")
            return
        self._buffers[index] = number = len(self._buffers)
        layout = self._layout(index)
        self.words.append(f"b{number}:{self.graph.dtype(layout)}")
        self._list(layout["shape"], "shape")
        self._list(layout.get("strides", 0), "strides")

    def _list(self, raw: Any, word: str) -> None:
        items = self.graph.items(int(raw))
        if items or word != "strides":
            self.words.append(f"{word}(")
            for item in items:
                self._expression(item)
            self.words.append(")")

    def _statement(self, index: int) -> None:
        graph = self.graph
        self._count()
        type_, fields = graph.type(index), graph.fields(index)
        match type_:
            case "BlockRealize":
                self._realize(fields)
            case "For":
                self._loop(fields)
            case "SeqStmt":
                for item in graph.items(int(fields["seq"])):
                    self._statement(item)
            case "BufferStore":
                self.words.append("store")
                self._buffer(int(fields["buffer"]))
                self._list(fields["indices"], "at")
                self._value(int(fields["value"]))
            case "IfThenElse":
                self.words.append("if")
                self._expression(int(fields["condition"]))
                self._statement(int(fields["then_case"]))
                if graph.type(int(fields["else_case"])):
                    self.words.append("else")
                    self._statement(int(fields["else_case"]))
            case "LetStmt" | "Bind":
                self.words.append("let")
                self._variable(int(fields["var"]))
                self._value(int(fields["value"]))
                if "body" in fields:
                    self._statement(int(fields["body"]))
            case "Evaluate":
                self._value(int(fields["value"]))
            case _:
                raise RecordsError(f"the workload has a statement {type_} that is not known")

    def _realize(self, fields: Mapping[str, Any]) -> None:
        graph = self.graph
        block = graph.fields(int(fields["block"]))
        self.words.append("block(")
        values = graph.items(int(fields["iter_values"]))
        for axis, value in zip(graph.items(int(block["iter_vars"])), values, strict=True):
            axis_fields = graph.fields(axis)
            self.words.append(f"axis{int(axis_fields['iter_type'])}")
            self._variable(int(axis_fields["var"]))
            domain = graph.fields(int(axis_fields["dom"]))
            self._expression(int(domain["extent"]))
            self._expression(value)
        for buffer in graph.items(int(block["alloc_buffers"])):
            self._buffer(buffer)
        if graph.type(int(block["init"])):
            self.words.append("init")
            self._statement(int(block["init"]))
        self.words.append("do")
        self._statement(int(block["body"]))
        self.words.append(")")

    def _loop(self, fields: Mapping[str, Any]) -> None:
        self.words.append(f"for{int(fields['kind'])}(")
        self._variable(int(fields["loop_var"]))
        self._expression(int(fields["min"]))
        self._expression(int(fields["extent"]))
        before = self._times
        extent = self._constant(int(fields["extent"]))
        self._times *= math.nan if extent is None else extent
        self._statement(int(fields["body"]))
        self._times = before
        self.words.append(")")

    def _value(self, index: int) -> None:
        """An expression whose operations count."""
        self._expression(index, counted=True)

    def _expression(self, index: int, counted: bool = False) -> None:
        graph = self.graph
        self._count()
        type_, fields = graph.type(index), graph.fields(index)
        if counted and type_ in _ARITHMETIC:
            self.flops += self._times
        match type_:
            case "Var" | "SizeVar":
                self._variable(index)
            case "IntImm":
                self.words.append(str(self._constant(index)))
            case "FloatImm":
                self.words.append(f"{float(fields['value'])!r}:{graph.dtype(fields)}")
            case "int" | "float" | "bool":
                self.words.append(str(graph.nodes[index]["data"]))
            case "StringImm":
                self.words.append(repr(graph.text(int(fields["value"]))))
            case "BufferLoad" | "TensorLoad":
                self._buffer(int(fields["buffer" if "buffer" in fields else "source"]))
                self._list(fields["indices"], "at")
            case "Cast":
                self.words.append(f"cast:{graph.dtype(fields)}(")
                self._expression(int(fields["value"]), counted)
                self.words.append(")")
            case "Call":
                name = re.sub(r"^(?:tirx?|s_tir|prim)\.", "", graph.text(int(fields["op"])))
                name = name or graph.type(int(fields["op"]))
                self.words.append(f"{name}:{graph.dtype(fields)}(")
                chooses = name == "if_then_else"
                self.flops += self._times if counted and not chooses else 0
                for place, argument in enumerate(graph.items(int(fields["args"]))):
                    self._expression(argument, counted and not (chooses and place == 0))
                self.words.append(")")
            case "Select":
                self.words.append("Select(")
                self._expression(int(fields["condition"]))
                self._expression(int(fields["true_value"]), counted)
                self._expression(int(fields["false_value"]), counted)
                self.words.append(")")
            case "Not":
                self.words.append("Not(")
                self._expression(int(fields["a"]), counted)
                self.words.append(")")
            case _ if type_ in _BINARY:
                self.words.append(f"{type_}(")
                self._expression(int(fields["a"]), counted)
                self._expression(int(fields["b"]), counted)
                self.words.append(")")
            case _:
                raise RecordsError(f"the workload has an expression {type_} that is not known")

    def _count(self) -> None:
        self._visited += 1
        if self._visited > _MOST_NODES:
            raise RecordsError(f"the workload has more than {_MOST_NODES:,} nodes")
