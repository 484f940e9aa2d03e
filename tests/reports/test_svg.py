from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlp.reports import svg
from tlp.reports.plots import latency_text


def test_a_linear_and_a_logarithmic_scale():
    linear = svg.Scale(0, 10, 100, 200)
    assert [linear(value) for value in (0, 5, 10, 99)] == [100, 150, 200, 200]
    log = svg.Scale(1, 100, 200, 0, log=True)
    assert [log(value) for value in (1, 10, 100)] == pytest.approx([200, 100, 0])


def test_scales_hold_their_values_with_air_and_one_value_is_no_trouble():
    scale = svg.scale_of([2.0, math.inf, 4.0], 0, 100)
    assert scale.low < 2 < 4 < scale.high
    for log in (False, True):
        one = svg.scale_of([3.0, 3.0], 0, 100, log)
        assert one(3.0) == pytest.approx(50, abs=1)
        assert one.ticks()
        assert svg.scale_of([], 0, 100, log).ticks()


@given(st.floats(1e-9, 1e9), st.floats(1.001, 1e6), st.integers(3, 9), st.booleans())
def test_ticks_are_inside_rising_and_few(low, ratio, count, log):
    scale = svg.Scale(low, low * ratio, 0, 100, log)
    found = scale.ticks(count)
    assert 1 <= len(found) <= count
    assert found == sorted(set(found))
    if len(found) > 1:
        assert all(low * (1 - 1e-9) <= value <= low * ratio * (1 + 1e-9) for value in found)


def test_marks_at_pixels():
    assert 'd="M1 2h0M3.5 4h0"' in svg.dots([(1, 2), (3.46, 4)], "trial")
    assert 'd="M0 9H5V4H8"' in svg.steps([(0, 9), (5, 4)], "best", 8)
    assert svg.dots([], "trial") == svg.steps([], "best", 8) == ""


def test_labels_are_parted_by_an_empty_line_whatever_they_hold():
    drawn = ET.fromstring(svg.dots([(1, 2), (3, 4)], "x", ['\n"a"\n\n<b>', "c"]))
    assert drawn.attrib["data-labels"].split("\n\n") == ['"a"\n<b>', "c"] or (
        # XML turns line ends in attributes into spaces, HTML keeps them.
        drawn.attrib["data-labels"].split("  ") == ['"a" <b>', "c"]
    )


def test_a_drawing_is_well_formed_with_hostile_texts():
    evil = '</text><script>alert(1)</script>"&'
    x, y = svg.Scale(0, 10, 50, 300), svg.Scale(0, 10, 150, 20)
    drawn = svg.drawing(
        330,
        200,
        evil,
        "small",
        svg.axes(x, y, evil, evil, lambda value: evil),
        svg.level(x, 10, 10, "tuned", evil),
        svg.box(1, 2, 3, 4, "run", evil),
    )
    root = ET.fromstring(drawn)
    assert root.attrib["aria-label"] == evil
    assert {element.tag for element in root.iter()} == {"svg", "text", "path", "rect", "title"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.234e-6, "1.23 µs"), (231.8e-6, "232 µs"), (9.99996e-4, "1.00 ms"), (15.48e-3, "15.5 ms"),
     (0.2511, "251 ms"), (12.0, "12.0 s"), (4000.0, "4000 s")],
)  # fmt: skip
def test_latencies_for_people(seconds, text):
    assert latency_text(seconds) == text
