"""`tlp run`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

EXAMPLES = "Example: tlp run runs/mobilenet_v2 --repeats 50"


def _time(folder: Path, repeats: int, seed: int, progress: Any) -> dict[str, Any]:
    """Load and run the network; in a process of its own, pinned to the platform's cores."""
    import statistics

    import numpy as np

    from tlp.host import pin_process, set_tvm_threads
    from tlp.metaschedule.targets import plan_of
    from tlp.networks.prepare import load_reference
    from tlp.tuning.summary import stored_summary
    from tlp.tuning.workdir import WorkDir

    work = WorkDir(folder)
    summary = stored_summary(folder)
    cores = plan_of(summary["target"]).run
    set_tvm_threads(cores)
    pin_process(cores)
    from tlp.metaschedule.compile import CompiledNetwork

    progress("loading the network")
    network = CompiledNetwork(work.library)
    rng = np.random.default_rng(seed)
    inputs = [_like(rng, example) for example in load_reference(work.prepared).x1]
    outputs = network(*inputs)
    progress("running")
    seconds = network.time(*inputs, repeats=repeats)
    return {
        "network": summary["network"],
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
    with TerminalObserver(quiet=json_output) as observer:
        result = run_isolated(
            _time,
            folder,
            repeats,
            seed,
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
        f"({latency['min']:.3f} to {latency['max']:.3f}) on cores {result['cores']}"
    )
