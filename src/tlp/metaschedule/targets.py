"""Targets: what the user writes, what TVM wants, and what this machine can run."""

from __future__ import annotations

import json
import platform
import re
from typing import Any

from tlp.errors import TargetError
from tlp.host import available_cores, cpu_flags, plan_cores

NATIVE = "native"

# LLVM's names of instruction sets that a program dies without, as the kernel calls them.
_FLAGS = {
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "sse3": "pni",
    "lzcnt": "abm",
    "bmi": "bmi1",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avxvnni": "avx_vnni",
    "amx-tile": "amx_tile",
    "amx-int8": "amx_int8",
    "amx-bf16": "amx_bf16",
}
_SAME_NAME = (
    "ssse3", "avx", "avx2", "fma", "bmi2", "f16c", "popcnt", "movbe",
    "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512ifma", "avx512vbmi",
)  # fmt: skip


def _value(text: str) -> int | bool | str | list[str]:
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return text.split(",") if "," in text else text


def parse_short_form(text: str) -> dict[str, Any]:
    """Read ``llvm -mcpu=haswell -num-cores=2`` into TVM's JSON form.

    Examples
    --------
    >>> parse_short_form("llvm -mcpu=haswell -num-cores=2")
    {'kind': 'llvm', 'mcpu': 'haswell', 'num-cores': 2}
    """
    kind, *options = text.split()
    target: dict[str, Any] = {"kind": kind}
    for option in options:
        name, equals, value = option.partition("=")
        name = name.lstrip("-")
        if not option.startswith("-") or not equals or not name or not value:
            raise TargetError(
                f"target {text!r}: cannot read {option!r}; "
                "options look like -mcpu=haswell or -num-cores=2"
            )
        parsed = _value(value)
        if name in ("mattr", "keys", "libs") and isinstance(parsed, str):
            parsed = [parsed]
        target[name] = parsed
    return target


def parse_target(text: str, here: bool = True) -> dict[str, Any]:
    """Turn a tag, a JSON dict, the short form or ``native`` into TVM's JSON form.

    A CPU target without ``num-cores`` gets the number of cores this process may use.

    Parameters
    ----------
    here
        The target is this machine; otherwise all of it must be said.

    Raises
    ------
    TargetError
        If the text is none of these, or TVM does not know the kind, tag or option.
    """
    from tlp.metaschedule.imports import load_tvm

    tvm = load_tvm()
    text = text.strip()
    if not text:
        raise TargetError("the target is empty; use native, a tag, JSON or 'llvm -mcpu=...'")
    if text == NATIVE and not here:
        raise TargetError(
            "with --rpc the target is another machine's, not native: say what it is, "
            "such as --target 'llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72 -num-cores=4'"
        )
    if text == NATIVE:
        target: dict[str, Any] = {"kind": "llvm", "mcpu": native_cpu()}
    elif text.startswith("{"):
        try:
            target = json.loads(text)
        except json.JSONDecodeError as error:
            raise TargetError(f"target {text!r} is not valid JSON: {error}") from None
    elif " " in text or text in ("llvm", "cuda", "c"):
        target = parse_short_form(text)
    else:
        target = {"tag": text}
    try:
        described = tvm.target.Target(target)
    except Exception as error:
        raise TargetError(
            f"target {text!r}: TVM does not accept it ({_last_line(error)}); "
            "use native, a tag such as 'raspberry-pi/4b-aarch64', a JSON dict, "
            "or the short form 'llvm -mcpu=haswell -num-cores=2'"
        ) from None
    target = _as_json(described)
    if target["kind"] == "llvm" and "num-cores" not in target and not here:
        raise TargetError(
            f"target {text!r}: with --rpc the number of the device's cores must be said; "
            "add -num-cores=4 (or as many as it has)"
        )
    if target["kind"] == "llvm":
        target.setdefault("num-cores", len(available_cores()))
    return target


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _as_json(described: Any) -> dict[str, Any]:
    exported = json.loads(str(described)) if str(described).startswith("{") else {}
    drop = {"tag", "keys"} | ({"host"} if exported.get("kind") == "llvm" else set())
    return {
        key: value
        for key, value in exported.items()
        if key not in drop and not key.startswith("feature.")
    }


