"""Checkpoints: what comes back, and what is refused with a reason."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import tlp
from tlp.errors import CheckpointError, ModelError
from tlp.models import boosted
from tlp.models.boosted import BoostedTrees
from tlp.models.checkpoint import FORMAT_VERSION, Header, load_header, load_tensors
from tlp.models.network import NetworkRanker
from tlp.models.ranker import NAMES, TREES, load_ranker, make_ranker
from tlp.models.sequence import SequenceModel
from tlp.training.programs import Programs

HEADER = Header(
    framework="ansor",
    vocabulary=1,
    encoding={"name": "tiny", "length": 4},
    encoding_hash="0123456789abcdef",
    model="",
    platforms=("here", "there"),
    training={"split": "a"},
)


def programs(seed=0, groups=6, each=30):
    """Sequences whose speed follows from their primitives, in several workloads."""
    rng = np.random.default_rng(seed)
    table = rng.integers(-3, 9, size=(20, 3)).astype(np.float32)
    count = groups * each
    indices = rng.integers(20, size=(count, 4)).astype(np.int32)
    mask = np.arange(4) < rng.integers(1, 5, count)[:, None]
    cost = np.where(mask, table[indices, 0], 0).sum(1) + 0.3 * rng.normal(size=count)
    latencies = np.exp(0.1 * cost) * 1e-3
    latencies[rng.random(count) < 0.1] = np.inf
    workloads = np.repeat(np.arange(groups), each)
    return Programs(table, indices, mask, latencies, workloads, np.zeros(count, np.int64))


@pytest.fixture(scope="module")
def network():
    ranker = NetworkRanker.named("tlp", width=8, heads=2, encoder=(4,), decoder=(4,))
    ranker.model = SequenceModel(ranker.config, 3, 4, seed=1).eval()
    ranker._fitted = {"data": "abc", "metrics": {"top1": 0.5, "regret1": float("nan")}}
    return ranker


@pytest.fixture(scope="module", params=TREES)
def trees(request):
    ranker = make_ranker(request.param, rounds=30, leaves=7, threads=1, judge_every=10)
    data = programs()
    ranker.fit(data, data.take(np.arange(60)))
    return ranker


@pytest.fixture
def path(network, tmp_path):
    network.save(tmp_path / "deep" / "model.safetensors", HEADER)
    return tmp_path / "deep" / "model.safetensors"


def content(path):
    """The safetensors header, read by its definition: a length, then JSON."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length])


def rewritten(path, **changes):
    """The same tensors under a changed header of ours."""
    header, tensors = load_tensors(path)
    save_file(tensors, path, {"tlp": json.dumps({**header, **changes})})
    return path


def test_a_checkpoint_is_safetensors_with_a_header_that_anybody_can_read(path):
    header = json.loads(content(path)["__metadata__"]["tlp"])
    assert header["version"] == FORMAT_VERSION
    assert header["framework"] == "ansor"
    assert header["model"] == "tlp"
    assert (
        header["architecture"] | {"width": 8, "features": 3, "length": 4}
        == (header["architecture"])
    )
    assert header["training"]["loss"] == "lambdarank"
    assert header["training"]["split"] == "a"
    assert header["metrics"] == {"top1": 0.5, "regret1": None}
    assert [p.name for p in path.parent.iterdir()] == ["model.safetensors"]


def test_a_checkpoint_may_be_read_by_whoever_may_read_other_files(path, trees, tmp_path):
    trees.save(tmp_path / "trees", HEADER)
    (tmp_path / "other").write_text("")
    wanted = (tmp_path / "other").stat().st_mode
    assert path.stat().st_mode == (tmp_path / "trees").stat().st_mode == wanted


def test_a_network_comes_back_and_scores_the_same(network, path, tmp_path):
    loaded, header = load_ranker(path)
    data = programs()
    assert np.array_equal(
        loaded.score(data.table, data.indices, data.mask),
        network.score(data.table, data.indices, data.mask),
    )
    assert (header.platforms, header.data, header.metrics["top1"]) == (
        ("here", "there"),
        "abc",
        0.5,
    )
    assert np.isnan(header.metrics["regret1"])
    loaded.save(tmp_path / "again", header)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    assert load_header(path).to_json() == header.to_json()


