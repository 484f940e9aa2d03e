"""`tlp run`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tlp.cli.options import parse_devices

if TYPE_CHECKING:
    from tlp.measuring.remote import Devices

EXAMPLES = """Examples: tlp run runs/mobilenet_v2 --repeats 50  |
tlp run runs/pi --rpc 192.168.1.2:9190"""


def _time(
    folder: Path, repeats: int, seed: int, devices: Devices | None, progress: Any
) -> dict[str, Any]:
    """Load and run the network where it belongs, in a process of its own."""
    import statistics

    import numpy as np

    from tlp.networks.prepare import load_reference
    from tlp.tuning.summary import stored_summary
    from tlp.tuning.workdir import WorkDir

    work = WorkDir(folder)
    summary = stored_summary(folder)
    rng = np.random.default_rng(seed)
    inputs = tuple(_like(rng, example) for example in load_reference(work.prepared).x1)
    if devices is None:
        cores, outputs, seconds = _here(work.library, summary["target"], inputs, repeats, progress)
        where = f"cores {list(cores)}"
    else:
        from tlp.measuring.remote import make_remote_place
        from tlp.measuring.remote_network import time_there
        from tlp.metaschedule.imports import load_tvm

        load_tvm()
        place = make_remote_place(devices, summary["target"])
        cores = ()
        outputs, seconds = time_there(place, work.library, inputs, repeats, progress)
        where = f"device {devices.key}"
    return {
        "network": summary["network"],
        "where": where,
        "cores": list(cores),
        "inputs": [f"{value.dtype}{list(value.shape)}" for value in inputs],
        "outputs": [f"{value.dtype}{list(value.shape)}" for value in outputs],
        "repeats": repeats,
        "latency_ms": {
            "median": 1e3 * statistics.median(seconds),
            "min": 1e3 * min(seconds),
            "max": 1e3 * max(seconds),
        },
    }


def _here(
    library: Path, target: dict[str, Any], inputs: tuple[Any, ...], repeats: int, progress: Any
) -> tuple[tuple[int, ...], list[Any], list[float]]:
    """Cores, outputs and seconds on this machine, pinned to the platform's cores."""
    from tlp.host import pin_process, set_tvm_threads
    from tlp.metaschedule.targets import plan_of

    cores = plan_of(target).run
    set_tvm_threads(cores)
    pin_process(cores)
    from tlp.metaschedule.compile import CompiledNetwork

    progress("loading the network")
    network = CompiledNetwork(library)
    outputs = network(*inputs)
    progress("running")
    return cores, outputs, network.time(*inputs, repeats=repeats)


def _devices(folder: Path, rpc: str | None) -> Devices | None:
    """Devices of the folder behind a tracker; None if it was tuned on this machine."""
    from tlp.errors import DeviceError
    from tlp.tuning.workdir import WorkDir

    config = WorkDir(folder).read_config() or {}
    key = config.get("identity", {}).get("rpc_key")
    if key is not None and rpc is None:
        raise DeviceError(
            f"{folder} was tuned for devices {key} behind a tracker; give --rpc HOST:PORT"
        )
    if key is None and rpc is not None:
        raise DeviceError(f"{folder} was tuned on this machine, not over --rpc; leave it out")
    return parse_devices(rpc, key)


def _like(rng: Any, example: Any) -> Any:
    """Random values in the range that the reference inputs show."""
    if example.dtype.kind in "iu":
        return rng.integers(example.min(), example.max() + 1, example.shape, dtype=example.dtype)
    if example.dtype.kind == "b":
        return rng.integers(0, 2, example.shape).astype(bool)
    return rng.standard_normal(example.shape).astype(example.dtype)


def run(
    folder: Annotated[Path, typer.Argument(help="Work folder of a finished `tlp tune`.")],
    repeats: Annotated[int, typer.Option(min=1, help="Timed calls.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the random input.")] = 0,
    rpc: Annotated[
        str | None,
        typer.Option(help="Tracker of the devices that it was tuned on.", metavar="HOST:PORT"),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Load a tuned network, run it on random input and print its latency."""
    from tlp.errors import WorkDirError
    from tlp.processes import run_isolated
    from tlp.reports.progress import TerminalObserver
    from tlp.tuning.summary import stored_summary

    if not folder.is_dir():
        raise WorkDirError(f"{folder} is no folder; give the --work-dir of a finished tlp tune")
    stored_summary(folder)
    devices = _devices(folder, rpc)
    with TerminalObserver(quiet=json_output) as observer:
        result = run_isolated(
            _time,
            folder,
            repeats,
            seed,
            devices,
            log=folder / "logs" / "run.log",
            on_progress=observer.stage,
            on_wait=observer.tick,
        )
    if json_output:
        print(json.dumps(result))
        return
    latency = result["latency_ms"]
    print(f"inputs   {', '.join(result['inputs'])}")
    print(f"outputs  {', '.join(result['outputs'])}")
    print(
        f"latency  {latency['median']:.3f} ms median of {repeats} calls "
        f"({latency['min']:.3f} to {latency['max']:.3f}) on {result['where']}"
    )
