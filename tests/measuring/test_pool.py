"""Workers, with real programs, real hangs and real deaths."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tlp.host import CorePlan, available_cores
from tlp.measuring import pool as pool_module
from tlp.measuring.batch import Batch, reference, replay_all
from tlp.measuring.messages import BuildRequest, Lost, Program, ReplayRequest, RunRequest
from tlp.measuring.place import LocalPlace
from tlp.measuring.pool import Limits, WorkerPool
from tlp.measuring.worker import Subject, TimingRules, reference_path
from tlp.metaschedule.arguments import describe_arguments
from tlp.metaschedule.sketches import decision_space, make_design
from tlp.records.status import Status

CORES = available_cores()
ALONE = CorePlan(run=CORES[-1:], work=CORES[:1], exclusive=True)
needs_two = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


@pytest.fixture(scope="module")
def subject(matmul_design, matmul_mod):
    return Subject(matmul_design, describe_arguments(matmul_mod), reduction_length=64)


def programs(design, count, task="matmul", seed=0):
    space = decision_space(design)
    rows = np.unique(space.uniform(np.random.default_rng(seed), 4 * count), axis=0)
    rows = np.random.default_rng(seed).permutation(rows)[:count]
    return [Program(task, *space.decisions(row)) for row in rows]


def make_pool(tmp_path, subjects, plan=ALONE, device="cpu", **options):
    place = LocalPlace(plan, device)
    return WorkerPool(
        subjects, place, tmp_path / "references", log_dir=tmp_path / "logs", **options
    )


def infinity():
    return math.inf


def test_a_batch_is_built_run_and_verified(tmp_path, subject):
    with make_pool(tmp_path, {"matmul": subject}) as pool:
        done = reference(pool, "matmul")
        assert 0 < done.latency < 1
        wanted = programs(subject.design, 4)
        replays = replay_all(pool, wanted)
        assert [r.status for r in replays] == [Status.OK] * 4
        assert len({r.program for r in replays}) == 4
        batch = Batch(pool, wanted, infinity)
        results = {m.program: m for m in batch.results()}
    assert set(results) == set(wanted)
    for measured in results.values():
        assert measured.run is not None
        assert measured.run.status is Status.OK
        assert measured.run.verified
        assert len(measured.run.latencies) >= TimingRules().repeats
        assert all(0 < value < 0.1 for value in measured.run.latencies)
    assert batch.seconds["build"] > 0
    assert batch.seconds["run"] > 0


def test_only_a_new_best_is_verified_and_a_slow_one_is_cut(tmp_path, subject):
    with make_pool(tmp_path, {"matmul": subject}) as pool:
        reference(pool, "matmul")
        fast, slow = programs(subject.design, 2)
        (measured,) = Batch(pool, [fast], lambda: 1e-9).results()
        assert measured.run is not None
        assert measured.run.status is Status.SLOW
        assert len(measured.run.latencies) == 1
        best = 2 * measured.run.latencies[0]
        (measured,) = Batch(pool, [slow], lambda: best / 1e3).results()
        assert measured.run is not None
        assert not measured.run.verified


def test_a_wrong_result_is_a_status_of_its_own(tmp_path, subject):
    with make_pool(tmp_path, {"matmul": subject}) as pool:
        reference(pool, "matmul")
        path = reference_path(tmp_path / "references", "matmul")
        with np.load(path) as stored:
            arrays = dict(stored)
        arrays["output0"][3, 5] += 0.01
        np.savez(path, **arrays)
        (measured,) = Batch(pool, programs(subject.design, 1), infinity).results()
    assert measured.run is not None
    assert measured.run.status is Status.WRONG_OUTPUT
    assert not measured.run.verified
    assert "max|a-b| = 0.01" in measured.run.error


def test_a_hanging_run_costs_one_candidate(tmp_path, tvm, subject, small_target):
    from tests_helpers import huge_matmul

    mod = huge_matmul(tvm)
    huge = Subject(make_design(mod, small_target), describe_arguments(mod), 4096)
    subjects = {"matmul": subject, "huge": huge}
    with make_pool(tmp_path, subjects, limits=Limits(run=1.0)) as pool:
        reference(pool, "matmul")
        before = pool.pids
        space = decision_space(huge.design)
        # The unrolled innermost loops of a poor schedule take far longer than the limit.
        row = space.row(0, tuple(d.values[0] for d in space.sketches[0]))
        hang = Program("huge", *space.decisions(row))
        good = programs(subject.design, 1)[0]
        begin = time.monotonic()
        results = {m.program: m for m in Batch(pool, [hang, good], infinity).results()}
        assert time.monotonic() - begin < 30
        assert results[hang].run is not None
        assert results[hang].run.status is Status.RUN_TIMEOUT
        assert "killed after 1 s" in results[hang].run.error
        assert results[good].run is not None
        assert results[good].run.status is Status.OK
        assert pool.pids != before


def test_a_crashing_run_costs_one_candidate_and_nothing_it_had_built(
    tmp_path, tvm, subject, small_target
):
    from tests_helpers import gather

    mod = gather(tvm)
    arguments = tuple(
        dataclasses.replace(a, bound=2**40) if a.bound is not None else a
        for a in describe_arguments(mod)
    )
    crash = Subject(make_design(mod, small_target), arguments, 1)
    with make_pool(tmp_path, {"matmul": subject, "crash": crash}, size=1) as pool:
        reference(pool, "matmul")
        space = decision_space(crash.design)
        bad = Program("crash", *space.decisions(space.uniform(np.random.default_rng(0), 1)[0]))
        good = programs(subject.design, 2)
        results = {m.program: m for m in Batch(pool, [bad, *good], infinity).results()}
    assert results[bad].run is not None
    assert results[bad].run.status is Status.RUN_CRASH
    assert "SIG" in results[bad].run.error
    for program in good:
        assert results[program].run is not None
        assert results[program].run.status is Status.OK


def test_a_worker_killed_in_a_build_or_while_idle_is_replaced(tmp_path, subject):
    with make_pool(tmp_path, {"matmul": subject}, size=1) as pool:
        program = programs(subject.design, 1)[0]
        pool.submit(0, ReplayRequest(program))
        while not pool.collect():
            pass
        os.kill(pool.pids[0], signal.SIGSTOP)
        pool.submit(0, BuildRequest(program))
        os.kill(pool.pids[0], signal.SIGKILL)
        replies = []
        while not replies:
            replies = pool.collect()
        ((_, request, lost),) = replies
        assert isinstance(lost, Lost)
        assert request == BuildRequest(program)
        assert "SIGKILL" in lost.error
        os.kill(pool.pids[0], signal.SIGKILL)
        time.sleep(0.2)
        pool.submit(0, ReplayRequest(program))
        replies = []
        while not replies:
            replies = pool.collect()
        assert isinstance(replies[0][2], Lost)
        (replay,) = replay_all(pool, [program])
        assert replay.status is Status.OK


def test_a_hanging_build_is_killed(tmp_path, subject):
    with make_pool(tmp_path, {"matmul": subject}, size=1, limits=Limits(build=0.01)) as pool:
        (measured,) = Batch(pool, programs(subject.design, 1), infinity).results()
        assert measured.build.status is Status.BUILD_TIMEOUT
        assert measured.run is None


def test_impossible_decisions_are_an_error_of_their_class(tmp_path, subject):
    with make_pool(tmp_path, {"matmul": subject}, size=1) as pool:
        good = programs(subject.design, 1)[0]
        bad = dataclasses.replace(good, decisions=good.decisions[:-1])
        (replay,) = replay_all(pool, [bad])
        assert replay.status is Status.REPLAY_ERROR
        assert replay.cause == "ValueError"


def test_a_workload_that_cannot_run_is_reported(tmp_path, subject):
    bad = dataclasses.replace(subject, arguments=subject.arguments[:1])
    with make_pool(tmp_path, {"matmul": bad}, size=1) as pool:
        assert reference(pool, "matmul").error


def affinities(pid):
    """Masks of all threads of a process."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return {frozenset(os.sched_getaffinity(int(thread.name))) for thread in threads}


