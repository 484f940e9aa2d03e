from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models as models
import pytest

from tlp.errors import NetworkError
from tlp.networks.eager import eager_server
from tlp.networks.importer import import_network
from tlp.networks.load import load_network, source_files
from tlp.networks.network import random_inputs
from tlp.networks.prepare import load_prepared, load_reference, prepare
from tlp.networks.spec import NetworkSpec
from tlp.networks.tasks import extract_tasks

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def _spec(made: Any, folder: Path, **options: Any) -> NetworkSpec:
    return NetworkSpec(str(models.save(made, folder / "net.onnx")), **options)


def _run_tvm(tvm: Any, mod: Any, inputs: tuple[Any, ...]) -> np.ndarray:
    machine = tvm.relax.VirtualMachine(
        tvm.relax.build(mod, tvm.target.Target({"kind": "llvm"})), tvm.cpu()
    )
    result: np.ndarray = machine["main"](*map(tvm.runtime.tensor, inputs)).numpy()
    return result


def test_import_computes_what_onnx_runtime_computes(
    tvm: Any, target: dict[str, Any], tmp_path: Path
) -> None:
    network = load_network(
        _spec(models.convolutional(), tmp_path, batch=2, input_shape=(3, 12, 10))
    )
    assert [value.shape for value in network.inputs] == [(2, 3, 12, 10)]
    mod = import_network(network, target, weight_layouts=True)
    x = random_inputs(network, 3)
    (expected,) = network.run(x)
    assert expected.shape == (2, 5)
    found = _run_tvm(tvm, mod, x)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
    # The norms are in the weights, or a scale and a shift where a bias stood between.
    assert "sqrt" not in mod.script()
    assert not any("subtract" in str(variable.name_hint) for variable in mod.get_global_vars())
    tasks = extract_tasks(mod, target)
    assert sum(task.anchor.startswith("conv2d_nchw") for task in tasks) == 2
    marked = [
        list(function.attrs["layout_free_buffers"])
        for function in mod.functions.values()
        if function.attrs and "layout_free_buffers" in function.attrs
    ]
    # Convolutions and dense layer have their weights free, and what else is constant.
    assert sum(1 in positions for positions in marked) == 3


def test_dimensions_are_bound_by_name_and_tables_bound_the_ids(tmp_path: Path) -> None:
    network = load_network(_spec(models.lookup(), tmp_path, batch=2, input_shape=(4,)))
    drawn = [random_inputs(network, seed) for seed in range(20)]
    assert {(x.dtype, x.shape) for x, _ in drawn} == {(np.dtype("int32"), (2, 4))}
    assert {(x.dtype, x.shape) for _, x in drawn} == {(np.dtype("int64"), (2, 4))}
    assert set(np.stack([ids for ids, _ in drawn]).flat) == set(range(7))
    assert set(np.stack([mask for _, mask in drawn]).flat) == {0, 1}
    ids = np.array([[0, 1, 6, 3]] * 2, np.int32)
    mask = np.array([[1, 0, 1, 1]] * 2)
    (found,) = network.run((ids, mask))
    # Row r of the table is (2 r, 2 r + 1).
    assert found[1].tolist() == [[0, 1], [0, 0], [12, 13], [6, 7]]


