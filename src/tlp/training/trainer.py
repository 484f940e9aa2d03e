"""The trainer of sequence models."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tlp.errors import TrainingError
from tlp.models.scoring import score_sequences
from tlp.models.sequence import SequenceModel
from tlp.processes import deferred_interrupt
from tlp.ranking.judge import judge
from tlp.ranking.losses import LOSSES
from tlp.training.batches import Batch, make_batches, occurring, useful_rows
from tlp.training.distributed import World, joined
from tlp.training.logs import Progress, tensorboard_writer, write_csv
from tlp.training.programs import Programs
from tlp.training.settings import TrainSettings
from tlp.training.state import Position, Weights, load_state, save_state

_MOST_SKIPPED = 20


@dataclass(frozen=True)
class Trained:
    """What a run came to.

    Attributes
    ----------
    metrics
        The judge's figures of the epoch that was kept; empty without validation workloads.
    best_epoch
        The epoch whose weights were kept, from 1.
    history
        A row an epoch: loss, figures, seconds of processor time.
    """

    metrics: dict[str, float]
    best_epoch: int
    history: list[dict[str, float | None]]


def choose_device(name: str) -> torch.device:
    """The device of a setting.

    Raises
    ------
    TrainingError
        If a GPU is asked for and there is none.
    """
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise TrainingError("device cuda: PyTorch finds no GPU here. Use device cpu, or auto")
    return torch.device("cuda" if name != "cpu" and there else "cpu")


def train(
    model: SequenceModel,
    programs: Programs,
    validation: Programs,
    settings: TrainSettings,
    *,
    work_dir: Path | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Trained:
    """Train a model in place; it ends with the weights that the judge liked best.

    Parameters
    ----------
    programs, validation
        Of different workloads. Without any validation programs all epochs are run and the last
        weights are kept.
    work_dir
        Folder for the state, ``training.csv`` and TensorBoard's files. A run that was stopped there
        goes on where it was, and ends with the same weights as one that was not.
    on_progress
        Called after every step.

    Raises
    ------
    TrainingError
        If there is nothing to learn from, the loss stays not finite, or the folder belongs to
        another run.
    """
    rows = useful_rows(programs.labels, programs.groups, settings)
    if not len(rows):
        raise TrainingError(
            f"nothing to learn from: of {len(programs)} programs none belongs to a workload with "
            "two different latencies. Add workloads to the training part"
        )
    device = choose_device(settings.device)
    with joined(device) as world, deferred_interrupt() as interrupt:
        run = _Run(model, programs, validation, settings, rows, device, world, work_dir)
        try:
            while not run.position.done:
                run.epoch(interrupt.check, on_progress)
        except KeyboardInterrupt:
            run.save()
            raise
        return run.finish()


class _Run:
    """A run: weights, their average, the best of them, and the position."""

    def __init__(
        self,
        model: SequenceModel,
        programs: Programs,
        validation: Programs,
        settings: TrainSettings,
        rows: npt.NDArray[np.int64],
        device: torch.device,
        world: World,
        work_dir: Path | None,
    ) -> None:
        self.model = model.to(device)
        self.programs, self.validation, self.settings = programs, validation, settings
        self.rows, self.device, self.world, self.work_dir = rows, device, world, work_dir
        self.loss = LOSSES[settings.loss]
        self.table = torch.from_numpy(np.asarray(programs.table, np.float32)).to(device)
        self.labels = torch.from_numpy(np.asarray(programs.labels, np.float32)).to(device)
        self.optimizer = torch.optim.Adam(
            model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        self.position = Position()
        self.average = _copy(model.state_dict())
        self.best = _copy(self.average)
        self.batches_an_epoch = len(self._batches(0))
        self.identity = {
            **{
                f"setting {k}": v
                for k, v in settings.to_json().items()
                if k not in ("save_seconds", "device")
            },
            **{f"architecture's {k}": v for k, v in model.config.to_json().items()},
            "data": programs.fingerprint,
            "validation": validation.fingerprint,
            "processes": world.size,
        }
        if self.state_path is not None and self.state_path.exists():
            self._resume(self.state_path)
        self.began = self.saved = time.monotonic()
        # Of the whole run, with what was spent before it was stopped.
        self.started = self.began - self.position.seconds
        self.cpu_started = time.process_time() - self.position.cpu_seconds
        self.seen = 0

    @property
    def state_path(self) -> Path | None:
        return None if self.work_dir is None else self.work_dir / "training.safetensors"

    def _resume(self, path: Path) -> None:
        self.position, parts = load_state(path, self.identity, self.optimizer)
        self.model.load_state_dict(parts["model"])
        self.average = {k: v.to(self.device) for k, v in parts["average"].items()}
        self.best = {k: v.to(self.device) for k, v in parts["best"].items()}

    def save(self) -> None:
        """Write the state, where there is a folder for it."""
        self.position.seconds = time.monotonic() - self.started
        self.position.cpu_seconds = time.process_time() - self.cpu_started
        if self.state_path is not None and self.world.leads:
            parts = {"model": self.model.state_dict(), "average": self.average, "best": self.best}
            save_state(self.state_path, self.identity, self.position, parts, self.optimizer)
        self.saved = time.monotonic()

    def _batches(self, epoch: int) -> list[Batch]:
        return make_batches(self.rows, self.programs.groups, self.settings, epoch)

    def epoch(
        self, check: Callable[[], None], on_progress: Callable[[Progress], None] | None
    ) -> None:
        """Go on to the end of the epoch, judge, and decide whether it was the last."""
        position = self.position
        batches = self._batches(position.epoch)
        over = False
        while position.batch < len(batches) and not over:
            check()
            self.model.train()
            self._step(batches[position.batch])
            position.batch += 1
            if on_progress is not None and self.world.leads:
                on_progress(self._progress(len(batches)))
            if time.monotonic() - self.saved > self.settings.save_seconds:
                self.save()
            over = self.world.share(self._budget_left() <= 0)
        self._end_epoch(over)
        self.save()

    def _step(self, batch: Batch) -> None:
        position, settings = self.position, self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate()
        self.optimizer.zero_grad(set_to_none=True)
        share = batch.share(self.world.rank, self.world.size)
        loss = torch.zeros((), device=self.device)
        if len(share.rows):
            loss = self._loss(share) / batch.list_count
            loss.backward()
        value = float(self.world.sum_gradients(self.model, loss.detach()))
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip))
        position.step += 1
        if not (math.isfinite(value) and math.isfinite(norm)):
            # One such batch must not spoil all weights; many mean that they are spoilt.
            position.skipped += 1
            if position.skipped >= _MOST_SKIPPED:
                raise _not_finite(
                    f"{_MOST_SKIPPED} batches on end (epoch {position.epoch + 1}, step "
                    f"{position.step})"
                )
            return
        position.skipped = 0
        self.optimizer.step()
        position.loss_sum += value
        position.loss_count += 1
        self.seen += len(batch.rows)
        if settings.average != "swa":
            decay = min(settings.ema_decay, (1 + position.step) / (10 + position.step))
            self._move_average(1.0 if settings.average == "none" else 1 - decay)

    def _loss(self, batch: Batch) -> torch.Tensor:
        """Sum of the losses of a batch's lists."""
        rows = batch.rows
        mask = self.programs.mask[rows]
        # Only primitives that occur are computed.
        needed, indices = occurring(len(self.table), self.programs.indices[rows], mask)
        table = self.table[torch.from_numpy(needed).to(self.device)]
        half = self.settings.dtype == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            scores = self.model(
                table,
                torch.from_numpy(indices).to(self.device),
                torch.from_numpy(mask).to(self.device),
            )
        labels = self.labels[torch.from_numpy(rows).to(self.device)]
        groups = torch.from_numpy(batch.lists)
        return self.loss(scores.float(), labels, groups=groups, reduction="none").sum()

    def _learning_rate(self) -> float:
        settings, step = self.settings, self.position.step
        rate = settings.learning_rate * min(1.0, (step + 1) / max(1, settings.warmup))
        if settings.schedule == "constant":
            return rate
        done = min(1.0, step / (settings.epochs * self.batches_an_epoch))
        return rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))

    def _move_average(self, weight: float) -> None:
        with torch.no_grad():
            for name, values in self.model.state_dict().items():
                self.average[name].lerp_(values, weight)

    def _budget_left(self) -> float:
        """Seconds, or seconds of processor time where fewer of them are left."""
        settings = self.settings
        left = math.inf
        if settings.seconds is not None:
            left = settings.seconds - (time.monotonic() - self.started)
        if settings.cpu_seconds is not None:
            left = min(left, settings.cpu_seconds - (time.process_time() - self.cpu_started))
        return left

    def _end_epoch(self, over: bool) -> None:
        position, settings = self.position, self.settings
        if not position.loss_count:
            raise _not_finite(f"any batch of epoch {position.epoch + 1}")
        if settings.average == "swa":
            averaging = 2 * (position.epoch + 1) > settings.epochs
            position.averaged += averaging
            self._move_average(1 / position.averaged if averaging else 1.0)
        figures = self.world.share(self._judged() if self.world.leads else {})
        row: dict[str, float | None] = {
            "epoch": position.epoch + 1,
            "step": position.step,
            "loss": position.loss_sum / position.loss_count,
            "cpu_seconds": round(time.process_time() - self.cpu_started, 3),
            **{k: v if math.isfinite(v) else None for k, v in figures.items()},
        }
        position.history.append(row)
        known = [figures[name] for name in settings.criterion if name in figures]
        value = sum(known) / len(known) if known else math.nan
        if math.isnan(value) or position.best is None or value > position.best:
            position.best = None if math.isnan(value) else value
            position.best_epoch, position.stale = position.epoch, 0
            self.best = _copy(self.average)
        else:
            position.stale += 1
        position.epoch, position.batch = position.epoch + 1, 0
        position.loss_sum, position.loss_count = 0.0, 0
        ended = over or position.epoch >= settings.epochs or position.stale >= settings.patience
        position.done = self.world.share(ended)
        self._log(row)

    def _judged(self) -> dict[str, float]:
        if not len(self.validation):
            return {}
        own = _copy(self.model.state_dict())
        self.model.load_state_dict(self.average)
        data = self.validation
        scores = score_sequences(self.model, data.table, data.indices, data.mask)
        self.model.load_state_dict(own)
        figures = judge(scores, data.latencies, data.groups, weights=data.weights).summary()
        if wrong := sorted(set(self.settings.criterion) - set(figures)):
            raise TrainingError(
                f"criterion: the judge knows no {', '.join(wrong)}; it has {', '.join(figures)}"
            )
        return figures

    def _log(self, row: dict[str, float | None]) -> None:
        if self.work_dir is None or not self.world.leads:
            return
        write_csv(self.work_dir / "training.csv", self.position.history)
        writer = tensorboard_writer(self.work_dir / "tensorboard", self.position.step)
        if writer is not None:
            with contextlib.closing(writer):
                for name, value in row.items():
                    if value is not None:
                        writer.add_scalar(name, value, self.position.step)

    def _progress(self, batches: int) -> Progress:
        position = self.position
        spent = max(1e-9, time.monotonic() - self.began)
        rate = self.seen / spent
        left = self.settings.epochs - position.epoch - position.batch / batches
        figures = position.history[-1] if position.history else {}
        return Progress(
            epoch=position.epoch + 1,
            epochs=self.settings.epochs,
            loss=position.loss_sum / max(1, position.loss_count),
            figures={k: v for k, v in figures.items() if v is not None},
            rows_per_second=rate,
            seconds_left=max(
                0.0, min(left * len(self.rows) / max(1e-9, rate), self._budget_left())
            ),
        )

    def finish(self) -> Trained:
        """Give the model the weights that were kept."""
        position = self.position
        self.model.load_state_dict(self.best)
        self.model.eval()
        kept = position.history[position.best_epoch]
        skip = ("epoch", "step", "loss", "cpu_seconds")
        metrics: dict[str, Any] = {
            k: math.nan if v is None else v for k, v in kept.items() if k not in skip
        }
        return Trained(metrics, position.best_epoch + 1, position.history)


def _not_finite(where: str) -> TrainingError:
    return TrainingError(
        f"the loss was not finite in {where}. Lower the learning rate, or train in float32"
    )


def _copy(weights: dict[str, Any]) -> Weights:
    return {name: values.detach().clone() for name, values in weights.items()}
