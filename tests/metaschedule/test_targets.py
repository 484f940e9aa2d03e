from __future__ import annotations

import platform

import pytest

from tlp.errors import TargetError
from tlp.host import available_cores, cpu_flags, plan_cores
from tlp.metaschedule.targets import (
    check_host,
    missing_instructions,
    parse_short_form,
    parse_target,
)


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
    with pytest.raises(TargetError, match="llvm targets only"):
        check_host({"kind": "cuda", "arch": "sm_80"})
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
