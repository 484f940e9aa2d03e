"""Sequence models behind the interface of rankers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from tlp.errors import CheckpointError, ModelError
from tlp.models.checkpoint import Header, load_tensors, parse_header, save_tensors
from tlp.models.config import SequenceConfig, architecture
from tlp.models.scoring import score_sequences
from tlp.models.sequence import SequenceModel
from tlp.training.settings import TrainSettings, settings_for

if TYPE_CHECKING:
    from tlp.training.programs import Programs


class NetworkRanker:
    """A sequence model, how it is trained, and its checkpoint."""

    def __init__(
        self, name: str, config: SequenceConfig, settings: TrainSettings | None = None
    ) -> None:
        self.name, self.config = name, config
        self.settings = settings or settings_for(name)
        self.model: SequenceModel | None = None
        self.kept = "nothing"
        self._fitted: dict[str, Any] = {}

    @classmethod
    def named(cls, name: str, **options: Any) -> NetworkRanker:
        """An architecture with its default settings, some fields of either changed.

        Raises
        ------
        ModelError
            If the name or a field is unknown.
        """
        training = {field.name for field in fields(TrainSettings)}
        changes = {k: v for k, v in options.items() if k not in training}
        settings = settings_for(name, **{k: v for k, v in options.items() if k in training})
        return cls(name, architecture(name, **changes), settings)

    def fit(
        self,
        programs: Programs,
        validation: Programs,
        *,
        work_dir: Path | None = None,
        on_progress: Callable[[Any], None] | None = None,
    ) -> dict[str, float]:
        """Train a new model (`tlp.training.trainer.train`)."""
        from tlp.training.trainer import train

        width, length = programs.table.shape[1], programs.indices.shape[1]
        self.model = SequenceModel(self.config, width, length, self.settings.seed)
        done = train(
            self.model,
            programs,
            validation,
            self.settings,
            work_dir=work_dir,
            on_progress=on_progress,
        )
        self.kept = f"epoch {done.best_epoch} of {len(done.history)}"
        self._fitted = {"data": programs.fingerprint, "metrics": done.metrics}
        return done.metrics

    def score(
        self,
        table: npt.NDArray[np.float32],
        indices: npt.NDArray[np.integer[Any]],
        mask: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.float32]:
        """Scores ``float32 [n]``.

        Raises
        ------
        ModelError
            If the model has not learned, or reads rows or sequences of another size.
        """
        model = self._learned()
        length = indices.shape[1]
        # Padding counts where it is not masked: a shorter sequence is another one.
        fits = length <= model.length if self.config.masked else length == model.length
        if table.shape[1] != model.features or not fits:
            raise ModelError(
                f"{self.name} reads {model.length} primitives of {model.features} numbers, got "
                f"{length} of {table.shape[1]}. Encode with the model's own encoding"
            )
        return score_sequences(model, table, indices, mask)

    def _learned(self) -> SequenceModel:
        if self.model is None:
            raise ModelError(f"{self.name} has not learned anything yet: fit or load it first")
        return self.model

    def save(self, path: Path, header: Header) -> None:
        """Write a checkpoint; architecture, settings, data and metrics are filled in."""
        model = self._learned()
        sizes = {"features": model.features, "length": model.length}
        header = replace(
            header,
            model=self.name,
            architecture={**self.config.to_json(), **sizes},
            training={**self.settings.to_json(), **header.training},
            **self._fitted,
        )
        weights = {k: v.detach().cpu().numpy() for k, v in model.state_dict().items()}
        save_tensors(path, header.to_json(), weights)

    @classmethod
    def load(cls, path: Path) -> tuple[NetworkRanker, Header]:
        """A model ready to score, on the CPU.

        Raises
        ------
        CheckpointError
            If the file is damaged, of a newer format, or its tensors do not fit its header.
        """
        content, arrays = load_tensors(path)
        header = parse_header(content, path)
        sizes = dict(header.architecture)
        try:
            features, length = int(sizes.pop("features")), int(sizes.pop("length"))
            ranker = cls(header.model, SequenceConfig.from_json(sizes))
            model = SequenceModel(ranker.config, features, length)
            model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in arrays.items()})
        except (KeyError, ValueError, TypeError, RuntimeError, ModelError) as error:
            text = str(error).splitlines()
            raise CheckpointError(
                f"{path}: the weights are not those of the architecture in the header "
                f"({'; '.join(line.strip() for line in text[:4])})"
            ) from error
        ranker.model = model.eval()
        ranker._fitted = {"data": header.data, "metrics": header.metrics}
        return ranker, header
