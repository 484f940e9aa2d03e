from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tlp.errors import NetworkError
from tlp.networks.builtin import BUILTINS, names
from tlp.networks.spec import NetworkSpec


def test_builtins_are_listed() -> None:
    assert names() == (
        "resnet18",
        "resnet50",
        "resnext50",
        "wide_resnet50",
        "densenet121",
        "vgg16",
        "inception_v3",
        "mobilenet_v2",
        "mobilenet_v3",
        "shufflenet_v2",
        "efficientnet_b0",
        "squeezenet",
        "vit_tiny",
        "bert_tiny",
        "bert_mini",
        "bert_base",
        "gpt2_small",
    )
    assert all(entry.description and "\n" not in entry.description for entry in BUILTINS.values())


@pytest.mark.parametrize(
    "spec",
    [
        NetworkSpec("resnet18"),
        NetworkSpec("mobilenet_v2", batch=4, input_shape=(3, 96, 128), seed=7),
        NetworkSpec("bert_tiny", input_shape=(512,)),
        NetworkSpec("some/where/net.pt2"),
    ],
)
def test_json_round_trip(spec: NetworkSpec) -> None:
    assert NetworkSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_names() -> None:
    assert NetworkSpec("resnet18").name == "resnet18"
    assert NetworkSpec("some/where/net.pt2").name == "net"
    assert not NetworkSpec("resnet18").is_file
    assert NetworkSpec("net.pt2").is_file
    assert NetworkSpec("net.onnx").is_file
    frameworks = [
        NetworkSpec(source).framework.key for source in ("net.pt2", "a/NET.ONNX", "vgg16")
    ]
    assert frameworks == ["pytorch", "onnxruntime", "pytorch"]


def test_lists_become_tuples() -> None:
    assert NetworkSpec("resnet18", input_shape=[3, 64, 64]) == NetworkSpec(  # type: ignore[arg-type]
        "resnet18", input_shape=(3, 64, 64)
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"source": "resnet5"}, ["'resnet5'", "Did you mean", "resnet50", "bert_tiny", ".pt2"]),
        ({"source": "xyz"}, ["'xyz'", "Built in: resnet18"]),
        ({"source": ""}, ["Built in"]),
        ({"source": "resnet18", "batch": 0}, ["batch", "at least 1", "0"]),
        ({"source": "resnet18", "batch": True}, ["batch", "True"]),
        ({"source": "resnet18", "batch": 1.5}, ["batch", "1.5"]),
        ({"source": "resnet18", "seed": -1}, ["seed", "at least 0"]),
        ({"source": "resnet18", "input_shape": (224, 224)}, ["224,224", "channels", "3,224,224"]),
        ({"source": "resnet18", "input_shape": (1, 224, 224)}, ["1,224,224", "3 channels"]),
        ({"source": "resnet18", "input_shape": (3, 0, 224)}, ["input shape", "at least 1"]),
        ({"source": "bert_tiny", "input_shape": (1, 128)}, ["1,128", "sequence length"]),
        ({"source": "bert_tiny", "input_shape": (513,)}, ["513", "at most 512"]),
        ({"source": "gpt2_small", "input_shape": (1025,)}, ["1025", "at most 1024"]),
        ({"source": "vit_tiny", "input_shape": (3, 224, 200)}, ["200", "multiples of 16"]),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict, expected: list[str]) -> None:
    with pytest.raises(NetworkError) as caught:
        NetworkSpec(**options)
    for part in expected:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [{}, {"batch": 1}, {"source": "resnet18", "sead": 1}, {"source": "resnet18", "input_shape": 3}],
)
def test_foreign_json_is_refused(values: dict) -> None:
    with pytest.raises(NetworkError):
        NetworkSpec.from_json(values)


def test_missing_file(tmp_path: Path) -> None:
    spec = NetworkSpec(str(tmp_path / "absent.pt2"))
    with pytest.raises(NetworkError, match=r"absent\.pt2: no such file") as caught:
        spec.check_file()
    assert "mobilenet_v2" in str(caught.value)


def test_unknown_suffix(tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    path.touch()
    with pytest.raises(NetworkError, match=r"suffix is \.pth, expected \.pt2 .* or \.onnx"):
        NetworkSpec(str(path)).check_file()


def test_a_run_uses_its_own_copy_of_the_file(tmp_path: Path) -> None:
    spec = NetworkSpec("elsewhere/net.pt2", seed=3)
    assert spec.localised(tmp_path) == spec
    (tmp_path / "network.pt2").touch()
    assert spec.localised(tmp_path) == NetworkSpec(str(tmp_path / "network.pt2"), seed=3)
    onnx = NetworkSpec("elsewhere/net.onnx", input_shape=(4,))
    assert onnx.localised(tmp_path) == onnx
    (tmp_path / "network.onnx").touch()
    assert onnx.localised(tmp_path) == NetworkSpec(str(tmp_path / "network.onnx"), input_shape=(4,))
    assert NetworkSpec("resnet18").localised(tmp_path).source == "resnet18"


def test_nothing_heavy_is_imported() -> None:
    package = Path(sys.modules["tlp.networks"].__path__[0])
    modules = [f"tlp.networks.{path.stem}" for path in sorted(package.glob("[a-z]*.py"))]
    assert "tlp.networks.importer" in modules
    code = (
        f"import sys, {', '.join(modules)}\n"
        "tlp.networks.spec.NetworkSpec('bert_base')\n"
        "heavy = {'torch', 'tvm', 'tvm_ffi', 'transformers', 'pytorchcv', 'onnx'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
