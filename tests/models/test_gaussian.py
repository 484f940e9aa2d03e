from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from test_scorers import space, truth  # noqa: F401

from tlp.models.gaussian import GaussianProcess, OnlineProcess, _loss


def matern(distance):
    """Rasmussen and Williams (4.17), unit length scale."""
    root = np.sqrt(5) * distance
    return (1 + root + root**2 / 3) * np.exp(-root)


@pytest.fixture
def data():
    rng = np.random.default_rng(1)
    features = rng.normal(size=(14, 3))
    return features, np.sin(features[:, 0]) + 0.1 * features[:, 1]


def test_the_gradient_is_that_of_finite_differences(data):
    features, targets = data
    squares = ((features[:, None] - features[None]) ** 2).reshape(-1, 3)
    for parameters in (np.zeros(4), np.array([0.5, 1.5, -0.5, -2.0])):
        _, gradient = _loss(parameters, squares, targets)
        by_hand = approx_fprime(parameters, lambda p: _loss(p, squares, targets)[0], 1e-6)
        np.testing.assert_allclose(gradient, by_hand, rtol=1e-3, atol=1e-4)


def test_the_posterior_is_the_textbook_one(data):
    """Equations 2.25 and 2.26 with plain inverses, for the parameters that were found."""
    features, targets = data
    process = GaussianProcess()
    process.fit(features, targets)
    scales, noise = np.exp(process._parameters[:3]), np.exp(process._parameters[3])
    fresh = np.random.default_rng(2).normal(size=(5, 3))

    def kernel(a, b):
        return matern(np.sqrt((((a[:, None] - b[None]) / scales) ** 2).sum(-1)))

    mean, deviation = targets.mean(), targets.std()
    scaled = (targets - mean) / deviation
    inverse = np.linalg.inv(kernel(features, features) + (noise + 1e-6) * np.eye(14))
    near = kernel(fresh, features)
    variance = (scaled @ inverse @ scaled + 1) / 15 * (1 - np.diag(near @ inverse @ near.T))
    got, spread = process.predict_with_deviation(fresh)
    np.testing.assert_allclose(got, near @ inverse @ scaled * deviation + mean, rtol=1e-6)
    np.testing.assert_allclose(spread, np.sqrt(variance) * deviation, rtol=1e-6)
    np.testing.assert_allclose(process.predict(fresh), got)


def test_a_feature_that_says_nothing_gets_a_long_scale():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 2))
    process = GaussianProcess()
    process.fit(features, np.sin(2 * features[:, 0]))
    assert process._parameters[1] > process._parameters[0] + 1


def test_what_was_not_seen_is_less_certain(data):
    features, targets = data
    process = GaussianProcess()
    process.fit(features, targets)
    _, at = process.predict_with_deviation(features)
    _, far = process.predict_with_deviation(features + 20)
    assert at.max() < far.min()


def test_thrift_prefers_what_is_measured_quickly(space):  # noqa: F811
    rng = np.random.default_rng(0)
    rows = space.uniform(rng, 120)
    unrolled = space.encode(rows)[:, 7] > 0
    latencies = rng.uniform(1.0, 1.1, 120)
    seconds = np.where(unrolled, 4.0, 0.5)
    fresh = space.uniform(rng, 400)
    slow_to_build = space.encode(fresh)[:, 7] > 0
    gaps = []
    for thrift in (0.0, 1.0):
        model = OnlineProcess(curiosity=0.0, thrift=thrift)
        model.learn("t", space, rows, latencies, seconds)
        scores = model.score("t", space, fresh)
        gaps.append(scores[~slow_to_build].mean() - scores[slow_to_build].mean())
    # The seconds differ by 2^3.
    assert gaps[1] - gaps[0] == pytest.approx(3, abs=0.3)


def test_a_long_history_is_cut_to_the_fastest_and_the_newest(space):  # noqa: F811
    rows = space.uniform(np.random.default_rng(0), 300)
    latencies = truth(space, rows)
    model = OnlineProcess(most=40)
    kept = model._kept(-np.log2(latencies))
    assert set(np.argsort(latencies, kind="stable")[:20]) <= set(kept)
    assert set(range(280, 300)) <= set(kept)
    assert len(kept) <= 40
    model.learn("t", space, rows, latencies, np.ones(300))
    assert np.isfinite(model.score("t", space, rows)).all()
