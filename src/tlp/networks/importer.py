"""From a loaded network to a TVM module of fused functions, ready for tuning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tlp.errors import NetworkError
from tlp.metaschedule.imports import load_tvm
from tlp.networks.folding import fold_in_numpy
from tlp.networks.network import WAY_OUT, Network

if TYPE_CHECKING:
    import tvm


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
    mod = network.to_relax()
    with tvm.target.Target(dict(target)):
        for step in _passes(tvm, weight_layouts):
            try:
                mod = step(mod)
            except Exception as error:  # TVM's checks surface as several kinds
                raise NetworkError(
                    f"network {network.name}: TVM's {step.info.name} failed after the import "
                    f"({type(error).__name__}: {str(error).strip()[-800:]}). {WAY_OUT}"
                ) from error
    _refuse_untranslated(tvm, network.name, mod)
    return mod


def _passes(tvm: Any, weight_layouts: bool) -> list[Any]:
    transform = tvm.relax.transform
    passes = [
        transform.FoldBatchnormToConv2D(),
        tvm.ir.transform.module_pass(
            lambda mod, context: fold_in_numpy(tvm, mod), opt_level=0, name="FoldInNumPy"
        ),
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
            f"network {name}: TVM has no loops for {', '.join(sorted(left - runnable))}. {WAY_OUT}"
        )
