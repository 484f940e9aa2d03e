"""Gaussian processes on decision rows, learned during the run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tlp.models.labels import labels
from tlp.models.scorer import Scores
from tlp.processes import require
from tlp.tuning.space import DecisionSpace, Rows

Matrix = npt.NDArray[np.float64]

_ROOT5 = float(np.sqrt(5.0))
_JITTER = 1e-6
# Priors over log length scales (of standardised features) and log noise, as mean and deviation.
_SCALE_PRIOR = (1.0, 1.0)
_NOISE_PRIOR = (-3.0, 1.0)


def _matern(squared: Matrix) -> Matrix:
    """Matern kernel, nu = 5/2, of squared distances."""
    distance = np.sqrt(squared)
    return (1 + _ROOT5 * distance + 5 / 3 * squared) * np.exp(-_ROOT5 * distance)


def _squared_distances(first: Matrix, second: Matrix) -> Matrix:
    squared = (first**2).sum(1)[:, None] + (second**2).sum(1)[None] - 2 * first @ second.T
    return np.maximum(squared, 0)


class GaussianProcess:
    """Regression with one length scale a feature, found by maximum a posteriori.

    Matern-5/2 kernel; the output scale is profiled out, and a prior on the length scales keeps
    thirty of them meaningful with ten samples. Rasmussen and Williams, Gaussian Processes for
    Machine Learning, sections 2.2, 4.2 and 5.4.

    Parameters
    ----------
    iterations
        Of L-BFGS, at most.
    """

    def __init__(self, iterations: int = 30) -> None:
        self._iterations = iterations
        self._parameters: npt.NDArray[np.float64] | None = None

    def fit(self, features: Matrix, targets: Matrix, optimise: bool = True) -> None:
        """Fit to ``features [n, d]`` and ``targets [n]``.

        Parameters
        ----------
        optimise
            Look for better length scales; otherwise those of the last fit are kept.
        """
        linalg = require("scipy.linalg", "tune")
        width = features.shape[1]
        self._mean, self._deviation = float(targets.mean()), float(targets.std()) + 1e-9
        scaled = (targets - self._mean) / self._deviation
        known = self._parameters is not None and len(self._parameters) == width + 1
        start = self._parameters if known else None
        if start is None:
            start = np.append(np.full(width, _SCALE_PRIOR[0]), _NOISE_PRIOR[0])
        if optimise or not known:
            squares = ((features[:, None, :] - features[None, :, :]) ** 2).reshape(-1, width)
            bounds = [(-2.0, 8.0)] * width + [(-7.0, 1.0)]
            start = (
                require("scipy.optimize", "tune")
                .minimize(
                    _loss,
                    start,
                    args=(squares, scaled),
                    jac=True,
                    method="L-BFGS-B",
                    bounds=bounds,
                    options={"maxiter": self._iterations},
                )
                .x
            )
        self._parameters = start
        self._inverse_scales = np.exp(-start[:width])
        self._features = features * self._inverse_scales
        kernel = _matern(_squared_distances(self._features, self._features))
        kernel[np.diag_indices_from(kernel)] += np.exp(start[width]) + _JITTER
        self._factor = linalg.cholesky(kernel, lower=True)
        self._weights = linalg.cho_solve((self._factor, True), scaled)
        self._scale = _output_scale(scaled, self._weights)

    def predict(self, features: Matrix) -> Matrix:
        """Posterior mean at ``features [m, d]``: ``[m]``."""
        return self._posterior_mean(self._near(features))

    def predict_with_deviation(self, features: Matrix) -> tuple[Matrix, Matrix]:
        """Posterior mean and standard deviation, without the noise, at ``features [m, d]``."""
        near = self._near(features)
        solve = require("scipy.linalg", "tune").solve_triangular
        explained = (solve(self._factor, near.T, lower=True, check_finite=False) ** 2).sum(0)
        deviation = np.sqrt(self._scale * np.maximum(1 - explained, 0)) * self._deviation
        return self._posterior_mean(near), deviation

    def _near(self, features: Matrix) -> Matrix:
        return _matern(_squared_distances(features * self._inverse_scales, self._features))

    def _posterior_mean(self, near: Matrix) -> Matrix:
        return np.asarray(near @ self._weights * self._deviation + self._mean)


def _output_scale(targets: Matrix, solved: Matrix) -> float:
    """Variance of the process that fits best, ``y' K^-1 y / n``.

    One pseudo-observation of unit scale keeps it away from zero.
    """
    return float((targets @ solved + 1) / (len(targets) + 1))


def _loss(parameters: Matrix, squares: Matrix, targets: Matrix) -> tuple[float, Matrix]:
    """Negative log posterior, up to a constant, and its gradient.

    Parameters
    ----------
    parameters
        Log length scales ``[d]`` and the log noise.
    squares
        Squared differences of each feature, ``[n * n, d]``.
    """
    linalg = require("scipy.linalg", "tune")
    width, count = squares.shape[1], len(targets)
    weights = np.exp(-2 * parameters[:width])
    noise = np.exp(parameters[width])
    squared = (squares @ weights).reshape(count, count)
    distance = np.sqrt(squared + 1e-12)
    decay = np.exp(-_ROOT5 * distance)
    kernel = (1 + _ROOT5 * distance + 5 / 3 * squared) * decay
    kernel[np.diag_indices_from(kernel)] += noise + _JITTER
    factor = linalg.cho_factor(kernel, lower=True)
    solved = linalg.cho_solve(factor, targets)
    scale = _output_scale(targets, solved)
    loss = 0.5 * (count + 1) * np.log(scale) + np.log(np.diag(factor[0])).sum()
    by_kernel = 0.5 * (linalg.cho_solve(factor, np.eye(count)) - np.outer(solved, solved) / scale)
    by_square = by_kernel * (-5 / 6 * (1 + _ROOT5 * distance) * decay)
    gradient = np.empty_like(parameters)
    gradient[:width] = (by_square.reshape(-1) @ squares) * weights * -2
    gradient[width] = np.trace(by_kernel) * noise
    prior = (np.full(width, _SCALE_PRIOR[0]), np.full(width, _SCALE_PRIOR[1]))
    means = np.append(prior[0], _NOISE_PRIOR[0])
    deviations = np.append(prior[1], _NOISE_PRIOR[1])
    off = (parameters - means) / deviations
    return float(loss + 0.5 * off @ off), gradient + off / deviations


@dataclass
class _Fitted:
    shift: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]
    speed: GaussianProcess
    cost: GaussianProcess
    optimised_at: int = 0


class OnlineProcess:
    """Two Gaussian processes a task: how fast a candidate is, and how long measuring it takes.

    The score is the predicted log2(best / latency), plus ``curiosity`` times its standard
    deviation (the upper confidence bound of Srinivas et al., ICML'10), minus ``thrift`` times the
    predicted log2(seconds): of two candidates that look equally fast, the one that builds quickly
    tells as much for less. Unrolled giants take a compiler tens of times as long as the rest.

    Parameters
    ----------
    seed
        Of the uniform rows by which features are standardised.
    curiosity
        Weight of what is not known yet.
    thrift
        Weight of the logarithm of the time that measuring takes.
    most
        Largest number of rows in a fit: beyond, the fastest half of them and the newest.
    """

    name = "process"

    def __init__(
        self, seed: int = 0, curiosity: float = 1.0, thrift: float = 0.2, most: int = 400
    ) -> None:
        self._seed = seed
        self._curiosity = curiosity
        self._thrift = thrift
        self._most = most
        self._fitted: dict[str, _Fitted] = {}

    def learn(
        self,
        task: str,
        space: DecisionSpace,
        rows: Rows,
        latencies: npt.NDArray[np.float64],
        seconds: npt.NDArray[np.float64],
    ) -> None:
        """Fit the task's processes on its rows; with nothing to tell apart it stays unknown."""
        targets = labels(latencies)
        if len(rows) < 6 or np.ptp(targets) < 1e-9:
            return
        known = self._fitted.get(task)
        width = len(space.feature_names)
        if known is None or len(known.shift) != width:
            sample = _dense(space, space.uniform(np.random.default_rng(self._seed), 2000))
            known = _Fitted(
                sample.mean(0), sample.std(0) + 0.1, GaussianProcess(), GaussianProcess()
            )
            self._fitted[task] = known
        kept = self._kept(targets)
        features = (_dense(space, rows[kept]) - known.shift) / known.scale
        # Length scales settle: they are looked for again when a quarter more is known.
        optimise = len(rows) >= 1.25 * known.optimised_at
        known.speed.fit(features, targets[kept], optimise)
        known.cost.fit(features, np.log2(np.maximum(seconds[kept], 1e-3)), optimise)
        if optimise:
            known.optimised_at = len(rows)

    def _kept(self, targets: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
        if len(targets) <= self._most:
            return np.arange(len(targets))
        fastest = np.argsort(-targets, kind="stable")[: self._most // 2]
        newest = np.arange(len(targets) - self._most // 2, len(targets))
        return np.union1d(fastest, newest)

    def knows(self, task: str) -> bool:
        """Whether the task's processes are fitted."""
        return task in self._fitted

    def score(self, task: str, space: DecisionSpace, rows: Rows) -> Scores:
        """Optimistic log2(best / latency), less the price of measuring, ``float32 [n]``."""
        known = self._fitted.get(task)
        if known is None or not len(rows):
            return np.zeros(len(rows), np.float32)
        features = (_dense(space, rows)[:, : len(known.shift)] - known.shift) / known.scale
        if self._curiosity:
            score, deviation = known.speed.predict_with_deviation(features)
            score = score + self._curiosity * deviation
        else:
            score = known.speed.predict(features)
        if self._thrift:
            score = score - self._thrift * known.cost.predict(features)
        return score.astype(np.float32)


def _dense(space: DecisionSpace, rows: Rows) -> Matrix:
    """Features without gaps: a decision that a sketch lacks counts as zero."""
    return np.nan_to_num(space.encode(rows)).astype(np.float64)
