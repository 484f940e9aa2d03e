"""Axes and marks of a plot, drawn as SVG that the page's style sheet colours.

Text goes through markupsafe, so whatever a name holds stays text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

Values = Sequence[float] | npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scale:
    """Maps values to pixels.

    Parameters
    ----------
    low, high
        Values at the ends; positive where ``log``.
    start, stop
        Pixels at the ends.
    """

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Pixel of a value; values outside land on the nearer end."""
        low, high = self.low, self.high
        value = min(max(value, low), high)
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (self.stop - self.start) * (value - low) / ((high - low) or 1.0)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values between the ends, about ``count``."""
        find = log_ticks if self.log else ticks
        return find(self.low, self.high, count)


def scale_of(values: Values, start: float, stop: float, log: bool = False) -> Scale:
    """A scale that holds all finite values with a little air."""
    finite = [float(value) for value in values if math.isfinite(value)]
    low, high = min(finite, default=1.0), max(finite, default=1.0)
    if log:
        air = max((high / low) ** 0.06, 1.02)
        return Scale(low / air, high * air, start, stop, log=True)
    air = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return Scale(low - air, high + air, start, stop)


def ticks(low: float, high: float, count: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from ``low`` to ``high``, at most ``count``.

    Examples
    --------
    >>> ticks(0, 430, 5)
    [0.0, 100.0, 200.0, 300.0, 400.0]
    """
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    for step in (power, 2 * power, 5 * power, 10 * power, 20 * power):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 <= count:
            break
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int) -> list[float]:
    """Round values for a logarithmic axis: powers of ten, with 2 and 5 where there is room.

    Examples
    --------
    >>> log_ticks(8, 300, 5)
    [10.0, 20.0, 50.0, 100.0, 200.0]
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in ((1, 2, 5), (1, 3), (1,)):
        found = [float(f"{m}e{d}") for d in decades for m in mantissas]
        found = [value for value in found if low <= value <= high]
        if len(found) <= count:
            break
    if len(found) < 3 and high / low < 20:
        return ticks(low, high, count)
    return found[:: math.ceil(len(found) / count)] if found else [low]


def number(value: float) -> str:
    """A pixel with one decimal at most."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def axes(
    x: Scale,
    y: Scale,
    x_title: str,
    y_title: str,
    x_text: Callable[[float], str] = "{:g}".format,
    y_text: Callable[[float], str] = "{:g}".format,
    x_ticks: Sequence[float] | None = None,
    y_ticks: Sequence[float] | None = None,
) -> Markup:
    """Grid lines, tick labels and titles."""
    parts = []
    # Of labels that would touch, the later ones are left out.
    free = -math.inf
    for value in x.ticks() if x_ticks is None else x_ticks:
        at, text = x(value), x_text(value)
        half = 3.6 * len(text)
        if at - half < free:
            continue
        free = at + half + 6
        parts.append(
            Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>').format(
                number(at), number(y.start + 17), text
            )
        )
    for value in y.ticks() if y_ticks is None else y_ticks:
        parts.append(
            Markup(
                '<path class="grid" d="M{left} {at}H{right}"/>'
                '<text class="tick" x="{label}" y="{base}" text-anchor="end">{text}</text>'
            ).format(
                left=number(x.start),
                right=number(x.stop),
                at=number(y(value)),
                label=number(x.start - 7),
                base=number(y(value) + 4),
                text=y_text(value),
            )
        )
    parts.append(
        Markup(
            '<path class="axis" d="M{left} {bottom}H{right}"/>'
            '<text class="title" x="{middle}" y="{below}" text-anchor="middle">{x}</text>'
            '<text class="title" x="2" y="11">{y}</text>'
        ).format(
            left=number(x.start),
            right=number(x.stop),
            bottom=number(y.start),
            middle=number((x.start + x.stop) / 2),
            below=number(y.start + 34),
            x=x_title,
            y=y_title,
        )
    )
    return Markup("").join(parts)


def dots(
    points: Iterable[tuple[float, float]], kind: str, labels: Sequence[str] | None = None
) -> Markup:
    """Round marks at pixels; one path for all of them keeps the page small.

    Parameters
    ----------
    kind
        Class for the style sheet.
    labels
        What the script shows beside the pointer, one a point; an empty line parts them.
    """
    path = "".join(f"M{number(x)} {number(y)}h0" for x, y in points)
    if not path:
        return Markup("")
    told = Markup("")
    if labels is not None:
        lines = ["\n".join(filter(None, label.splitlines())) for label in labels]
        told = Markup(' data-labels="{}"').format("\n\n".join(lines))
    return Markup('<path class="dots {}" d="{}"{}/>').format(kind, path, told)


def steps(points: Sequence[tuple[float, float]], kind: str, until: float) -> Markup:
    """A line that keeps each value until the next one, and the last until a pixel."""
    if not points:
        return Markup("")
    (x, y), *rest = points
    path = f"M{number(x)} {number(y)}" + "".join(f"H{number(x)}V{number(y)}" for x, y in rest)
    return Markup('<path class="line {}" d="{}H{}"/>').format(kind, path, number(until))


def level(x: Scale, at: float, text_at: float, kind: str, text: str) -> Markup:
    """A dashed line across the plot with its text above the right end, at pixels."""
    return Markup(
        '<path class="level {kind}" d="M{left} {at}H{right}"/>'
        '<text class="name {kind}" x="{right}" y="{base}" text-anchor="end">{text}</text>'
    ).format(
        kind=kind,
        left=number(x.start),
        right=number(x.stop),
        at=number(at),
        base=number(text_at),
        text=text,
    )


def box(x: float, y: float, width: float, height: float, kind: str, tip: str) -> Markup:
    """A filled rectangle, at pixels, with a tip that needs no script."""
    return Markup(
        '<rect class="box {}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
    ).format(kind, number(x), number(y), f"{width:.2f}", f"{height:.2f}", tip)


def drawing(width: int, height: int, name: str, kind: str, *parts: Markup) -> Markup:
    """A whole plot; ``name`` is what a screen reader says."""
    return Markup(
        '<svg class="plot {kind}" viewBox="0 0 {width} {height}" role="img" aria-label="{name}">'
        "{parts}</svg>"
    ).format(kind=kind, width=width, height=height, name=name, parts=Markup("").join(parts))
