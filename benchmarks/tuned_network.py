"""The result of a finished `tlp tune`, as a published figure with its curve.

tlp tune mobilenet_v2 --minutes 7 --work-dir runs/mobilenet_v2
python -m benchmarks.tuned_network runs/mobilenet_v2
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.common import RESULTS, write_result
from tlp.host import fingerprint
from tlp.reports.figures import network_curve
from tlp.reports.history import read_history
from tlp.tuning.summary import stored_summary
from tlp.tuning.workdir import WorkDir

DOCS = Path(__file__).parent.parent / "docs"


def plot(points: list[tuple[float, float]], latency: dict[str, float], path: Path) -> None:
    """Draw the curve over tuning time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    seconds, milliseconds = zip(*points, strict=True)
    axes.step(seconds, milliseconds, where="post", label="sum of the best programs so far")
    axes.axhline(latency["pytorch"], color="tab:orange", ls="--", label="PyTorch eager, measured")
    axes.plot(seconds[-1], latency["tuned"], "o", color="tab:green", label="tuned, measured")
    axes.set(xlabel="tuning time, s", ylabel="network latency, ms", yscale="log")
    axes.grid(which="both", alpha=0.25)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Read a folder, write the result and the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    run = stored_summary(options.folder)
    if run["host_fingerprint"] != fingerprint():
        parser.error("the run was made on another machine; publish it there")
    history = read_history(options.folder)
    points = [(step.seconds, 1e3 * step.latency) for step in network_curve(history.tasks)]
    phases = run["seconds_by_phase"]
    total = sum(phases.values())
    config = json.loads(WorkDir(options.folder).config.read_text())
    name = f"tuned_{Path(run['network']['source']).stem}"
    summary = {
        "tuned_ms": run["latency_ms"]["tuned"],
        "pytorch_ms": run["latency_ms"]["pytorch"],
        "untuned_ms": run["latency_ms"]["untuned"],
        "tuned_over_pytorch": run["tuned_over_pytorch"],
        "trials": run["trials"],
        "failures": run["failures"],
        "tuning_minutes": run["elapsed_s"] / 60,
        "output_error": run["output_error"],
        "search_share": (total - phases["build"] - phases["run"]) / total,
    }
    settings = {key: config[key] for key in ("identity", "trials", "minutes", "seed", "search")}
    write_result(name, summary, settings, curve=points, tasks=run["tasks"], phases=phases)
    plot(points, run["latency_ms"], DOCS / f"{name}.svg")
    print(RESULTS / f"{name}.json")


if __name__ == "__main__":
    main()
