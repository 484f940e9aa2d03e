"""Gradient-boosted trees on decision rows, learned during the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tlp.models.labels import labels
from tlp.models.scorer import Scores
from tlp.processes import require
from tlp.tuning.space import DecisionSpace, Rows


class OnlineTrees:
    """One small LightGBM regressor a task, fitted anew after each round.

    Parameters
    ----------
    seed
        Of the row and feature sampling.
    rounds, leaves, learning_rate
        As in LightGBM.
    """

    name = "trees"

    def __init__(
        self,
        seed: int = 0,
        rounds: int = 80,
        leaves: int = 12,
        learning_rate: float = 0.12,
    ) -> None:
        self._lightgbm: Any = require("lightgbm", "tune")
        self._rounds = rounds
        self._parameters = {
            "objective": "regression",
            "num_leaves": leaves,
            "learning_rate": learning_rate,
            "min_data_in_leaf": 3,
            "min_data_in_bin": 1,
            "feature_fraction": 0.6,
            "bagging_fraction": 0.8,
            "bagging_freq": 1,
            "lambda_l2": 0.5,
            # A round fits a few hundred rows: threads would wait for each other, and for whatever
            # else runs on their cores, far longer than one needs for the work.
            "num_threads": 1,
            "seed": seed,
            "deterministic": True,
            "force_row_wise": True,
            "verbosity": -1,
        }
        self._boosters: dict[str, Any] = {}

    def learn(
        self,
        task: str,
        space: DecisionSpace,
        rows: Rows,
        latencies: npt.NDArray[np.float64],
        seconds: npt.NDArray[np.float64],
    ) -> None:
        """Fit the task's model on all its rows; with nothing to tell apart it stays unknown."""
        targets = labels(latencies)
        if len(rows) < 6 or np.ptp(targets) < 1e-9:
            return
        # The fast half decides the race: weigh rows by how near they are to the best.
        weights = 0.2 + np.exp2(targets)
        data = self._lightgbm.Dataset(space.encode(rows), targets, weight=weights)
        self._boosters[task] = self._lightgbm.train(self._parameters, data, self._rounds)

    def knows(self, task: str) -> bool:
        """Whether the task has a fitted model."""
        return task in self._boosters

    def score(self, task: str, space: DecisionSpace, rows: Rows) -> Scores:
        """Predicted log2(best / latency), ``float32 [n]``; zeros for an unknown task."""
        booster = self._boosters.get(task)
        if booster is None or not len(rows):
            return np.zeros(len(rows), np.float32)
        features = space.encode(rows)
        # A location brought back by a replay may have added a column since the last fit.
        return np.asarray(booster.predict(features[:, : booster.num_feature()]), dtype=np.float32)
