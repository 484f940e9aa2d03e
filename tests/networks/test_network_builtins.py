"""Every built-in network: its tasks at its own shape, and its output at a small one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tlp.networks.builtin import BUILTINS, names
from tlp.processes import run_isolated

TOLERANCE = 1e-3

# Small enough for code that is not scheduled.
SMALL = {"vgg16": (3, 32, 32), "inception_v3": (3, 96, 96)}


def small_shape(name: str) -> tuple[int, ...]:
    family = BUILTINS[name].family
    return SMALL.get(name, (3, 64, 64) if family == "image" else (16,))


def difference(
    name: str, shape: tuple[int, ...] | None, folder: Path, progress: Any
) -> tuple[int, int, float]:
    """Tasks, calls, and error of the compiled output as a share of its variation."""
    from tlp.measuring.compare import output_error
    from tlp.metaschedule.compile import CompiledNetwork, compile_network
    from tlp.networks.prepare import load_prepared, load_reference, prepare
    from tlp.networks.spec import NetworkSpec
    from tlp.networks.tasks import extract_tasks

    target = {"kind": "llvm", "num-cores": 1}
    prepare(NetworkSpec(name, input_shape=shape), target, True, folder, progress)
    mod = load_prepared(folder)
    tasks = extract_tasks(mod, target)
    compile_network(mod, target, folder / "net.so", None, True)
    error = output_error(CompiledNetwork(folder / "net.so"), load_reference(folder))
    return len(tasks), sum(task.weight for task in tasks), error


def tasks_at_own_shape(name: str, progress: Any) -> tuple[int, int]:
    from tlp.networks.importer import import_network
    from tlp.networks.load import load_network
    from tlp.networks.spec import NetworkSpec
    from tlp.networks.tasks import extract_tasks

    target = {"kind": "llvm", "num-cores": 1}
    mod = import_network(load_network(NetworkSpec(name)), target, True)
    tasks = extract_tasks(mod, target)
    assert mod["main"].script().count("R.call_tir(") == sum(task.weight for task in tasks)
    return len(tasks), sum(task.weight for task in tasks)


@pytest.fixture(autouse=True)
def libraries() -> None:
    for package in ("tvm", "torch", "pytorchcv", "transformers"):
        pytest.importorskip(package)


@pytest.mark.parametrize("name", ["shufflenet_v2", "vit_tiny", "bert_mini"])
def test_output_at_a_small_shape(name: str, tmp_path: Path) -> None:
    shape = {"vit_tiny": (3, 32, 32)}.get(name, small_shape(name))
    tasks, calls, error = run_isolated(difference, name, shape, tmp_path, log=tmp_path / "log")
    assert 0 < tasks <= calls
    assert error <= TOLERANCE


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", names())
def test_every_network(name: str, tmp_path: Path) -> None:
    tasks, calls = run_isolated(tasks_at_own_shape, name, log=tmp_path / "import.log")
    print(f"{name}: {tasks} tasks, {calls} calls")
    assert 1 < tasks <= calls
    if name == "resnet50":
        assert tasks == 29
    _, _, error = run_isolated(
        difference, name, small_shape(name), tmp_path, log=tmp_path / "compile.log"
    )
    print(f"{name}: output differs by {error:.1e} of its variation")
    assert error <= TOLERANCE