@needs_two
@pytest.mark.parametrize("threads", [1, 2])
def test_the_runner_stays_on_its_cores_after_a_parallel_kernel(
    tmp_path, subject, threads, monkeypatch
):
    """TVM widens a pin when its pool starts; ours must hold on every thread."""
    run = CORES[-threads:]
    plan = CorePlan(run=run, work=CORES[:1], exclusive=True)
    with make_pool(tmp_path, {"matmul": subject}, plan, size=1) as pool:
        reference(pool, "matmul")
        program = programs(subject.design, 1)[0]
        pool.submit(0, BuildRequest(program))
        while not pool.collect():
            pass
        pool.submit(0, RunRequest(program, math.inf))
        seen = set()
        replies = []
        while not replies:
            seen |= affinities(pool.pids[0])
            replies = pool.collect(timeout=0.001)
        assert frozenset(run) in seen
        assert all(mask in (frozenset(run), frozenset(plan.work)) for mask in seen)
        (_, _, outcome) = replies[0]
        assert outcome.status is Status.OK
        pool.submit(0, ReplayRequest(program))
        while not pool.collect():
            pass
        assert affinities(pool.pids[0]) == {frozenset(plan.work)}


@needs_two
def test_one_core_platform_builds_beside_the_runs(tmp_path, subject):
    plan = CorePlan(run=CORES[-1:], work=CORES[:-1], exclusive=False)
    with make_pool(tmp_path, {"matmul": subject}, plan) as pool:
        assert pool.size == len(CORES)
        reference(pool, "matmul")
        results = list(Batch(pool, programs(subject.design, 5), infinity).results())
    assert [m.run.status for m in results if m.run] == [Status.OK] * 5


