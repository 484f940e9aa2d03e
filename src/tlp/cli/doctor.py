"""`tlp doctor`."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

EXAMPLES = "Example: tlp doctor --json"

_PINS = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
# Extras whose absence is no fault, and what they are for.
_OPTIONAL = {"onnx": "ONNX files", "records": "logs and data sets"}
_EXTRAS = {
    "numpy": ("numpy", ""),
    "tvm": ("apache-tvm", "tune"),
    "tvm_ffi": ("apache-tvm-ffi", "tune"),
    "lightgbm": ("lightgbm", "tune"),
    "torch": ("torch", "torch"),
    "transformers": ("transformers", "networks"),
    "pytorchcv": ("pytorchcv", "networks"),
    "onnx": ("onnx", "onnx"),
    "onnxruntime": ("onnxruntime", "onnx"),
    "pyarrow": ("pyarrow", "records"),
    "orjson": ("orjson", "records"),
}


@dataclass(frozen=True)
class Check:
    """One thing looked at: what was found, and how to mend it if it is wrong."""

    name: str
    ok: bool
    found: str
    mend: str = ""


def _import_package(module: str, progress: Any) -> str:
    import importlib
    import importlib.metadata

    importlib.import_module(module)
    return importlib.metadata.version(_EXTRAS[module][0])


def _package(module: str) -> Check:
    from tlp.errors import TlpError
    from tlp.processes import run_isolated

    package, extra = _EXTRAS[module]
    install = f"pip install 'tlp[{extra}]'" if extra else f"pip install {package}"
    if package in _PINS:
        install = f"pip install {package}=={_PINS[package]}"
    if extra in _OPTIONAL and importlib.util.find_spec(module) is None:
        return Check(package, True, f"not installed, needed for {_OPTIONAL[extra]} only: {install}")
    try:
        version = str(run_isolated(_import_package, module))
    except TlpError as error:
        return Check(package, False, str(error).strip().splitlines()[0], install)
    pinned = _PINS.get(package)
    if pinned is not None and version != pinned:
        return Check(package, False, f"{version}, but only {pinned} works", install)
    return Check(package, True, version)


def _describe_target(progress: Any) -> dict[str, Any]:
    from tlp.metaschedule.targets import check_host, parse_target

    target = parse_target("native")
    check_host(target)
    return target


def _build_and_run(progress: Any) -> float:
    """Schedule, build, run and check a small matrix product; returns its seconds."""
    import tempfile
    from pathlib import Path

    import numpy as np

    from tlp.host import plan_cores
    from tlp.measuring.batch import Batch, reference
    from tlp.measuring.messages import Program
    from tlp.measuring.place import LocalPlace
    from tlp.measuring.pool import WorkerPool
    from tlp.metaschedule.imports import load_tvm
    from tlp.metaschedule.targets import parse_target
    from tlp.networks.tasks import make_task
    from tlp.records.status import Status
    from tlp.tuning.state import make_states, subjects_of

    tvm = load_tvm()
    from tvm.s_tir.meta_schedule.testing import te_workload

    target = parse_target("native")
    function = tvm.te.create_prim_func(te_workload.matmul(64, 64, 64))
    mod = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    (state,) = make_states([make_task(mod, "matmul")], target)
    if state.note:
        raise RuntimeError(state.note)
    rng = np.random.default_rng(0)
    key = state.task.key
    with (
        tempfile.TemporaryDirectory() as folder,
        WorkerPool(
            subjects_of([state]),
            LocalPlace(plan_cores(int(target["num-cores"]))),
            Path(folder),
            size=1,
            log_dir=Path(folder),
        ) as pool,
    ):
        done = reference(pool, key)
        if done.error:
            raise RuntimeError(f"the unscheduled program failed: {done.error}")
        program = Program(key, *state.space.decisions(state.space.uniform(rng, 1)[0]))
        (measured,) = Batch(pool, [program], lambda: float("inf")).results()
        outcome = measured.run or measured.build
        if outcome.status is not Status.OK or measured.run is None:
            raise RuntimeError(f"{outcome.status.value}: {outcome.error}")
        return float(np.median(measured.run.latencies))


def _compiler() -> Check:
    import shutil

    for name in ("cc", "gcc", "g++", "clang"):
        path = shutil.which(name)
        if path:
            return Check("C compiler", True, path)
    return Check("C compiler", False, "none", "apt-get install g++ (it links the tuned network)")


def diagnose(tick: Any) -> list[Check]:
    """Every check, in order; later ones are left out where an earlier one makes them useless."""
    from tlp.errors import TlpError
    from tlp.host import available_cores, describe_host
    from tlp.metaschedule.devices import choose_cuda_compiler, describe_gpu
    from tlp.processes import run_isolated

    host = describe_host()
    cores = len(available_cores())
    checks = [
        Check("CPU", True, f"{host['cpu']}, {cores} of {host['cores']} cores usable"),
        Check("memory", host["memory_gib"] >= 4, f"{host['memory_gib']} GiB", "4 GiB are needed"),
    ]
    for module in _EXTRAS:
        tick(f"importing {module}")
        checks.append(_package(module))
    checks.append(_compiler())
    tvm_works = all(check.ok for check in checks if check.name in ("numpy", *_PINS))
    if tvm_works:
        tick("looking at the target")
        try:
            target = run_isolated(_describe_target)
            checks.append(Check("native target", True, json.dumps(target)))
        except TlpError as error:
            text = str(error).splitlines()[0]
            checks.append(Check("native target", False, text, "give --target to tlp tune"))
        tick("looking for a GPU")
        try:
            gpu = run_isolated(describe_gpu)
        except TlpError:  # a driver that does not fit may end the process
            gpu = None
        found = "none; only --target cuda needs one"
        if gpu is not None:
            compiler = choose_cuda_compiler() or "no compiler: pip install cuda-bindings"
            found = f"{gpu['name']}, {gpu['arch']}, {compiler}"
        checks.append(Check("CUDA GPU", True, found))
        tick("building and running a program")
        try:
            seconds = run_isolated(_build_and_run)
            found = f"matmul 64x64x64 in {1e6 * seconds:.1f} us, output correct"
            checks.append(Check("build and run", True, found))
        except TlpError as error:
            mend = "see the lines above; with the pinned TVM this should work"
            checks.append(Check("build and run", False, str(error).strip()[-500:], mend))
    return checks


def doctor(
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check the installation: packages, CPU, target, one build and run."""
    from tlp.reports.progress import TerminalObserver

    with TerminalObserver(quiet=json_output) as observer:
        checks = diagnose(observer.stage)
    healthy = all(check.ok for check in checks)
    if json_output:
        print(json.dumps({"ok": healthy, "checks": [asdict(check) for check in checks]}))
    else:
        for check in checks:
            print(f"{'ok ' if check.ok else 'BAD'}  {check.name:<16} {check.found}")
            if not check.ok:
                print(f"     {'':<16} mend: {check.mend}")
        print("everything works" if healthy else "some things do not work")
    if not healthy:
        raise typer.Exit(1)
