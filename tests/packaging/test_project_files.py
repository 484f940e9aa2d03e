"""The project's own files: pins, what an import loads, and the wheel in an empty environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import tomlkit
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomlkit.parse((ROOT / "pyproject.toml").read_text()).unwrap()
PROJECT = PYPROJECT["project"]
TVM_PACKAGES = ("apache-tvm", "apache-tvm-ffi")
# Installed before the lock file, by itself.
UNLOCKED = {"torch"}


def lock_lines() -> list[str]:
    lines = (line.strip() for line in (ROOT / "requirements.lock").read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def lock_versions() -> dict[str, Version]:
    versions: dict[str, Version] = {}
    for line in lock_lines():
        name, _, version = line.partition("==")
        versions[canonicalize_name(name)] = Version(version)
    return versions


def requirements(groups: Iterable[str]) -> Iterator[Requirement]:
    """Yield what the project asks for in the groups, its references to itself resolved."""
    for group in groups:
        texts = PROJECT["optional-dependencies"][group] if group else PROJECT["dependencies"]
        for text in texts:
            requirement = Requirement(text)
            if canonicalize_name(requirement.name) == PROJECT["name"]:
                yield from requirements(sorted(requirement.extras))
            else:
                yield requirement


def torch_version() -> str:
    match = re.search(r"^TORCH := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert match
    return match[1]


def run_isolated(code: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in a clean interpreter, away from the clone and from PYTHON* variables."""
    return subprocess.run(
        [sys.executable, "-I", "-c", code, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# --- pins ---------------------------------------------------------------------------------------


def test_every_line_of_the_lock_file_is_an_exact_pin() -> None:
    pin = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.]*")
    assert [line for line in lock_lines() if not pin.fullmatch(line)] == []


def test_the_lock_file_names_no_package_twice() -> None:
    assert len(lock_versions()) == len(lock_lines())


@pytest.mark.parametrize("name", TVM_PACKAGES)
def test_pyproject_pins_tvm_as_the_lock_file_does(name: str) -> None:
    found = [r for r in requirements(["tune"]) if canonicalize_name(r.name) == name]
    assert [str(r.specifier) for r in found] == [f"=={lock_versions()[canonicalize_name(name)]}"]


@pytest.mark.parametrize(
    "group", ["", "tune", "torch", "trees", "networks", "onnx", "records", "dev"]
)
def test_the_lock_file_covers_pyproject(group: str) -> None:
    locked = lock_versions()
    for requirement in requirements([group]):
        name = canonicalize_name(requirement.name)
        if name not in UNLOCKED:
            assert name in locked, f"{name} is not in requirements.lock"
            assert requirement.specifier.contains(locked[name]), f"{requirement}: {locked[name]}"


def test_the_lock_file_covers_what_builds_the_project() -> None:
    for text in PYPROJECT["build-system"]["requires"]:
        requirement = Requirement(text)
        version = lock_versions()[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version)


def test_torch_of_the_makefile_fits_pyproject_and_the_lock_file() -> None:
    (requirement,) = (r for r in requirements(["networks"]) if r.name == "torch")
    assert requirement.specifier.contains(torch_version())
    assert f"torch=={torch_version()}" in (ROOT / "requirements.lock").read_text()
    assert "torch" not in lock_versions()


# --- the commands -------------------------------------------------------------------------------


def test_make_without_a_target_lists_the_targets() -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    shown = subprocess.run(
        ["make", "--no-print-directory"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    listed = {line.split()[1] for line in shown.splitlines() if line.strip()}
    assert {"setup", "tune", "test", "test-slow", "check", "format", "wheel", "clean"} <= listed


def test_ci_checks_then_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = script.read_text().splitlines()
    assert [line for line in lines if line.startswith("make ")] == ["make check", "make test"]


# --- what is loaded -----------------------------------------------------------------------------


def loaded_roots(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in json.loads(path.read_text())}


def test_import_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import json, pathlib, sys, tlp; "
        "pathlib.Path(sys.argv[1]).write_text(json.dumps(sorted(sys.modules)))"
    )
    done = run_isolated(code, tmp_path, str(tmp_path / "modules.json"))
    assert done.returncode == 0, done.stderr
    roots = loaded_roots(tmp_path / "modules.json")
    assert "tlp" in roots
    heavy = {"torch", "tvm", "tvm_ffi", "lightgbm", "xgboost", "transformers", "pytorchcv"}
    assert (
        roots
        & (
            heavy
            | {
                "numpy",
                "pyarrow",
                "orjson",
                "scipy",
                "matplotlib",
                "ml_dtypes",
                "onnx",
                "onnxruntime",
            }
        )
        == set()
    )


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    code = """
import json, pathlib, sys
target = pathlib.Path(sys.argv[1])
sys.argv = ["tlp", "--help"]
from tlp.cli.main import main
try:
    code = main()
except SystemExit as stop:
    code = stop.code
target.write_text(json.dumps(sorted(sys.modules)))
sys.exit(code)
"""
    done = run_isolated(code, tmp_path, str(tmp_path / "modules.json"))
    assert done.returncode == 0, done.stderr
    records = ("import", "inspect", "split", "train", "judge")
    for command in ("tune", "tasks", "run", "report", *records, "doctor"):
        assert command in done.stdout
    heavy = {"torch", "tvm", "tvm_ffi", "lightgbm", "xgboost", "transformers", "pytorchcv", "scipy"}
    heavy |= {"pyarrow", "orjson"}
    assert loaded_roots(tmp_path / "modules.json") & heavy == set()


def test_help_answers_in_half_a_second(tmp_path: Path) -> None:
    def seconds() -> float:
        start = time.perf_counter()
        done = run_isolated("from tlp.cli.main import main; main()", tmp_path, "--help")
        assert done.returncode == 0, done.stderr
        return time.perf_counter() - start

    # The best of a few: what else the machine does must not decide.
    assert min(seconds() for _ in range(5)) < 0.5


# --- the wheel ----------------------------------------------------------------------------------


def clean_environment() -> dict[str, str]:
    """Return the environment without what would lead out of the new one or back to the clone."""
    drop = ("PYTHON", "VIRTUAL_ENV", "MAKE", "TLP_", "TVM_")
    return {k: v for k, v in os.environ.items() if not k.startswith(drop)}


def refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_wheel_works_in_an_empty_environment(tmp_path: Path) -> None:
    assert not tmp_path.is_relative_to(ROOT)
    environment = clean_environment()

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        text = f"{command}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
        assert done.returncode == 0, text
        return done.stdout

    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("*.whl")

    binaries = tmp_path / "venv" / "bin"
    environment["PATH"] = f"{binaries}{os.pathsep}{environment['PATH']}"
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    pip = (binaries / "python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "-q", f"torch=={torch_version()}")
    run(*pip, "install", "-q", f"{wheel}[tune,networks]")
    run(*pip, "check")

    listed = json.loads(run(*pip, "list", "--format", "json"))
    installed: dict[str, str] = {
        canonicalize_name(entry["name"]): entry["version"] for entry in listed
    }
    assert installed["tlp"] == PROJECT["version"]
    for name in TVM_PACKAGES:
        assert Version(installed[canonicalize_name(name)]) == lock_versions()[name]
    # An extra that brings another torch brings gigabytes, and one that brings torchvision may
    # break transformers, which imports it when it is there.
    assert installed["torch"].partition("+")[0] == torch_version()
    assert "torchvision" not in installed
    run(binaries / "python", "-c", "from transformers import BertModel")
    origin = run(binaries / "python", "-c", "import tlp; print(tlp.__file__)").strip()
    assert Path(origin).is_relative_to(tmp_path)

    run(binaries / "tlp", "doctor")
    work = tmp_path / "work"
    tune = ("tune", "squeezenet", "--input-shape", "3,64,64", "--trials", "10", "--work-dir", work)
    printed = run(binaries / "tlp", *tune, "--json")
    summary = json.loads(printed, parse_constant=refuse_constant)
    assert summary.keys() >= {"network", "target", "tasks", "latency_ms", "seconds_by_phase"}
    assert summary["trials"] == 10
    assert summary["output_error"] <= summary["output_tolerance"]
    assert (work / "summary.json").is_file()
    assert (work / "report.html").is_file()
