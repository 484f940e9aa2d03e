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


TABLES = {
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
