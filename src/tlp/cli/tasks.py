"""`tlp tasks`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tlp.cli.options import (
    BATCH_HELP,
    LAYOUT_HELP,
    NETWORK_HELP,
    SHAPE_HELP,
    TARGET_HELP,
    parse_shape,
)

EXAMPLES = "Example: tlp tasks bert_tiny --batch 4"


def tasks(
    network: Annotated[str, typer.Argument(help=NETWORK_HELP)],
    target: Annotated[str, typer.Option(help=TARGET_HELP)] = "native",
    batch: Annotated[int, typer.Option(help=BATCH_HELP)] = 1,
    input_shape: Annotated[str | None, typer.Option(help=SHAPE_HELP)] = None,
    weight_layouts: Annotated[bool, typer.Option(help=LAYOUT_HELP)] = True,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option(help="Show no progress.")] = False,
) -> None:
    """List what there is to tune: workloads, weights, FLOPs, sketches, decision rows.

    The number of decision rows is an upper bound of the number of programs: replay repairs some
    decisions, so several rows can give the same program.
    """
    from tlp.metaschedule.targets import is_cpu, parse_target
    from tlp.networks.prepare import load_prepared, prepare
    from tlp.networks.spec import NetworkSpec
    from tlp.networks.tasks import extract_tasks
    from tlp.processes import native_output_to, run_isolated
    from tlp.reports.progress import TerminalObserver
    from tlp.reports.tables import console, show_tasks
    from tlp.tuning.state import make_states

    spec = NetworkSpec(network, batch, parse_shape(input_shape))
    spec.check_file()
    with TerminalObserver(quiet) as observer, tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        observer.stage("loading TVM")
        described = parse_target(target)
        observer.stage(f"loading {spec.framework.name}")
        run_isolated(
            prepare,
            spec,
            described,
            weight_layouts and is_cpu(described),
            folder,
            log=folder / "prepare.log",
            on_progress=observer.stage,
            on_wait=observer.tick,
        )
        observer.stage("finding tasks")
        with native_output_to(folder / "tvm.log"):
            states = make_states(extract_tasks(load_prepared(folder), described), described)
    found = [
        {
            "name": state.task.name,
            "key": state.task.key,
            "anchor": state.task.anchor,
            "weight": state.task.weight,
            "flops": state.task.flops,
            "arguments": state.task.arguments,
            "sketches": len(state.space.sketches),
            "rows": state.space.upper_bound,
        }
        for state in states
    ]
    if json_output:
        print(json.dumps({"network": spec.to_json(), "target": described, "tasks": found}))
        return
    out = console()
    show_tasks(found, out)
    total = sum(state.task.weight * state.task.flops for state in states)
    calls = sum(state.task.weight for state in states)
    out.print(f"{len(found)} tasks, {calls} calls, {total / 1e9:.3f} GFLOP")
