"""`tlp report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """Examples: tlp report runs/mobilenet_v2  |  tlp report runs/mobilenet_v2 --html
page.html  |  tlp report runs/mobilenet_v2 --json"""


def report(
    folder: Annotated[
        Path, typer.Argument(help="Work folder of a `tlp tune`: complete, going on or stopped.")
    ],
    html: Annotated[
        Path | None, typer.Option(help="Where the page goes. [FOLDER/report.html]")
    ] = None,
    json_output: Annotated[
        bool,
        typer.Option("--json", help="Print what the page is made of; a page only with --html."),
    ] = False,
) -> None:
    """Show a run: its table here, and a page with plots that needs no network."""
    from tlp.reports.history import read_history
    from tlp.reports.page import write_page
    from tlp.reports.report import make_report
    from tlp.reports.tables import console, show_summary
    from tlp.tuning.workdir import WorkDir

    history = read_history(folder)
    found = make_report(history)
    page = html if html is not None or json_output else WorkDir(folder).report
    if page is not None:
        write_page(history, page)
    if json_output:
        print(json.dumps(found))
        return
    out = console()
    show_summary(found, out)
    for note in found["notes"]:
        out.print(f"note: {note}", style="yellow", markup=False)
    print(f"page with plots: {page}")
