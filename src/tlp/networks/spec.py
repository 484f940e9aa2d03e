"""What to tune: the name of a built-in network or a file, and its input."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlp.errors import NetworkError
from tlp.networks.builtin import BUILTINS, Builtin, names

_FILES = {".pt2": "torch.export", ".onnx": "ONNX"}


def _is_file_name(source: str) -> bool:
    return Path(source).suffix.lower() in _FILES or os.sep in source


@dataclass(frozen=True)
class Framework:
    """What runs a network as it comes: the reference for its output and the one to beat.

    Parameters
    ----------
    key
        In summaries, such as ``latency_ms``.
    name
        For people.
    contender
        What is timed, for people.
    """

    key: str
    name: str
    contender: str


PYTORCH = Framework("pytorch", "PyTorch", "PyTorch eager")
ONNX_RUNTIME = Framework("onnxruntime", "ONNX Runtime", "ONNX Runtime")
FRAMEWORKS = {framework.key: framework for framework in (PYTORCH, ONNX_RUNTIME)}


def contender_name(key: str) -> str:
    """Name for people of what is timed under a key of ``latency_ms``."""
    return FRAMEWORKS[key].contender if key in FRAMEWORKS else key


def in_order(latency: Mapping[str, float]) -> dict[str, float]:
    """Latencies as people read them: tuned, the framework's, untuned."""
    order = ["tuned", *FRAMEWORKS, "untuned"]
    return {name: latency[name] for name in order if name in latency}


@dataclass(frozen=True)
class NetworkSpec:
    """A network to tune, before it is loaded.

    Parameters
    ----------
    source
        Name of a built-in network, or path of a ``torch.export`` (``.pt2``) or ONNX file.
    batch
        Number of inputs at once: the first dimension. A ``.pt2`` file has fixed shapes, an ONNX
        file may leave dimensions open. Where it is fixed, 1 stands for "as in the file".
    input_shape
        Shape of one input without the batch, e.g. ``(3, 224, 224)``, or ``(128,)`` for a sequence
        of 128 tokens. ``None`` takes the network's own. An ONNX file's first input is meant.
    seed
        Seed of the random weights and of the example inputs.

    Raises
    ------
    NetworkError
        If a value does not make sense; whether a file exists is left to `check_file`.
    """

    source: str
    batch: int = 1
    input_shape: tuple[int, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.input_shape is not None:
            object.__setattr__(self, "input_shape", tuple(self.input_shape))
        if not isinstance(self.source, str) or not self.source:
            raise NetworkError(
                f"network: expected the name of a built-in network, a .pt2 or an .onnx file, got "
                f"{self.source!r}. Built in: {', '.join(names())}"
            )
        _check_integer("batch", self.batch, 1)
        _check_integer("seed", self.seed, 0)
        for extent in self.input_shape or ():
            _check_integer("input shape", extent, 1)
        if self.is_file:
            return
        if self.source not in BUILTINS:
            raise NetworkError(_unknown(self.source))
        _check_input_shape(BUILTINS[self.source], self.input_shape)

    @property
    def is_file(self) -> bool:
        """Whether the network comes from a file."""
        return _is_file_name(self.source) or (
            self.source not in BUILTINS and Path(self.source).is_file()
        )

    @property
    def name(self) -> str:
        """Short name: the built-in's, or the file's without folder and suffix."""
        return Path(self.source).stem if self.is_file else self.source

    @property
    def framework(self) -> Framework:
        """What runs the network as it comes."""
        onnx = self.is_file and Path(self.source).suffix.lower() == ".onnx"
        return ONNX_RUNTIME if onnx else PYTORCH

    @property
    def copy_name(self) -> str:
        """Name of a run's own copy of the file."""
        return "network.onnx" if self.framework is ONNX_RUNTIME else "network.pt2"

    def check_file(self) -> None:
        """Raise `NetworkError` if the network is a file that does not exist or of no known kind."""
        if not self.is_file:
            return
        path = Path(self.source)
        if not path.is_file():
            raise NetworkError(
                f"network file {self.source}: no such file. Give the path of a torch.export file "
                f"(.pt2) or of an ONNX file (.onnx), or one of the built-in networks: "
                f"{', '.join(names())}"
            )
        if path.suffix.lower() not in _FILES:
            kinds = " or ".join(f"{suffix} ({kind})" for suffix, kind in _FILES.items())
            raise NetworkError(
                f"network file {self.source}: its suffix is {path.suffix or 'missing'}, expected "
                f"{kinds}. Write a PyTorch model with torch.export.save, or rename the file"
            )

    def localised(self, folder: Path) -> NetworkSpec:
        """Return the same network, read from the folder's own copy of the file if it has one."""
        copy = folder / self.copy_name
        return (
            dataclasses.replace(self, source=str(copy)) if self.is_file and copy.exists() else self
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, the inverse of `from_json`."""
        return {
            "source": self.source,
            "batch": self.batch,
            "input_shape": None if self.input_shape is None else list(self.input_shape),
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> NetworkSpec:
        """Make a spec from `to_json`'s values; what is missing takes its default."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown or "source" not in values:
            raise NetworkError(
                f"network: expected the keys {', '.join(sorted(known))}, got "
                f"{', '.join(map(str, values)) or 'none'}"
            )
        shape = values.get("input_shape")
        if shape is not None and not isinstance(shape, (list, tuple)):
            raise NetworkError(f"input shape: expected a list of integers, got {shape!r}")
        return cls(**{**values, "input_shape": None if shape is None else tuple(shape)})


def _check_integer(option: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise NetworkError(f"{option}: expected an integer of at least {least}, got {value!r}")


def _unknown(source: str) -> str:
    close = difflib.get_close_matches(source, names(), n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    return (
        f"network {source!r}: neither a built-in network nor a .pt2 or .onnx file.{hint} "
        f"Built in: {', '.join(names())}. Any other network: save it with torch.export.save "
        "and give the path of its .pt2 file, or give an .onnx file"
    )


def _check_input_shape(entry: Builtin, shape: tuple[int, ...] | None) -> None:
    if shape is None:
        return
    default = ",".join(map(str, entry.input_shape))
    given = ",".join(map(str, shape))
    if entry.family == "text":
        if len(shape) != 1 or shape[0] > entry.longest:
            raise NetworkError(
                f"input shape {given}: {entry.name} takes one number, the sequence length, at most "
                f"{entry.longest} (default {default})"
            )
    elif len(shape) != 3 or shape[0] != entry.input_shape[0]:
        raise NetworkError(
            f"input shape {given}: {entry.name} takes channels,height,width with "
            f"{entry.input_shape[0]} channels (default {default}); the batch is separate"
        )
    elif any(extent % entry.multiple for extent in shape[1:]):
        raise NetworkError(
            f"input shape {given}: height and width of {entry.name} must be multiples of "
            f"{entry.multiple} (default {default})"
        )
