from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tlp.networks.canonical import canonical_text, rename, workload_key
from tlp.networks.prepare import load_prepared
from tlp.networks.tasks import Task, extract_tasks, make_task


@pytest.fixture(scope="module")
def tasks(prepared: tuple[Path, list[str]], target: dict[str, Any]) -> list[Task]:
    return extract_tasks(load_prepared(prepared[0]), target)


def _matmul(tvm: Any, rows: int, columns: int, inner: int, names: str = "abkmrs") -> Any:
    te = tvm.te
    left = te.placeholder((rows, inner), name=names[0])
    right = te.placeholder((inner, columns), name=names[1])
    k = te.reduce_axis((0, inner), name=names[2])
    product = te.compute(
        (rows, columns), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name=names[3]
    )
    result = te.compute((rows, columns), lambda i, j: product[i, j] + 1.0, name=names[4])
    return tvm.IRModule({"main": te.create_prim_func([left, right, result])})


def test_matmul_by_hand(tvm: Any) -> None:
    task = make_task(_matmul(tvm, 4, 16, 8), "matmul_add", weight=3)
    # A multiplication and an addition for each of 4*16*8 products, and one addition an element.
    assert task.flops == 2 * 4 * 16 * 8 + 4 * 16
    assert task.reduction_length == 8
    assert task.anchor == "m 4x16"
    assert task.weight == 3
    assert task.arguments == (
        ("float32", (4, 8)),
        ("float32", (8, 16)),
        ("float32", (4, 16)),
    )


def test_keys_ignore_names_only(tvm: Any) -> None:
    key = workload_key(_matmul(tvm, 4, 16, 8))
    assert len(key) == 16
    assert int(key, 16) >= 0
    assert workload_key(_matmul(tvm, 4, 16, 8, names="xyzuvw")) == key
    others = [(8, 16, 4), (4, 8, 16), (16, 4, 8), (4, 16, 9)]
    keys = {key, *(workload_key(_matmul(tvm, *shape)) for shape in others)}
    assert len(keys) == 5


def test_keys_see_data_types_attributes_and_operations(tvm: Any) -> None:
    te = tvm.te

    def module(dtype: str, function: Any) -> Any:
        x = te.placeholder((8,), dtype=dtype, name="x")
        return tvm.IRModule({"main": te.create_prim_func([x, te.compute((8,), function(x))])})

    base = module("float32", lambda x: lambda i: x[i] + x[i])
    marked = tvm.IRModule({"main": base["main"].with_attr("layout_free_buffers", [0])})
    variants = [
        base,
        marked,
        module("float64", lambda x: lambda i: x[i] + x[i]),
        module("float32", lambda x: lambda i: x[i] * x[i]),
        module("float32", lambda x: lambda i: x[7 - i] + x[i]),
        module("float32", lambda x: lambda i: x[i] + x[7 - i]),
    ]
    assert len({workload_key(variant) for variant in variants}) == len(variants)


def test_rename_numbers_every_definition() -> None:
    reused = "for i in T.grid(4):\n    A[i] = B[i]\nfor i in T.grid(4):\n    B[i] = A[i]\n"
    other = "for p in T.grid(4):\n    X[p] = Y[p]\nfor q in T.grid(4):\n    Y[q] = X[q]\n"
    swapped = "for p in T.grid(4):\n    X[p] = Y[p]\nfor q in T.grid(4):\n    X[q] = Y[q]\n"
    assert rename(reused) == rename(other)
    assert rename(reused) != rename(swapped)
    # Reads come before the definition that shadows them.
    assert rename("i = T.axis.spatial(4, i)\n") == rename("a = T.axis.spatial(4, b)\n")
    # Strings other than names of blocks, attributes and keyword arguments stay.
    text = rename('with T.sblock("conv"):\n    T.attr({"unroll": 1}, dtype="int8")\n')
    assert '"unroll"' in text
    assert 'dtype = "int8"' in text
    assert "conv" not in text


def test_canonical_text_holds_no_names(tvm: Any) -> None:
    text = canonical_text(_matmul(tvm, 4, 16, 8, names=["LEFT", "RIGHT", "AXIS", "MM", "OUT"]))
    for name in ("LEFT", "RIGHT", "AXIS", "MM", "OUT"):
        assert name not in text


def test_tasks_of_the_small_network(tasks: list[Task]) -> None:
    by_anchor = {task.anchor: task for task in tasks if "conv2d" in task.name}
    assert [task.anchor.split()[0] for task in tasks[:2]] == ["conv2d_nchw"] * 2
    # Two of the three convolutions have equal shapes; only the reductions tell the tasks apart.
    assert set(by_anchor) == {"conv2d_nchw 1x8x16x16"}
    inner, first = tasks[:2]
    assert (inner.weight, inner.reduction_length) == (2, 8 * 3 * 3)
    assert (first.weight, first.reduction_length) == (1, 3 * 3 * 3)
    elements = 8 * 16 * 16
    # Products and sums, one bias addition and one comparison (relu); padding adds comparisons.
    arithmetic = 2 * elements * 72 + 2 * elements
    assert arithmetic <= inner.flops <= arithmetic + 10 * 8 * 18 * 18
    dense = next(task for task in tasks if task.anchor == "matmul 1x10")
    assert dense.flops == 2 * 8 * 10 + 10
    assert dense.arguments[0] == ("float32", (1, 8))


def test_weights_count_the_calls(tasks: list[Task], prepared: tuple[Path, list[str]]) -> None:
    calls = load_prepared(prepared[0])["main"].script().count("R.call_tir(")
    assert sum(task.weight for task in tasks) == calls


def test_order_is_by_operations_in_the_network(tasks: list[Task]) -> None:
    work = [task.weight * task.flops for task in tasks]
    assert work == sorted(work, reverse=True)
    assert len({task.key for task in tasks}) == len(tasks)


def test_equal_tasks_are_merged(tvm: Any, target: dict[str, Any], monkeypatch: Any) -> None:
    class Found:
        def __init__(self, name: str, mod: Any, weight: int) -> None:
            self.task_name, self.dispatched, self.weight = name, [mod], weight

    found = [
        Found("b", _matmul(tvm, 4, 16, 8, names="xyzuvw"), 2),
        Found("a", _matmul(tvm, 4, 16, 8), 3),
        Found("c", _matmul(tvm, 2, 2, 2), 1),
    ]
    from tvm.s_tir import meta_schedule

    monkeypatch.setattr(
        meta_schedule.relax_integration, "extract_tasks", lambda *_, **__: list(found)
    )
    tasks = extract_tasks(None, target)
    assert [(task.name, task.weight) for task in tasks] == [("a", 5), ("c", 1)]


def test_keys_are_the_same_in_another_process(
    tasks: list[Task], prepared: tuple[Path, list[str]], target: dict[str, Any]
) -> None:
    code = (
        "import sys, json, pathlib\n"
        "from tlp.networks import prepare, tasks\n"
        "mod = prepare.load_prepared(pathlib.Path(sys.argv[1]))\n"
        "found = tasks.extract_tasks(mod, json.loads(sys.argv[2]))\n"
        "print(json.dumps([[task.key, task.name] for task in found]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(prepared[0]), json.dumps(target)],
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONHASHSEED": "77"},
    )
    assert json.loads(result.stdout) == [[task.key, task.name] for task in tasks]
