"""Documents, results and code say the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import fill_docs  # noqa: E402

RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


@pytest.mark.parametrize("path", fill_docs.DOCUMENTS, ids=lambda path: path.name)
def test_figures_are_those_of_the_result_files(path):
    text = path.read_text()
    assert "<!-- figures:" in text
    assert fill_docs.filled(text) == text, "run: python -m benchmarks.fill_docs"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_have_a_flat_summary_and_say_where_they_come_from(path):
    result = json.loads(path.read_text())
    assert result["summary"]
    assert all(isinstance(value, int | float) for value in result["summary"].values())
    assert {"settings", "versions", "host", "host_fingerprint"} <= set(result)
    assert "seed" in json.dumps(result["settings"])


def test_links_of_the_documents_exist():
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if "://" not in link:
                assert (document.parent / link).exists(), f"{document.name}: {link}"


def test_folders_named_in_the_architecture_exist_and_none_is_missing():
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"^\| `(\w+)/` \|", text, re.MULTILINE))
    source = ROOT / "src" / "tlp"
    there = {path.parent.name for path in source.glob("*/__init__.py")}
    assert named == there


@pytest.mark.parametrize(
    "command",
    ["tune", "tasks", "run", "report", "doctor", "import", "inspect", "split", "train", "judge"],
)
def test_every_command_has_help_with_an_example_that_fits(command):
    done = subprocess.run(
        [sys.executable, "-m", "tlp", command, "--help"], capture_output=True, text=True, check=True
    )
    assert "Example" in done.stdout
    assert f"tlp {command}" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    text = (ROOT / "README.md").read_text()
    assert f"tlp {command}" in text
