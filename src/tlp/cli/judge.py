"""`tlp judge`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """Examples: tlp judge data/x86 --split split.json tlp.safetensors trees.txt random  |
tlp judge data/x86 --split split.json tlp.safetensors --json"""


def judge(
    data: Annotated[Path, typer.Argument(help="Data set that `tlp import` made.")],
    checkpoints: Annotated[
        list[Path], typer.Argument(help="Checkpoints of `tlp train`; `random` picks at random.")
    ],
    split: Annotated[Path, typer.Option(help="File that `tlp split` wrote.")],
    fold: Annotated[int | None, typer.Option(min=1, help="Which of several splits.")] = None,
    platform: Annotated[
        list[str] | None, typer.Option(help="Only programs measured on it; may be repeated. [all]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of random lists and of the bootstrap.")] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option(help="Show no progress.")] = False,
) -> None:
    """Judge models by the programs of a split's test side.

    Every figure is a mean over workloads. Differences are those to the first model, with 95 %
    intervals from a bootstrap over workloads.
    """
    import tlp.records

    tlp.records.check_extra()
    from tlp.records import splits
    from tlp.reports.progress import ShareProgress
    from tlp.reports.ranking import as_json, show_judgements
    from tlp.reports.tables import console
    from tlp.training.judging import judge_checkpoints

    opened = tlp.records.open(data)
    chosen = splits.choose(splits.load(split, opened), fold, split)
    with ShareProgress("judging", quiet) as progress:
        judged = judge_checkpoints(
            opened, chosen, checkpoints, platforms=platform, seed=seed, on_progress=progress.update
        )
    if json_output:
        print(json.dumps(as_json(judged)))
        return
    show_judgements(judged, console())
