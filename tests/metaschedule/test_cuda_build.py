"""Compilation for a GPU as far as it goes without one: source text, and nvcc where it is."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tlp.metaschedule.arguments import describe_arguments, random_inputs
from tlp.metaschedule.build import build_candidate, build_default, build_unscheduled
from tlp.metaschedule.compile import compile_network
from tlp.metaschedule.devices import choose_cuda_compiler, device_of_library
from tlp.metaschedule.replay import replay
from tlp.metaschedule.sketches import decision_space, make_design
from tlp.metaschedule.targets import parse_target

TARGET = "cuda -arch=sm_80"


@pytest.fixture(scope="module")
def design(matmul_mod):
    return make_design(matmul_mod, parse_target(TARGET))


def sources(module):
    found = [module.inspect_source()] if str(module.kind) == "cuda" else []
    for inner in module.imports:
        found += sources(inner)
    return found


def candidate(design, sketch):
    space = decision_space(design)
    rows = space.uniform(np.random.default_rng(0), 30)
    row = rows[rows[:, 0] == sketch][0]
    return replay(design, *space.decisions(row)).schedule.mod


@pytest.mark.parametrize("sketch", [0, 1, 2])
def test_candidates_become_cuda_source(design, sketch):
    built = build_candidate(candidate(design, sketch), design.target)
    (source,) = sources(built.library)
    assert "__global__" in source
    assert "__shared__" in source
    assert "threadIdx.x" in source
    assert ("__pipeline" in source or "cp.async" in source or "cp_async" in source) == (sketch > 0)
    assert [shape for _, shape in built.shapes] == [(32, 64), (64, 48), (32, 48)]
    assert device_of_library(built.library).dlpack_device_type() == 2  # kDLCUDA


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc of the CUDA toolkit")
@pytest.mark.parametrize("sketch", [0, 1, 2])
def test_nvcc_compiles_the_source_of_candidates(design, sketch):
    from tvm.support.nvcc import compile_cuda

    built = build_candidate(candidate(design, sketch), design.target)
    with design.target:
        binary = compile_cuda(sources(built.library)[0], target_format="fatbin", compiler="nvcc")
    assert len(binary) > 1000


def test_the_default_schedule_binds_threads_and_leaves_the_workload_alone(tvm, design, matmul_mod):
    import tvm_ffi

    before = tvm_ffi.structural_hash(matmul_mod)
    (source,) = sources(build_default(matmul_mod, design.target))
    assert "threadIdx.x" in source
    assert tvm_ffi.structural_hash(matmul_mod) == before


def test_the_reference_of_a_gpu_runs_on_the_cpu(tvm, design, matmul_mod):
    a, b, _ = random_inputs(describe_arguments(matmul_mod), 0)
    out = tvm.runtime.tensor(np.zeros((32, 48), np.float32))
    build_unscheduled(matmul_mod, design.target)(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    np.testing.assert_allclose(out.numpy(), a @ b, rtol=1e-4, atol=1e-4)
    on_cpu = tvm.tirx.build(matmul_mod, target=tvm.target.Target({"kind": "llvm"}))
    assert device_of_library(on_cpu).dlpack_device_type() == 1  # kDLCPU


def test_a_network_compiles_with_default_schedules(tvm, tmp_path):
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 32), "float32"))
    weight = relax.const(np.ones((32, 16), np.float32))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, weight))
            out = builder.emit_output(builder.emit(relax.op.nn.relu(product)))
        builder.emit_func_output(out)
    library = tmp_path / "network.so"
    compile_network(builder.get(), parse_target(TARGET), library, None, weight_layouts=False)
    assert library.exists()
    assert b"cuda" in library.read_bytes()


@pytest.mark.parametrize(
    ("nvrtc", "nvcc", "chosen"),
    [(True, None, "nvrtc"), (False, "/usr/bin/nvcc", "nvcc"), (False, None, None)],
)
def test_the_cuda_compiler_is_the_one_that_is_installed(monkeypatch, nvrtc, nvcc, chosen):
    from tlp.metaschedule import devices

    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "x")
    monkeypatch.delenv("TVM_CUDA_COMPILE_MODE")
    monkeypatch.setattr(devices, "_has_nvrtc", lambda: nvrtc)
    monkeypatch.setattr(devices.shutil, "which", lambda name: nvcc)
    assert choose_cuda_compiler() == chosen
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
    assert choose_cuda_compiler() == "nvcc"
