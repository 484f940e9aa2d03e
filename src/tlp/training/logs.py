"""What a training run tells while it goes: a line on the terminal, CSV, TensorBoard."""

from __future__ import annotations

import csv
import importlib.util
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

from tlp.models.checkpoint import replacing
from tlp.reports.progress import format_seconds


@dataclass(frozen=True)
class Progress:
    """Where a run is: epochs from 1, mean loss of the epoch, last figures of the judge."""

    epoch: int
    epochs: int
    loss: float
    figures: dict[str, float]
    rows_per_second: float
    seconds_left: float

    def line(self) -> str:
        """One line of at most 100 columns."""
        judged = "".join(
            f"  {name} {self.figures[name]:.4f}"
            for name in ("top1", "top5")
            if name in self.figures
        )
        return (
            f"epoch {self.epoch}/{self.epochs}  loss {self.loss:.4f}{judged}  "
            f"{self.rows_per_second:,.0f} samples/s  {format_seconds(self.seconds_left)} left"
        )


class Told(Protocol):
    """What can be told in a line."""

    def line(self) -> str:
        """One line of at most 100 columns."""


class ProgressLine:
    """Shows a run on standard error: rewritten in place, or now and then a line in a log."""

    def __init__(self, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._quiet = quiet
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._shown = 0.0

    def __call__(self, progress: Told) -> None:
        """Show it, unless the last time was just now."""
        now = time.monotonic()
        if self._quiet or now - self._shown < (0.2 if self._live else 15.0):
            return
        self._shown = now
        text = progress.line()
        self._stream.write(f"\r{text:<99.99}" if self._live else f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        """End the line."""
        if self._live and self._shown:
            self._stream.write("\n")


def write_csv(path: Path, history: list[dict[str, float | None]]) -> None:
    """One line an epoch, written anew."""
    names = list(dict.fromkeys(name for row in history for name in row))
    with replacing(path) as temporary, temporary.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, names)
        writer.writeheader()
        writer.writerows(history)


def tensorboard_writer(folder: Path, step: int) -> Any:
    """A writer for TensorBoard, None where it is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step)
