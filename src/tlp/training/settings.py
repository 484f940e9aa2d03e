"""How a sequence model is trained."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from tlp.errors import TrainingError

LossName = Literal["lambdarank", "logistic", "listnet", "listmle", "approxndcg", "mse"]


@dataclass(frozen=True)
class TrainSettings:
    """Settings of a training run; the defaults are ours.

    Attributes
    ----------
    loss
        One of `tlp.ranking.losses`.
    epochs, patience
        At most; and epochs without a better validation score after which training ends.
    batch_rows, list_rows
        Programs in a batch, and in a list at most.
    within_groups
        Whether a list holds programs of one workload on one platform. Otherwise all programs are
        shuffled and each batch is one list, as TLP was published.
    learning_rate, weight_decay, clip
        Of Adam, and the largest norm of a gradient.
    schedule, warmup
        ``constant`` or ``cosine`` (down to 1 %); batches over which the rate rises.
    average
        Weights that are judged and kept: ``none`` takes the last, ``ema`` an exponential moving
        average, ``swa`` the mean over the ends of epochs from the half on (Izmailov et al., 2018).
    ema_decay
        A step's.
    criterion
        Figures of the judge whose mean on validation workloads chooses the epoch.
    dtype
        ``float32``, or ``bfloat16`` for what a step computes; weights and loss stay float32.
    device
        ``auto`` takes a GPU where there is one.
    seconds, cpu_seconds
        Budgets of time, and of processor time of all threads together; None for no limit.
    seed
        Of weights, order and lists.
    save_seconds
        How often the state is saved in the middle of an epoch.
    """

    loss: LossName = "lambdarank"
    epochs: int = 20
    patience: int = 5
    batch_rows: int = 1024
    list_rows: int = 256
    within_groups: bool = True
    learning_rate: float = 1e-3
    weight_decay: float = 1e-6
    clip: float = 0.5
    schedule: Literal["constant", "cosine"] = "cosine"
    warmup: int = 50
    average: Literal["none", "ema", "swa"] = "ema"
    ema_decay: float = 0.998
    criterion: tuple[str, ...] = ("top1_subsets", "top5_subsets")
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seconds: float | None = None
    cpu_seconds: float | None = None
    seed: int = 0
    save_seconds: float = 60.0

    def __post_init__(self) -> None:
        choices = {
            "loss": get_args(LossName),
            "schedule": ("constant", "cosine"),
            "average": ("none", "ema", "swa"),
            "dtype": ("float32", "bfloat16"),
            "device": ("auto", "cpu", "cuda"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise TrainingError(
                    f"{name} is one of {', '.join(allowed)}, not {getattr(self, name)!r}"
                )
        for name in ("epochs", "patience", "batch_rows", "learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise TrainingError(f"{name} must be positive, not {getattr(self, name)}")
        if self.list_rows < 2:
            raise TrainingError("list_rows must be at least 2: one program ranks against none")

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a checkpoint's header."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


PUBLISHED = TrainSettings(
    epochs=50,
    patience=50,
    within_groups=False,
    learning_rate=7e-4,
    schedule="constant",
    warmup=0,
    average="none",
)
"""TLP (ASPLOS'23) as its authors trained it: lists across workloads, Adam 7e-4, clip 0.5."""


def settings_for(name: str, **changes: Any) -> TrainSettings:
    """Settings with which an architecture is trained by default, with some changed."""
    return replace(PUBLISHED if name == "tlp-published" else TrainSettings(), **changes)
