"""Batches of lists, and what programs are refused."""

from __future__ import annotations

from dataclasses import replace

import made
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tlp.errors import TrainingError
from tlp.training.batches import make_batches, occurring, useful_rows
from tlp.training.settings import TrainSettings, settings_for


@given(
    seed=st.integers(0, 1000),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    batch_rows=st.integers(2, 50),
    list_rows=st.integers(2, 20),
    epoch=st.integers(0, 3),
)
@hypothesis_settings(max_examples=60, deadline=None)
def test_every_row_is_once_in_an_epoch_in_a_list_of_its_own_group(
    seed, sizes, batch_rows, list_rows, epoch
):
    settings = TrainSettings(seed=seed, batch_rows=batch_rows, list_rows=list_rows)
    groups = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    rows = np.flatnonzero(groups % 2 == 0)
    batches = make_batches(rows, groups, settings, epoch)
    taken = np.concatenate([batch.rows for batch in batches])
    assert sorted(taken) == sorted(rows)
    for batch in batches:
        assert np.array_equal(np.unique(batch.lists), np.arange(batch.list_count))
        assert len(batch.rows) <= batch_rows or batch.list_count == 1
        for number in range(batch.list_count):
            members = batch.rows[batch.lists == number]
            assert len(members) <= list_rows
            assert len(np.unique(groups[members])) == 1
        shares = [batch.share(rank, 3) for rank in range(3)]
        assert sorted(np.concatenate([s.rows for s in shares])) == sorted(batch.rows)
        lists = [set(s.lists.tolist()) for s in shares]
        assert sum(map(len, lists)) == len(set().union(*lists))


def test_lists_of_one_group_are_as_long_as_each_other():
    groups = np.zeros(257, np.int64)
    batches = make_batches(np.arange(257), groups, TrainSettings(list_rows=256), 0)
    sizes = np.concatenate([np.bincount(batch.lists) for batch in batches])
    assert sorted(sizes) == [128, 129]


def test_batches_follow_seed_and_epoch():
    groups = np.repeat([0, 1, 2], 30)

    def order(**changes):
        epoch = changes.pop("epoch", 0)
        settings = TrainSettings(batch_rows=16, list_rows=8, **changes)
        batches = make_batches(np.arange(90), groups, settings, epoch)
        return np.concatenate([batch.rows for batch in batches]).tolist()

    assert order() == order()
    assert order() != order(epoch=1)
    assert order() != order(seed=1)


def test_across_groups_each_batch_is_one_list():
    groups = np.repeat([0, 1], 50)
    batches = make_batches(
        np.arange(100), groups, TrainSettings(within_groups=False, batch_rows=32), 0
    )
    assert [len(batch.rows) for batch in batches] == [32, 32, 32, 4]
    assert all(batch.list_count == 1 for batch in batches)
    assert all(len(np.unique(groups[batch.rows])) == 2 for batch in batches[:3])


def test_rows_of_groups_with_one_label_tell_a_list_nothing():
    labels, groups = np.array([1.0, 0.5, 0.0, 0.0, 1.0]), np.array([4, 4, 9, 9, 2])
    assert useful_rows(labels, groups, TrainSettings()).tolist() == [0, 1]
    for other in (TrainSettings(within_groups=False), TrainSettings(loss="mse")):
        assert useful_rows(labels, groups, other).tolist() == [0, 1, 2, 3, 4]
    assert useful_rows(labels[:0], groups[:0], TrainSettings()).tolist() == []


def test_only_what_occurs_is_taken_from_a_table():
    indices = np.array([[5, 2, -1], [5, 7, 9]], np.int32)
    mask = np.array([[True, True, False], [True, True, False]])
    needed, found = occurring(10, indices, mask)
    assert needed.tolist() == [2, 5, 7]
    assert found.tolist() == [[1, 0, 0], [1, 2, 0]]


def test_groups_are_pairs_of_workload_and_platform_and_labels_stay_inside():
    data = made.programs(2, 2, failed=0)
    data = replace(
        data,
        workloads=np.array([3, 3, 3, 5]),
        platforms=np.array([0, 0, 1, 0]),
        latencies=np.array([4.0, 2.0, 8.0, np.inf]),
    )
    assert len(set(data.groups.tolist())) == 3
    assert data.labels.tolist() == [0.5, 1.0, 1.0, 0.0]
    assert data.take(np.array([3, 1])).groups.tolist() == data.groups[[3, 1]].tolist()
    rest, out = data.split([3])
    assert (len(rest), len(out)) == (1, 3)


def test_the_fingerprint_follows_every_value_and_no_type():
    data = made.programs()
    assert data.fingerprint == replace(data, indices=data.indices.astype(np.int64)).fingerprint
    changed = {data.fingerprint}
    for name in ("table", "indices", "mask", "latencies", "workloads", "platforms"):
        values = getattr(data, name).copy()
        values[0] = ~values[0] if name == "mask" else (values[0] == 0)
        changed.add(replace(data, **{name: values}).fingerprint)
    changed.add(replace(data, weights=np.ones(len(data))).fingerprint)
    assert len(changed) == 8


def test_arrays_that_do_not_fit_are_refused():
    data = made.programs()
    bad = data.table.copy()
    bad[3, 1] = np.nan
    for changes, says in (
        ({"latencies": data.latencies[1:]}, "latencies has 319 rows, indices has 320"),
        ({"mask": data.mask[:, 1:]}, r"\[n, L\]"),
        ({"table": bad}, "row 3 of the table"),
        ({"indices": data.indices + 19}, "the table has 20 rows"),
        ({"indices": data.indices - 19}, "indices reach from"),
    ):
        with pytest.raises(TrainingError, match=says):
            replace(data, **changes)
    # Where nothing stands, nothing is looked at.
    replace(data, indices=np.where(data.mask, data.indices, -7))


def test_settings_that_make_no_sense_are_refused():
    for changes, says in (
        ({"loss": "hinge"}, "loss is one of lambdarank, logistic"),
        ({"epochs": 0}, "epochs must be positive"),
        ({"list_rows": 1}, "at least 2"),
        ({"average": "mean"}, "none, ema, swa"),
    ):
        with pytest.raises(TrainingError, match=says):
            TrainSettings(**changes)


def test_published_settings_are_those_of_the_authors():
    found = settings_for("tlp-published", seed=3)
    assert (found.learning_rate, found.weight_decay, found.clip) == (7e-4, 1e-6, 0.5)
    assert (found.epochs, found.batch_rows, found.within_groups) == (50, 1024, False)
    assert (found.schedule, found.warmup, found.average, found.seed) == ("constant", 0, "none", 3)
