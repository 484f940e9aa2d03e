"""The plots of the page: one function a plot, from a run's history to SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from tlp.networks.spec import FRAMEWORKS
from tlp.records.store import Candidate
from tlp.reports import svg
from tlp.reports.figures import (
    Improvement,
    Placed,
    Predicted,
    RoundSpan,
    best_so_far,
)
from tlp.reports.history import TaskHistory
from tlp.reports.progress import format_seconds

PHASES = ("search", "replay", "build", "run", "learn", "wait")
"""In the order of a round."""

_FLOOR = -5.0
"""Slower programs than 2^5 times the best are drawn there: how slow is of no interest."""

_WIDE = (960, 340)
_NARROW = (400, 300)
_SMALL = (330, 200)

LATENCY_NAMES = {
    "tuned": "tuned network",
    **{framework.key: framework.contender for framework in FRAMEWORKS.values()},
}


def latency_text(seconds: float) -> str:
    """``231.8 us`` as people read it: three or four digits and a unit."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms"), (1.0, "s")):
        value = seconds * factor
        if value < 999.95 or unit == "s":
            break
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {unit}"


def _tick_text(seconds: float) -> str:
    for factor, unit in ((1e6, "µs"), (1e3, "ms"), (1.0, "s")):
        if seconds * factor < 999.95 or unit == "s":
            return f"{seconds * factor:.4g} {unit}"
    raise AssertionError("seconds always fit")


def _time_ticks(seconds: float, count: int) -> list[float]:
    """Round times from 0 on."""
    for step in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200):
        if seconds / step <= count:
            return [float(value) for value in range(0, math.floor(seconds) + 1, step)]
    return svg.ticks(0, seconds, count)


def both_sizes(draw: Any, *arguments: Any) -> Markup:
    """A plot for wide and one for narrow screens; the style sheet shows the one that fits."""
    wide, narrow = draw(*arguments, _WIDE, "wide"), draw(*arguments, _NARROW, "narrow")
    return Markup("{}{}").format(wide, narrow)


