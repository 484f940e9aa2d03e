"""Tables that fit a hundred columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tlp.networks.spec import FRAMEWORKS
from tlp.tuning.reuse import describe

WIDTH = 100


def console() -> Console:
    """Standard output, never wider than a hundred columns."""
    plain = Console()
    return Console(width=min(WIDTH, plain.width) if plain.is_terminal else WIDTH)


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _table(columns: Sequence[tuple[str, str]], title: str | None = None) -> Table:
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
    table = _table(
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
    """A finished run: tasks, latencies, and where the time went."""
    table = _table(
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
            task["name"][:40],
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
    latency = summary["latency_ms"]
    table = _table([("network", "left"), ("median ms", "right"), ("against tuned", "right")])
    framework = FRAMEWORKS[summary["framework"]]
    for name in ("tuned", framework.key, "untuned"):
        if name in latency:
            label = framework.contender if name == framework.key else name
            ratio = latency[name] / latency["tuned"]
            table.add_row(label, f"{latency[name]:.3f}", f"{ratio:.2f}x")
    out.print()
    out.print(table)
    phases = summary["seconds_by_phase"]
    spent = sum(phases.values()) or 1.0
    parts = [
        f"{name} {phases.get(name, 0.0):.1f} s ({phases.get(name, 0.0) / spent:.0%})"
        for name in ("search", "replay", "build", "run", "learn")
    ]
    out.print()
    out.print("time in rounds: " + ", ".join(parts))
    out.print(
        f"{summary['trials']} trials, {summary['failures']} failed; output differs from "
        f"{framework.name}'s by {summary['output_error']:.1e} of its variation (allowed "
        f"{summary['output_tolerance']:g})"
    )
    out.print(f"stopped because {summary['stopped']}; everything is in {summary['work_dir']}")