def test_no_process_is_left_behind(tmp_path, subject):
    with make_pool(tmp_path, {"matmul": subject}) as pool:
        pids = pool.pids
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()


def outcome(pool):
    replies = []
    while not replies:
        replies = pool.collect()
    return replies[0][2]


def test_a_stopped_worker_is_killed_past_its_limit_and_replaced(tmp_path, subject):
    with make_pool(tmp_path, {"matmul": subject}, size=1, limits=Limits(replay=2.0)) as pool:
        program = programs(subject.design, 1)[0]
        (stopped,) = pool.pids
        os.kill(stopped, signal.SIGSTOP)
        pool.submit(0, ReplayRequest(program))
        lost = outcome(pool)
        assert isinstance(lost, Lost)
        assert lost.timed_out
        assert not Path(f"/proc/{stopped}").exists()
        (replay,) = replay_all(pool, [program])
        assert replay.status is Status.OK


def test_a_worker_is_not_blamed_for_a_pause_of_everything(tmp_path, subject, monkeypatch):
    """Parent and worker are stopped together (Ctrl-Z) for longer than the limit, and go on."""
    with make_pool(tmp_path, {"matmul": subject}, size=1, limits=Limits(replay=3.0)) as pool:
        replay_all(pool, programs(subject.design, 1))  # warm, so that little work is left
        before = pool.pids
        patient = pool_module.wait
        pauses = []

        def paused_once(connections, timeout):
            if not pauses:
                pauses.append(timeout)
                time.sleep(5.0)
                return []
            os.kill(before[0], signal.SIGCONT)
            return patient(connections, timeout)

        monkeypatch.setattr(pool_module, "wait", paused_once)
        os.kill(before[0], signal.SIGSTOP)
        pool.submit(0, ReplayRequest(programs(subject.design, 1)[0]))
        reply = outcome(pool)
        assert not isinstance(reply, Lost)
        assert pool.pids == before


SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
static long jump(void) {          /* a day ahead, then a day back, at every look */
    static long looks = 0;
    return (++looks % 2) ? 86400 : -86400;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += jump();
    return code;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}
"""

JUMPING = """
import sys, time
from pathlib import Path
from tlp.host import CorePlan, available_cores
from tlp.measuring import worker
from tlp.measuring.messages import Lost, Program, Replay, ReplayRequest
from tlp.measuring.place import LocalPlace
from tlp.measuring.pool import Limits, WorkerPool
from tlp.records.status import Status
from tlp.records.store import Candidate, Store
from tlp.tuning.loop import Budget

looks = [time.time() for _ in range(10)]
assert max(looks) - min(looks) > 100_000, looks

def replay(state, request, start):
    time.sleep(60 if request.program.sketch else 0.2)
    return Replay(Status.OK, request.program.decisions, "p", seconds=time.perf_counter() - start)

worker._replay = replay
folder = Path(sys.argv[1])
cores = available_cores()
plan = CorePlan(run=cores[-1:], work=cores[:1], exclusive=True)
begin = time.monotonic()
budget = Budget(seconds=6.0)
with WorkerPool({}, LocalPlace(plan), folder, limits=Limits(replay=2.0), size=1) as pool:
    lost = []
    for sketch in (0, 1, 0):
        pool.submit(0, ReplayRequest(Program("t", sketch, ())))
        replies = []
        while not replies:
            replies = pool.collect()
        reply = replies[0][2]
        lost.append(isinstance(reply, Lost))
        if not lost[-1]:
            assert 0.2 <= reply.seconds < 2.0, reply.seconds
    assert lost == [False, True, False], lost
while budget.left(0) > 0:
    time.sleep(0.05)
assert 5.9 < time.monotonic() - begin < 60
store = Store(folder / "state.sqlite")
for number in range(20):
    store.add(Candidate("t", 0, ((number,),), str(number), Status.OK, (1.0,)))
assert [c.decisions[0][0] for c in store.candidates()] == list(range(20))
print("fine")
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_clock_that_jumps_changes_nothing(tmp_path):
    """All code of the child, native too, sees a wall clock that leaps by two days and back."""
    source, shim = tmp_path / "jump.c", tmp_path / "jump.so"
    source.write_text(SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, "-c", JUMPING, str(tmp_path)],
        env={**os.environ, "LD_PRELOAD": str(shim)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.strip() == "fine", done.stderr
