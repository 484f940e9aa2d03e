"""What the tuning run and its workers say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from tlp.records.status import Status
from tlp.tuning.space import Decisions


@dataclass(frozen=True)
class Program:
    """A candidate named by what it takes to make it."""

    task: str
    sketch: int
    decisions: Decisions


@dataclass(frozen=True)
class ReplayRequest:
    """Replay and postprocess a candidate."""

    program: Program


@dataclass(frozen=True)
class BuildRequest:
    """Build a candidate and keep it until it has run."""

    program: Program


@dataclass(frozen=True)
class RunRequest:
    """Time a built candidate.

    Parameters
    ----------
    best
        Best latency known for the task, seconds; infinite if none. A candidate much slower than
        that is cut, a faster one is compared with the reference.
    """

    program: Program
    best: float


@dataclass(frozen=True)
class ReferenceRequest:
    """Run the unscheduled workload and keep its output for comparisons."""

    task: str


Request = ReplayRequest | BuildRequest | RunRequest | ReferenceRequest


@dataclass(frozen=True)
class Replay:
    """Decisions and program hash after replay; ``status`` is OK unless it was refused."""

    status: Status
    decisions: Decisions
    program: str
    cause: str = ""
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Build:
    """Outcome of a build."""

    status: Status
    cause: str = ""
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Run:
    """Outcome of a run: every repeat in seconds, and whether the output was compared."""

    status: Status
    latencies: tuple[float, ...] = ()
    verified: bool = False
    cause: str = ""
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Reference:
    """Outcome of a reference run: the unscheduled latency in seconds."""

    latency: float
    error: str = ""
    disk_full: bool = False


@dataclass(frozen=True)
class Lost:
    """The worker died or was killed; what it had built is gone with it.

    Parameters
    ----------
    request
        What it was doing.
    timed_out
        It was killed for passing its limit.
    error
        Signal or exit code, and the last lines it printed.
    """

    request: Request
    timed_out: bool
    error: str


Reply = Replay | Build | Run | Reference | Lost
