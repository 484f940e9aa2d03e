"""The interface between the search and whatever ranks candidates."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from tlp.tuning.space import DecisionSpace, Rows

Scores = npt.NDArray[np.float32]


class Scorer(Protocol):
    """Ranks candidates of a task before they are replayed.

    Scores compare within one task only; higher is better.
    """

    name: str

    def learn(
        self,
        task: str,
        space: DecisionSpace,
        rows: Rows,
        latencies: npt.NDArray[np.float64],
        seconds: npt.NDArray[np.float64],
    ) -> None:
        """Take in all rows of a task measured so far.

        Parameters
        ----------
        rows
            ``int32 [n, 1 + d]``.
        latencies
            Seconds, ``float64 [n]``; infinite where the candidate failed.
        seconds
            What it took to replay, build and run each, ``float64 [n]``.
        """

    def knows(self, task: str) -> bool:
        """Whether scores of this task mean anything yet."""

    def score(self, task: str, space: DecisionSpace, rows: Rows) -> Scores:
        """Score rows, ``float32 [n]``."""


class RandomScorer:
    """Scores at random: uniform sampling as a contender."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def learn(
        self,
        task: str,
        space: DecisionSpace,
        rows: Rows,
        latencies: npt.NDArray[np.float64],
        seconds: npt.NDArray[np.float64],
    ) -> None:
        """Nothing to learn."""

    def knows(self, task: str) -> bool:
        """Never: picks stay uniform."""
        return False

    def score(self, task: str, space: DecisionSpace, rows: Rows) -> Scores:
        """Random scores, ``float32 [n]``."""
        return self._rng.random(len(rows), dtype=np.float32)
