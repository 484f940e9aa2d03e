"""A small network of known sizes, and the folder that `prepare` makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

TARGET = {"kind": "llvm", "num-cores": 1}


@pytest.fixture(scope="session")
def torch() -> Any:
    module = pytest.importorskip("torch")
    # Other tests fork this process: no OpenMP threads may be running in it.
    module.set_num_threads(1)
    return module


@pytest.fixture(scope="session")
def tvm() -> Any:
    pytest.importorskip("tvm")
    from tlp.metaschedule.imports import load_tvm

    return load_tvm()


@pytest.fixture(scope="session")
def target() -> dict[str, Any]:
    return dict(TARGET)


@pytest.fixture(scope="session")
def small_module(torch: Any) -> Any:
    """3x16x16 to 10 numbers: one 3->8 convolution, two equal 8->8 ones, pooling, a dense layer."""

    class Small(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False)
            self.inner = torch.nn.ModuleList(
                torch.nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2)
            )
            self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(8) for _ in range(3))
            self.dense = torch.nn.Linear(8, 10)

        def forward(self, image: Any) -> Any:
            x = torch.relu(self.norms[0](self.first(image)))
            for convolution, norm in zip(self.inner, self.norms[1:], strict=True):
                x = torch.relu(norm(convolution(x)))
            return self.dense(torch.nn.functional.avg_pool2d(x, 16).flatten(1))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Small()
        for norm in module.norms:
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    return module.eval()


@pytest.fixture(scope="session")
def small_file(torch: Any, small_module: Any, tmp_path_factory: Any) -> Path:
    from tlp.networks.load import export_module

    path = tmp_path_factory.mktemp("exported") / "small.pt2"
    export_module(small_module, (torch.randn(1, 3, 16, 16),), path)
    return path


@pytest.fixture(scope="session")
def prepared(
    tvm: Any, small_file: Path, target: dict[str, Any], tmp_path_factory: Any
) -> tuple[Path, list[str]]:
    """Folder of the small network, and the progress texts on the way."""
    from tlp.networks.prepare import prepare
    from tlp.networks.spec import NetworkSpec

    folder = tmp_path_factory.mktemp("prepared") / "run"
    texts: list[str] = []
    prepare(NetworkSpec(str(small_file)), target, True, folder, texts.append)
    return folder, texts