def native_cpu() -> str:
    """LLVM's name of this machine's CPU, such as ``znver3``."""
    from tlp.metaschedule.imports import load_tvm

    return str(load_tvm().target.codegen.llvm_get_system_cpu())


def is_cpu(target: dict[str, Any]) -> bool:
    """Whether the target is compiled by LLVM for a CPU."""
    return bool(target["kind"] == "llvm")


def check_host(target: dict[str, Any]) -> None:
    """Make sure that this machine can run what is compiled for the target.

    Raises
    ------
    TargetError
        If the CPU is of another kind, lacks instructions, or has too few cores.
    """
    if not is_cpu(target):
        raise TargetError(
            f"this version measures llvm targets only, not {target['kind']}; "
            "use native or 'llvm -mcpu=...'"
        )
    machine = platform.machine()
    triple = str(target.get("mtriple", machine))
    if triple.split("-")[0] not in (machine, machine.replace("x86_64", "amd64")):
        raise TargetError(
            f"the target is for {triple}, this machine is {machine}: programs for it cannot be "
            "measured here"
        )
    missing = missing_instructions(target)
    if missing:
        raise TargetError(
            f"this CPU lacks {', '.join(missing)}, which -mcpu={target.get('mcpu')} needs; "
            f"use native (here {native_cpu()}) or an older -mcpu"
        )
    plan_cores(int(target["num-cores"]))


def check_compiles(target: dict[str, Any]) -> None:
    """Make sure that LLVM compiles for a target that other machines run.

    Raises
    ------
    TargetError
        If LLVM does not know the machine or the CPU, or the target is no CPU.
    """
    from tlp.metaschedule.imports import load_tvm

    tvm = load_tvm()
    if not is_cpu(target):
        raise TargetError(
            f"devices are measured for llvm targets only, not {target['kind']}; "
            "use 'llvm -mtriple=... -mcpu=...'"
        )
    known = {str(name) for name in tvm.target.codegen.llvm_get_targets()}
    machine = _triple(target).split("-")[0]
    # Names may carry a version, such as armv7l. LLVM dies of a machine that it does not know.
    if not machine.startswith((*known, "amd64", "i486", "i586", "i686")):
        raise TargetError(
            f"LLVM does not know the machine {machine!r} of -mtriple={_triple(target)}; "
            f"it knows {', '.join(sorted(known))}"
        )
    _check_cpu(target)


def _check_cpu(target: dict[str, Any]) -> None:
    from tlp.metaschedule.imports import load_tvm

    cpu = str(target.get("mcpu", ""))
    if cpu and not load_tvm().target.codegen.llvm_is_valid_cpu(cpu, _triple(target)):
        raise TargetError(
            f"LLVM does not know the CPU {cpu!r} for {_triple(target)}; 'native' is here "
            f"{native_cpu()!r}, others are x86-64-v2, x86-64-v3, haswell, skylake-avx512, "
            "znver3 ..., with -mtriple=aarch64-linux-gnu cortex-a72 ..."
        )


def missing_instructions(target: dict[str, Any]) -> list[str]:
    """Instruction sets that the target uses and this CPU lacks, by LLVM's names."""
    from tlp.metaschedule.imports import load_tvm

    tvm = load_tvm()
    described = tvm.target.Target(target)
    _check_cpu(target)
    features = {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(described)}
    features |= {name[1:] for name in target.get("mattr", []) if name.startswith("+")}
    needed = {name: _FLAGS.get(name, name) for name in (*_FLAGS, *_SAME_NAME) if name in features}
    flags = cpu_flags()
    return sorted(name for name, flag in needed.items() if flag not in flags)


def _triple(target: dict[str, Any]) -> str:
    from tlp.metaschedule.imports import load_tvm

    default = load_tvm().target.codegen.llvm_get_system_triple()
    return str(target.get("mtriple", default))
