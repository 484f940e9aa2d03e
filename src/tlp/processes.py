"""Child processes that never outlive their parent and report errors as values."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from tlp import errors

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent ends (Linux).

    Parameters
    ----------
    parent
        The parent's process id as it was before the start; if the parent is gone already, this
        process ends at once.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def redirect_output(log: Path | None) -> None:
    """Send this process's standard output and error, native code included, to a file."""
    target = os.open(
        os.devnull if log is None else log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)


@contextlib.contextmanager
def native_output_to(log: Path) -> Iterator[None]:
    """Send what native code prints to a file for a while, and restore it afterwards."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    try:
        redirect_output(log)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in enumerate(saved, start=1):
            os.dup2(copy, descriptor)
            os.close(copy)


class Interrupt:
    """Ctrl-C as a request, to be granted where it is safe to stop."""

    def __init__(self) -> None:
        self.requested = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if it was requested since the last check."""
        if self.requested:
            self.requested = False
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt  # pressed twice before anyone looked
        self.requested = True


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Interrupt]:
    """Turn SIGINT into a request for a while.

    Python raises KeyboardInterrupt wherever the main thread happens to be. In a callback from
    native code, in a finaliser or in the middle of a fork the exception is lost, and the run
    would go on as if nobody had asked it to stop. Outside the main thread nothing is changed.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.signal(signal.SIGINT, interrupt._on_signal)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


def log_tail(log: Path | None, lines: int = 12) -> str:
    """Last lines of a child's log, for an error message."""
    if log is None or not log.exists():
        return ""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def take_over_output(log: Path | None) -> None:
    """Send everything that this child prints to a file, also through Python's own streams.

    A forked child inherits its parent's stream objects, which may lead anywhere.
    """
    redirect_output(log)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


def _child(
    connection: Connection,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    log: Path | None,
    parent: int,
) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    take_over_output(log)
    try:
        result = function(*args, lambda text: connection.send(("progress", text)))
        connection.send(("result", result))
    except errors.TlpError as error:
        connection.send(("error", type(error).__name__, str(error)))
    except BaseException as error:
        traceback.print_exc()
        connection.send(("crash", f"{type(error).__name__}: {error}"))


def run_isolated(
    function: Callable[..., Any],
    *args: Any,
    start: Literal["spawn", "fork"] = "spawn",
    log: Path | None = None,
    on_progress: Callable[[str], None] | None = None,
    on_wait: Callable[[], None] | None = None,
) -> Any:
    """Run ``function(*args, progress)`` in a process of its own and return its result.

    Parameters
    ----------
    function
        Takes the arguments and, last, a callable that reports progress as text.
    start
        ``spawn`` starts a clean interpreter; ``fork`` inherits what this one has imported.
    log
        File that gets the child's output.
    on_progress, on_wait
        Called with each progress text, and about ten times a second.

    Raises
    ------
    TlpError
        The error that the child raised, of the same class.
    MeasureError
        If the child died or failed in another way; the message ends with its log's last lines.
    """
    context = multiprocessing.get_context(start)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(  # type: ignore[attr-defined]
        target=_child, args=(sender, function, args, log, os.getpid())
    )
    process.start()
    sender.close()
    try:
        while True:
            if on_wait is not None:
                on_wait()
            if not receiver.poll(0.1):
                continue
            try:
                kind, *content = receiver.recv()
            except EOFError:
                process.join(5)
                raise errors.MeasureError(
                    f"the process for {function.__name__} died (exit code {process.exitcode}). "
                    f"Its last output:\n{log_tail(log)}"
                ) from None
            if kind == "progress":
                if on_progress is not None:
                    on_progress(content[0])
            elif kind == "result":
                return content[0]
            elif kind == "error":
                raise getattr(errors, content[0], errors.TlpError)(content[1])
            else:
                raise errors.MeasureError(
                    f"{function.__name__} failed: {content[0]}\n{log_tail(log)}"
                )
    finally:
        if process.is_alive():
            process.join(1)
        if process.is_alive():
            process.kill()
        process.join()
        receiver.close()


def require(module: str, extra: str) -> Any:
    """Import an optional dependency, or raise an error that names the extra it comes with."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise errors.MissingExtraError(module.split(".")[0], extra) from error
