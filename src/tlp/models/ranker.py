"""Models that learn to rank programs from a data set: one interface, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from tlp.errors import ModelError
from tlp.models.checkpoint import Header, is_text
from tlp.models.config import ARCHITECTURES

if TYPE_CHECKING:
    from tlp.training.programs import Programs

Scores = npt.NDArray[np.float32]
TREES = ("lightgbm-rank", "lightgbm-regression", "xgboost-rank")
NAMES = (*ARCHITECTURES, *TREES, "random")


class Ranker(Protocol):
    """Ranks encoded programs.

    Scores compare within one workload on one platform only; higher is better.
    """

    name: str

    @property
    def kept(self) -> str:
        """What training ended with, for people: ``epoch 3``."""

    def fit(
        self,
        programs: Programs,
        validation: Programs,
        *,
        work_dir: Path | None = None,
        on_progress: Callable[[Any], None] | None = None,
    ) -> dict[str, float]:
        """Learn, and return the judge's figures on the validation workloads.

        Parameters
        ----------
        work_dir
            Where state and logs are kept, and a stopped run goes on.
        on_progress
            Called now and then with an object that has a method ``line()``.
        """

    def score(
        self,
        table: npt.NDArray[np.float32],
        indices: npt.NDArray[np.integer[Any]],
        mask: npt.NDArray[np.bool_],
    ) -> Scores:
        """Scores ``float32 [n]`` of ``table [d, w]``, ``indices [n, L]``, ``mask [n, L]``."""

    def save(self, path: Path, header: Header) -> None:
        """Write a checkpoint; the model fills in its own part of the header."""


class RandomRanker:
    """Scores at random, the same for the same seed."""

    name = "random"
    kept = "nothing"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fit(
        self,
        programs: Programs,
        validation: Programs,
        *,
        work_dir: Path | None = None,
        on_progress: Callable[[Any], None] | None = None,
    ) -> dict[str, float]:
        """Nothing to learn."""
        return judged(self, validation)

    def score(
        self,
        table: npt.NDArray[np.float32],
        indices: npt.NDArray[np.integer[Any]],
        mask: npt.NDArray[np.bool_],
    ) -> Scores:
        """Random scores, ``float32 [n]``."""
        return np.random.default_rng(self.seed).random(len(indices), dtype=np.float32)

    def save(self, path: Path, header: Header) -> None:
        """Refused: there is nothing to keep."""
        raise ModelError("the random model has nothing to save")


def judged(ranker: Ranker, validation: Programs) -> dict[str, float]:
    """The judge's figures of a model; none without validation programs."""
    from tlp.ranking.judge import judge

    if not len(validation):
        return {}
    scores = ranker.score(validation.table, validation.indices, validation.mask)
    return judge(
        scores, validation.latencies, validation.groups, weights=validation.weights
    ).summary()


def make_ranker(name: str, **options: Any) -> Ranker:
    """A model that has not learned yet.

    Parameters
    ----------
    name
        One of `NAMES`.
    options
        Fields of `tlp.models.config.SequenceConfig` and `tlp.training.settings.TrainSettings` for
        networks, of `tlp.models.boosted.BoostedTrees` for trees; ``seed`` for all.

    Raises
    ------
    ModelError
        If the name or an option is unknown.
    """
    if name == "random":
        return RandomRanker(**_known(name, RandomRanker, options))
    if name in TREES:
        from tlp.models.boosted import BoostedTrees

        return BoostedTrees(name, **_known(name, BoostedTrees, options))
    if name in ARCHITECTURES:
        from tlp.processes import require

        require("torch", "torch")
        from tlp.models.network import NetworkRanker

        return NetworkRanker.named(name, **options)
    raise ModelError(f"unknown model {name!r}; there are {', '.join(NAMES)}")


def _known(name: str, kind: type, options: dict[str, Any]) -> dict[str, Any]:
    """The options, if the model takes them all."""
    known = set(inspect.signature(kind).parameters) - {"name"}
    if wrong := sorted(set(options) - known):
        raise ModelError(
            f"{name} has no {', '.join(wrong)}; what can be set is {', '.join(sorted(known))}"
        )
    return options


def load_ranker(path: Path) -> tuple[Ranker, Header]:
    """A model from its checkpoint, and the header.

    Raises
    ------
    CheckpointError
        If the file is missing, damaged or of a newer format.
    """
    if is_text(path):
        from tlp.models.boosted import BoostedTrees

        return BoostedTrees.load(path)
    from tlp.processes import require

    require("torch", "torch")
    from tlp.models.network import NetworkRanker

    return NetworkRanker.load(path)
