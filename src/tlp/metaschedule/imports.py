"""Importing TVM, quickly and with the versions that work."""

from __future__ import annotations

import contextlib
import inspect
import linecache
import os
import sys
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

from tlp.errors import MissingExtraError


class _Frame:
    """What `inspect.FrameInfo` offers, with the source line read only when asked for."""

    __slots__ = ("filename", "frame", "function", "index", "lineno")

    def __init__(self, frame: FrameType) -> None:
        self.frame = frame
        self.filename = frame.f_code.co_filename
        self.lineno = frame.f_lineno
        self.function = frame.f_code.co_name
        self.index = 0

    @property
    def code_context(self) -> list[str] | None:
        if self.filename.startswith("<"):
            return None
        line = linecache.getline(self.filename, self.lineno)
        return [line] if line else None

    def __getitem__(self, position: int) -> Any:
        names = ("frame", "filename", "lineno", "function", "code_context", "index")
        return getattr(self, names[position])


def _stack(context: int = 1) -> list[_Frame]:
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        frames.append(_Frame(frame))
        frame = frame.f_back
    return frames


@contextlib.contextmanager
def _light_inspect_stack() -> Iterator[None]:
    """Replace `inspect.stack` while TVM parses its tensor intrinsics.

    The real one searches all loaded modules for every frame of the import system; with torch
    loaded that turns five seconds into half a minute or more.
    """
    original = inspect.stack
    inspect.stack = _stack  # type: ignore[assignment]
    try:
        yield
    finally:
        inspect.stack = original


def load_tvm() -> ModuleType:
    """Import TVM with its tensor intrinsics and return the module.

    Raises
    ------
    MissingExtraError
        If TVM is not installed.
    """
    # Affinity is set by whoever starts a process; TVM's own binding would widen or move it.
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    try:
        import tvm
    except ModuleNotFoundError as error:
        if error.name not in ("tvm", "tvm_ffi"):
            raise
        raise MissingExtraError("apache-tvm", "tune") from error
    with _light_inspect_stack():
        import tvm.s_tir.tensor_intrin
    return tvm
