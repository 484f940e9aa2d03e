from __future__ import annotations

import os
import platform

import pytest

from tlp.errors import TargetError
from tlp.host import available_cores, cpu_flags, plan_cores, plan_gpu_cores
from tlp.metaschedule import devices, targets
from tlp.metaschedule.devices import find_gpu
from tlp.metaschedule.targets import (
    check_host,
    missing_instructions,
    parse_short_form,
    parse_target,
    plan_of,
    runs_on,
)

GPU = {
    "name": "a GPU",
    "arch": "sm_86",
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("llvm", {"kind": "llvm"}),
        ("llvm -mcpu=haswell", {"kind": "llvm", "mcpu": "haswell"}),
        ("llvm --num-cores=4", {"kind": "llvm", "num-cores": 4}),
        ("llvm -mattr=+avx2,+fma", {"kind": "llvm", "mattr": ["+avx2", "+fma"]}),
        ("llvm -mattr=+avx2", {"kind": "llvm", "mattr": ["+avx2"]}),
        ("llvm -fast-math=true", {"kind": "llvm", "fast-math": True}),
    ],
)
def test_short_form(text, expected):
    assert parse_short_form(text) == expected


@pytest.mark.parametrize("text", ["llvm mcpu=haswell", "llvm -mcpu", "llvm -mcpu=", "llvm -=3"])
def test_short_form_errors_name_the_option(text):
    with pytest.raises(TargetError, match=text.split()[1]):
        parse_short_form(text)


def test_json_short_form_and_native_give_json(tvm):
    written = parse_target('{"kind": "llvm", "mcpu": "haswell", "num-cores": 2}')
    assert written == parse_target("llvm -mcpu=haswell -num-cores=2")
    native = parse_target("native")
    assert native["kind"] == "llvm"
    assert native["mcpu"] == tvm.target.codegen.llvm_get_system_cpu()
    check_host(native)


def test_cores_default_to_the_affinity():
    assert parse_target("llvm -mcpu=haswell")["num-cores"] == len(available_cores())
    assert parse_target("llvm -mcpu=haswell -num-cores=1")["num-cores"] == 1


def test_a_tag_is_taken_and_refused_on_the_wrong_machine():
    target = parse_target("raspberry-pi/4b-aarch64")
    assert target["mcpu"] == "cortex-a72"
    if platform.machine() != "aarch64":
        with pytest.raises(TargetError, match="aarch64"):
            check_host(target)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("no-such-tag", "no-such-tag"),
        ("{kind: llvm}", "not valid JSON"),
        ("llvm -no-such-option=3", "no-such-option"),
        ("nokind -mcpu=x", "nokind"),
    ],
)
def test_nonsense_is_an_error_with_the_way_out(text, says):
    with pytest.raises(TargetError, match=says):
        parse_target(text)


def test_other_kinds_and_unknown_cpus_are_refused():
    with pytest.raises(TargetError, match="llvm and cuda targets only"):
        check_host({"kind": "vulkan"})
    with pytest.raises(TargetError, match="does not know the CPU 'nocpu'"):
        check_host({"kind": "llvm", "mcpu": "nocpu", "num-cores": 1})


@pytest.mark.skipif(platform.machine() != "x86_64", reason="looks at x86 instruction sets")
def test_missing_instructions_are_named():
    assert missing_instructions({"kind": "llvm", "mcpu": "x86-64-v2"}) == []
    target = {"kind": "llvm", "mcpu": "sapphirerapids"}
    assert ("amx-tile" in missing_instructions(target)) == ("amx_tile" not in cpu_flags())


def test_core_plans():
    split = plan_cores(1, (0, 1))
    assert (split.run, split.work, split.exclusive) == ((1,), (0,), False)
    whole = plan_cores(2, (0, 1))
    assert (whole.run, whole.work, whole.exclusive) == ((0, 1), (0, 1), True)
    assert plan_cores(1, (5,)).exclusive
    assert plan_cores(2, (3, 4, 9)).run == (4, 9)
    with pytest.raises(TargetError, match="asks for 3 cores, but this process may use 2"):
        plan_cores(3, (0, 1))


def test_cuda_targets_parse_without_a_gpu():
    tag = parse_target("nvidia/nvidia-a100")
    assert (tag["kind"], tag["arch"], tag["max_shared_memory_per_block"]) == (
        "cuda",
        "sm_80",
        49152,
    )
    short = parse_target("cuda -arch=sm_90 -max_threads_per_block=512")
    assert (short["arch"], short["max_threads_per_block"]) == ("sm_90", 512)
    # What the postprocessors need and the short form leaves out.
    assert short["max_shared_memory_per_block"] == 49152
    assert parse_target("cuda -arch=sm_75")["max_threads_per_block"] == 1024
    assert "num-cores" not in tag
    assert parse_target("native")["kind"] == "llvm"


def test_cuda_without_architecture_is_that_of_the_gpu_or_an_error(monkeypatch):
    monkeypatch.setattr(targets, "find_gpu", lambda: GPU)
    target = parse_target("cuda")
    assert (target["arch"], target["max_shared_memory_per_block"]) == ("sm_86", 49152)
    assert "name" not in target
    monkeypatch.setattr(targets, "find_gpu", lambda: None)
    with pytest.raises(TargetError, match=r"no CUDA GPU here to ask.*tlp tasks"):
        parse_target("cuda")


def test_a_gpu_must_be_there_run_the_code_and_have_a_compiler(monkeypatch):
    target = {"kind": "cuda", "arch": "sm_80"}
    monkeypatch.setattr(targets, "find_gpu", lambda: None)
    with pytest.raises(TargetError, match=r"TVM finds none here.*'tlp tasks.*native"):
        check_host(target)
    monkeypatch.setattr(targets, "find_gpu", lambda: GPU)
    monkeypatch.setattr(targets, "choose_cuda_compiler", lambda: "nvcc")
    check_host(target)
    with pytest.raises(TargetError, match=r"sm_90, this machine's a GPU is sm_86"):
        check_host({"kind": "cuda", "arch": "sm_90"})
    monkeypatch.setattr(targets, "choose_cuda_compiler", lambda: None)
    with pytest.raises(TargetError, match="cuda-bindings"):
        check_host(target)


def test_machine_code_runs_on_newer_minor_versions_only():
    pairs = [("sm_80", "sm_80"), ("sm_80", "sm_86"), ("sm_90a", "sm_90")]
    assert all(runs_on(*pair) for pair in pairs)
    assert not any(runs_on(*pair) for pair in [("sm_86", "sm_80"), ("sm_80", "sm_90")])


def test_a_gpu_is_looked_for_in_another_process(monkeypatch):
    """Children of a process that has initialised CUDA could not use it."""
    find_gpu.cache_clear()
    monkeypatch.setattr(devices, "describe_gpu", lambda progress: {"pid": os.getpid()})
    assert find_gpu()["pid"] != os.getpid()
    find_gpu.cache_clear()
    monkeypatch.setattr(devices, "describe_gpu", lambda progress: os.kill(os.getpid(), 9))
    assert find_gpu() is None
    find_gpu.cache_clear()


def test_core_plans_beside_a_gpu():
    split = plan_gpu_cores((0, 1, 2))
    assert (split.run, split.work, split.exclusive) == ((2,), (0, 1), False)
    alone = plan_gpu_cores((5,))
    assert (alone.run, alone.work, alone.exclusive) == ((5,), (5,), False)
    assert plan_of({"kind": "cuda", "arch": "sm_80"}) == plan_gpu_cores()
    assert plan_of({"kind": "llvm", "num-cores": 1}) == plan_cores(1)
