"""From an exported program to a TVM module of fused functions, ready for tuning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tlp.errors import NetworkError
from tlp.metaschedule.imports import load_tvm
from tlp.networks.load import Network

if TYPE_CHECKING:
    import torch
    import tvm

_WAY_OUT = (
    "Express it with other operators in a copy of the model, or cut the model around it and tune "
    "the parts"
)


def import_network(
    network: Network, target: Mapping[str, Any], weight_layouts: bool
) -> tvm.ir.IRModule:
    """Import a network into TVM, fold its constants and fuse it.

    Parameters
    ----------
    target
        TVM's JSON form of the target.
    weight_layouts
        Mark constant weights as free to be laid out for the tuned loops.

    Raises
    ------
    NetworkError
        If TVM cannot take an operator; the message names it.
    """
    tvm = load_tvm()
    decomposed = _decompose(network)
    _refuse_unknown(network.name, decomposed)
    _refuse_mutation(network.name, decomposed)
    from tvm.relax.frontend.torch import from_exported_program

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mod = from_exported_program(
                decomposed, unwrap_unit_return_tuple=True, run_ep_decomposition=False
            )
    except Exception as error:  # converters raise whatever they like
        node = _failing_node(error)
        culprit = f"operator {node.target} " if node is not None else ""
        raise NetworkError(
            f"network {network.name}: TVM's importer cannot take {culprit}"
            f"({type(error).__name__}: {str(error).strip()[:500]}). {_WAY_OUT}"
        ) from error
    with tvm.target.Target(dict(target)):
        for step in _passes(tvm, weight_layouts):
            try:
                mod = step(mod)
            except Exception as error:  # TVM's checks surface as several kinds
                raise NetworkError(
                    f"network {network.name}: TVM's {step.info.name} failed after the import "
                    f"({type(error).__name__}: {str(error).strip()[-800:]}). {_WAY_OUT}"
                ) from error
    _refuse_untranslated(tvm, network.name, mod)
    return mod


def _passes(tvm: Any, weight_layouts: bool) -> list[Any]:
    transform = tvm.relax.transform
    passes = [
        transform.FoldBatchnormToConv2D(),
        transform.DecomposeOpsForInference(),
        transform.CanonicalizeBindings(),
        transform.FoldConstant(),
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        transform.FuseOps(),
        transform.FuseTIR(),
        transform.DeadCodeElimination(),
        # Stock compile_relax annotates again; fused functions must already carry the attribute,
        # or they no longer equal the workloads in the database.
        transform.AnnotateTIROpPattern(),
    ]
    if weight_layouts:
        passes.append(transform.AttachAttrLayoutFreeBuffers())
    return passes


def _decompose(network: Network) -> torch.export.ExportedProgram:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return network.exported.run_decompositions()
    except Exception as error:  # internal errors of torch
        raise NetworkError(
            f"network {network.name}: torch cannot decompose the exported program into core "
            f"operators ({type(error).__name__}: {str(error).strip()[:500]})"
        ) from error


def _refuse_unknown(name: str, exported: torch.export.ExportedProgram) -> None:
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    known = ExportedProgramImporter().convert_map
    missing = sorted(
        {
            str(node.target)
            for node in exported.graph.nodes
            if node.op == "call_function" and node.target.__name__ not in known
        }
    )
    if missing:
        plural = "s" if len(missing) > 1 else ""
        raise NetworkError(
            f"network {name}: TVM's importer does not know the operator{plural} "
            f"{', '.join(missing)}. {_WAY_OUT}"
        )


def _refuse_mutation(name: str, exported: torch.export.ExportedProgram) -> None:
    written = list(exported.graph_signature.buffers_to_mutate.values())
    if written:
        raise NetworkError(
            f"network {name}: was exported in training mode, running it changes "
            f"{', '.join(written[:3])}. Call model.eval() before torch.export"
        )


def _failing_node(error: BaseException) -> Any:
    """Node of the graph that the importer was converting when it raised."""
    import torch

    found = None
    trace = error.__traceback__
    while trace is not None:
        node = trace.tb_frame.f_locals.get("node")
        if isinstance(node, torch.fx.Node) and node.op == "call_function":
            found = node
        trace = trace.tb_next
    return found


def _refuse_untranslated(tvm: Any, name: str, mod: tvm.ir.IRModule) -> None:
    """Refuse operators that the importer takes but that have no TensorIR form."""
    translated = tvm.ir.Op.get("relax.call_tir")
    left: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, tvm.relax.Call) and isinstance(node.op, tvm.ir.Op):
            if node.op.same_as(translated) or not node.op.name.startswith("relax."):
                return
            if isinstance(getattr(node, "ty", None), tvm.relax.TensorType):
                left.add(node.op.name)

    for function in mod.functions.values():
        if isinstance(function, tvm.relax.Function):
            tvm.relax.analysis.post_order_visit(function, visit)
    runnable = {"relax.call_dps_packed", "relax.call_pure_packed", "relax.call_tir_inplace"}
    if left - runnable:
        raise NetworkError(
            f"network {name}: TVM has no loops for {', '.join(sorted(left - runnable))}. {_WAY_OUT}"
        )
