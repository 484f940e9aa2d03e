from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tlp.errors import NetworkError
from tlp.networks.load import export_module, load_network
from tlp.networks.network import random_inputs
from tlp.networks.spec import NetworkSpec

SMALL_IMAGE = (3, 64, 64)


@pytest.fixture(scope="module")
def resnet(torch: Any) -> Any:
    pytest.importorskip("pytorchcv")
    return load_network(NetworkSpec("resnet18", input_shape=SMALL_IMAGE))


def _dependence(network: Any) -> float:
    """Largest change of the output between two inputs, relative to the largest output."""
    (first,), (second,) = (network.run(random_inputs(network, seed)) for seed in (1, 2))
    return float(np.abs(first - second).max() / np.abs(first).max())


def test_output_depends_on_the_input(resnet: Any, torch: Any) -> None:
    from pytorchcv.models.resnet import resnet18

    assert _dependence(resnet) > 0.1
    # The same network with the statistics a fresh batch norm has.
    torch.manual_seed(0)
    module = resnet18(in_size=SMALL_IMAGE[1:]).eval()
    module.features.final_pool = torch.nn.AvgPool2d(2)
    raw = dataclasses.replace(resnet, module=module)
    assert _dependence(raw) < 0.5 * _dependence(resnet)


def test_statistics_come_from_data(resnet: Any, torch: Any) -> None:
    """After calibration a norm's output has about mean 0 and variance 1 on new images."""
    norm = resnet.module.features.stage3.unit1.body.conv2.bn
    seen = []
    handle = norm.register_forward_hook(lambda _, inputs, output: seen.append(output))
    with torch.no_grad():
        resnet.module(torch.randn(8, *SMALL_IMAGE, generator=torch.Generator().manual_seed(9)))
    handle.remove()
    assert float(seen[0].mean().abs()) < 0.1
    assert float(seen[0].var()) == pytest.approx(1, abs=0.2)


def test_networks_without_batch_norm_depend_on_the_input_too(torch: Any) -> None:
    pytest.importorskip("pytorchcv")
    network = load_network(NetworkSpec("squeezenet", input_shape=SMALL_IMAGE))
    assert _dependence(network) > 0.1


def test_a_seed_fixes_weights_calibration_and_inputs(resnet: Any, torch: Any) -> None:
    before = torch.random.get_rng_state()
    again = load_network(NetworkSpec("resnet18", input_shape=SMALL_IMAGE))
    other = load_network(NetworkSpec("resnet18", input_shape=SMALL_IMAGE, seed=1))
    assert torch.equal(before, torch.random.get_rng_state())
    x = random_inputs(resnet, 5)
    assert np.array_equal(x[0], random_inputs(again, 5)[0])
    assert not np.array_equal(x[0], random_inputs(resnet, 6)[0])
    expected = resnet.run(x)[0]
    assert np.array_equal(expected, again.run(x)[0])
    assert not np.allclose(expected, other.run(x)[0])


def test_batch_and_shape(torch: Any) -> None:
    pytest.importorskip("pytorchcv")
    network = load_network(NetworkSpec("mobilenet_v2", batch=2, input_shape=(3, 64, 96)))
    assert [tuple(x.shape) for x in network.inputs] == [(2, 3, 64, 96)]
    assert network.run(network.inputs)[0].shape == (2, 1000)
    assert not network.module.training


def test_too_small_an_image_is_an_error(torch: Any) -> None:
    pytest.importorskip("pytorchcv")
    with pytest.raises(NetworkError, match="input shape 3,4,4: squeezenet"):
        load_network(NetworkSpec("squeezenet", input_shape=(3, 4, 4)))


def test_token_ids_stay_in_the_vocabulary(torch: Any) -> None:
    pytest.importorskip("transformers")
    network = load_network(NetworkSpec("bert_tiny", batch=2, input_shape=(16,)))
    (ids,) = random_inputs(network, 1)
    assert (ids.dtype, ids.shape) == (np.int64, (2, 16))
    assert int(ids.min()) >= 0
    assert int(ids.max()) < 30522
    assert network.run((ids,))[0].shape == (2, 16, 128)


def test_file_round_trip(torch: Any, small_module: Any, small_file: Path) -> None:
    network = load_network(NetworkSpec(str(small_file)))
    x = random_inputs(network, 1)
    with torch.no_grad():
        expected = small_module(*map(torch.from_numpy, x)).numpy()
    np.testing.assert_allclose(network.run(x)[0], expected, rtol=1e-5, atol=1e-6)
    assert network.name == "small"


