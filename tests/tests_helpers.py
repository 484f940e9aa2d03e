"""Workloads that only tests want."""

from __future__ import annotations


def huge_matmul(tvm):
    """A matrix product that no schedule finishes within a second."""
    from tvm.s_tir.meta_schedule.testing import te_workload

    function = tvm.te.create_prim_func(te_workload.matmul(8192, 8192, 8192))
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def endless_sum(tvm):
    """Small arrays, and a sum over them that no schedule finishes within minutes."""
    from tvm import te

    given = te.placeholder((4096,), name="given")
    i, j = te.reduce_axis((0, 32768), name="i"), te.reduce_axis((0, 16384), name="j")
    out = te.compute(
        (4096,), lambda n: te.sum(given[n] * given[(i + j) % 4096], axis=[i, j]), name="out"
    )
    function = te.create_prim_func([given, out])
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def gather(tvm):
    """``table[index]``, which reads wild memory when the index is wild."""
    from tvm import te

    table = te.placeholder((64, 8), name="table")
    index = te.placeholder((512,), dtype="int64", name="index")
    out = te.compute((512, 8), lambda i, j: table[index[i], j] * 2.0, name="out")
    function = te.create_prim_func([table, index, out])
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
