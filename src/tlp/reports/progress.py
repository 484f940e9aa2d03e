"""A run's progress on the terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

if TYPE_CHECKING:
    from tlp.records.store import Candidate
    from tlp.tuning.loop import Budget, Loop
    from tlp.tuning.state import TaskState

_REFRESH_S = 0.2
_LINE_S = 15.0


def format_seconds(seconds: float) -> str:
    """``75`` as ``1:15``, ``4000`` as ``1:06:40``."""
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{whole % 60:02d}"
    return f"{minutes}:{whole % 60:02d}"


class ShareProgress:
    """A bar with the time left on standard error, or now and then a line in a log."""

    def __init__(self, doing: str, quiet: bool = False) -> None:
        self._console = Console(stderr=True)
        self._doing = doing
        self._quiet = quiet
        self._started = self._printed = time.monotonic()
        self._begin: float | None = None
        self._progress: Progress | None = None
        if self._console.is_terminal and not quiet:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.percentage:3.0f}%  {task.fields[note]}"),
                console=self._console,
                auto_refresh=False,
                transient=True,
            )
            self._refreshed = 0.0
            self._bar = self._progress.add_task(doing, total=1.0, note="")

    def __enter__(self) -> ShareProgress:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, share: float, text: str) -> None:
        """Show how much is done; ``share`` is from 0 to 1.

        The time left is that of what was done since the first call: a resumed job begins later.
        """
        now = time.monotonic()
        if self._begin is None:
            self._begin = share
        done = share - self._begin
        left = (now - self._started) * (1 - share) / done if done > 0 else None
        note = text if left is None else f"{text}, {format_seconds(left)} left"
        if self._progress is not None:
            # Never on a thread: readers are forked from this process.
            if now - self._refreshed >= _REFRESH_S:
                self._refreshed = now
                self._progress.update(self._bar, completed=share, note=note)
                self._progress.refresh()
        elif not self._quiet and now - self._printed >= _LINE_S:
            self._printed = now
            print(f"tlp: {self._doing}: {share:.0%}, {note}", file=sys.stderr, flush=True)


class TerminalObserver:
    """Shows stages and rounds on standard error: a live bar, or now and then a line in a log.

    Refreshing happens in :meth:`tick`, never on a thread: workers are forked from this process.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True)
        self._quiet = quiet
        self._live = self._console.is_terminal and not quiet
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._loop: Loop | None = None
        self._budget: Budget | None = None
        self._doing = ""
        self._stage_started = time.monotonic()
        self._refreshed = 0.0
        self._printed = 0.0
        self._said = -_LINE_S
        self._last_kind = ""

    def __enter__(self) -> TerminalObserver:
        if self._live:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[note]}"),
                console=self._console,
                auto_refresh=False,
                transient=True,
            )
            self._progress.start()
            self._bar = self._progress.add_task("starting", total=None, note="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def stage(self, text: str) -> None:
        """A stage outside the rounds began or went on."""
        kind = text.rstrip("0123456789 of")
        if kind != self._last_kind:
            self._stage_started = time.monotonic()
            self._last_kind = kind
            if not self._live and not self._quiet:
                print(f"tlp: {text}", file=sys.stderr, flush=True)
        self._doing = text
        self.tick()

    def loop_started(self, loop: Loop, budget: Budget) -> None:
        """Rounds begin."""
        self._loop, self._budget = loop, budget
        self._stage_started = time.monotonic()

    def loop_ended(self) -> None:
        """Rounds are over."""
        self._loop = self._budget = None

    def round_started(self, state: TaskState, phase: str) -> None:
        """A task entered a phase of its round."""
        self._doing = f"{phase} {state.task.name}"
        self.tick()

    def measured(self, state: TaskState, candidate: Candidate) -> None:
        """A candidate's outcome is known."""
        self.tick()

    def waiting(self, text: str) -> None:
        """Nothing can be measured at present: say why in the task's place."""
        doing, self._doing = self._doing, text
        try:
            self.tick()
        finally:
            self._doing = doing
        if not self._live and not self._quiet and time.monotonic() - self._said >= _LINE_S:
            self._said = time.monotonic()
            print(f"tlp: {text}", file=sys.stderr, flush=True)

    def tick(self) -> None:
        """Refresh what is shown, at most five times a second."""
        now = time.monotonic()
        if self._quiet or now - self._refreshed < _REFRESH_S:
            return
        self._refreshed = now
        if self._loop is not None:
            self._show_loop(now)
        elif self._progress is not None and self._bar is not None:
            self._progress.update(
                self._bar,
                description=Text(self._doing[:48]).plain,
                total=None,
                note=f"{format_seconds(now - self._stage_started)} so far",
            )
            self._progress.refresh()

    def _show_loop(self, now: float) -> None:
        from tlp.tuning.loop import estimated_latency

        assert self._loop is not None
        assert self._budget is not None
        left = self._budget.left(self._loop.trials)
        used = now - self._stage_started
        total = self._budget.seconds
        if total is not None and self._budget.trials is None:
            remaining = max(0.0, total - used)
        else:
            remaining = used * left / max(1e-3, 1 - left) if left < 1 else float("nan")
        rest = "" if remaining != remaining else f"{format_seconds(remaining)} left"
        latency = estimated_latency(self._loop.states)
        estimate = f"~{1e3 * latency:.2f} ms" if latency < float("inf") else ""
        note = f"{self._loop.trials} trials {estimate} {rest}"
        if self._progress is not None and self._bar is not None:
            self._progress.update(
                self._bar, description=self._doing[:60], completed=1 - left, total=1.0, note=note
            )
            self._progress.refresh()
        elif now - self._printed >= _LINE_S:
            self._printed = now
            print(f"tlp: {note}", file=sys.stderr, flush=True)
