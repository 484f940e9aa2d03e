from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tlp.errors import NetworkError
from tlp.networks.importer import _refuse_untranslated, import_network
from tlp.networks.load import export_module, load_network
from tlp.networks.network import random_inputs
from tlp.networks.prepare import load_prepared
from tlp.networks.spec import NetworkSpec
from tlp.networks.tasks import extract_tasks


def _network(torch: Any, tmp_path: Path, function: Any, *inputs: Any) -> Any:
    class Wrapped(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            return function(*args)

    export_module(Wrapped(), inputs, tmp_path / "net.pt2")
    return load_network(NetworkSpec(str(tmp_path / "net.pt2")))


def _run_tvm(tvm: Any, mod: Any, inputs: tuple[Any, ...]) -> list[np.ndarray]:
    machine = tvm.relax.VirtualMachine(
        tvm.relax.build(mod, tvm.target.Target({"kind": "llvm"})), tvm.cpu()
    )
    outputs = machine["main"](*(tvm.runtime.tensor(value) for value in inputs))
    outputs = outputs if hasattr(outputs, "__len__") else [outputs]
    return [output.numpy() for output in outputs]


def _names(mod: Any) -> str:
    return " ".join(str(variable.name_hint) for variable in mod.get_global_vars())


def test_import_computes_what_torch_computes(
    torch: Any, tvm: Any, small_file: Path, target: dict[str, Any]
) -> None:
    network = load_network(NetworkSpec(str(small_file)))
    mod = import_network(network, target, weight_layouts=False)
    x = random_inputs(network, 3)
    expected = network.run(x)[0]
    (found,) = _run_tvm(tvm, mod, x)
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    # The norms are in the convolutions' weights.
    text = mod.script()
    assert "sqrt" not in text
    assert "subtract" not in _names(mod)


def test_several_outputs(torch: Any, tvm: Any, target: dict[str, Any], tmp_path: Path) -> None:
    network = _network(
        torch, tmp_path, lambda x, y: (x + y, {"product": x * y}), torch.ones(3), torch.ones(3)
    )
    x = random_inputs(network, 0)
    found = _run_tvm(tvm, import_network(network, target, weight_layouts=True), x)
    np.testing.assert_allclose(found[0], x[0] + x[1])
    np.testing.assert_allclose(found[1], x[0] * x[1])


def test_weight_layouts_mark_the_weights(
    tvm: Any, small_file: Path, prepared: tuple[Path, list[str]], target: dict[str, Any]
) -> None:
    free = load_prepared(prepared[0])
    fixed = import_network(load_network(NetworkSpec(str(small_file))), target, weight_layouts=False)
    marked = [
        list(function.attrs["layout_free_buffers"])
        for function in free.functions.values()
        if function.attrs and "layout_free_buffers" in function.attrs
    ]
    # Two distinct convolutions and the dense layer, each with constant weights and bias.
    assert [positions for positions in marked if positions] == [[1, 2]] * 3
    assert "layout_free_buffers" not in fixed.script()


def test_all_unknown_operators_are_named(
    torch: Any, tvm: Any, target: dict[str, Any], tmp_path: Path
) -> None:
    network = _network(
        torch,
        tmp_path,
        lambda x: torch.linalg.svd(x)[1] + torch.linalg.eigvalsh(x) + torch.relu(x)[0],
        torch.eye(4),
    )
    with pytest.raises(NetworkError, match="does not know the operators") as caught:
        import_network(network, target, weight_layouts=True)
    assert "aten._linalg_svd.default" in str(caught.value)
    assert "aten._linalg_eigh.default" in str(caught.value)
    assert "relu" not in str(caught.value)


def test_an_operator_refused_while_converting_is_named(
    torch: Any, tvm: Any, target: dict[str, Any], tmp_path: Path
) -> None:
    network = _network(
        torch, tmp_path, lambda x: torch.as_strided(x * 2, (2, 2), (1, 2), 1), torch.ones(8)
    )
    with pytest.raises(NetworkError, match=r"aten\.as_strided\.default"):
        import_network(network, target, weight_layouts=True)


def test_operators_without_loops_are_named(tvm: Any) -> None:
    builder = tvm.relax.BlockBuilder()
    x = tvm.relax.Var("x", tvm.relax.TensorType((2, 2), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(tvm.relax.op.exp(x))
        builder.emit_func_output(result)
    with pytest.raises(NetworkError, match=r"no loops for relax\.exp"):
        _refuse_untranslated(tvm, "net", builder.get())


def test_training_mode_is_refused(
    torch: Any, tvm: Any, target: dict[str, Any], tmp_path: Path
) -> None:
    program = torch.export.export(torch.nn.BatchNorm1d(3).train(), (torch.randn(4, 3),))
    path = tmp_path / "net.pt2"
    torch.export.save(program, str(path))
    with pytest.raises(NetworkError, match=r"model\.eval\(\)"):
        import_network(load_network(NetworkSpec(str(path))), target, weight_layouts=True)


@pytest.mark.parametrize(
    ("name", "shape", "tasks", "calls"),
    [("squeezenet", (3, 64, 64), 27, 39), ("bert_tiny", (32,), 20, 54)],
)
def test_builtins_import(
    tvm: Any,
    torch: Any,
    target: dict[str, Any],
    name: str,
    shape: tuple[int, ...],
    tasks: int,
    calls: int,
) -> None:
    pytest.importorskip("transformers" if name == "bert_tiny" else "pytorchcv")
    network = load_network(NetworkSpec(name, input_shape=shape))
    mod = import_network(network, target, weight_layouts=True)
    found = extract_tasks(mod, target)
    assert len(found) == tasks
    assert sum(task.weight for task in found) == calls == mod["main"].script().count("R.call_tir(")


@pytest.mark.slow
def test_resnet50_has_29_tasks(torch: Any, tvm: Any, target: dict[str, Any]) -> None:
    pytest.importorskip("pytorchcv")
    network = load_network(NetworkSpec("resnet50"))
    mod = import_network(network, target, weight_layouts=True)
    tasks = extract_tasks(mod, target)
    assert len(tasks) == 29
    assert "sqrt" not in " ".join(task.mod.script() for task in tasks)
    # Published: 4.1 billion multiply-adds, without the batch norms.
    total = sum(task.weight * task.flops for task in tasks)
    assert 2 * 3.8e9 < total < 2 * 4.2e9
