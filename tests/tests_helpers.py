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


def matmul_add(tvm, names="abkmr", extents=(32, 48, 64)):
    """A matrix product and an addition, with the names that the caller wants."""
    te = tvm.te
    rows, columns, inner = extents
    left = te.placeholder((rows, inner), name=names[0])
    right = te.placeholder((inner, columns), name=names[1])
    k = te.reduce_axis((0, inner), name=names[2])
    product = te.compute(
        (rows, columns), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name=names[3]
    )
    result = te.compute((rows, columns), lambda i, j: product[i, j] + 1.0, name=names[4])
    function = te.create_prim_func([left, right, result])
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


class Watcher:
    """An observer that keeps what it is told."""

    def __init__(self):
        self.candidates = []

    def tick(self):
        pass

    def round_started(self, state, phase):
        pass

    def measured(self, state, candidate):
        self.candidates.append(candidate)


def make_store(path, states):
    """A store that knows the tasks of some states."""
    from tlp.metaschedule.imports import load_tvm
    from tlp.records.store import Store, StoredTask

    store = Store(path)
    for state in states:
        task = state.task
        text = load_tvm().ir.save_json(task.mod)
        skeletons = tuple(sketch.skeleton for sketch in state.design.sketches)
        store.add_task(StoredTask(task.key, task.name, task.weight, task.flops, text, skeletons))
    return store


def run_loop(states, store, folder, *, trials, picks=4, limits=None, size=1, watcher=None):
    """Real rounds on real workers: the loop and why it stopped."""
    import numpy as np

    from tlp.host import CorePlan, available_cores
    from tlp.measuring.place import LocalPlace
    from tlp.measuring.pool import WorkerPool
    from tlp.models.gaussian import OnlineProcess
    from tlp.tuning.loop import Budget, Loop
    from tlp.tuning.search import SearchSettings
    from tlp.tuning.state import subjects_of

    cores = available_cores()
    plan = CorePlan(run=cores[-1:], work=cores[:1], exclusive=True)
    settings = SearchSettings(picks=picks, scored=500)
    with WorkerPool(
        subjects_of(states),
        LocalPlace(plan),
        folder / "references",
        limits=limits,
        log_dir=folder,
        size=size,
    ) as pool:
        loop = Loop(
            states, store, pool, OnlineProcess(), watcher or Watcher(), settings,
            np.random.default_rng(0),
        )  # fmt: skip
        return loop, loop.run(Budget(trials=trials))
