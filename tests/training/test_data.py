"""From a small data set of made logs to programs, by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import tlp.records
from records.log_files import ANSOR, METASCHEDULE, record, write_log
from tlp.errors import CheckpointError, EncodingError, TrainingError
from tlp.primitives.encoding import PAPER_CPU, PAPER_GPU, Encoder
from tlp.records import splits
from tlp.records.importer import import_logs
from tlp.records.names import NetworkMap
from tlp.training.data import (
    choose_encoding,
    encoding_of,
    framework_of,
    learned,
    load_side,
    make_header,
)

INF = float("inf")


def key(name):
    return json.dumps([name, [1, 512]])


def beyond(end):
    """A schedule whose 26th step lies beyond the paper's crop."""
    return [["SP", 2, 0, 512, [2, 2], 1]] * 25 + [["AN", 2, end, 3]]


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "logs"
    write_log(
        folder / "held.json",
        record("a", [2e-3, 4e-3, 9e-3]),
        record("a", [3e-3]),
        record("a", [1e-3], factor=8),
        record("long", [5e-3], steps=beyond(0)),
        record("long", [1e-3], steps=beyond(1)),
        record("long", [1e10], error=2, steps=beyond(2)),
        record("a", [7e-3], target="cuda"),
    )
    write_log(
        folder / "other.json",
        record("a", [6e-3]),
        record("b", [5e-3], steps=beyond(0)),
        record("b", [1e-3], steps=beyond(1)),
        record("c", [1e-3]),
    )
    weights = {"held": {key("a"): 5.0}, "other": {key("a"): 7.0, key("c"): 2.0}}
    import_logs([folder], tmp_path / "out", networks=NetworkMap(weights=weights))
    return tlp.records.open(tmp_path / "out")


@pytest.fixture
def split(data):
    return replace(splits.split(data, ["held"]), train=(key("b"),), valid=(key("c"),))


def test_the_test_side_keeps_the_latency_of_each_program(data, split):
    test = load_side(data, split, "test", PAPER_CPU)
    # The median of three repeats is 4, but the same program was measured again with 3; the last
    # record of `a` is the same on the same platform, in another file.
    assert test.latencies.tolist() == [3e-3, 3e-3, 1e-3, 5e-3, 1e-3, INF, 7e-3, 3e-3]
    assert test.indices.shape == test.mask.shape == (8, 25)
    assert test.mask.sum(1).tolist() == [2, 2, 2, 25, 25, 25, 2, 2]
    sizes = np.unique(test.groups, return_counts=True)[1]
    assert sorted(sizes) == [1, 3, 4]
    assert test.labels.tolist() == [1 / 3, 1 / 3, 1, 0.2, 1, 0, 1, 1 / 3]
    # Only the held-out network's weights count there; what no log says is 1.
    assert test.weights.tolist() == [5, 5, 5, 1, 1, 1, 5, 5]


def test_what_looks_alike_after_the_crop_shares_a_label_in_training(data, split):
    train = load_side(data, split, "train", PAPER_CPU)
    assert train.latencies.tolist() == [1e-3, 1e-3]
    whole = load_side(data, split, "train", replace(PAPER_CPU, length=30))
    assert whole.latencies.tolist() == [5e-3, 1e-3]
    assert whole.indices.shape == (2, 30)
    assert whole.mask.sum(1).tolist() == [26, 26]


def test_rows_are_those_of_the_encoder(data, split):
    for encoding in (PAPER_CPU, data.encoding):
        test = load_side(data, split, "test", encoding)
        encoder = Encoder(encoding, data.primitives)
        sequences, _, _ = data.arrays(workloads=split.test, length=encoding.length)
        wanted = encoder.table[sequences]
        np.testing.assert_array_equal(test.table[test.indices], wanted)
        assert not wanted[~test.mask].any()
        assert len(np.unique(test.table, axis=0)) == len(test.table)


def test_sides_are_numbered_alike_and_share_no_group(data, split):
    sides = [load_side(data, split, side, PAPER_CPU) for side in ("train", "valid", "test")]
    assert [len(side) for side in sides] == [2, 1, 8]
    assert sum(len(np.unique(side.groups)) for side in sides) == len(data.groups)
    numbers = np.concatenate([np.unique(side.workloads) for side in sides])
    assert sorted(numbers) == [0, 1, 2, 3]
    assert sides[1].weights.tolist() == [2]


def test_platforms_are_chosen_by_name_and_latencies_by_reduction(data, split):
    (cuda,) = (name for name in data.platforms if "cuda" in name)
    chosen = load_side(data, split, "test", PAPER_CPU, platforms=[cuda])
    assert chosen.latencies.tolist() == [7e-3]
    fastest = load_side(data, split, "test", PAPER_CPU, latency="min")
    assert fastest.latencies[0] == 2e-3
    with pytest.raises(TrainingError, match="test side has no program: 2 workloads, platforms pi"):
        load_side(data, split, "test", PAPER_CPU, platforms=["pi"])
    assert len(load_side(data, replace(split, valid=()), "valid", PAPER_CPU)) == 0
    assert load_side(data, replace(split, valid=()), "valid", PAPER_CPU).indices.shape == (0, 25)


def test_models_as_published_read_the_papers_layout(data, split, tmp_path):
    assert choose_encoding(data, split.train, "tlp-published") is PAPER_CPU
    assert choose_encoding(data, split.test, "tlp-published") is PAPER_GPU
    assert choose_encoding(data, split.train, "tlp") == data.encoding
    assert choose_encoding(data, split.train, "lightgbm-rank") == data.encoding
    assert choose_encoding(data, split.train, "tlp", "paper-gpu") is PAPER_GPU
    assert choose_encoding(data, split.train, "tlp-published", "default") == data.encoding
    with pytest.raises(TrainingError, match="there are default, paper-cpu, paper-gpu"):
        choose_encoding(data, split.train, "tlp", "paper")
    folder = tmp_path / "both"
    write_log(folder / "ansor.json", *ANSOR)
    (folder / "meta").mkdir()
    write_log(folder / "meta" / "database_tuning_record.json", *METASCHEDULE)
    import_logs([folder], tmp_path / "mixed")
    mixed = tlp.records.open(tmp_path / "mixed")
    with pytest.raises(TrainingError, match="programs of ansor and metaschedule"):
        framework_of(mixed, mixed.workloads)
    keys = [task.workload for task in mixed.tasks if task.framework.value == "metaschedule"]
    assert choose_encoding(mixed, keys, "tlp-published") == mixed.encoding
    with pytest.raises(EncodingError, match="is for Ansor's steps"):
        load_side(mixed, replace(split, test=tuple(keys)), "test", PAPER_CPU)


def test_a_header_names_what_was_learned(data, split):
    header = make_header(data, split, PAPER_CPU)
    assert (header.framework, header.vocabulary) == ("ansor", 1)
    assert encoding_of(header) == PAPER_CPU
    assert len(header.platforms) == 1
    assert "llvm" in header.platforms[0]
    assert learned(header, data.workloads) == [key("b")]
    assert header.training["held_out"] == ["held"]
    assert json.loads(json.dumps(header.to_json())) == header.to_json()
    with pytest.raises(CheckpointError, match="hash"):
        encoding_of(replace(header, encoding_hash="0" * 16))
