"""Checkpoints: a header in JSON, and tensors (safetensors) or a library's text. Never pickle.

The header of a network is the entry ``tlp`` of the metadata of a safetensors file. Trees are a
text file whose first line is the header; what follows is what their library writes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tlp.errors import CheckpointError
from tlp.processes import require

FORMAT_VERSION = 1
_MAGIC = b'{"tlp_checkpoint": '

Tensors = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Header:
    """What a checkpoint says of itself.

    Attributes
    ----------
    framework
        ``ansor`` or ``metaschedule``: whose schedules the model reads.
    vocabulary
        Version of the vocabulary of primitives.
    encoding, encoding_hash
        How primitives become rows, as plain values, and the hash that tells encodings apart.
    model
        Name of the model.
    architecture
        What rebuilds it, as plain values.
    platforms
        Names of the platforms whose latencies it learned.
    training
        The settings it was trained with, as plain values.
    data
        Fingerprint of the data it learned from.
    metrics
        Figures of the judge on the validation workloads.
    """

    framework: str
    vocabulary: int
    encoding: dict[str, Any]
    encoding_hash: str
    model: str
    architecture: dict[str, Any] = field(default_factory=dict)
    platforms: tuple[str, ...] = ()
    training: dict[str, Any] = field(default_factory=dict)
    data: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    version: int = FORMAT_VERSION

    def to_json(self) -> dict[str, Any]:
        """Plain values; a metric that is not a number becomes null."""
        values = {**asdict(self), "platforms": list(self.platforms)}
        values["metrics"] = {k: v if np.isfinite(v) else None for k, v in self.metrics.items()}
        return values

    def require(
        self,
        *,
        framework: str | None = None,
        vocabulary: int | None = None,
        encoding_hash: str | None = None,
    ) -> None:
        """Refuse a checkpoint that does not fit.

        Raises
        ------
        CheckpointError
            That names everything that differs.
        """
        wanted = {
            "framework": framework,
            "vocabulary": vocabulary,
            "encoding_hash": encoding_hash,
        }
        wrong = [
            f"its {name.replace('_', ' ')} is {getattr(self, name)!r}, {value!r} is needed"
            for name, value in wanted.items()
            if value is not None and getattr(self, name) != value
        ]
        if wrong:
            raise CheckpointError(
                f"the checkpoint of {self.model} does not fit: {'; '.join(wrong)}. Train a model "
                "on data of this kind, or take one that was"
            )


def parse_header(content: Any, path: Path) -> Header:
    """A header of plain values, checked."""
    version = content.get("version") if isinstance(content, dict) else None
    if not isinstance(version, int):
        raise CheckpointError(f"{path}: the header has no format version; not a checkpoint of tlp")
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: format version {version} is newer than {FORMAT_VERSION}, the newest that "
            "this version of tlp reads. Update tlp"
        )
    known = {one.name for one in fields(Header)}
    if differs := sorted(known ^ set(content)):
        raise CheckpointError(f"{path}: the header's fields {', '.join(differs)} do not fit")
    kinds = {"framework": str, "vocabulary": int, "encoding": dict, "encoding_hash": str}
    kinds |= {"model": str, "architecture": dict, "platforms": list, "training": dict}
    for name, kind in (kinds | {"data": str, "metrics": dict}).items():
        if not isinstance(content[name], kind):
            raise CheckpointError(f"{path}: the header's {name} is not a {kind.__name__}")
    if not all(v is None or isinstance(v, int | float) for v in content["metrics"].values()):
        raise CheckpointError(f"{path}: the header's metrics are not numbers")
    metrics = {k: float("nan") if v is None else float(v) for k, v in content["metrics"].items()}
    platforms = tuple(str(name) for name in content["platforms"])
    return Header(**{**content, "platforms": platforms, "metrics": metrics})


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write, which takes the place of ``path`` once it is whole and on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def save_tensors(path: Path, header: Mapping[str, Any], tensors: Tensors) -> None:
    """Write a safetensors file whose metadata holds a header, in one step."""
    numpy = require("safetensors.numpy", "torch")
    with replacing(path) as temporary:
        whole = {name: np.asarray(values, order="C") for name, values in tensors.items()}
        metadata = {"tlp": json.dumps(dict(header), allow_nan=False)}
        # What safetensors writes itself, nobody else may read.
        temporary.write_bytes(numpy.save(whole, metadata))


def load_tensors(path: Path) -> tuple[dict[str, Any], Tensors]:
    """Header and tensors of a safetensors file.

    Raises
    ------
    CheckpointError
        If the file is missing, damaged or without a header.
    """
    safetensors = require("safetensors", "torch")
    _exists(path)
    try:
        with safetensors.safe_open(path, framework="numpy") as opened:
            header = json.loads((opened.metadata() or {}).get("tlp", "null"))
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, json.JSONDecodeError, OSError) as error:
        raise CheckpointError(
            f"{path} is damaged, cut short or no checkpoint ({error}). Take another copy"
        ) from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path} has no header of tlp: it was written by something else")
    return header, tensors


def _exists(path: Path) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path} is not there, or is no file")


def save_text(path: Path, header: Header, text: str) -> None:
    """Write trees: a line with the header, then their library's text."""
    body = text.encode()
    content = {**header.to_json(), "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    with replacing(path) as temporary:
        line = json.dumps(content, allow_nan=False).encode()
        temporary.write_bytes(_MAGIC + line + b"}\n" + body)


def load_text(path: Path) -> tuple[Header, str]:
    """Header and text of trees.

    Raises
    ------
    CheckpointError
        If the file is missing, cut short or damaged, or the header does not fit.
    """
    _exists(path)
    first, _, body = path.read_bytes().partition(b"\n")
    try:
        content = json.loads(first)["tlp_checkpoint"]
        length, digest = content.pop("bytes"), content.pop("sha256")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged, cut short or no checkpoint of trees") from error
    header = parse_header(content, path)
    if len(body) != length:
        raise CheckpointError(f"{path} is cut short: {len(body)} of {length} bytes of trees")
    if hashlib.sha256(body).hexdigest() != digest:
        raise CheckpointError(f"{path} is damaged: the trees are not those that were saved")
    return header, body.decode()


def is_text(path: Path) -> bool:
    """Whether a checkpoint holds trees."""
    _exists(path)
    with path.open("rb") as opened:
        return opened.read(len(_MAGIC)) == _MAGIC


def load_header(path: Path) -> Header:
    """The header of any checkpoint, checked.

    Raises
    ------
    CheckpointError
        If it cannot be read, or is of a newer format.
    """
    return load_text(path)[0] if is_text(path) else parse_header(load_tensors(path)[0], path)
