from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tlp.errors import NetworkError, WorkDirError
from tlp.networks.prepare import load_prepared, load_reference, prepare
from tlp.networks.spec import NetworkSpec


def test_what_a_run_needs_is_there(
    torch: Any, small_module: Any, small_file: Path, prepared: tuple[Path, list[str]]
) -> None:
    folder, texts = prepared
    assert sorted(path.name for path in folder.iterdir()) == [
        "module.json",
        "network.pt2",
        "reference.npz",
    ]
    assert (folder / "network.pt2").read_bytes() == small_file.read_bytes()
    assert texts[0].startswith("loading")
    assert "importing into TVM" in texts
    reference = load_reference(folder)
    for inputs, outputs in ((reference.x1, reference.y1), (reference.x2, reference.y2)):
        assert [value.shape for value in inputs] == [(1, 3, 16, 16)]
        with torch.no_grad():
            expected = small_module(torch.from_numpy(inputs[0])).numpy()
        np.testing.assert_allclose(outputs[0], expected, rtol=1e-4, atol=1e-6)
    assert not np.array_equal(reference.x1[0], reference.x2[0])


def test_module_can_be_built_as_stored(tvm: Any, prepared: tuple[Path, list[str]]) -> None:
    folder = prepared[0]
    # Stock TVM, no code of ours.
    mod = tvm.ir.load_json((folder / "module.json").read_text())
    machine = tvm.relax.VirtualMachine(
        tvm.relax.build(mod, tvm.target.Target({"kind": "llvm"})), tvm.cpu()
    )
    reference = load_reference(folder)
    found = machine["main"](tvm.runtime.tensor(reference.x1[0])).numpy()
    assert np.abs(found - reference.y1[0]).max() < 1e-4 * np.abs(reference.y1[0]).max()


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"root_index": 0}', b"\xff\xfe"])
def test_damaged_files(
    tvm: Any, prepared: tuple[Path, list[str]], tmp_path: Path, content: bytes | None
) -> None:
    for name, load in (("module.json", load_prepared), ("reference.npz", load_reference)):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(WorkDirError, match="Delete the folder") as caught:
            load(tmp_path)
        assert name in str(caught.value)
        shutil.copyfile(prepared[0] / name, tmp_path / name)
        load(tmp_path)
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(WorkDirError):
            load(tmp_path)


def test_reference_that_lacks_outputs(tmp_path: Path) -> None:
    np.savez(tmp_path / "reference.npz", x1_0=np.ones(2))
    with pytest.raises(WorkDirError, match="lacks y1"):
        load_reference(tmp_path)


def test_outputs_that_cannot_serve_as_reference(
    torch: Any, target: dict[str, Any], tmp_path: Path
) -> None:
    class Logarithm(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.log(x)

    x = torch.ones(64)
    for module, expected in (
        (Logarithm().eval(), "not finite"),
        (torch.nn.Dropout().train(), "two runs on the same input differ"),
    ):
        path = tmp_path / "net.pt2"
        torch.export.save(torch.export.export(module, (x,)), str(path))
        with pytest.raises(NetworkError, match=expected):
            prepare(NetworkSpec(str(path)), target, True, tmp_path / "run", lambda _: None)
        assert not (tmp_path / "run" / "module.json").exists()
