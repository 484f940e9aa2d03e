"""Write the figures of `results/*.json` into the documents.

    python -m benchmarks.fill_docs

A block between `<!-- figures: NAME -->` and `<!-- end -->` is replaced by the table of that name.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS
from benchmarks.search_vs_stock import geometric_mean

ROOT = Path(__file__).parent.parent
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")
_BLOCK = re.compile(r"<!-- figures: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)


def load(name: str) -> dict[str, Any]:
    """A result file."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def _machine(result: dict[str, Any]) -> str:
    host = result["host"]
    target = result["settings"].get("target") or result["settings"]["identity"]["target"]
    return f"{host['cpu']} ({target.get('mcpu', 'generic')}), {target['num-cores']} cores"


def _tuned() -> str:
    result = load("tuned_mobilenet_v2")
    s = result["summary"]
    return (
        "| MobileNet-V2, batch 1 | median latency | against tuned |\n| --- | ---: | ---: |\n"
        f"| tuned, {s['trials']} trials in {s['tuning_minutes']:.1f} minutes | "
        f"{s['tuned_ms']:.2f} ms | 1.00x |\n"
        f"| PyTorch eager | {s['pytorch_ms']:.2f} ms | {s['pytorch_ms'] / s['tuned_ms']:.2f}x |\n"
        f"| untuned | {s['untuned_ms']:.2f} ms | {s['untuned_ms'] / s['tuned_ms']:.2f}x |\n\n"
        f"Measured in alternation on {_machine(result)}. The output differs from PyTorch's by "
        f"{s['output_error']:.1e} of its variation; failed trials: {s['failures']}.\n"
    )


def _search() -> str:
    result = load("proposal_rate")
    s = result["summary"]
    lines = ["| workload | rows proposed, encoded, scored a second | search share of a round |"]
    lines.append("| --- | ---: | ---: |")
    for name, row in result["ours"].items():
        lines.append(f"| {name} | {row['rows_per_second']:,.0f} | {row['search_share']:.1%} |")
    return (
        "\n".join(lines) + f"\n\nStock EvolutionarySearch with a trained XGBModel scores "
        f"{s['stock_per_second_c2d']:,.0f} candidates a second on C2D, on the same cores: each is "
        f"replayed, postprocessed and featurised first. On {_machine(result)}.\n"
    )


def _layouts() -> str:
    result = load("weight_layouts")
    s = result["summary"]
    return (
        f"{result['settings']['network']}, {s['tasks']} tasks with weights, "
        f"{result['settings']['rows']} rows each: the best row takes {s['best_ratio']:.3f} of its "
        f"time without layouts in the geometric mean (better on {s['tasks_won']} of {s['tasks']} "
        f"tasks), the typical row {s['median_row_ratio']:.3f}.\n"
    )


def _recipe() -> str:
    s = load("stock_recipe")["summary"]
    return (
        f"The network that stock TVM builds from the folder takes {s['stock_recipe_ms']:.2f} ms, "
        f"ours {s['ours_ms']:.2f} ms: ratio {s['latency_ratio']:.3f}.\n"
    )


def _cuda_spaces() -> str:
    result = load("cuda_spaces")
    lines = [
        "| workload | accepted of all rows | accepted of those within the limits | recall |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, row in result["workloads"].items():
        lines.append(
            f"| {name} | {row['unfiltered_acceptance']:.1%} | {row['acceptance']:.1%} | "
            f"{row['recall']:.1%} of {row['uniform_accepted']} |"
        )
    return (
        "\n".join(lines) + f"\n\n{result['settings']['uniform']} uniform rows and "
        f"{result['settings']['filtered']} within the limits a workload, for "
        f"{result['settings']['target']['arch']}. Replayed without a GPU; not measured on a GPU.\n"
    )


def _race() -> str:
    result = load("search_vs_stock")
    s = result["summary"]
    by_task: dict[str, list[dict[str, Any]]] = {}
    for cell in result["cells"]:
        by_task.setdefault(cell["name"], []).append(cell)
    lines = [
        "| task | stock's time to its best | ours to the same | ratio | ratio to uniform | "
        "final latency, ours / stock |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, cells in by_task.items():
        stock = [cell["rivals"][cell["better_stock"]] for cell in cells]
        uniform = [cell["rivals"]["uniform"] for cell in cells]
        final = [
            cell["ours_best_us"] / row["best_us"] for cell, row in zip(cells, stock, strict=True)
        ]
        lines.append(
            f"| {name} | {geometric_mean([row['seconds'] for row in stock]):.0f} s | "
            f"{geometric_mean([row['ours_seconds'] for row in stock]):.0f} s | "
            f"{geometric_mean([row['time_ratio'] for row in stock]):.2f} | "
            f"{geometric_mean([row['time_ratio'] for row in uniform]):.2f} | "
            f"{geometric_mean(final):.3f} |"
        )
    lines.append(
        f"| all | | | **{s['time_ratio_stock']:.2f}** | **{s['time_ratio_uniform']:.2f}** | "
        f"**{s['final_latency_ratio']:.3f}** |"
    )
    machines = sorted({cell["machine"]["cpu"] for cell in result["cells"]})
    return (
        "\n".join(lines) + f"\n\nGeometric means over {result['settings']['seeds']} seeds "
        f"({s['runs']} runs of {result['settings']['trials']} trials), one core of "
        f"{' and '.join(machines)}, nothing pre-trained. Trials to the better stock's quality: "
        f"{s['trials_ratio_stock']:.2f} of its own; to uniform sampling's: "
        f"{s['trials_ratio_uniform']:.2f}. Of {2 * s['runs']} comparisons {s['missed']} missed "
        f"their quality within four times the trials and count double their time; "
        f"{s['beyond_budget_stock'] + s['beyond_budget_uniform']} needed more than "
        f"{result['settings']['trials']} trials.\n"
    )


def _imports() -> str:
    result = load("import_speed")
    s = result["summary"]
    return (
        f"{s['lines']:,} lines: the whole import takes {s['time_over_orjson']:.2f} times bare "
        f"`orjson.loads` on one core ({s['lines_per_second']:,.0f} lines a second), "
        f"{s['speedup_over_plain']:.1f} times less than `json.loads` with loops over the steps; "
        f"two processes are {s['scaling_two_processes']:.2f} times as fast as one (two imports "
        f"side by side, one a core, do {s['scaling_two_imports']:.2f} times the work of one). Peak "
        f"memory {s['peak_memory_mb']:.0f} MB. On {result['host']['cpu']}.\n"
    )


TABLES = {
    "race": _race,
    "imports": _imports,
    "tuned": _tuned,
    "search": _search,
    "layouts": _layouts,
    "recipe": _recipe,
    "cuda": _cuda_spaces,
}


def filled(text: str) -> str:
    """A document with its blocks written anew."""

    def write(match: re.Match[str]) -> str:
        name = match.group(1)
        return f"<!-- figures: {name} -->\n{TABLES[name]()}<!-- end -->"

    return _BLOCK.sub(write, text)


def main() -> None:
    """Fill every document."""
    for document in DOCUMENTS:
        document.write_text(filled(document.read_text()))


if __name__ == "__main__":
    main()