def test_options_that_match_the_file_are_accepted(torch: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    export_module(torch.nn.ReLU(), (torch.randn(4, 5),), path)
    load_network(NetworkSpec(str(path), batch=4, input_shape=(5,)))
    with pytest.raises(NetworkError, match=r"batch: .* fixed, its first input is 4,5"):
        load_network(NetworkSpec(str(path), batch=2))
    with pytest.raises(NetworkError, match=r"input shape: .* fixed"):
        load_network(NetworkSpec(str(path), input_shape=(6,)))


def test_inputs_of_a_file_stay_in_the_range_of_its_examples(torch: Any, tmp_path: Path) -> None:
    class Mixed(torch.nn.Module):
        def forward(self, ids: Any, mask: Any, x: Any) -> Any:
            return x[ids] * mask

    path = tmp_path / "mixed.pt2"
    examples = (torch.tensor([3, 5, 4, 3]), torch.ones(4, dtype=torch.bool), torch.randn(6))
    export_module(Mixed(), examples, path)
    network = load_network(NetworkSpec(str(path)))
    drawn = [random_inputs(network, seed) for seed in range(20)]
    ids = np.stack([inputs[0] for inputs in drawn])
    assert sorted(set(ids.flatten().tolist())) == [3, 4, 5]
    assert {inputs[1].dtype for inputs in drawn} == {np.dtype(bool)}
    assert {bool(value) for inputs in drawn for value in inputs[1]} == {True, False}


def test_export_leaves_the_model_as_it_was(torch: Any, tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout())
    module.train()
    module[1].eval()
    export_module(module, (torch.randn(2, 3),), tmp_path / "net.pt2")
    assert [part.training for part in module.modules()] == [True, True, False]
    network = load_network(NetworkSpec(str(tmp_path / "net.pt2")))
    x = random_inputs(network, 0)
    assert np.array_equal(network.run(x)[0], module.eval()(*map(torch.from_numpy, x)).detach())


@pytest.mark.parametrize(
    ("model", "inputs", "expected"),
    [
        (lambda torch: torch.relu, lambda torch: (torch.ones(2),), "torch.nn.Module"),
        (lambda torch: torch.nn.ReLU(), lambda torch: {"x": torch.ones(2)}, "keyword inputs"),
        (lambda torch: torch.nn.ReLU(), lambda torch: (2.0,), "input 0 is of type float"),
        (lambda torch: torch.nn.ReLU(), lambda torch: 3, "expected a tuple of tensors"),
        (
            lambda torch: torch.nn.Linear(3, 2),
            lambda torch: (torch.ones(4),),
            "torch.export failed",
        ),
        (lambda torch: torch.nn.ReLU(), lambda torch: (torch.ones(2).to(torch.cfloat),), "complex"),
    ],
)
def test_export_errors(torch: Any, model: Any, inputs: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match=expected):
        export_module(model(torch), inputs(torch), tmp_path / "net.pt2")
    assert not (tmp_path / "net.pt2").exists()


def test_foreign_and_cut_files(torch: Any, small_file: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.pt2"
    text.write_text("not a network")
    archive = tmp_path / "archive.pt2"
    with zipfile.ZipFile(archive, "w") as stream:
        stream.writestr("readme", "nothing")
    weights = tmp_path / "weights.pt2"
    torch.save({"a": torch.ones(2)}, weights)
    cut = tmp_path / "cut.pt2"
    cut.write_bytes(small_file.read_bytes()[:-2000])
    for path in (text, archive, weights, cut):
        with pytest.raises(NetworkError, match=f"{path.name}: torch .* cannot read it"):
            load_network(NetworkSpec(str(path)))


def test_files_that_do_not_fit(torch: Any, tmp_path: Path) -> None:
    class Two(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x + y

    x = torch.ones(4, 2)
    rows = torch.export.Dim("rows", min=2, max=8)
    dynamic = torch.export.export(torch.nn.ReLU(), (x,), dynamic_shapes=({0: rows},))
    keyword = torch.export.export(Two(), (x,), {"y": x})
    bare = torch.export.export(torch.nn.ReLU(), (x,))
    bare.example_inputs = None
    for program, expected in (
        (dynamic, "dynamic shapes"),
        (keyword, r"keyword inputs \(y\)"),
        (bare, "no example inputs"),
    ):
        path = tmp_path / "net.pt2"
        torch.export.save(program, str(path))
        with pytest.raises(NetworkError, match=expected):
            load_network(NetworkSpec(str(path)))