def network_plot(
    curve: Sequence[Improvement],
    elapsed: float,
    measured: Mapping[str, float],
    size: tuple[int, int],
    kind: str,
) -> Markup:
    """Estimated network latency over tuning time, and what was measured of whole networks.

    Parameters
    ----------
    measured
        Seconds by name (``LATENCY_NAMES``).
    """
    width, height = size
    values = [step.latency for step in curve] + list(measured.values())
    x = svg.Scale(0, max(elapsed, curve[-1].seconds, 1e-3), 62, width - 14)
    y = svg.scale_of(values, height - 44, 26, log=True)
    points = [(x(step.seconds), y(step.latency)) for step in curve]
    labels = [
        f"{format_seconds(step.seconds)}: {latency_text(step.latency)}"
        + (f"\n{step.task} improved" if step.task else "\nunscheduled")
        for step in curve
    ]
    return svg.drawing(
        width,
        height,
        "Estimated network latency over tuning time: from "
        f"{latency_text(curve[0].latency)} to {latency_text(curve[-1].latency)}",
        kind,
        svg.axes(
            x,
            y,
            "tuning time",
            "network latency",
            format_seconds,
            _tick_text,
            _time_ticks(x.high, width // 90),
        ),
        svg.steps(points, "best", x.stop),
        *_levels(x, y, measured),
        svg.dots(points, "hover", labels),
    )


def _levels(x: svg.Scale, y: svg.Scale, measured: Mapping[str, float]) -> list[Markup]:
    """Dashed lines from top to bottom; texts that would overlap move up."""
    parts, lowest = [], math.inf
    for name, seconds in sorted(measured.items(), key=lambda item: item[1]):
        at = y(seconds)
        text_at = max(min(at - 5, lowest - 15), y.stop + 10)
        lowest = text_at
        text = f"{LATENCY_NAMES[name]}, measured: {latency_text(seconds)}"
        kind = name if name == "tuned" else "framework"
        parts.append(svg.level(x, at, text_at, kind, text))
    return parts


def _label(candidate: Candidate, trial: int | None = None) -> str:
    """What the tip says of a candidate; short, since there is one for each on the page."""
    head = ("" if trial is None else f"trial {trial}, ") + f"round {candidate.round}"
    cut = " or more, cut short" if candidate.status.value == "slow" else ""
    score = "" if candidate.predicted is None else f"\npredicted {candidate.predicted:.2f}"
    return f"{head}: {latency_text(candidate.latency)}{cut}{score}"


def task_plot(task: TaskHistory) -> Markup:
    """Latency of each trial of a task, and the best so far."""
    width, height = _SMALL
    trials = task.trials
    timed = [(i, c) for i, c in enumerate(trials, 1) if c.status.timed and c.latencies]
    failed = [i for i, c in enumerate(trials, 1) if not c.status.timed]
    x = svg.Scale(0.5, len(trials) + 0.5, 54, width - 8)
    y = svg.scale_of([c.latency for _, c in timed], height - 40, 24, log=True)
    best = [
        (x(index), y(value))
        for index, value in enumerate(best_so_far(trials), 1)
        if math.isfinite(value)
    ]

    def of_kind(kind: str, slow: bool) -> Markup:
        chosen = [(i, c) for i, c in timed if (c.status.value == "slow") is slow]
        return svg.dots(
            [(x(index), y(c.latency)) for index, c in chosen],
            kind,
            [_label(c, index) for index, c in chosen],
        )

    marks = "".join(f"M{svg.number(x(index))} {svg.number(y.start)}v-7" for index in failed)
    ticks = [value for value in svg.ticks(1, max(len(trials), 1), 5) if value == int(value)]
    return svg.drawing(
        width,
        height,
        f"{task.name}: latency over {len(trials)} trials, best "
        + (latency_text(task.best) if math.isfinite(task.best) else "none"),
        "small",
        svg.axes(x, y, "trial", "latency", y_text=_tick_text, x_ticks=ticks, y_ticks=y.ticks(5)),
        of_kind("slow", slow=True),
        of_kind("trial", slow=False),
        svg.steps(best, "best", x.stop),
        Markup('<path class="failed" d="{}"/>').format(marks) if marks else Markup(""),
    )


def predicted_plot(task: TaskHistory, pairs: Predicted) -> Markup:
    """Predicted score against the measured one, for one task."""
    width, height = _SMALL
    measured = np.maximum(pairs.measured, _FLOOR)
    x = svg.scale_of(pairs.scores, 40, width - 8)
    y = svg.Scale(min(float(measured.min()), -0.5) * 1.06, 0.0, height - 40, 26)

    def of_kind(random: bool) -> Markup:
        chosen = [i for i, c in enumerate(pairs.candidates) if (c.picked_by == "random") is random]
        return svg.dots(
            [(x(pairs.scores[i]), y(measured[i])) for i in chosen],
            "random" if random else "picked",
            [_label(pairs.candidates[i]) for i in chosen],
        )

    return svg.drawing(
        width,
        height,
        f"{task.name}: predicted against measured score of {len(pairs.candidates)} programs",
        "small",
        svg.axes(
            x,
            y,
            "predicted score",
            "measured: log2(best / latency)",
            y_text=lambda value: f"≤{value:g}" if value <= _FLOOR else f"{value:g}",
        ),
        of_kind(random=True),
        of_kind(random=False),
    )


def places_plot(picks: Sequence[Placed], size: tuple[int, int], kind: str) -> Markup:
    """How fast the picks are by their predicted place in their round."""
    width, height = size
    last = max(pick.place for pick in picks)
    x = svg.Scale(0.4, last + 0.6, 48, width - 14)
    y = svg.Scale(0.0, 1.0, height - 44, 26)
    # Points of a place are spread sideways by the golden ratio, so that they can be told apart.
    spread = [0.6 * ((index * 0.618034) % 1.0 - 0.5) for index in range(len(picks))]
    labels = [
        f"{pick.task}\nround {pick.candidate.round}: {latency_text(pick.candidate.latency)}"
        for pick in picks
    ]
    medians = Markup("").join(
        Markup('<path class="median" d="M{} {}H{}"/>').format(
            svg.number(x(place - 0.36)),
            svg.number(y(float(np.median(speeds)))),
            svg.number(x(place + 0.36)),
        )
        for place, speeds in speeds_by_place(picks).items()
    )
    return svg.drawing(
        width,
        height,
        f"Speed of {len(picks)} picks by their predicted place in their round, with medians",
        kind,
        svg.axes(
            x,
            y,
            "predicted place in the round (1: predicted best)",
            "share of the round's best speed",
            y_text="{:.0%}".format,
            x_ticks=[value for value in svg.ticks(1, last, 12) if value == int(value)],
            y_ticks=[0.0, 0.25, 0.5, 0.75, 1.0],
        ),
        svg.dots(
            [(x(p.place + dx), y(p.speed)) for p, dx in zip(picks, spread, strict=True)],
            "picked",
            labels if kind == "wide" else None,
        ),
        medians,
    )


def speeds_by_place(picks: Sequence[Placed]) -> dict[int, list[float]]:
    """Speeds of the picks of each place, places in order."""
    found: dict[int, list[float]] = {}
    for pick in sorted(picks, key=lambda pick: pick.place):
        found.setdefault(pick.place, []).append(pick.speed)
    return found


def phases_in_order(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds by phase in the order of a round; phases not known here come last."""
    known = [*PHASES, *(phase for phase in seconds if phase not in PHASES)]
    return {phase: seconds[phase] for phase in known if seconds.get(phase)}


def phase_kind(phase: str) -> str:
    """Class of a phase for the style sheet."""
    return phase if phase in PHASES else "other"


def rounds_plot(spans: Sequence[RoundSpan], size: tuple[int, int], kind: str) -> Markup:
    """Where the time of each round went: a column a round, or a few rounds' mean."""
    width, height = size
    highest = max(sum(span.seconds.values()) for span in spans)
    x = svg.Scale(0.5, spans[-1].last + 0.5, 54, width - 14)
    y = svg.Scale(0.0, highest * 1.03 or 1.0, height - 44, 26)
    boxes = []
    for span in spans:
        left, right = x(span.first - 0.5), x(span.last + 0.5)
        gap = min(2.0, 0.15 * (right - left))
        rounds = (
            f"round {span.first}"
            if span.first == span.last
            else (f"rounds {span.first} to {span.last}, mean")
        )
        below = 0.0
        for phase, seconds in phases_in_order(span.seconds).items():
            top, bottom = y(below + seconds), y(below)
            tip = f"{rounds}: {phase} {seconds:.2f} s"
            boxes.append(
                svg.box(left, top, right - left - gap, bottom - top, phase_kind(phase), tip)
            )
            below += seconds
    return svg.drawing(
        width,
        height,
        f"Seconds of {spans[-1].last} rounds by phase, in the order in which they were",
        kind,
        svg.axes(
            x,
            y,
            "round",
            "seconds",
            x_ticks=[value for value in svg.ticks(1, spans[-1].last, 8) if value == int(value)],
        ),
        *boxes,
    )


def shares_plot(seconds: Mapping[str, float], size: tuple[int, int], kind: str) -> Markup:
    """One bar: the phases' shares of all rounds."""
    width = size[0]
    total = sum(seconds.values())
    parts, left = [], 0.0
    for phase, value in phases_in_order(seconds).items():
        share = width * value / total
        tip = f"{phase}: {value:.1f} s, {value / total:.1%}"
        parts.append(svg.box(left, 0, share, 34, phase_kind(phase), tip))
        left += share
    return svg.drawing(width, 34, "Shares of the phases in all rounds", f"bar {kind}", *parts)
