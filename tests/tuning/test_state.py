from __future__ import annotations

import math

import numpy as np
import pytest

from tlp.host import fingerprint
from tlp.networks.tasks import Task
from tlp.records.status import Status
from tlp.records.store import Candidate, Store, StoredTask
from tlp.tuning.decisions import Decision, DecisionKind, factorisations
from tlp.tuning.scheduler import Progress
from tlp.tuning.space import DecisionSpace
from tlp.tuning.state import TaskState


def state():
    tiles = Decision(DecisionKind.TILE, factorisations(12, 2, 64), limit=64)
    place = Decision(DecisionKind.LOCATION, [(0,), (1,), (2,)])
    task = Task("k", "conv", 2, 1e6, None, (), 1, "conv 1")
    return TaskState(task, None, DecisionSpace([[tiles, place]]), Progress(2, 1.0))


def candidate(first, place, latency, status=Status.OK, host=None, **more):
    return Candidate(
        task="k",
        sketch=0,
        decisions=((first, 12 // first), (place,)),
        program=f"{first}.{place}" if status.replayed else "",
        status=status,
        latencies=(latency,) if status.timed else (),
        verified=status is Status.OK,
        host=fingerprint() if host is None else host,
        **more,
    )


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "state.sqlite")
    store.add_task(StoredTask("k", "conv", 2, 1e6, "{}", ("s",)))
    return store


def test_a_restored_task_is_as_it_was(store):
    live = state()
    rounds = [
        [candidate(1, 0, 3.0, round=1), candidate(2, 0, 0.0, Status.RUN_CRASH, round=1)],
        [candidate(3, 1, 2.0, round=2), candidate(4, 1, 9.0, Status.SLOW, round=2)],
    ]
    for found in rounds:
        for row in found:
            live.take_in(row)
            store.add(row)
        live.end_round()
    again = state()
    again.restore(store, fingerprint())
    assert (again.trials, again.failures, again.rounds) == (4, 1, 2)
    assert again.progress.history == live.progress.history == [3.0, 2.0]
    assert again.best_latency == 2.0
    assert again.programs == live.programs
    assert again.tried == live.tried
    rows, latencies, seconds = again.learned()
    np.testing.assert_array_equal(rows, live.learned()[0])
    np.testing.assert_array_equal(seconds, live.learned()[2])
    assert latencies.tolist() == [3.0, math.inf, 2.0, 9.0]
    fastest = again.fastest(2)
    assert [again.space.decisions(row)[1][0] for row in fastest] == [(3, 4), (1, 12)]


def test_latencies_of_another_machine_do_not_count_but_refusals_do(store):
    store.add(candidate(1, 0, 0.001, host="elsewhere", round=1))
    store.add(candidate(2, 2, 0.0, Status.REFUSED, host="elsewhere", round=1))
    store.add(candidate(3, 0, 5.0, round=2))
    again = state()
    again.restore(store, fingerprint())
    assert again.trials == 1
    assert again.best_latency == 5.0
    space = again.space
    tried = {
        decisions: int(space.hashes(space.row(0, decisions)[None])[0]) in again.tried
        for decisions in (((1, 12), (0,)), ((2, 6), (2,)), ((3, 4), (0,)))
    }
    assert list(tried.values()) == [False, True, True]


def test_aliases_are_not_proposed_again(store):
    store.add_alias("k", 0, ((1, 12), (2,)), ((1, 12), (0,)))
    again = state()
    again.restore(store, fingerprint())
    assert len(again.tried) == 2


def test_an_unverified_or_wrong_program_is_never_the_best():
    live = state()
    live.take_in(candidate(1, 0, 1.0, Status.WRONG_OUTPUT))
    live.take_in(candidate(2, 0, 2.0, Status.SLOW))
    assert live.best is None
    assert live.best_latency == math.inf
