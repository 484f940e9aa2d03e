"""Keys of MetaSchedule workloads: the same for equal programs, whatever wrote them."""

from __future__ import annotations

import base64
import json
import re

import pyarrow as pa
import pytest
from log_files import shared

from tlp.errors import RecordsError
from tlp.records.workload_key import decode_workload, read_workload


def workloads(folder):
    path = next(shared("logs/metaschedule").glob(f"{folder}*/database_workload.json.zst"))
    with pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as stream:
        return [json.loads(line)[1] for line in stream.read().decode().splitlines()]


def packed(text: bytes) -> str:
    return base64.b64encode(len(text).to_bytes(8, "little") + text).decode()


def of_tvm(tvm, mod):
    return read_workload(tvm.ir.save_json(mod).encode())


def test_what_tvm_of_today_writes(tvm, matmul_mod, conv_mod):
    from tvm.s_tir.analysis import estimate_tir_flops

    for mod in (matmul_mod, conv_mod):
        types = [parameter.ty for parameter in mod["main"].params]
        assert of_tvm(tvm, mod).arguments == tuple(
            f"{type_.dtype}[{','.join(map(str, type_.shape))}]" for type_ in types
        )
        assert of_tvm(tvm, mod).flops == estimate_tir_flops(mod)
    assert of_tvm(tvm, matmul_mod).key != of_tvm(tvm, conv_mod).key


MATMUL = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((32, 64), "float32"), B: T.Buffer((64, 48), "float32"),
             C: T.Buffer((32, 48), "float32")):
        for i, j, k in T.grid(32, 48, 64):
            with T.sblock("name"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("name", "other_name", True),
        ("vi", "spatial", True),
        ("A", "Weights", True),
        ("32", "16", False),
        ("float32", "float16", False),
        ("C[vi, vj] + A", "C[vi, vj] - A", False),
        ("B[vk, vj]", "B[vk, vj] * B[vk, vj]", False),
        ("T.float32(0)", "T.float32(1)", False),
        ("SSR", "SRS", False),
    ],
)
def test_names_do_not_count_and_everything_computed_does(tvm, old, new, same):
    changed = MATMUL.replace(old, new) if not old.isalpha() else re.sub(rf"\b{old}\b", new, MATMUL)
    assert changed != MATMUL
    keys = [of_tvm(tvm, tvm.script.from_source(text)).key for text in (MATMUL, changed)]
    assert (keys[0] == keys[1]) is same


def to_new_format(graph):
    """The old format's nodes as the new format has them."""
    nodes = []
    for node in graph["nodes"]:
        type_ = node["type_key"]
        if type_ in ("runtime.String", "Op"):
            new = "ir.Op" if type_ == "Op" else "ffi.String"
            nodes.append({"type": new, "data": node.get("repr_str", "")})
        elif "data" in node:
            nodes.append({"type": f"ffi.{type_}", "data": node["data"]})
        elif not type_:
            nodes.append({"type": "None"})
        else:
            fields = {}
            for name, value in node.get("attrs", {}).items():
                number = float if (type_, name) == ("FloatImm", "value") else int
                try:
                    fields[name] = number(value)
                except ValueError:
                    fields[name] = value
            nodes.append({"type": type_.replace("tir.Block", "tir.SBlock"), "data": fields})
    return {"root_index": graph["root"], "nodes": nodes, "metadata": graph["attrs"]}


def test_both_formats_of_one_workload_have_one_key():
    for text in workloads("mshr-h") + workloads("mlc-ai__mlc-llm__log_db_rwkv"):
        old = json.loads(base64.b64decode(text)[8:])
        new = packed(json.dumps(to_new_format(old)).encode())
        assert decode_workload(new) == decode_workload(text)


def test_a_workload_in_two_databases_has_one_key():
    first = {decode_workload(text) for text in workloads("mlc-ai__web-llm")}
    second = {decode_workload(text) for text in workloads("mlc-ai__mlc-llm__log_db_vicuna")}
    keys = {found.key for found in first} & {found.key for found in second}
    assert len(keys) >= 19
    texts = {json.dumps(text) for text in workloads("mlc-ai__web-llm")}
    assert len({found.key for found in first}) == len(texts) == 19


def test_flops_of_a_dense_layer_by_hand():
    found = [decode_workload(text) for text in workloads("mshr-h")]
    (dense,) = (one for one in found if "float32[1000,512]" in one.arguments)
    # A multiplication and an addition an element of the product, then the bias.
    assert dense.flops == 2 * 512 * 1000 + 1000
    assert dense.version == "0.16.dev0"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("*", "not base64"),
        ("AAAA", "cut off"),
        (packed(b"{}"), "not TVM's JSON"),
        (packed(b"["), "not TVM's JSON"),
        (packed(b'{"root_index": 0, "nodes": [{"type": "ir.Var"}]}'), "no module"),
        (packed(b'{"root_index": 9, "nodes": []}'), "not TVM's JSON"),
    ],
)
def test_damaged_workloads_are_named(text, reason):
    with pytest.raises(RecordsError, match=reason):
        decode_workload(text)


def test_a_graph_without_an_end_is_refused():
    nodes = [
        {"type": "tir.PrimFunc", "data": {"params": 1, "body": 2}},
        {"type": "ffi.Array", "data": []},
        {"type": "tir.SeqStmt", "data": {"seq": 3}},
        {"type": "ffi.Array", "data": [2, 2]},
    ]
    text = json.dumps({"root_index": 0, "nodes": nodes}).encode()
    with pytest.raises(RecordsError, match="nested too deeply"):
        decode_workload(packed(text))
