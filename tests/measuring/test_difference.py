from __future__ import annotations

import numpy as np
import pytest

from tlp.measuring.compare import output_error
from tlp.measuring.worker import difference
from tlp.networks.prepare import Reference

EPS = float(np.finfo(np.float32).eps)


def test_tolerance_grows_with_the_reduction_by_hand():
    want = np.array([0.0, -4.0, 1.0], np.float32)
    for length in (1, 1000):
        allowed = EPS * (64 + length) * 4
        got = want.copy()
        got[2] += np.float32(0.9 * allowed)
        assert difference(got, want, length) == ""
        got[2] = np.float32(1 + 1.1 * allowed)
        assert "allowed" in difference(got, want, length)


@pytest.mark.parametrize(
    ("got", "want", "says"),
    [
        ([1, 2], [1, 3], "1 of 2 integers"),
        ([1.0, np.nan], [1.0, 2.0], "NaN"),
        ([1.0, 2.0], [1.0, np.inf], "NaN"),
        ([[1.0]], [1.0], "shape"),
    ],
)
def test_wrong_outputs(got, want, says):
    got, want = np.array(got), np.array(want)
    assert says in difference(got, want, 1)


def test_nan_in_the_same_place_and_equal_integers_are_fine():
    value = np.array([np.nan, 1.0, np.inf], np.float32)
    assert difference(value, value.copy(), 1) == ""
    assert difference(np.array([1, 2]), np.array([1, 2]), 1) == ""
    assert difference(np.full(2, np.nan), np.full(2, np.nan), 1) == ""


def network(*outputs):
    answers = iter(outputs)
    return lambda *inputs: [np.asarray(value, np.float32) for value in next(answers)]


def reference(y1, y2):
    one = (np.zeros(1, np.float32),)
    return Reference(one, tuple(map(np.float32, y1)), one, tuple(map(np.float32, y2)))


def test_output_error_is_relative_to_the_variation_by_hand():
    # f(x1) = [1, 2], f(x2) = [1, 6]: they differ by 4 at most; the answer is off by 0.2.
    wanted = reference([[1.0, 2.0]], [[1.0, 6.0]])
    got = network([[1.0, 2.2]], [[1.0, 6.0]])
    assert output_error(got, wanted) == pytest.approx(0.05, rel=1e-5)


def test_output_error_of_nonsense_is_infinite():
    wanted = reference([[1.0, 2.0]], [[1.0, 6.0]])
    assert output_error(network([[1.0]], [[1.0]]), wanted) == np.inf
    assert output_error(network([[1.0, np.nan]], [[1.0, 6.0]]), wanted) == np.inf
    constant = reference([[1.0, 2.0]], [[1.0, 2.0]])
    assert output_error(network([[1.0, 2.0]], [[1.0, 2.0]]), constant) == 0
    assert output_error(network([[1.0, 2.5]], [[1.0, 2.0]]), constant) == np.inf
