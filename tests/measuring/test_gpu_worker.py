"""The workers' way with a GPU; the device is played by the CPU, the rest is real."""

from __future__ import annotations

import math

import numpy as np
import pytest
from test_pool import make_pool, programs

from tlp.measuring import place, worker
from tlp.measuring.batch import Batch, reference
from tlp.measuring.worker import Subject, reference_path
from tlp.metaschedule.arguments import describe_arguments, random_inputs
from tlp.metaschedule.sketches import make_design
from tlp.metaschedule.targets import parse_target
from tlp.records.status import Status


@pytest.fixture
def cpu_plays_the_gpu(monkeypatch, tvm):
    """Workers are forked: they inherit what is replaced here."""
    host = tvm.target.Target({"kind": "llvm"})
    monkeypatch.setattr(place, "device_of", lambda kind: tvm.cpu(0))
    monkeypatch.setattr(
        worker, "build_default", lambda mod, target: tvm.tirx.build(mod, target=host)
    )


def test_the_reference_comes_from_the_cpu(tmp_path, matmul_mod, cpu_plays_the_gpu):
    design = make_design(matmul_mod, parse_target("cuda -arch=sm_80"))
    subject = Subject(design, describe_arguments(matmul_mod), 64)
    assert subject.on_gpu
    with make_pool(tmp_path, {"matmul": subject}, device="cuda") as pool:
        done = reference(pool, "matmul")
    assert not done.error
    assert 0 < done.latency < 1
    a, b, _ = random_inputs(subject.arguments, worker._INPUT_SEED)
    with np.load(reference_path(tmp_path / "references", "matmul")) as stored:
        np.testing.assert_allclose(stored["output0"], a @ b, rtol=1e-4, atol=1e-4)


def test_runs_are_timed_and_compared_as_on_a_cpu(
    tmp_path, matmul_design, matmul_mod, cpu_plays_the_gpu, monkeypatch
):
    monkeypatch.setattr(Subject, "on_gpu", property(lambda self: True))
    subject = Subject(matmul_design, describe_arguments(matmul_mod), 64)
    with make_pool(tmp_path, {"matmul": subject}, device="cuda") as pool:
        reference(pool, "matmul")
        (measured,) = Batch(pool, programs(matmul_design, 1), lambda: math.inf).results()
    assert measured.run is not None
    assert measured.run.status is Status.OK
    assert measured.run.verified


def test_a_failed_kernel_ends_the_worker_and_costs_one_candidate(
    tmp_path, matmul_design, matmul_mod, cpu_plays_the_gpu, monkeypatch
):
    """After an illegal access every later call in the process fails."""
    bad, good, other = programs(matmul_design, 3)
    monkeypatch.setattr(Subject, "on_gpu", property(lambda self: True))
    timed = worker._time

    def fail(*arguments):
        if tmp_path.joinpath("fail").exists():
            tmp_path.joinpath("fail").unlink()
            raise RuntimeError("CUDA: an illegal memory access was encountered")
        return timed(*arguments)

    monkeypatch.setattr(worker, "_time", fail)
    subject = Subject(matmul_design, describe_arguments(matmul_mod), 64)
    with make_pool(tmp_path, {"matmul": subject}, size=1, device="cuda") as pool:
        reference(pool, "matmul")
        first = pool.pids
        tmp_path.joinpath("fail").touch()
        results = {m.program: m.run for m in Batch(pool, [bad, good, other], infinity).results()}
        assert pool.pids != first
    statuses = [results[program].status for program in (bad, good, other)]
    assert sorted(status.value for status in statuses) == ["ok", "ok", "run_crash"]
    (crashed,) = [run for run in results.values() if run.status is Status.RUN_CRASH]
    assert "illegal memory access" in crashed.error


def infinity():
    return math.inf
