"""`tlp inspect`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """Examples: tlp inspect data/x86  |
tlp inspect some/database_tuning_record.json --json"""


def inspect(
    paths: Annotated[list[Path], typer.Argument(help="A data set, or log files and folders.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option(help="Show no progress.")] = False,
) -> None:
    """Show what a data set or raw logs hold.

    Platforms, networks, statuses, lengths, kinds of primitives, sequences that coincide once they
    are encoded, and latencies.
    """
    import tlp.records

    tlp.records.check_extra()
    from tlp.records.importer import import_logs
    from tlp.records.inspection import inspect as inspect_data
    from tlp.records.logs import is_data_set
    from tlp.reports.progress import ShareProgress
    from tlp.reports.records import show_inspection
    from tlp.reports.tables import console

    if len(paths) == 1 and is_data_set(paths[0]):
        found = inspect_data(tlp.records.open(paths[0]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            with ShareProgress("reading logs", quiet) as progress:
                import_logs(
                    paths,
                    Path(temporary) / "data",
                    on_progress=lambda share, lines, rows: progress.update(share, f"{rows:,} rows"),
                )
            found = inspect_data(tlp.records.open(Path(temporary) / "data"))
    if json_output:
        print(json.dumps(found))
        return
    show_inspection(found, console())
