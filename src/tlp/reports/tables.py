"""Tables that fit a hundred columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tlp.networks.spec import FRAMEWORKS, contender_name, in_order
from tlp.tuning.reuse import describe

WIDTH = 100


def console() -> Console:
    """Standard output, never wider than a hundred columns."""
    plain = Console()
    return Console(width=min(WIDTH, plain.width) if plain.is_terminal else WIDTH)


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def make_table(columns: Sequence[tuple[str, str]], title: str | None = None) -> Table:
    """An empty table without lines, its columns ``(name, "left" or "right")``."""
    table = Table(title=title, box=None, pad_edge=False, title_justify="left", header_style="bold")
    for name, justify in columns:
        table.add_column(
            name,
            justify="right" if justify == "right" else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    return table


def rows_text(rows: int) -> str:
    """A number of decision rows, short: ``1,234``, ``3.1e+08``."""
    return f"{rows:,}" if rows < 1_000_000 else f"{rows:.1e}"


def show_tasks(tasks: Sequence[Mapping[str, Any]], out: Console) -> None:
    """What there is to tune: one line a task."""
    table = make_table(
        [
            ("task", "left"),
            ("computes", "left"),
            ("weight", "right"),
            ("MFLOP", "right"),
            ("sketches", "right"),
            ("decision rows", "right"),
        ]
    )
    for task in tasks:
        table.add_row(
            task["name"][:40],
            task["anchor"][:34],
            str(task["weight"]),
            f"{task['flops'] / 1e6:,.2f}",
            str(task["sketches"]),
            rows_text(task["rows"]),
        )
    out.print(table)


def show_summary(summary: Mapping[str, Any], out: Console) -> None:
    """A run: tasks, latencies, and where the time went.

    Parameters
    ----------
    summary
        Of a complete run, or a report, which knows less before the first run is complete.
    """
    table = make_table(
        [
            ("task", "left"),
            ("weight", "right"),
            ("best us", "right"),
            ("share", "right"),
            ("GFLOP/s", "right"),
            ("speed-up", "right"),
            ("trials", "right"),
            ("failed", "right"),
            *([("reused", "right")] if summary["reused"] else []),
        ]
    )
    tasks = summary["tasks"]
    total = sum(task["weight"] * (task["best_us"] or 0.0) for task in tasks) or 1.0
    for task in sorted(tasks, key=lambda t: -t["weight"] * (t["best_us"] or 0.0)):
        best, start = task["best_us"], task["start_us"]
        failed = f"{task['failures'] / task['trials']:.0%}" if task["trials"] else "-"
        table.add_row(
            Text(task["name"][:40]),
            str(task["weight"]),
            _number(best),
            "-" if best is None else f"{task['weight'] * best / total:.0%}",
            _number(task["gflops"]),
            "-" if best is None or start is None else f"{start / best:.1f}x",
            f"{task['trials']}{'*' if task['all_programs_measured'] else ''}",
            failed,
            *([str(task["reused"])] if summary["reused"] else []),
        )
    out.print(table)
    for count in summary["reuse"]:
        out.print(describe(count), markup=False, highlight=False)
    bare = [task["name"] for task in tasks if task["best_us"] is None]
    if bare:
        text = f"without a record, compiled unscheduled: {', '.join(bare)}"
        out.print(text, style="yellow", markup=False)
    out.print("* every program that the sketches of this task give is measured", style="dim")
    for task in tasks:
        if task["note"]:
            out.print(f"{task['name']}: {task['note']}", style="yellow", markup=False)
    if summary["latency_ms"] is not None:
        _show_latencies(summary["latency_ms"], out)
    phases = summary["seconds_by_phase"]
    spent = sum(phases.values()) or 1.0
    parts = [
        f"{name} {phases.get(name, 0.0):.1f} s ({phases.get(name, 0.0) / spent:.0%})"
        for name in ("search", "replay", "build", "run", "learn")
    ]
    out.print()
    out.print("time in rounds: " + ", ".join(parts))
    said = f"{summary['trials']} trials, {summary['failures']} failed"
    if summary["output_error"] is not None:
        said += (
            f"; output differs from {FRAMEWORKS[summary['framework']].name}'s by "
            f"{summary['output_error']:.1e} of its variation "
            f"(allowed {summary['output_tolerance']:g})"
        )
    out.print(said)
    stopped = f"stopped because {summary['stopped']}; " if summary["stopped"] else ""
    out.print(f"{stopped}everything is in {summary['work_dir']}", markup=False)


def _show_latencies(latency: Mapping[str, float], out: Console) -> None:
    table = make_table([("network", "left"), ("median ms", "right"), ("against tuned", "right")])
    for name, median in in_order(latency).items():
        table.add_row(contender_name(name), f"{median:.3f}", f"{median / latency['tuned']:.2f}x")
    out.print()
    out.print(table)
