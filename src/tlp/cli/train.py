"""`tlp train`."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tlp.models.ranker import Ranker

EXAMPLES = """Examples: tlp train data/x86 --split split.json --out tlp.safetensors --minutes 60  |
tlp train data/x86 --split split.json --model lightgbm-rank --out trees.txt"""


def train(
    data: Annotated[Path, typer.Argument(help="Data set that `tlp import` made.")],
    split: Annotated[Path, typer.Option(help="File that `tlp split` wrote.")],
    out: Annotated[Path, typer.Option(help="File of the checkpoint.")],
    model: Annotated[
        str,
        typer.Option(
            help="tlp, tlp-published, lstm, transformer, transformer-2, transformer-4, "
            "lightgbm-rank, lightgbm-regression or xgboost-rank."
        ),
    ] = "tlp",
    fold: Annotated[int | None, typer.Option(min=1, help="Which of several splits.")] = None,
    encoding: Annotated[
        str | None,
        typer.Option(help="default, paper-cpu or paper-gpu. [the paper's for models as published]"),
    ] = None,
    platform: Annotated[
        list[str] | None, typer.Option(help="Only programs measured on it; may be repeated. [all]")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of a network, at most.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Minutes of training, at most.")] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="lambdarank, logistic, listnet, listmle, approxndcg or mse, of a network."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of weights, order and trees.")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="NAME=VALUE: any other setting (docs/models.md); may be repeated."
        ),
    ] = None,
    work_dir: Annotated[
        Path | None,
        typer.Option(
            help="State of a network's training, training.csv and TensorBoard's files. "
            "[OUT.run, removed at the end]"
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a checkpoint.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option(help="Show no progress.")] = False,
) -> None:
    """Train a model that ranks the programs of a workload.

    It learns from the split's training side; the validation side chooses the epoch or the number
    of trees that are kept. Training of a network that was stopped goes on by the same command.
    """
    import tlp.records

    tlp.records.check_extra()
    from tlp.errors import CheckpointError, TrainingError
    from tlp.models.ranker import make_ranker
    from tlp.records import splits
    from tlp.reports.ranking import show_training
    from tlp.reports.tables import console
    from tlp.training.data import choose_encoding, load_side, make_header
    from tlp.training.logs import ProgressLine

    if out.exists() and not replace:
        raise CheckpointError(f"{out} is there already: name another file, or add --replace")
    given = {"epochs": epochs, "loss": loss, "seconds": None if minutes is None else 60 * minutes}
    options = {name: value for name, value in given.items() if value is not None}
    options |= {"seed": seed, **_settings(set_ or [])}
    ranker = make_ranker(model, **options)
    if model == "random":
        raise TrainingError("the random model learns nothing; `tlp judge` knows it by its name")
    opened = tlp.records.open(data)
    chosen = splits.choose(splits.load(split, opened), fold, split)
    found = choose_encoding(opened, chosen.train, model, encoding)
    header = make_header(opened, chosen, found, platform)
    sides = [
        load_side(opened, chosen, side, found, platforms=platform) for side in ("train", "valid")
    ]
    folder = work_dir or out.with_name(f"{out.name}.run")
    progress = ProgressLine(quiet)
    try:
        figures = ranker.fit(*sides, work_dir=folder, on_progress=progress)
    finally:
        progress.close()
    # Of several processes that torchrun started, one writes and tells.
    if os.environ.get("RANK", "0") != "0":
        return
    ranker.save(out, header)
    if work_dir is None:
        shutil.rmtree(folder, ignore_errors=True)
    told = _told(ranker, out, figures, [len(side) for side in sides], found.name)
    if json_output:
        print(json.dumps(told))
        return
    show_training(told, console())
    print(f"checkpoint: {out}")


def _settings(texts: list[str]) -> dict[str, Any]:
    """Read ``NAME=VALUE``; values are JSON, or else words."""
    from tlp.errors import ModelError

    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ModelError(f"--set is {text!r}; give NAME=VALUE, such as width=128")
        try:
            read = json.loads(value)
        except ValueError:
            read = value
        found[name.replace("-", "_")] = tuple(read) if isinstance(read, list) else read
    return found


def _told(
    ranker: Ranker, out: Path, figures: dict[str, float], rows: list[int], encoding: str
) -> dict[str, Any]:
    return {
        "checkpoint": str(out),
        "model": ranker.name,
        "encoding": encoding,
        "programs": {"train": rows[0], "valid": rows[1]},
        "kept": ranker.kept,
        # NaN is not JSON.
        "metrics": {k: v if v == v else None for k, v in figures.items()},
    }
