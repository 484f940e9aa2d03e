"""The page of a run: one HTML file with everything in it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.resources
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tlp.errors import WorkDirError
from tlp.networks.spec import FRAMEWORKS, contender_name, in_order
from tlp.reports import plots
from tlp.reports.figures import (
    TOP,
    best_so_far,
    network_curve,
    placed_picks,
    predicted,
    round_correlation,
    spans_of,
    top_picks,
)
from tlp.reports.history import History, TaskHistory
from tlp.reports.plots import latency_text
from tlp.reports.progress import format_seconds
from tlp.reports.report import make_report
from tlp.reports.tables import rows_text

_LONGEST_ERROR = 2000
_MILESTONES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)


def write_page(history: History, path: Path) -> None:
    """Write the page so that a reader sees the old file or the new one.

    Raises
    ------
    WorkDirError
        If the file cannot be written.
    """
    if path.is_dir():
        raise WorkDirError(f"{path} is a folder; name a file with --html")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    page = render_page(history)
    try:
        temporary.write_text(page, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise WorkDirError(
            f"cannot write {path}: {error.strerror}; name another file with --html"
        ) from None


def render_page(history: History) -> str:
    """The page as HTML: it loads nothing from elsewhere and is whole without its script."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    folder = importlib.resources.files("tlp.reports")
    css, js = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    environment = Environment(
        loader=PackageLoader("tlp.reports", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    report = make_report(history)
    weights = {t["key"]: t["weight"] * (t["best_us"] or 0.0) for t in report["tasks"]}
    ordered = sorted(history.tasks, key=lambda task: -weights[task.key])
    return environment.get_template("page.html.j2").render(
        report=report,
        css=Markup(css),
        js=Markup(js),
        # Nothing but these two may style the page or run in it, whatever a text smuggled in.
        hashes={"css": _digest(css), "js": _digest(js)},
        name=_network_name(report),
        state="complete" if report["complete"] else "not complete",
        target=_target_text(report["target"]),
        machine=_machine_text(report["host"]),
        tiles=_tiles(report),
        top=TOP,
        choices=[{"key": task.key, "name": task.name} for task in ordered],
        **_network_part(history, report),
        **_tasks_part(ordered, report),
        **_predicted_part(ordered),
        **_time_part(history, report),
        errors=_errors(report),
        settings=_settings(history, report),
    )


def _digest(text: str) -> str:
    """How a content security policy names an inline style or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _network_name(report: dict[str, Any]) -> str:
    network = report["network"] or {}
    name = Path(str(network.get("source", "unknown network"))).name
    batch = network.get("batch")
    return name if batch in (None, 1) else f"{name}, batch {batch}"


def _target_text(target: dict[str, Any] | None) -> str:
    if not target:
        return "unknown target"
    options = [f"{name} {value}" for name, value in target.items() if name != "kind"]
    return ", ".join([str(target.get("kind", "")), *options])


def _machine_text(host: dict[str, Any] | None) -> str:
    if not host:
        return ""
    return f"{host.get('cpu', 'unknown CPU')}, {host.get('cores', '?')} cores"


def _tile(name: str, value: str, more: str = "") -> dict[str, str]:
    return {"name": name, "value": value, "more": more}


def _tiles(report: dict[str, Any]) -> list[dict[str, str]]:
    tiles = []
    latency = report["latency_ms"]
    if latency:
        tuned = latency["tuned"]
        for key, median in in_order(latency).items():
            more = "median latency" if key == "tuned" else f"{median / tuned:.2f}× tuned"
            tiles.append(_tile(contender_name(key), latency_text(1e-3 * median), more))
    elif report["sum_of_tasks_ms"] is not None:
        missing = len(report["tasks_without_latency"])
        more = f"without {missing} tasks" if missing else "sum over its tasks"
        tiles.append(_tile("estimate", latency_text(1e-3 * report["sum_of_tasks_ms"]), more))
    tiles.append(_tile("trials", f"{report['trials']:,}", f"{report['failures']:,} failed"))
    rounds = f"{report['rounds']:,} rounds"
    tiles.append(_tile("tuning time", format_seconds(report["elapsed_s"]), rounds))
    if report["output_error"] is not None:
        framework = FRAMEWORKS[report["framework"]].name
        more = f"against {framework}; allowed {report['output_tolerance']:g}"
        tiles.append(_tile("output error", f"{report['output_error']:.1e}", more))
    return tiles


def _network_part(history: History, report: dict[str, Any]) -> dict[str, Any]:
    curve = network_curve(history.tasks)
    if not curve:
        return {"network_plot": "", "milestones": []}
    measured = {
        name: 1e-3 * value
        for name, value in (report["latency_ms"] or {}).items()
        if name in plots.LATENCY_NAMES
    }
    elapsed, end = history.elapsed_s, curve[-1].latency
    milestones = []
    for share in _MILESTONES:
        reached = [step for step in curve if step.seconds <= share * elapsed]
        if reached:
            latency = reached[-1].latency
            milestones.append(
                {
                    "time": format_seconds(share * elapsed),
                    "latency": latency_text(latency),
                    "ratio": f"{latency / end:.2f}×",
                }
            )
    plot = plots.both_sizes(plots.network_plot, curve, elapsed, measured)
    return {"network_plot": plot, "milestones": milestones}


def _tasks_part(ordered: Sequence[TaskHistory], report: dict[str, Any]) -> dict[str, Any]:
    told = {task["key"]: task for task in report["tasks"]}
    total = sum(t["weight"] * (t["best_us"] or 0.0) for t in report["tasks"]) or 1.0
    rows = []
    for task in ordered:
        row = told[task.key]
        best, start = row["best_us"], row["start_us"]
        share = None if best is None else row["weight"] * best / total
        faster = None if best is None or start is None else start / best
        numbers = [
            _cell(best, "{:,.1f}"),
            _cell(share, "{:.1%}"),
            _cell(row["gflops"], "{:,.1f}"),
            _cell(faster, "{:.1f}×"),
        ]
        rows_known = "–" if row["rows"] is None else rows_text(row["rows"])
        rows.append({**row, "rows_text": rows_known, "numbers": numbers})
    cards = [
        {
            "key": task.key,
            "name": task.name,
            "text": _trials_text(task),
            "plot": plots.task_plot(task),
            "rows": _improvements(task),
        }
        for task in ordered
        if any(c.status.timed and c.latencies for c in task.trials)
    ]
    return {"tasks": rows, "trial_cards": cards}


def _cell(value: float | None, form: str) -> dict[str, Any]:
    return {"value": value, "text": "–" if value is None else form.format(value)}


def _trials_text(task: TaskHistory) -> str:
    best = latency_text(task.best) if math.isfinite(task.best) else "none verified"
    start = f" from {latency_text(task.start)}" if math.isfinite(task.start) else ""
    return f"best {best}{start}; used {task.weight}×"


def _improvements(task: TaskHistory) -> list[dict[str, str]]:
    rows, before = [], math.inf
    for number, (trial, best) in enumerate(
        zip(task.trials, best_so_far(task.trials), strict=True), 1
    ):
        if best < before:
            before = float(best)
            rows.append(
                {
                    "trial": str(number),
                    "time": format_seconds(trial.elapsed_s),
                    "latency": latency_text(before),
                }
            )
    return rows


def _predicted_part(ordered: Sequence[TaskHistory]) -> dict[str, Any]:
    picks = placed_picks(ordered)
    pairs = {task.key: predicted(task) for task in ordered}
    counted = [top_picks(of_task) for of_task in pairs.values()]
    rounds = sum(found.rounds for found in counted)
    text = (
        f"The fastest pick was among the {TOP} predicted best in "
        f"{sum(found.hits for found in counted)} of {rounds} rounds with more picks than that; "
        f"guessing would have {sum(found.chance for found in counted):.1f}."
    )
    cards = []
    for task in ordered:
        of_task = pairs[task.key]
        if not of_task.candidates:
            continue
        rho = round_correlation(of_task)
        count = len(of_task.candidates)
        cards.append(
            {
                "key": task.key,
                "name": task.name,
                "text": f"ρ {'–' if rho is None else f'{rho:.2f}'} within rounds; {count} programs",
                "plot": plots.predicted_plot(task, of_task),
            }
        )
    return {
        "picks_text": text if rounds else "",
        "places_plot": plots.both_sizes(plots.places_plot, picks) if picks else "",
        "places": [
            {
                "place": place,
                "count": len(speeds),
                "median": f"{float(np.median(speeds)):.0%}",
            }
            for place, speeds in plots.speeds_by_place(picks).items()
        ],
        "predicted_cards": cards,
    }


def _time_part(history: History, report: dict[str, Any]) -> dict[str, Any]:
    seconds = plots.phases_in_order(report["seconds_by_phase"])
    total = sum(seconds.values())
    if not total:
        return {"shares_plot": "", "rounds_plot": "", "phases": []}
    phases = [
        {
            "name": name,
            "kind": plots.phase_kind(name),
            "text": f"{name} {value / total:.1%}",
            "seconds": f"{value:,.1f}",
            "share": f"{value / total:.1%}",
            "mean": f"{value / report['rounds']:.2f}",
        }
        for name, value in seconds.items()
    ]
    return {
        "shares_plot": plots.both_sizes(plots.shares_plot, seconds),
        "rounds_plot": plots.both_sizes(plots.rounds_plot, spans_of(history.rounds)),
        "phases": phases,
    }


def _errors(report: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for failure in report["failures_by_cause"]:
        names, text = failure["tasks"], failure["example"]
        if len(text) > _LONGEST_ERROR:
            text = f"{text[:_LONGEST_ERROR]}\n[{len(text) - _LONGEST_ERROR:,} more characters]"
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        rows.append({**failure, "tasks": ", ".join(names[:3]) + more, "example": text})
    return rows


def _settings(history: History, report: dict[str, Any]) -> list[tuple[str, str]]:
    config = history.config
    pairs: list[tuple[str, Any]] = [
        ("work folder", report["work_dir"]),
        ("network", report["network"]),
        ("target", report["target"]),
        ("weight layouts", report["weight_layouts"]),
        *((key, config.get(key)) for key in ("trials", "minutes", "seed", "search", "limits")),
        ("versions", report["versions"]),
        ("machine", report["host"]),
        ("platform", report["platform"]),
        ("finished", report["finished"]),
        ("stopped because", report["stopped"]),
    ]
    return [(name, _value_text(value)) for name, value in pairs if value not in (None, "", {})]


def _value_text(value: Any) -> str:
    if isinstance(value, dict):
        known = {key: item for key, item in value.items() if item is not None}
        return ", ".join(f"{key} {_value_text(item)}" for key, item in known.items())
    if isinstance(value, list):
        return " + ".join(map(_value_text, value))
    return value if isinstance(value, str) else json.dumps(value)
