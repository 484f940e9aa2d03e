"""What this machine is: cores, a fingerprint for measured rows, pinning."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlp.errors import TargetError

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def available_cores() -> tuple[int, ...]:
    """Cores that this process may use, in order."""
    return tuple(sorted(os.sched_getaffinity(0)))


def _cpuinfo() -> dict[str, str]:
    fields: dict[str, str] = {}
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return fields
    for line in lines:
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields


def cpu_flags() -> frozenset[str]:
    """Feature flags of the CPU as the kernel names them (``avx2``, ``avx512f`` ...)."""
    info = _cpuinfo()
    return frozenset((info.get("flags") or info.get("Features") or "").split())


def _caches() -> list[str]:
    found = []
    for index in sorted(_CACHES.glob("index*")):
        with contextlib.suppress(OSError):
            level, kind, size = (
                (index / name).read_text().strip() for name in ("level", "type", "size")
            )
            found.append(f"L{level} {kind} {size}")
    return found


@functools.cache
def describe_host() -> dict[str, Any]:
    """CPU model, flags, caches, cores, memory and kernel of this machine, as plain JSON."""
    info = _cpuinfo()
    return {
        "cpu": info.get("model name", platform.processor() or platform.machine()),
        "family": f"{info.get('cpu family', '?')}/{info.get('model', '?')}",
        "flags": hashlib.sha256(" ".join(sorted(cpu_flags())).encode()).hexdigest()[:12],
        "caches": _caches(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }


@functools.cache
def fingerprint() -> str:
    """Short hash of :func:`describe_host`; latencies compare only where it is the same."""
    text = json.dumps(describe_host(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class CorePlan:
    """Which cores measure and which do everything else.

    Parameters
    ----------
    run
        Cores of the platform: candidates run here, one at a time.
    work
        Cores for search, learning and builds.
    exclusive
        The two overlap: nothing else may go on while a candidate runs.
    """

    run: tuple[int, ...]
    work: tuple[int, ...]
    exclusive: bool


def plan_cores(num_cores: int, available: tuple[int, ...] | None = None) -> CorePlan:
    """Give a platform of ``num_cores`` the last of the available cores.

    Raises
    ------
    TargetError
        If the target asks for more cores than this process may use.
    """
    cores = available_cores() if available is None else available
    if num_cores < 1 or num_cores > len(cores):
        raise TargetError(
            f"the target asks for {num_cores} cores, but this process may use {len(cores)}; "
            f"set -num-cores to 1..{len(cores)}"
        )
    if num_cores == len(cores):
        return CorePlan(run=cores, work=cores, exclusive=True)
    split = len(cores) - num_cores
    return CorePlan(run=cores[split:], work=cores[:split], exclusive=False)


def plan_gpu_cores(available: tuple[int, ...] | None = None) -> CorePlan:
    """Cores beside a GPU: the last one launches its programs, the others do everything else."""
    cores = available_cores() if available is None else available
    return CorePlan(run=cores[-1:], work=cores[:-1] or cores, exclusive=False)


def pin_process(cores: tuple[int, ...]) -> None:
    """Confine every thread of this process to the given cores."""
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


def set_tvm_threads(cores: tuple[int, ...]) -> None:
    """Make TVM use as many threads as there are cores; call it before the first kernel.

    TVM's own binding would widen a pin, so affinity is left to whoever starts the process. Idle
    threads spin for some milliseconds only: by default they would go on for a fifth of a second,
    into the time of whatever is measured next.
    """
    os.environ["TVM_NUM_THREADS"] = str(len(cores))
    os.environ["TVM_BIND_THREADS"] = "0"
    os.environ["TVM_THREAD_POOL_SPIN_COUNT"] = "10000"
