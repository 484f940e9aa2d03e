"""Labels by hand; splits that share no workload."""

from __future__ import annotations

import json

import numpy as np
import pytest
from log_files import record, write_log

import tlp.records
from tlp.errors import RecordsError
from tlp.primitives.encoding import PAPER_CPU, Encoder
from tlp.records import splits
from tlp.records.importer import import_logs
from tlp.records.inspection import inspect
from tlp.records.labels import identities, merge, scores

INF = float("inf")


def test_scores_are_those_of_the_list_and_failures_have_none():
    latencies = np.array([4.0, 2.0, INF, 6.0, 3.0, INF])
    groups = np.array([0, 0, 0, 1, 1, 2])
    assert scores(latencies, groups).tolist() == [0.5, 1.0, 0.0, 0.5, 1.0, 0.0]
    assert scores(np.zeros(0), np.zeros(0, np.int32)).tolist() == []


def test_coinciding_rows_get_the_best_or_the_mean():
    sequences = np.array([[1, 2], [1, 2], [1, 3], [1, 2], [1, 2], [5, -1]], np.int32)
    latencies = np.array([4.0, 2.0, 9.0, 7.0, INF, INF])
    groups = np.array([0, 0, 0, 1, 0, 1])
    best = merge(sequences, latencies, groups)
    assert best.latencies.tolist() == [2.0, 2.0, 9.0, 7.0, 2.0, INF]
    assert (best.coinciding, best.distinct) == (3, 4)
    mean = merge(sequences, latencies, groups, "mean")
    assert mean.latencies.tolist() == [3.0, 3.0, 9.0, 7.0, 3.0, INF]


def long(*ends):
    """Steps of a sequence whose 26th, beyond the paper's crop, is given."""
    steps = [["SP", 2, 0, 512, [2, 2], 1]] * 25
    return [*steps, *(["AN", 2, end, 3] for end in ends)]


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "logs"
    write_log(
        folder / "resnet_18.json",
        record("shared", [2e-3, 4e-3, 9e-3]),
        record("only18", [1e-3], steps=long(0)),
        record("only18", [2e-3], steps=long(1)),
        record("only18", [3e-3], steps=long(1)),
        record("only18", [1e10], error=2, steps=long(2)),
    )
    write_log(folder / "VGG16.json", record("shared", [1e-3]), record("vgg", steps=[]))
    write_log(folder / "dcgan.json", *[record(f"d{i}") for i in range(30)])
    import_logs([folder], tmp_path / "out")
    return tlp.records.open(tmp_path / "out")


def key(name):
    return json.dumps([name, [1, 512]])


def test_arrays_of_a_data_set(data):
    sequences, latencies, groups = data.arrays(workloads=[key("shared"), key("only18")], length=25)
    assert sequences.shape == (6, 25)
    # Files in the order of their names: VGG16, dcgan, resnet_18.
    assert latencies.tolist() == [1e-3, 4e-3, 1e-3, 2e-3, 3e-3, INF]
    assert [data.groups[number][0] for number in groups] == [key("shared")] * 2 + [
        key("only18")
    ] * 4
    assert sequences[0, 2:].tolist() == [-1] * 23
    first = data.primitives[sequences[0, 0]]
    assert (first.opcode, first.numbers[3:5]) == ("SP", (4.0, 1.0))
    assert data.arrays(latency="min")[1].min() == 1e-3
    assert data.arrays(latency="mean", workloads=[key("shared")])[1].tolist() == [1e-3, 5e-3]
    assert data.arrays(platforms=["none"])[0].shape == (0, 0)
    assert len(data.arrays()[0]) == len(data) == len(list(data)) == 37


def test_inspection_counts_by_hand(data):
    found = inspect(data)
    assert (found["rows"], found["workloads"], found["groups"]) == (37, 33, 33)
    assert found["statuses"] == {"ok": 36, "build_error": 1}
    assert found["networks"] == {"VGG16": 2, "dcgan": 30, "resnet_18": 2}
    assert found["kinds"] == {"split": 4 * 25 + 32, "annotate": 4 + 32}
    assert found["measured_again"] == 2  # long(1), and the shared workload's only schedule
    paper = found["collisions"]["paper-cpu"]
    assert (paper["length"], paper["width"]) == (25, 22)
    assert (paper["distinct"], paper["coinciding"]) == (35, 3)
    assert found["collisions"]["default"]["coinciding"] == 0
    assert found["lengths"]["max"] == 26
    assert found["latency_s"]["max"] == pytest.approx(4e-3)


def test_primitives_that_a_row_cannot_tell_apart_have_one_number(data):
    encoder = Encoder(PAPER_CPU, data.primitives)
    numbers = identities(encoder)
    for i, row in enumerate(encoder.table):
        for j, other in enumerate(encoder.table):
            assert (numbers[i] == numbers[j]) == bool((row == other).all())
    assert numbers[-1] == -1


def test_a_held_out_network_takes_what_it_shares_along(data):
    found = splits.split(data, ["ResNet18"], valid=0.2)
    assert found.held_out == ("resnet_18",)
    assert set(found.test) == {key("shared"), key("only18")}
    assert found.shared == (key("shared"),)
    assert set(found.train) | set(found.valid) | set(found.test) == set(data.workloads)
    assert len(found.train) + len(found.valid) + len(found.test) == 33
    assert 2 <= len(found.valid) <= 12
    assert splits.split(data, ["ResNet18"], valid=0.2) == found
    assert splits.split(data, ["ResNet18"], valid=0.2, seed=1).valid != found.valid


def test_folds_hold_every_network_out_once(data):
    found = splits.folds(data, 3)
    assert sorted(name for one in found for name in one.held_out) == ["VGG16", "dcgan", "resnet_18"]
    for one in found:
        assert not set(one.train) & set(one.test)
    with pytest.raises(RecordsError, match="from 2 to 3"):
        splits.folds(data, 4)


def test_split_files_name_keys_and_know_their_data(data, tmp_path):
    path = data.path / "splits" / "a.json"
    found = splits.folds(data, 2)
    splits.save(path, data, found)
    assert splits.load(path, data) == found
    assert (
        key("only18")
        in json.loads(path.read_text())["splits"][0]["train"]
        + json.loads(path.read_text())["splits"][1]["train"]
    )
    import_logs([write_log(tmp_path / "o.json", record())], tmp_path / "other")
    with pytest.raises(RecordsError, match="repeat tlp split"):
        splits.load(path, tlp.records.open(tmp_path / "other"))
    path.write_text("{}")
    with pytest.raises(RecordsError, match="no split"):
        splits.load(path, data)


def test_unknown_names_list_the_known_ones(data):
    with pytest.raises(RecordsError, match="Known are: VGG16, dcgan, resnet_18"):
        splits.split(data, ["alexnet"])
    with pytest.raises(RecordsError, match="nothing is left"):
        splits.split(data, ["vgg16", "dcgan", "resnet18"])
