"""Tables of trained and judged models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from tlp.reports.tables import make_table

if TYPE_CHECKING:
    from tlp.training.judging import Judged

_NAMES = {
    "top1": "top-1",
    "top5": "top-5",
    "top10": "top-10",
    "ndcg10": "NDCG@10",
    "kendall_tau": "tau",
    "regret1": "regret",
}


def show_training(told: Mapping[str, Any], out: Console) -> None:
    """What was trained, and the judge's figures on the validation workloads."""
    programs, figures = told["programs"], told["metrics"]
    out.print(
        f"{told['model']} learned from {programs['train']:,} programs, encoded as "
        f"{told['encoding']}; kept: {told['kept']}",
        markup=False,
        highlight=False,
    )
    if not figures:
        out.print("no validation workloads: the last was kept", style="yellow")
        return
    table = make_table([(name, "right") for name in (*_NAMES.values(), "workloads", "programs")])
    table.add_row(
        *(_figure(figures[name]) for name in _NAMES),
        f"{figures['workloads']:,}",
        f"{programs['valid']:,}",
    )
    out.print("on the validation side:")
    out.print(table)


def show_judgements(judged: Judged, out: Console) -> None:
    """A line a model, then a line a difference to the first one."""
    from tlp.training.judging import SUBSET_SIZE, SUBSETS, figures_of

    out.print(
        f"{judged.programs:,} programs of {judged.workloads:,} lists (workload and platform); "
        "figures are means over lists"
    )
    out.print("all programs of a list:")
    out.print(_figures(judged, {name: name for name in _NAMES}, failed=True))
    if not judged.whole:
        out.print(f"\nrandom lists of {SUBSET_SIZE:,} programs, mean of {SUBSETS} each:")
        out.print(_figures(judged, figures_of(False), failed=False))
    if len(judged.models) > 1:
        first = judged.models[0].name
        lists = "" if judged.whole else ", on the random lists"
        out.print(Text(f"\ndifference to {first}{lists}, with 95 % intervals:"))
        columns = [("model", "left"), *((_NAMES[name], "right") for name in _SHOWN)]
        table = make_table(columns)
        for model in judged.models[1:]:
            found = [model.differences[name] for name in _SHOWN]
            table.add_row(
                Text(model.name[:28]),
                *(f"{one.mean:+.3f} [{one.low:+.3f}, {one.high:+.3f}]" for one in found),
            )
        out.print(table)
    for model in judged.models:
        if model.learned:
            out.print(
                f"note: {model.name} has learned from {model.learned:,} of these workloads",
                style="yellow",
                markup=False,
            )


_SHOWN = ("top1", "top5", "kendall_tau")


def _figures(judged: Judged, keys: Mapping[str, str], failed: bool) -> Any:
    columns = [("checkpoint", "left"), ("model", "left")]
    columns += [(name, "right") for name in _NAMES.values()]
    table = make_table([*columns, *([("failed picks", "right")] if failed else [])])
    for model in judged.models:
        summary = model.judgement.summary()
        table.add_row(
            Text(model.name[:24]),
            Text(model.model[:20]),
            *(_figure(summary[key]) for key in keys.values()),
            *([f"{model.judgement.failed_picks:,}"] if failed else []),
        )
    return table


def _figure(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"


def as_json(judged: Judged) -> dict[str, Any]:
    """Everything that the tables hold, and more, as plain values."""

    def plain(values: Mapping[str, float]) -> dict[str, float | None]:
        return {name: value if math.isfinite(value) else None for name, value in values.items()}

    return {
        "programs": judged.programs,
        "lists": judged.workloads,
        "models": [
            {
                "checkpoint": model.name,
                "model": model.model,
                "encoding": model.encoding,
                "learned_workloads": model.learned,
                "figures": plain(model.judgement.summary()),
                "difference_to_first": {
                    name: plain({"mean": one.mean, "low": one.low, "high": one.high})
                    for name, one in model.differences.items()
                },
            }
            for model in judged.models
        ],
    }