def test_trees_come_back_and_score_the_same(trees, tmp_path):
    trees.save(tmp_path / "model", HEADER)
    loaded, header = load_ranker(tmp_path / "model")
    data = programs(1)
    wanted = trees.score(data.table, data.indices, data.mask)
    assert len(np.unique(wanted)) > 5
    np.testing.assert_array_equal(loaded.score(data.table, data.indices, data.mask), wanted)
    assert header.model == trees.name
    assert header.architecture == {"length": 4, "features": 3, "rounds": trees._kept}
    assert header.training["split"] == "a"
    first, _, body = (tmp_path / "model").read_bytes().partition(b"\n")
    assert json.loads(first)["tlp_checkpoint"]["bytes"] == len(body)
    assert load_header(tmp_path / "model").to_json() == header.to_json()
    loaded.save(tmp_path / "again", header)
    again, _ = load_ranker(tmp_path / "again")
    np.testing.assert_array_equal(again.score(data.table, data.indices, data.mask), wanted)


def test_a_file_cut_anywhere_is_damaged(path, trees, tmp_path):
    trees.save(tmp_path / "trees", HEADER)
    for whole in (path, tmp_path / "trees"):
        raw = whole.read_bytes()
        for size in {0, 1, 7, 8, 20, 500, len(raw) // 2, len(raw) - 1}:
            cut = tmp_path / "cut"
            cut.write_bytes(raw[:size])
            with pytest.raises(CheckpointError, match=r"cut"):
                load_ranker(cut)


def test_a_changed_tree_is_damaged(trees, tmp_path):
    trees.save(tmp_path / "model", HEADER)
    raw = bytearray((tmp_path / "model").read_bytes())
    raw[-20] ^= 1
    (tmp_path / "model").write_bytes(raw)
    with pytest.raises(CheckpointError, match="are not those that were saved"):
        load_ranker(tmp_path / "model")


class Trap:
    def __reduce__(self):
        return exec, ("raise SystemExit('a pickle was run')",)


def test_foreign_files_are_refused_and_no_pickle_is_run(tmp_path):
    foreign = tmp_path / "foreign"
    save_file({"weight": np.zeros(3, np.float32)}, foreign)
    with pytest.raises(CheckpointError, match="no header of tlp"):
        load_ranker(foreign)
    save_file({"weight": np.zeros(3, np.float32)}, foreign, {"tlp": "[1]"})
    with pytest.raises(CheckpointError, match="no header of tlp"):
        load_ranker(foreign)
    for raw in (pickle.dumps(Trap()), b"", b"PK\x03\x04 something", b'{"tlp_checkpoint": 3}\n'):
        foreign.write_bytes(raw)
        with pytest.raises(CheckpointError, match="no checkpoint"):
            load_ranker(foreign)
    torch.save({"weight": torch.zeros(3)}, foreign)
    assert zipfile.is_zipfile(foreign)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load_ranker(foreign)
    for missing in (tmp_path / "nothing", tmp_path):
        with pytest.raises(CheckpointError, match="is not there"):
            load_ranker(missing)


def test_nothing_of_the_project_imports_pickle():
    for source in Path(tlp.__file__).parent.rglob("*.py"):
        text = source.read_text()
        assert "import pickle" not in text, source
        assert "torch.load(" not in text, source
        assert "joblib" not in text, source


def test_a_newer_format_says_so(path, trees, tmp_path):
    with pytest.raises(CheckpointError, match=r"version 2 is newer than 1.*Update tlp"):
        load_ranker(rewritten(path, version=2))
    with pytest.raises(CheckpointError, match="no format version"):
        load_ranker(rewritten(path, version="one"))
    trees.save(tmp_path / "model", replace(HEADER, version=7))
    with pytest.raises(CheckpointError, match="version 7 is newer"):
        load_ranker(tmp_path / "model")


def test_fields_that_differ_are_named(path):
    with pytest.raises(CheckpointError, match="fields surprise do not fit"):
        load_ranker(rewritten(path, surprise=1))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"platforms": "here"}, "platforms is not a list"),
        ({"metrics": {"top1": "good"}}, "metrics are not numbers"),
        ({"architecture": {}}, "features"),
        ({"architecture": {"features": 3, "length": 4, "wdith": 3}}, "wdith"),
    ],
)
def test_headers_of_the_wrong_kind_are_named(path, changes, says):
    with pytest.raises(CheckpointError, match=says):
        load_ranker(rewritten(path, **changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"width": 16}, "size mismatch"),
        ({"blocks": 3}, r"Missing.*blocks\.2"),
        ({"mixer": "lstm"}, r"mixer\.lstm"),
        ({"features": 5}, r"encoder\.0\.weight"),
        ({"positions": False}, r"positions"),
        ({"heads": 3}, "3 heads do not divide"),
        ({"width": "8"}, "not supported|str"),
    ],
)
def test_weights_of_another_architecture_say_what_differs(path, changes, says):
    architecture = {**load_header(path).architecture, **changes}
    with pytest.raises(CheckpointError, match=says):
        load_ranker(rewritten(path, architecture=architecture))


