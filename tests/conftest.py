"""Fixtures that several folders share: a real TVM, and a small task on it."""

from __future__ import annotations

import pytest

NATIVE_TWO = {"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 1}


@pytest.fixture(scope="session")
def tvm():
    from tlp.metaschedule.imports import load_tvm

    return load_tvm()


@pytest.fixture(scope="session")
def small_target():
    """A target that every x86-64 of the last fifteen years can run, one core."""
    return dict(NATIVE_TWO)


def workload(tvm, tensors):
    function = tvm.te.create_prim_func(tensors).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": function})


@pytest.fixture(scope="session")
def matmul_mod(tvm):
    from tvm.s_tir.meta_schedule.testing import te_workload

    return workload(tvm, te_workload.matmul(32, 48, 64))


@pytest.fixture(scope="session")
def conv_mod(tvm):
    from tvm.s_tir.meta_schedule.testing import te_workload

    return workload(tvm, te_workload.conv2d_nhwc(1, 14, 14, 8, 16, 3, 1, 1))


@pytest.fixture(scope="session")
def matmul_design(matmul_mod, small_target):
    from tlp.metaschedule.sketches import make_design

    return make_design(matmul_mod, small_target)


@pytest.fixture(scope="session")
def conv_design(conv_mod, small_target):
    from tlp.metaschedule.sketches import make_design

    return make_design(conv_mod, small_target)
