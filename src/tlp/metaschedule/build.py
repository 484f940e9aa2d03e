"""Building workloads and candidates, and the layouts that candidates give to their weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tlp.errors import DeviceError
from tlp.metaschedule.arguments import Array
from tlp.metaschedule.targets import host_target

ENTRY = "main"
# Suffix that SplitLayoutRewritePreproc gives to the functions that lay weights out.
_PREPACK = "_weight_prepack"


@dataclass(frozen=True)
class Built:
    """A compiled candidate and the arguments it takes.

    ``shapes`` are those of the scheduled program: weights may be laid out anew.
    """

    library: Any
    shapes: tuple[tuple[str, tuple[int, ...]], ...]


def build_unscheduled(mod: Any, target: Any) -> Any:
    """Compile a workload as it is.

    A GPU runs nothing that is not bound to threads: there it is compiled for this machine's CPU.
    """
    import tvm

    if target.kind.name != "llvm":
        target = tvm.target.Target(host_target())
    return tvm.tirx.build(mod, target=target)


def build_default(mod: Any, target: Any) -> Any:
    """Compile a workload for a GPU with TVM's default schedules; its latency before tuning."""
    import tvm
    from tvm.s_tir import dlight

    rules = dlight.gpu
    with target:
        scheduled = dlight.ApplyDefaultSchedule(
            rules.Matmul(),
            rules.GEMV(),
            rules.Reduction(),
            rules.GeneralReduction(),
            rules.Fallback(),
        )(tvm.IRModule({ENTRY: mod[ENTRY]}))  # it changes the module that it is given
    return tvm.tirx.build(scheduled, target=target)


def build_candidate(mod: Any, target: Any) -> Built:
    """Compile a scheduled program as the network will call it: with its weights laid out.

    Raises
    ------
    Exception
        What TVM or LLVM raise.
    """
    import tvm
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    shapes = tuple(
        (str(info.dtype), tuple(int(extent) for extent in info.shape))
        for info in ArgInfo.from_entry_func(mod, remove_preproc=True)
    )
    lowered = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(mod)
    return Built(tvm.tirx.build(lowered, target=target), shapes)


def export(library: Any, path: Path, cc: str | None = None, workspace: str | None = None) -> None:
    """Write a compiled module: objects (``.tar``), or a library that ``cc`` links (``.so``).

    Raises
    ------
    DeviceError
        If the cross compiler is not there.
    """
    from tvm.support import cc as compilers

    linker = {"fcompile": compilers.cross_compiler(cc)} if cc else {}
    try:
        library.export_library(str(path), workspace_dir=workspace, **linker)
    except FileNotFoundError as error:
        if not cc:
            raise
        raise DeviceError(
            f"--rpc-cc {cc}: it cannot be started ({error}); give a compiler that is installed"
        ) from None


def lay_out_weights(mod: Any, target: Any, inputs: list[Array]) -> list[Array]:
    """The workload's inputs as a scheduled program takes them.

    The network's weights are laid out by the functions that SplitLayoutRewritePreproc cuts off
    the scheduled program; the same functions are built and run here, so that checking a
    candidate also checks them.

    Parameters
    ----------
    mod
        Scheduled module, its layout blocks still inside.
    target
        Of this process, which runs those functions.
    inputs
        Values of the unscheduled workload's inputs, in order; outputs are not among them.
    """
    import tvm
    from tvm import relax

    scheduled = mod[ENTRY].with_attr("global_symbol", "candidate")
    builder = relax.BlockBuilder()
    variables = [
        relax.Var(f"input{i}", relax.TensorType(value.shape, str(value.dtype)))
        for i, value in enumerate(inputs)
    ]
    outputs = [
        relax.TensorType(buffer.shape, str(buffer.dtype))
        for buffer in list(scheduled.params)[len(inputs) :]
    ]
    with builder.function("main", variables):
        with builder.dataflow():
            candidate = builder.add_func(scheduled, "candidate")
            called = builder.emit(relax.call_tir(candidate, variables, outputs))
            result = builder.emit_output(called)
        builder.emit_func_output(result)
    split = relax.transform.SplitLayoutRewritePreproc()(builder.get())
    prepack = [name for name in split.get_global_vars() if name.name_hint.endswith(_PREPACK)]
    if not prepack:
        return inputs
    return _run_prepack(tvm, relax, split, target, inputs)


def _run_prepack(tvm: Any, relax: Any, split: Any, target: Any, inputs: list[Array]) -> list[Array]:
    """Run the calls that lay out weights and return what the candidate is then called with."""
    main = split[ENTRY]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    environment: dict[Any, Any] = dict(zip(main.params, inputs, strict=True))
    for binding in bindings:
        value = binding.value
        if isinstance(value, relax.TupleGetItem):
            environment[binding.var] = environment[value.tuple_value][value.index]
            continue
        if not isinstance(value, relax.Call) or len(value.args) < 2:
            environment[binding.var] = environment.get(value)
            continue
        name, arguments = value.args[0], [environment[field] for field in value.args[1].fields]
        if not name.name_hint.endswith(_PREPACK):
            return arguments
        info = value.ty_args[0]
        fields = list(info.fields) if hasattr(info, "fields") else [info]
        results = [
            np.zeros([int(extent) for extent in field.shape], str(field.dtype)) for field in fields
        ]
        function = split[name].with_attr("global_symbol", ENTRY)
        entry = tvm.tirx.build(tvm.IRModule({ENTRY: function}), target=target)[ENTRY]
        buffers = [tvm.runtime.tensor(array) for array in (*arguments, *results)]
        entry(*buffers)
        laid_out = [buffer.numpy() for buffer in buffers[len(arguments) :]]
        environment[binding.var] = laid_out if len(fields) > 1 else laid_out[0]
    raise ValueError("the scheduled program is not called after its weights are laid out")
