"""What the tuning run and its workers say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from tlp.records.status import Status
from tlp.tuning.decisions import Decisions


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
class Limits:
    """Hard limits in seconds; past them a worker is killed. Waiting for a device counts nowhere."""

    replay: float = 30.0
    build: float = 12.0
    run: float = 30.0
    reference: float = 300.0

    def of(self, request: Request) -> float:
        """Limit of a request."""
        kinds = {
            ReplayRequest: self.replay,
            BuildRequest: self.build,
            RunRequest: self.run,
            ReferenceRequest: self.reference,
        }
        return kinds[type(request)]


@dataclass(frozen=True)
class Note:
    """A worker says, before it replies, what it does now.

    Parameters
    ----------
    waiting
        What it waits for; empty once the program has been handed to its device.
    seconds
        How long that may last from now on: the worker's deadline is set anew.
    """

    waiting: str
    seconds: float


@dataclass(frozen=True)
class GiveUp:
    """Measuring cannot go on, with the way out."""

    error: str


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
    """Outcome of a run: repeats in seconds, and whether the output was compared.

    Parameters
    ----------
    disturbed
        Repeats that do not count: the core was slower at their beginning or end.
    """

    status: Status
    latencies: tuple[float, ...] = ()
    verified: bool = False
    cause: str = ""
    error: str = ""
    seconds: float = 0.0
    disturbed: tuple[float, ...] = ()


@dataclass(frozen=True)
class Reference:
    """Outcome of a reference run.

    Parameters
    ----------
    latency
        Of the unscheduled workload, seconds; infinite where its device did not finish it.
    error
        Why there is no output to compare with; empty if there is one.
    """

    latency: float
    error: str = ""
    disk_full: bool = False


@dataclass(frozen=True)
class Unreached:
    """The device was lost: the request is as good as not made, and the build is still there."""

    error: str


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
    unreached
        It waited for a device, or for an answer that the device owed: this says nothing of the
        candidate.
    """

    request: Request
    timed_out: bool
    error: str
    unreached: bool = False


Reply = Replay | Build | Run | Reference | Unreached | Lost