def test_what_a_checkpoint_does_not_fit_is_told_all_at_once():
    header = replace(HEADER, model="tlp")
    header.require(framework="ansor", vocabulary=1, encoding_hash="0123456789abcdef")
    header.require()
    with pytest.raises(CheckpointError) as told:
        header.require(framework="metaschedule", vocabulary=2, encoding_hash="f")
    for said in (
        "framework is 'ansor', 'metaschedule' is needed",
        "vocabulary is 1, 2 is needed",
        "encoding hash is '0123456789abcdef', 'f' is needed",
    ):
        assert said in str(told.value)


def test_trees_of_an_unknown_name_are_refused(trees, tmp_path):
    trees.save(tmp_path / "model", HEADER)
    raw = (tmp_path / "model").read_bytes()
    name = f'"model": "{trees.name}"'.encode()
    (tmp_path / "model").write_bytes(raw.replace(name, b'"model": "catboost"', 1))
    with pytest.raises(CheckpointError, match="'catboost' is none of lightgbm-rank"):
        load_ranker(tmp_path / "model")


def test_a_failed_save_leaves_the_old_checkpoint(network, path, monkeypatch):
    before = path.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        network.save(path, replace(HEADER, training={"a": float("nan")}))
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "random"])
def test_models_that_have_not_learned_neither_score_nor_save(name, tmp_path):
    ranker = make_ranker(name)
    data = programs()
    for call in (
        lambda: ranker.score(data.table, data.indices, data.mask),
        lambda: ranker.save(tmp_path / "model", HEADER),
    ):
        with pytest.raises(ModelError, match="has not learned anything yet"):
            call()
    assert not (tmp_path / "model").exists()


def test_arrays_of_another_size_are_refused(network, trees):
    data = programs()
    for ranker in (network, trees):
        with pytest.raises(ModelError, match="4 primitives of 3 numbers, got 4 of 2"):
            ranker.score(data.table[:, :2], data.indices, data.mask)
        with pytest.raises(ModelError, match="got 8 of 3"):
            ranker.score(data.table, np.tile(data.indices, 2), np.tile(data.mask, 2))
    short = data.indices[:, :3], data.mask[:, :3]
    with pytest.raises(ModelError, match="got 3 of 3"):
        trees.score(data.table, *short)
    assert len(network.score(data.table, *short)) == len(data)
    published = NetworkRanker.named("tlp-published", width=8, encoder=(4,), decoder=(4,))
    published.model = SequenceModel(published.config, 3, 4).eval()
    with pytest.raises(ModelError, match="got 3 of 3"):
        published.score(data.table, *short)


@pytest.mark.parametrize("name", NAMES)
def test_unknown_options_are_named(name):
    with pytest.raises(ModelError, match="wdith"):
        make_ranker(name, wdith=3)


def test_unknown_models_list_the_known_ones():
    with pytest.raises(ModelError, match="unknown model 'gbdt'; there are tlp, tlp-published"):
        make_ranker("gbdt")


