"""Devices that programs run on, and what this machine has of them."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
from collections.abc import Callable
from typing import Any

from tlp.errors import MeasureError
from tlp.metaschedule.imports import load_tvm
from tlp.processes import run_isolated

_COMPILE_MODE = "TVM_CUDA_COMPILE_MODE"


def device_of(kind: str) -> Any:
    """TVM's device for a kind of target; asking for one initialises nothing."""
    tvm = load_tvm()
    return tvm.cuda(0) if kind == "cuda" else tvm.cpu(0)


def device_of_library(library: Any) -> Any:
    """Device that a loaded library was compiled for."""
    waiting = [library]
    while waiting:
        module = waiting.pop()
        if str(module.kind) == "cuda":
            return device_of("cuda")
        waiting += list(module.imports)
    return device_of("llvm")


@functools.cache
def find_gpu() -> dict[str, Any] | None:
    """Describe the first CUDA device that TVM can use; None if there is none.

    A child process looks: children of a process that has initialised CUDA cannot use it, and
    workers are forked from this one.

    Returns
    -------
    dict or None
        ``name``, ``arch`` (such as ``sm_80``), ``max_threads_per_block``,
        ``max_shared_memory_per_block``.
    """
    load_tvm()
    try:
        found: dict[str, Any] | None = run_isolated(describe_gpu, start="fork")
    except MeasureError:
        # A driver that does not fit may end the process.
        return None
    return found


def describe_gpu(progress: Callable[[str], None]) -> dict[str, Any] | None:
    """What :func:`find_gpu` returns; initialises CUDA in this process."""
    device = device_of("cuda")
    if not device.exist:
        return None
    return {
        "name": str(device.device_name),
        "arch": "sm_" + str(device.compute_version).replace(".", ""),
        "max_threads_per_block": int(device.max_threads_per_block),
        "max_shared_memory_per_block": int(device.max_shared_memory_per_block),
    }


def choose_cuda_compiler() -> str | None:
    """Make TVM compile CUDA source with what is installed: NVRTC, else nvcc; None if neither is.

    The choice is an environment variable that child processes inherit; one that is set stays.
    """
    if _COMPILE_MODE not in os.environ:
        if _has_nvrtc():
            os.environ[_COMPILE_MODE] = "nvrtc"
        elif shutil.which("nvcc"):
            os.environ[_COMPILE_MODE] = "nvcc"
    return os.environ.get(_COMPILE_MODE)


def _has_nvrtc() -> bool:
    try:
        return importlib.util.find_spec("cuda.bindings.nvrtc") is not None
    except ModuleNotFoundError:
        return False