@pytest.mark.parametrize(
    ("shape", "options", "says"),
    [
        (None, {}, r"dimension 2 \('height'\) of input x, 3 \('width'\).*N,3,height,width"),
        (["N", 3, None, 8], {}, r"dimension 2 \('x\[2\]'\).*--input-shape"),
        (None, {"input_shape": (8, 8)}, "3 dimensions besides the batch"),
        (None, {"input_shape": (4, 8, 8)}, "input shape: dimension 1 of x is fixed at 3"),
        ([2, 3, 8, 8], {"batch": 3}, "batch: dimension 0 of x is fixed at 2"),
        (["N", 3, "s", "s"], {"input_shape": (3, 8, 9)}, "'s' .* both 8 and 9"),
    ],
)
def test_open_and_contradictory_dimensions(
    shape: list[Any] | None, options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(NetworkError, match=says):
        load_network(_spec(models.convolutional(shape), tmp_path, **options))


def test_fixed_shapes_are_taken_as_they_are(tmp_path: Path) -> None:
    made = models.convolutional([2, 3, 8, 8])
    for options in ({}, {"batch": 2, "input_shape": (3, 8, 8)}):
        network = load_network(_spec(made, tmp_path, **options))
        assert network.run(network.inputs)[0].shape == (2, 5)


def test_operators_that_tvm_does_not_know_are_named(
    tvm: Any, target: dict[str, Any], tmp_path: Path
) -> None:
    network = load_network(_spec(models.unary("Det", [1, 3, 3]), tmp_path))
    with pytest.raises(NetworkError, match="does not know the operator Det"):
        import_network(network, target, weight_layouts=True)
    with pytest.raises(NetworkError, match=r"ONNX Runtime .* acme[:.]Frobnicate"):
        load_network(_spec(models.unary("Frobnicate", [4], domain="acme"), tmp_path))


def test_an_operator_refused_while_converting_is_named(
    tvm: Any, target: dict[str, Any], tmp_path: Path
) -> None:
    made = models.unary("MaxPool", [1, 2, 2, 2, 2, 2], kernel_shape=[1, 1, 1, 1])
    network = load_network(_spec(models.unary("Relu", [4]), tmp_path))
    object.__setattr__(network, "model", made)
    with pytest.raises(NetworkError, match="cannot take operator MaxPool"):
        import_network(network, target, weight_layouts=True)


def test_sizes_that_depend_on_data_are_refused(
    tvm: Any, target: dict[str, Any], tmp_path: Path
) -> None:
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("NonZero", ["x"], ["where"]),
        helper.make_node("Cast", ["where"], ["y"], to=TensorProto.FLOAT),
    ]
    made = models.model(
        nodes, [("x", TensorProto.FLOAT, [4])], [("y", TensorProto.FLOAT, None)], {}
    )
    with pytest.raises(NetworkError, match="depends on data"):
        import_network(load_network(_spec(made, tmp_path)), target, weight_layouts=True)


def test_foreign_and_cut_files(tmp_path: Path) -> None:
    whole = models.save(models.convolutional(), tmp_path / "whole.onnx").read_bytes()
    contents = {"text": b"not a network", "cut": whole[: len(whole) // 2], "empty": b""}
    for name, content in contents.items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(content)
        with pytest.raises(NetworkError, match=rf"{name}\.onnx: not a valid ONNX model"):
            load_network(NetworkSpec(str(path)))
    with pytest.raises(NetworkError, match="no such file"):
        load_network(NetworkSpec(str(tmp_path / "absent.onnx")))


def test_weights_beside_the_file(tvm: Any, target: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    made = models.convolutional([1, 3, 8, 8])
    models.save(made, tmp_path / "embedded.onnx")
    onnx.save_model(
        made, str(path), save_as_external_data=True, location="net.data", size_threshold=0
    )
    spec = NetworkSpec(str(path))
    assert source_files(spec) == [path, tmp_path / "net.data"]
    folder = tmp_path / "run"
    prepare(spec, target, True, folder, lambda text: None)
    (tmp_path / "net.data").unlink()
    with pytest.raises(NetworkError, match=r"net\.onnx: not a valid ONNX model.*net\.data"):
        load_network(spec)
    network = load_network(spec.localised(folder))
    want = load_network(NetworkSpec(str(tmp_path / "embedded.onnx"))).run(network.inputs)
    np.testing.assert_array_equal(network.run(network.inputs)[0], want[0])


def test_preparation_and_timing(tvm: Any, target: dict[str, Any], tmp_path: Path) -> None:
    spec = _spec(models.convolutional(), tmp_path, input_shape=(3, 8, 8))
    folder, texts = tmp_path / "run", []
    prepare(spec, target, True, folder, texts.append)
    assert "running ONNX Runtime" in texts
    reference = load_reference(folder)
    found = _run_tvm(tvm, load_prepared(folder), reference.x2)
    assert np.abs(found - reference.y2[0]).max() < 1e-5 * np.abs(reference.y2[0]).max()
    Path(spec.source).unlink()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    core = min(os.sched_getaffinity(0))
    process = context.Process(target=eager_server, args=(theirs, spec, folder, (core,)))
    process.start()
    theirs.close()
    try:
        assert ours.recv() == ("ready",)
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            assert os.sched_getaffinity(int(task.name)) == {core}
        ours.send(("time", 3))
        assert [0 < seconds < 1 for seconds in ours.recv()] == [True] * 3
        ours.send(("stop",))
    finally:
        process.join(20)
        process.kill()