def test_a_missing_library_names_the_extra(monkeypatch):
    import sys

    for module, name, extra in (
        ("lightgbm", "lightgbm-rank", "trees"),
        ("xgboost", "xgboost-rank", "trees"),
        ("torch", "tlp", "torch"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(tlp.errors.MissingExtraError, match=rf"tlp\[{extra}\]"):
            make_ranker(name)


def test_trees_keep_the_rounds_that_the_judge_liked_best(monkeypatch):
    values = iter([0.2, 0.9, 0.5, 0.1])
    monkeypatch.setattr(
        boosted,
        "judged",
        lambda ranker, validation: dict.fromkeys(("top1_subsets", "top5_subsets"), next(values)),
    )
    data = programs()
    ranker = BoostedTrees("lightgbm-rank", rounds=30, leaves=4, threads=1, judge_every=10)
    told = []
    figures = ranker.fit(data, data, on_progress=lambda now: told.append(now.line()))
    assert ranker._kept == 20
    assert figures["top1_subsets"] == 0.9
    assert told[-1] == "round 30/30  0:00 left"
    shorter = BoostedTrees("lightgbm-rank", rounds=20, leaves=4, threads=1, judge_every=100)
    shorter.fit(data, data)
    np.testing.assert_allclose(
        ranker.score(data.table, data.indices, data.mask),
        shorter.score(data.table, data.indices, data.mask),
        rtol=1e-6,
    )


def test_trees_grow_from_sparse_rows_as_from_dense_ones(monkeypatch):
    monkeypatch.setattr(boosted, "_ROWS", 50)
    data = programs(groups=9)
    order = np.argsort(-data.latencies, kind="stable")
    dense = boosted._flat(data.table, data.indices[order], data.mask[order])
    np.testing.assert_array_equal(boosted._sparse(data, order).toarray(), dense)
    one, other = (BoostedTrees("lightgbm-rank", rounds=20, threads=1) for _ in range(2))
    one.fit(data, data)
    monkeypatch.setattr(
        boosted, "_sparse", lambda all_, rows: boosted._flat(all_.table, *_of(all_, rows))
    )
    other.fit(data, data)
    np.testing.assert_array_equal(
        one.score(data.table, data.indices, data.mask),
        other.score(data.table, data.indices, data.mask),
    )


def _of(data, rows):
    return data.indices[rows], data.mask[rows]


def test_trees_of_xgboost_do_not_depend_on_the_parts_that_they_are_fed(monkeypatch):
    data = programs(groups=9)
    scores = []
    for rows in (10**6, 50, 1):
        monkeypatch.setattr(boosted, "_ROWS", rows)
        ranker = BoostedTrees("xgboost-rank", rounds=20, threads=1)
        ranker.fit(data, data)
        scores.append(ranker.score(data.table, data.indices, data.mask))
    assert len(np.unique(scores[0])) > 20
    np.testing.assert_allclose(scores[1], scores[0], rtol=1e-5)
    np.testing.assert_allclose(scores[2], scores[0], rtol=1e-5)


def test_trees_learn_a_planted_order(trees):
    from tlp.ranking.metrics import kendall_tau

    table = programs().table
    unseen = replace(programs(7, each=60), table=table)
    truth = -np.where(unseen.mask, table[unseen.indices, 0], 0).sum(1)
    scores = trees.score(unseen.table, unseen.indices, unseen.mask)
    found = kendall_tau(scores, (truth - truth.min()) / np.ptp(truth), groups=unseen.groups)
    assert found.mean() > 0.4


def test_trees_without_anything_to_tell_apart_say_so(trees):
    data = programs()
    same = replace(data, latencies=np.full(len(data), 1e-3))
    with pytest.raises(tlp.errors.TrainingError, match="nothing to learn from: of 180 programs"):
        make_ranker(trees.name).fit(same, same)


def test_random_scores_follow_the_seed():
    data = programs()
    one, two, other = (make_ranker("random", seed=seed) for seed in (1, 1, 2))
    scores = [r.score(data.table, data.indices, data.mask) for r in (one, two, other)]
    assert np.array_equal(scores[0], scores[1])
    assert not np.array_equal(scores[0], scores[2])
    with pytest.raises(ModelError, match="nothing to save"):
        one.save(Path("x"), HEADER)
