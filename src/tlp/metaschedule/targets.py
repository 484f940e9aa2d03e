"""Targets: what the user writes, what TVM wants, and what this machine can run."""

from __future__ import annotations

import json
import platform
import re
from typing import Any

from tlp.errors import TargetError
from tlp.host import CorePlan, available_cores, cpu_flags, plan_cores, plan_gpu_cores
from tlp.metaschedule.devices import choose_cuda_compiler, find_gpu

NATIVE = "native"

# What CUDA grants every kernel that does not ask for more, on all architectures.
_SHARED_MEMORY = 49152
_WITHOUT_GPU = (
    "Without a GPU, 'tlp tasks NETWORK --target nvidia/nvidia-a100' still lists workloads and "
    "their decision spaces, and --target native tunes for this CPU"
)

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

    A CPU target without ``num-cores`` gets the number of cores this process may use, a CUDA
    target without ``arch`` that of this machine's GPU.

    Parameters
    ----------
    here
        The target is this machine; otherwise all of it must be said.

    Raises
    ------
    TargetError
        If the text is none of these, or TVM does not know the kind, tag or option, or a CUDA
        target has no architecture and there is no GPU to ask.
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
    if target.get("kind") == "cuda" and "arch" not in target:
        # TVM itself would ask the device in this process, or assume an old one.
        target = {**_this_gpu(text), **target}
    try:
        described = tvm.target.Target(target)
    except Exception as error:
        raise TargetError(
            f"target {text!r}: TVM does not accept it ({_last_line(error)}); "
            "use native, a tag such as 'raspberry-pi/4b-aarch64', a JSON dict, "
            "or the short form 'llvm -mcpu=haswell -num-cores=2' or 'cuda -arch=sm_80'"
        ) from None
    target = _as_json(described)
    if target["kind"] == "llvm" and "num-cores" not in target and not here:
        raise TargetError(
            f"target {text!r}: with --rpc the number of the device's cores must be said; "
            "add -num-cores=4 (or as many as it has)"
        )
    if target["kind"] == "llvm":
        target.setdefault("num-cores", len(available_cores()))
    if is_cuda(target):
        threads = target.get("max_num_threads", 1024)
        target.setdefault("max_threads_per_block", threads)
        target.setdefault("max_shared_memory_per_block", _SHARED_MEMORY)
    return target


def _this_gpu(text: str) -> dict[str, Any]:
    gpu = find_gpu()
    if gpu is None:
        raise TargetError(
            f"target {text!r} names no architecture, and there is no CUDA GPU here to ask. Name "
            f"one: 'cuda -arch=sm_80', or a tag such as nvidia/nvidia-a100. {_WITHOUT_GPU}"
        )
    return {name: value for name, value in gpu.items() if name != "name"}


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


def is_cuda(target: dict[str, Any]) -> bool:
    """Whether the target is an NVIDIA GPU."""
    return bool(target["kind"] == "cuda")


def host_target() -> dict[str, Any]:
    """The CPU of this machine as a target: what runs what a GPU cannot."""
    return {"kind": "llvm", "mcpu": native_cpu()}


def plan_of(target: dict[str, Any]) -> CorePlan:
    """Which cores measure on a platform, and which do everything else.

    Raises
    ------
    TargetError
        If the target asks for more cores than this process may use.
    """
    return plan_cores(int(target["num-cores"])) if is_cpu(target) else plan_gpu_cores()


def check_host(target: dict[str, Any]) -> None:
    """Make sure that this machine can run what is compiled for the target.

    Raises
    ------
    TargetError
        If the CPU is of another kind, lacks instructions, or has too few cores; if there is no
        GPU, or one that does not run the target's code, or no compiler for it.
    """
    if is_cuda(target):
        _check_gpu(target)
        return
    if not is_cpu(target):
        raise TargetError(
            f"this version measures llvm and cuda targets only, not {target['kind']}; "
            "use native, 'llvm -mcpu=...' or 'cuda -arch=...'"
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


def _check_gpu(target: dict[str, Any]) -> None:
    gpu = find_gpu()
    if gpu is None:
        raise TargetError(
            "tuning for cuda measures programs on a CUDA GPU, and TVM finds none here: no device, "
            f"no NVIDIA driver, or a TVM without CUDA. {_WITHOUT_GPU}"
        )
    arch = str(target["arch"])
    if not runs_on(arch, gpu["arch"]):
        raise TargetError(
            f"the target is for {arch}, this machine's {gpu['name']} is {gpu['arch']}; "
            f"use 'cuda -arch={gpu['arch']}'"
        )
    if choose_cuda_compiler() is None:
        raise TargetError(
            "TVM needs a compiler for CUDA source, and there is none: install NVRTC "
            "(pip install 'cuda-bindings'), or put nvcc of the CUDA toolkit on the PATH"
        )


def runs_on(arch: str, gpu: str) -> bool:
    """Whether machine code for ``arch`` runs on a GPU: equal major version, no newer minor one.

    Examples
    --------
    >>> runs_on("sm_80", "sm_86"), runs_on("sm_86", "sm_80"), runs_on("sm_80", "sm_90")
    (True, False, False)
    """
    code, device = (int(re.sub(r"\D", "", name) or 0) for name in (arch, gpu))
    return code // 10 == device // 10 and code <= device


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
