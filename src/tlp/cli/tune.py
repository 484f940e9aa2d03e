"""`tlp tune`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tlp.cli.options import (
    BATCH_HELP,
    LAYOUT_HELP,
    NETWORK_HELP,
    RPC_HELP,
    SHAPE_HELP,
    TARGET_HELP,
    parse_devices,
    parse_shape,
)

EXAMPLES = """Examples: tlp tune resnet50 --minutes 20  |  tlp tune exported.pt2 --trials 2000
--target "llvm -mcpu=haswell -num-cores=2" --work-dir runs/mine (the same folder again resumes)  |
tlp tune resnet50 --rpc 192.168.1.2:9190 --rpc-key pi4 --target raspberry-pi/4b-aarch64  |
tlp tune resnet18 --reuse runs/resnet50 --tasks "conv2d*" --minutes 5  |
tlp tune resnet18 --reuse runs/old --trials 0 --work-dir runs/new (compiles from what is known)"""

DEFAULT_MINUTES = 20.0


def tune(
    network: Annotated[str, typer.Argument(help=NETWORK_HELP)],
    minutes: Annotated[
        float | None,
        typer.Option(help="Tuning time of this call; 20 if --trials is not given either."),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            help="Trials of the work folder in all, earlier calls included; 0 compiles from what "
            "is known."
        ),
    ] = None,
    reuse: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Use records of another work folder or MetaSchedule database (repeatable): "
            "same platform and host count as measured, the best of others are measured first.",
        ),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Tune only tasks whose name, or what they compute, matches (repeatable).",
        ),
    ] = None,
    target: Annotated[str, typer.Option(help=TARGET_HELP)] = "native",
    work_dir: Annotated[
        Path | None, typer.Option(help="Folder of the run; an old one resumes. [runs/NETWORK]")
    ] = None,
    batch: Annotated[int, typer.Option(help=BATCH_HELP)] = 1,
    input_shape: Annotated[str | None, typer.Option(help=SHAPE_HELP)] = None,
    weight_layouts: Annotated[bool, typer.Option(help=LAYOUT_HELP)] = True,
    picks: Annotated[int, typer.Option(help="Candidates measured in a round.")] = 10,
    build_timeout: Annotated[
        float, typer.Option(help="Seconds for one build; for a GPU 60 unless given.")
    ] = 12.0,
    run_timeout: Annotated[float, typer.Option(help="Seconds for one candidate's run.")] = 30.0,
    rpc: Annotated[str | None, typer.Option(help=RPC_HELP, metavar="HOST:PORT")] = None,
    rpc_key: Annotated[str | None, typer.Option(help="Key of the devices at the tracker.")] = None,
    rpc_cc: Annotated[
        str | None, typer.Option(help="Cross compiler that links here. [the device links]")
    ] = None,
    rpc_wait: Annotated[
        float, typer.Option(help="Seconds without any device after which the run stops.")
    ] = 300.0,
    platform_name: Annotated[
        str | None,
        typer.Option(help="Name that the devices' latencies are kept under. [KEY-hash of target]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON on standard output.")
    ] = False,
    quiet: Annotated[bool, typer.Option(help="Show no progress.")] = False,
) -> None:
    """Tune a network on this machine or on others, check its output and compare its latency."""
    from tlp.errors import TlpError
    from tlp.measuring.pool import Limits
    from tlp.networks.spec import NetworkSpec
    from tlp.reports.progress import TerminalObserver
    from tlp.reports.tables import console, show_summary
    from tlp.tuning.run import TuneSettings
    from tlp.tuning.run import tune as run_tune
    from tlp.tuning.search import SearchSettings
    from tlp.tuning.workdir import WorkDir

    if picks < 1:
        raise TlpError(f"--picks is {picks}; give at least 1")
    for name, seconds in (
        ("--build-timeout", build_timeout),
        ("--run-timeout", run_timeout),
        ("--rpc-wait", rpc_wait),
    ):
        if not seconds > 0:
            raise TlpError(f"{name} is {seconds}; give more than 0")
    spec = NetworkSpec(network, batch, parse_shape(input_shape))
    settings = TuneSettings(
        network=spec,
        work_dir=work_dir if work_dir is not None else Path("runs") / spec.name,
        target=target,
        trials=trials,
        minutes=DEFAULT_MINUTES if minutes is None and trials is None else minutes,
        weight_layouts=weight_layouts,
        seed=seed,
        reuse=tuple(reuse or ()),
        tasks=tuple(tasks or ()),
        search=SearchSettings(picks=picks),
        limits=Limits(build=build_timeout, run=run_timeout),
        devices=parse_devices(rpc, rpc_key, rpc_cc, rpc_wait, platform_name),
    )
    with TerminalObserver(quiet) as observer:
        result = run_tune(settings, observer)
    if json_output:
        print(json.dumps(result.summary))
    else:
        show_summary(result.summary, console())
        print(f"page with plots: {WorkDir(result.work_dir).report}")
