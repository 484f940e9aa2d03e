"""Gradient-boosted trees on flattened sequences: the rivals of sequence models."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tlp.errors import CheckpointError, ModelError, TrainingError
from tlp.models.checkpoint import Header, load_text, save_text
from tlp.models.ranker import TREES, judged
from tlp.processes import require
from tlp.reports.progress import format_seconds

if TYPE_CHECKING:
    from tlp.training.programs import Programs

_GRADES = 256  # LightGBM's lambdarank wants integer labels
_ROWS = 16384


@dataclass(frozen=True)
class TreeProgress:
    """How many rounds are done, and how long the others take."""

    round: int
    rounds: int
    seconds_left: float

    def line(self) -> str:
        """One line."""
        return f"round {self.round}/{self.rounds}  {format_seconds(self.seconds_left)} left"


class BoostedTrees:
    """LightGBM (lambdarank or regression) or XGBoost (rank:ndcg).

    The features of a program are its encoded rows one after the other, ``[L * w]``. Gains of
    the ranking objectives are ``2^y - 1`` of the relative speed y, in 256 grades with LightGBM. Of
    the rounds, those up to the one that the judge likes best on the validation workloads are kept.

    Parameters
    ----------
    name
        ``lightgbm-rank``, ``lightgbm-regression`` or ``xgboost-rank``.
    rounds, leaves, learning_rate, feature_fraction
        As in LightGBM.
    threads
        0 for as many as the library chooses.
    judge_every
        Rounds between two judgements.
    seconds
        Time after which no more trees are grown; None for no limit.
    """

    def __init__(
        self,
        name: str,
        seed: int = 0,
        rounds: int = 300,
        leaves: int = 63,
        learning_rate: float = 0.1,
        feature_fraction: float = 0.5,
        threads: int = 0,
        judge_every: int = 25,
        seconds: float | None = None,
    ) -> None:
        self.name, self.seed, self.rounds = name, seed, rounds
        self.leaves, self.learning_rate, self.threads = leaves, learning_rate, threads
        self.feature_fraction, self.judge_every = feature_fraction, judge_every
        self.seconds = seconds
        self._xgboost = name.startswith("xgboost")
        self._library = require("xgboost" if self._xgboost else "lightgbm", "trees")
        self._booster: Any = None
        self._kept = 0
        self._shape = (0, 0)
        self._fitted: dict[str, Any] = {}

    def fit(
        self,
        programs: Programs,
        validation: Programs,
        *,
        work_dir: Path | None = None,
        on_progress: Callable[[Any], None] | None = None,
    ) -> dict[str, float]:
        """Grow trees.

        Raises
        ------
        TrainingError
            If no workload has two different latencies.
        """
        order = np.argsort(programs.groups, kind="stable")
        _, sizes = np.unique(programs.groups, return_counts=True)
        labels = programs.labels[order]
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        high, low = (f.reduceat(labels, starts) if len(labels) else 0 for f in (np.fmax, np.fmin))
        if not np.any(np.asarray(high) > np.asarray(low)):
            raise TrainingError(
                f"nothing to learn from: of {len(programs)} programs none belongs to a workload "
                "with two different latencies. Add workloads to the training part"
            )
        self._shape = (programs.indices.shape[1], programs.table.shape[1])
        grow = self._grow_xgboost if self._xgboost else self._grow_lightgbm
        best, kept, metrics = -np.inf, 0, {}
        started = time.monotonic()
        for done in grow(programs, order, labels, sizes):
            spent = time.monotonic() - started
            left = spent / done * (self.rounds - done)
            if self.seconds is not None:
                left = min(left, self.seconds - spent)
            if on_progress is not None:
                on_progress(TreeProgress(done, self.rounds, max(0.0, left)))
            if done % self.judge_every and left > 0:
                continue
            self._kept = done
            figures = judged(self, validation)
            value = (figures["top1_subsets"] + figures["top5_subsets"]) / 2 if figures else done
            if not kept or value > best:
                best, kept, metrics = value, done, figures
            if left <= 0:
                break
        self._kept = kept
        self._fitted = {"data": programs.fingerprint, "metrics": metrics}
        return metrics

    @property
    def kept(self) -> str:
        """How many rounds of trees."""
        return f"{self._kept} rounds"

    def _parameters(self) -> dict[str, Any]:
        if self._xgboost:
            return {
                "objective": "rank:ndcg",
                # Labels are the gains 2^y - 1 already.
                "ndcg_exp_gain": False,
                "tree_method": "hist",
                "grow_policy": "lossguide",
                "max_depth": 0,
                "max_leaves": self.leaves,
                "eta": self.learning_rate,
                "colsample_bynode": self.feature_fraction,
                "lambdarank_pair_method": "topk",
                "seed": self.seed,
                "nthread": self.threads,
                "verbosity": 0,
            }
        rank = self.name == "lightgbm-rank"
        gains = {"label_gain": (np.exp2(np.arange(_GRADES) / (_GRADES - 1)) - 1).tolist()}
        return {
            "objective": "lambdarank" if rank else "regression",
            **(gains if rank else {}),
            "lambdarank_truncation_level": 100,
            "num_leaves": self.leaves,
            "learning_rate": self.learning_rate,
            "feature_fraction": self.feature_fraction,
            "num_threads": self.threads,
            "seed": self.seed,
            "deterministic": True,
            "force_row_wise": True,
            "verbosity": -1,
        }

    def _grow_lightgbm(
        self, programs: Programs, order: Any, labels: Any, sizes: Any
    ) -> Iterator[int]:
        rank = self.name == "lightgbm-rank"
        data = self._library.Dataset(
            _sparse(programs, order),
            _grades(labels) if rank else labels,
            group=sizes if rank else None,
            params={"verbosity": -1, "num_threads": self.threads},
            free_raw_data=True,
        )
        self._booster = self._library.Booster(self._parameters(), data)
        for done in range(1, self.rounds + 1):
            self._booster.update()
            yield done

    def _grow_xgboost(
        self, programs: Programs, order: Any, labels: Any, sizes: Any
    ) -> Iterator[int]:
        # Whole workloads at a time: all rows at once would be many times the data set.
        ends = np.cumsum(sizes)
        cuts = np.searchsorted(ends, np.arange(_ROWS, ends[-1], _ROWS))
        bounds = np.unique([0, *ends[cuts].tolist(), ends[-1]])
        numbers = np.repeat(np.arange(len(sizes)), sizes)

        class Parts(self._library.DataIter):  # type: ignore[name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.at = 0

            def next(self, input_data: Callable[..., Any]) -> bool:
                if self.at == len(bounds) - 1:
                    return False
                part = slice(bounds[self.at], bounds[self.at + 1])
                rows = order[part]
                input_data(
                    data=_flat(programs.table, programs.indices[rows], programs.mask[rows]),
                    label=np.exp2(labels[part]) - 1,
                    qid=numbers[part],
                )
                self.at += 1
                return True

            def reset(self) -> None:
                self.at = 0

        data = self._library.QuantileDMatrix(Parts(), nthread=self.threads or None)
        self._booster = self._library.Booster(self._parameters(), [data])
        for done in range(1, self.rounds + 1):
            self._booster.update(data, done - 1)
            yield done

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
        if self._booster is None:
            raise ModelError(f"{self.name} has not learned anything yet: fit or load it first")
        if (indices.shape[1], table.shape[1]) != self._shape:
            raise ModelError(
                f"{self.name} reads {self._shape[0]} primitives of {self._shape[1]} numbers, got "
                f"{indices.shape[1]} of {table.shape[1]}. Encode with the model's own encoding"
            )
        scores = np.zeros(len(indices), np.float32)
        for start in range(0, len(indices), _ROWS):
            part = slice(start, start + _ROWS)
            flat = _flat(table, indices[part], mask[part])
            if self._xgboost:
                scores[part] = self._booster.inplace_predict(flat, iteration_range=(0, self._kept))
            else:
                scores[part] = self._booster.predict(
                    flat, num_iteration=self._kept, num_threads=self.threads
                )
        return scores

    def save(self, path: Path, header: Header) -> None:
        """Write the trees that were kept, under a header."""
        if self._booster is None:
            raise ModelError(f"{self.name} has not learned anything yet: fit it first")
        length, features = self._shape
        header = replace(
            header,
            model=self.name,
            architecture={"length": length, "features": features, "rounds": self._kept},
            training={**self._parameters(), "rounds": self.rounds, **header.training},
            **self._fitted,
        )
        if self._xgboost:
            text = self._booster[: self._kept].save_raw("json").decode()
        else:
            text = self._booster.model_to_string(num_iteration=self._kept)
        save_text(path, header, text)

    @classmethod
    def load(cls, path: Path) -> tuple[BoostedTrees, Header]:
        """Trees ready to score.

        Raises
        ------
        CheckpointError
            If the file is damaged, of a newer format, or its library does not read it.
        """
        header, text = load_text(path)
        if header.model not in TREES:
            raise CheckpointError(f"{path}: {header.model!r} is none of {', '.join(TREES)}")
        trees = cls(header.model)
        try:
            if trees._xgboost:
                trees._booster = trees._library.Booster(model_file=bytearray(text.encode()))
            else:
                with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
                    file.write(text)
                    file.flush()
                    trees._booster = trees._library.Booster(model_file=file.name)
            sizes = header.architecture
            trees._shape = (int(sizes["length"]), int(sizes["features"]))
            trees._kept = int(sizes["rounds"])
        except (KeyError, TypeError, ValueError, trees._library_error) as error:
            raise CheckpointError(
                f"{path}: {header.model} cannot read its trees: {error}"
            ) from error
        trees._fitted = {"data": header.data, "metrics": header.metrics}
        return trees, header

    @property
    def _library_error(self) -> type[Exception]:
        library = self._library
        found: type[Exception] = (
            library.core.XGBoostError if self._xgboost else library.basic.LightGBMError
        )
        return found


def _grades(labels: npt.NDArray[np.float64]) -> npt.NDArray[np.int32]:
    return np.round(labels * (_GRADES - 1)).astype(np.int32)


def _sparse(programs: Programs, order: npt.NDArray[Any]) -> Any:
    """What `_flat` gives for rows in an order, as a sparse matrix (``scipy.sparse.csr_matrix``).

    Most columns of a primitive's row are zero: for all rows at once, the dense form is several
    times as large. What is copied are ranges of the table's own sparse form.
    """
    sparse = require("scipy.sparse", "trees")
    table, indices, mask = programs.table, programs.indices, programs.mask
    own = sparse.csr_matrix(table)
    counts = np.diff(own.indptr)
    sizes = np.zeros(len(indices), np.int64)
    for start in range(0, len(order), _ROWS):
        part = order[start : start + _ROWS]
        sizes[start : start + _ROWS] = np.where(
            mask[part], counts[np.where(mask[part], indices[part], 0)], 0
        ).sum(1)
    ends = np.concatenate([[0], np.cumsum(sizes)])
    values, columns = np.empty(ends[-1], np.float32), np.empty(ends[-1], np.int32)
    for start in range(0, len(order), _ROWS):
        part = order[start : start + _ROWS]
        slots = np.nonzero(mask[part])[1]
        found = indices[part][mask[part]]
        lengths = counts[found]
        before = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(own.indptr[found] - before[:-1], lengths) + np.arange(before[-1])
        target = slice(ends[start], ends[start + len(part)])
        values[target] = own.data[places]
        columns[target] = own.indices[places] + np.repeat(slots * table.shape[1], lengths)
    shape = (len(order), mask.shape[1] * table.shape[1])
    return sparse.csr_matrix((values, columns, ends), shape=shape)


def _flat(
    table: npt.NDArray[np.float32], indices: npt.NDArray[Any], mask: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float32]:
    """Encoded rows one after the other, ``float32 [n, L * w]``; padding is zero."""
    whole = np.concatenate([table, np.zeros((1, table.shape[1]), np.float32)])
    gathered = whole[np.where(mask, indices, len(table))]
    return gathered.reshape(len(indices), -1)
