"""`tlp import`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """Examples: tlp import ansor-logs/ --out data/x86 --platform x86-24c  |
tlp import tuning/database_tuning_record.json --out data/pi --networks map.json"""


def import_(
    logs: Annotated[
        list[Path], typer.Argument(help="Log files and folders of them; .gz and .zst, too.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the data set.")],
    platform: Annotated[
        str | None,
        typer.Option(
            help="What all programs were measured on. [target, hardware parameters and origin]"
        ),
    ] = None,
    networks: Annotated[
        Path | None,
        typer.Option(
            help='JSON: {"stem": "network"}, null for none, or {"name": ..., "weights": {...}}. '
            "[a file's stem names its network]"
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes that read. [cores]")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a data set of other logs, or a damaged one.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option(help="Show no progress.")] = False,
) -> None:
    """Import tuning logs of Ansor and MetaSchedule into a data set.

    Every line becomes a row, or is told with its reason in rejected.jsonl. A stopped import leaves
    what was there before; the same command goes on from there. Logs are never changed.
    """
    from tlp.records import check_extra

    check_extra()
    from tlp.records.importer import import_logs
    from tlp.records.names import NetworkMap
    from tlp.reports.progress import ShareProgress
    from tlp.reports.records import show_import
    from tlp.reports.tables import console

    given = NetworkMap.read(networks) if networks is not None else None
    with ShareProgress("reading logs", quiet) as progress:
        done = import_logs(
            logs,
            out,
            platform=platform,
            networks=given,
            jobs=jobs,
            replace=replace,
            on_progress=lambda share, lines, rows: progress.update(share, f"{rows:,} rows"),
        )
    if json_output:
        content = {
            **done.manifest,
            "out": str(done.out),
            "complete_before": done.complete_before,
            "resumed": done.resumed,
            "others": [str(path) for path in done.others],
        }
        print(json.dumps(content))
        return
    show_import(done, console())
