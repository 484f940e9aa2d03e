"""What can become of a candidate."""

from __future__ import annotations

import enum


class Status(str, enum.Enum):
    """Outcome of a candidate; failures are facts of their own, never a magic latency."""

    OK = "ok"
    SLOW = "slow"
    """Cut after its first timed calls: at least as slow as recorded."""
    WRONG_OUTPUT = "wrong_output"
    REFUSED = "refused"
    """A postprocessor refused the program."""
    REPLAY_ERROR = "replay_error"
    BUILD_ERROR = "build_error"
    BUILD_TIMEOUT = "build_timeout"
    BUILD_CRASH = "build_crash"
    RUN_ERROR = "run_error"
    RUN_TIMEOUT = "run_timeout"
    RUN_CRASH = "run_crash"
    FAILED = "failed"
    """It failed somewhere, and the log that says so does not say where."""

    @property
    def timed(self) -> bool:
        """The row has latencies of a program that computes the right thing, as far as known."""
        return self in (Status.OK, Status.SLOW)

    @property
    def replayed(self) -> bool:
        """The row became a program, so it counts as a trial."""
        return self not in (Status.REFUSED, Status.REPLAY_ERROR)
