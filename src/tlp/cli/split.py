"""`tlp split`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """Examples: tlp split data/x86 --hold-out resnet_18,vgg16  |
tlp split data/x86 --folds 5"""


def split(
    data: Annotated[Path, typer.Argument(help="Data set that `tlp import` made.")],
    hold_out: Annotated[
        str | None,
        typer.Option(help="Networks whose workloads are for testing, with commas between them."),
    ] = None,
    folds: Annotated[
        int | None, typer.Option(help="As many splits, each network held out by one of them.")
    ] = None,
    valid: Annotated[
        float, typer.Option(help="Share of the other workloads that is for validation.")
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Chooses the workloads for validation.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="File of the split. [DATA/splits/NAMES.json]")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Split a data set by workload, with whole networks held out.

    A workload that a held-out network shares with others is held out, too. Case, _ and - do not
    count in names. The file names every workload key.
    """
    import tlp.records

    tlp.records.check_extra()
    from tlp.errors import RecordsError
    from tlp.records import splits
    from tlp.reports.records import show_splits
    from tlp.reports.tables import console

    opened = tlp.records.open(data)
    if (hold_out is None) == (folds is None):
        raise RecordsError("give --hold-out NETWORKS or --folds NUMBER, one of the two")
    if folds is not None:
        found = splits.folds(opened, folds, valid, seed)
        name = f"folds-{folds}"
    else:
        names = [name.strip() for name in (hold_out or "").split(",") if name.strip()]
        found = [splits.split(opened, names, valid, seed)]
        name = "+".join(found[0].held_out)
    path = out or data / "splits" / f"{name.replace('/', '_')[:100]}.json"
    splits.save(path, opened, found)
    if json_output:
        print(json.dumps({"path": str(path), "splits": [asdict(one) for one in found]}))
        return
    show_splits(found, opened, console())
    print(f"split: {path}")
