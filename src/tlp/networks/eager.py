"""A process that times the network in its own framework on request."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tlp.host import pin_process
from tlp.networks.load import framework_call
from tlp.networks.prepare import load_reference
from tlp.networks.spec import NetworkSpec
from tlp.processes import die_with_parent

_WARM_UPS = 2


def eager_server(
    connection: Connection,
    spec: NetworkSpec,
    folder: Path,
    cores: tuple[int, ...],
    device: str = "cpu",
) -> None:
    """Serve timings of the network over ``connection`` until told to stop.

    Sends ``("ready",)`` once the network is warm. Answers ``("time", repeats)`` with the seconds
    of each forward pass on the reference input; ``("stop",)`` ends. Sends ``("error", text)`` and
    ends if anything fails. The process ends with its parent.
    """
    parent = multiprocessing.parent_process()
    die_with_parent(None if parent is None else parent.pid)
    try:
        call = _start(spec, folder, cores, device)
        connection.send(("ready",))
        while True:
            request, *content = connection.recv()
            if request == "stop":
                return
            if request != "time":
                raise ValueError(f"unknown request {request!r}")
            connection.send([_seconds(call) for _ in range(int(content[0]))])
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception as error:
        with contextlib.suppress(OSError):
            connection.send(("error", f"{type(error).__name__}: {error}"))
    finally:
        connection.close()


def torch_has_cuda(progress: Any) -> bool:
    """Whether this PyTorch can use a GPU; call it in a process of its own."""
    import torch

    return torch.cuda.is_available()


def _start(spec: NetworkSpec, folder: Path, cores: tuple[int, ...], device: str) -> Any:
    # Before torch is loaded: its thread pools look at both. NumPy's threads exist already.
    pin_process(cores)
    os.environ["OMP_NUM_THREADS"] = str(len(cores))
    inputs = load_reference(folder).x1
    call = framework_call(spec.localised(folder), inputs, len(cores), device)
    for _ in range(_WARM_UPS):
        call()
    return call


def _seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
