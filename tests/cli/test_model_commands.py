"""`tlp train` and `tlp judge`."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import numpy as np
import pytest

import tlp.records
from records.log_files import record, write_log
from tlp.cli.main import main
from tlp.models.checkpoint import load_header
from tlp.models.ranker import load_ranker
from tlp.records import splits
from tlp.records.importer import import_logs
from tlp.records.splits import Split
from tlp.training import judging, trainer
from tlp.training.judging import judge_checkpoints

SMALL = ("--set", "width=16", "--set", "heads=2", "--set", "encoder=[16]", "--set", "decoder=[16]")
FAST = (*SMALL, "--set", "learning_rate=0.01", "--set", "list_rows=32", "--set", "warmup=5")


class Done(NamedTuple):
    stdout: str
    stderr: str


def tlp_(*arguments, code=0):
    """The command, in this process: loading torch for each would take most of the time."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tlp", *map(str, arguments)])
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as stop:
            main()
    assert stop.value.code == code, err.getvalue()
    return Done(out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Six workloads of two networks: the larger the tile, the faster."""
    folder = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    for network, keys in (("seen", "abcd"), ("unseen", "xy")):
        lines = []
        for place, key in enumerate(keys):
            for _ in range(60):
                tiles = 2 ** rng.integers(0, 9, size=2)
                step = [["SP", 2, 0, 512, [int(tiles[0]), int(tiles[1])], 1], ["AN", 2, 0, 3]]
                latency = (1 + place) * 1e-3 * (12 - np.log2(tiles[0]) + 0.1 * np.log2(tiles[1]))
                failed = rng.random() < 0.05
                lines.append(
                    record(key, [1e10 if failed else latency], error=2 * failed, steps=step)
                )
        write_log(folder / "logs" / f"{network}.json", *lines)
    import_logs([folder / "logs"], folder / "data")
    opened = tlp.records.open(folder / "data")
    keys = {key[2]: key for key in opened.workloads}
    one = splits.split(opened, ["unseen"])
    one = Split(one.held_out, tuple(keys[k] for k in "abc"), (keys["d"],), one.test, one.shared)
    splits.save(folder / "split.json", opened, [one])
    splits.save(folder / "folds.json", opened, splits.folds(opened, 2))
    return folder


@pytest.fixture(scope="module")
def trained(data):
    out = data / "tlp.safetensors"
    command = ("train", data / "data", "--split", data / "split.json", "--out", out, *FAST)
    done = tlp_(*command, "--epochs", 16, "--seed", 1, "--set", "patience=16")
    return out, done


@pytest.fixture(scope="module")
def trees(data):
    out = data / "trees.txt"
    done = tlp_(
        *("train", data / "data", "--split", data / "split.json", "--out", out, "--json"),
        *("--model", "lightgbm-rank", "--set", "rounds=30", "--set", "threads=1"),
    )
    return out, json.loads(done.stdout)


def test_training_tells_what_was_kept_and_writes_a_checkpoint(data, trained):
    out, done = trained
    assert "tlp learned from 180 programs, encoded as default; kept: epoch" in done.stdout
    assert f"checkpoint: {out}" in done.stdout
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 100
    header = load_header(out)
    assert (header.model, header.framework) == ("tlp", "ansor")
    assert header.training["seed"] == 1
    assert header.training["learning_rate"] == 0.01
    assert header.training["held_out"] == ["unseen"]
    assert len(header.training["workloads"]) == 3
    assert header.architecture["width"] == 16
    assert header.metrics["workloads"] == 1
    assert not (data / "tlp.safetensors.run").exists()


def test_trees_are_trained_and_told_as_json(trees):
    out, told = trees
    assert told["checkpoint"] == str(out)
    assert told["programs"] == {"train": 180, "valid": 60}
    assert told["kept"].endswith(" rounds")
    assert told["metrics"]["kendall_tau"] > 0.5
    assert load_header(out).training["rounds"] == 30


def test_judging_says_which_model_is_better_and_by_how_much(data, trained, trees):
    out, _ = trained
    command = ("judge", data / "data", "--split", data / "split.json", out, trees[0], "random")
    done = tlp_(*command)
    assert "120 programs of 2 lists" in done.stdout
    for name in ("tlp.safetensors", "trees.txt", "random", "top-1", "NDCG@10", "failed picks"):
        assert name in done.stdout
    assert "difference to tlp.safetensors, with 95 % intervals:" in done.stdout
    assert "note:" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    answer = json.loads(tlp_(*command, "--json").stdout)
    assert (answer["programs"], answer["lists"]) == (120, 2)
    first, second, chance = answer["models"]
    assert first["figures"]["kendall_tau"] > 0.5
    assert second["figures"]["kendall_tau"] > 0.5
    assert abs(chance["figures"]["kendall_tau"]) < 0.3
    assert first["difference_to_first"] == {}
    found = chance["difference_to_first"]["kendall_tau"]
    assert found["low"] <= found["mean"] <= found["high"] < 0
    wanted = chance["figures"]["top5"] - first["figures"]["top5"]
    assert chance["difference_to_first"]["top5"]["mean"] == pytest.approx(wanted)


def test_long_lists_are_judged_on_random_ones_as_well(data, trained, trees, monkeypatch):
    command = ("judge", data / "data", "--split", data / "split.json", trained[0], trees[0])
    assert "random lists" not in tlp_(*command).stdout
    monkeypatch.setattr(judging, "SUBSET_SIZE", 20)
    done = tlp_(*command)
    assert "random lists of 20 programs, mean of 20 each:" in done.stdout
    assert "on the random lists, with 95 % intervals:" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    first, second = json.loads(tlp_(*command, "--json").stdout)["models"]
    wanted = second["figures"]["top1_subsets"] - first["figures"]["top1_subsets"]
    assert second["difference_to_first"]["top1"]["mean"] == pytest.approx(wanted)


def test_figures_are_those_of_a_loop_over_the_logs(data, trees):
    """Top-1 of the trees, from the rows of the data set and scores of one row at a time."""
    opened = tlp.records.open(data / "data")
    (split,) = splits.load(data / "split.json", opened)
    ranker, header = load_ranker(trees[0])
    from tlp.training.data import encoding_of, load_programs

    best, picked = {}, {}
    for key in split.test:
        side = load_programs(opened, [key], encoding_of(header), merged="exact")
        scores = [
            float(ranker.score(side.table, side.indices[i : i + 1], side.mask[i : i + 1])[0])
            for i in range(len(side))
        ]
        rows = [row for row in opened if row.task.workload == key]
        latencies = {}
        for row in rows:
            latency = row.latencies[0] if row.status == "ok" else float("inf")
            latencies[row.sequence] = min(latency, latencies.get(row.sequence, float("inf")))
        told = [latencies[row.sequence] for row in rows]
        top = [i for i, score in enumerate(scores) if score == max(scores)]
        assert len({told[i] for i in top}) == 1, "scores tie: the loop cannot tell which is picked"
        best[key], picked[key] = min(told), told[top[0]]
    judged = judge_checkpoints(opened, split, [trees[0]])
    wanted = np.mean([best[key] / picked[key] for key in split.test])
    assert judged.models[0].judgement.summary()["top1"] == pytest.approx(wanted)


def test_a_model_that_has_learned_from_the_test_side_is_noted(data, trees, tmp_path):
    done = tlp_(
        *("judge", data / "data", "--split", data / "folds.json", "--fold", 1, trees[0]),
    )
    opened = tlp.records.open(data / "data")
    fold = splits.load(data / "folds.json", opened)[0]
    (one,) = splits.load(data / "split.json", opened)
    shared = len(set(fold.test) & set(one.train))
    assert (f"note: trees.txt has learned from {shared} of these workloads" in done.stdout) == bool(
        shared
    )
    again = tlp_("judge", data / "data", "--split", data / "folds.json", "--fold", 2, trees[0])
    assert ("note:" in again.stdout) != ("note:" in done.stdout)


def test_an_interrupted_training_goes_on_by_the_same_command(data, tmp_path):
    out, log = tmp_path / "model", tmp_path / "model.run" / "training.csv"
    command = ["train", data / "data", "--split", data / "split.json", "--out", out, *FAST]
    command = [*map(str, command), "--epochs", "60", "--set", "patience=60"]
    child = subprocess.Popen(
        [sys.executable, "-m", "tlp", *command], stderr=subprocess.PIPE, text=True
    )
    while child.poll() is None and not log.exists():
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 130, errors
    assert "the same command goes on from here" in errors
    assert not out.exists()
    before = len(log.read_text().splitlines()) - 1
    assert before < 60
    taken = []
    with pytest.MonkeyPatch.context() as patch:
        original = trainer._Run._end_epoch
        patch.setattr(
            trainer._Run, "_end_epoch", lambda run, over: taken.append(1) or original(run, over)
        )
        done = tlp_(*command)
    assert "of 60" in done.stdout
    assert len(taken) == 60 - before
    assert not log.exists()


def test_minutes_end_a_run_and_its_folder_is_kept_where_it_was_named(data, tmp_path):
    for model in ("tlp-published", "xgboost-rank"):
        done = tlp_(
            *("train", data / "data", "--split", data / "split.json", "--out", tmp_path / model),
            *("--model", model, "--minutes", 1e-9, "--work-dir", tmp_path / "run", "--json"),
        )
        told = json.loads(done.stdout)
        assert told["kept"] in ("epoch 1 of 1", "1 rounds")
        assert told["encoding"] == ("paper-cpu" if model == "tlp-published" else "default")
    assert (tmp_path / "run" / "training.csv").exists()


def test_mistakes_end_with_two_and_the_way_out(data, trained, tmp_path):
    base = ("train", data / "data", "--split", data / "split.json", "--out")
    (tmp_path / "foreign").write_text("hello")
    for arguments, says in (
        ((*base, trained[0]), "--replace"),
        ((*base, tmp_path / "o", "--model", "gbdt"), "unknown model 'gbdt'; there are tlp"),
        ((*base, tmp_path / "o", "--model", "random"), "learns nothing"),
        ((*base, tmp_path / "o", "--loss", "hinge"), "loss is one of lambdarank"),
        ((*base, tmp_path / "o", "--set", "width"), "NAME=VALUE"),
        ((*base, tmp_path / "o", "--set", "wdith=3"), "unknown fields wdith"),
        ((*base, tmp_path / "o", "--model", "lightgbm-rank", "--epochs", 3), "has no epochs"),
        ((*base, tmp_path / "o", "--encoding", "x"), "there are default, paper-cpu"),
        ((*base, tmp_path / "o", "--platform", "pi"), "platforms pi"),
        (("train", data, "--split", data / "split.json", "--out", tmp_path / "o"), "tlp import"),
        (("train", data / "data", "--split", tmp_path, "--out", tmp_path / "o"), "tlp split"),
        (("judge", data / "data", "--split", data / "folds.json", trained[0]), "--fold 1 to 2"),
        (("judge", data / "data", "--split", data / "split.json", tmp_path / "no"), "is not there"),
        (("judge", data / "data", "--split", data / "split.json", tmp_path / "foreign"), "damaged"),
    ):
        done = tlp_(*arguments, code=2)
        assert says in done.stderr, done.stderr
    assert not (tmp_path / "o").exists()


def test_a_missing_package_names_the_extra(data, tmp_path):
    for module, model, extra in (
        ("torch", "tlp", "torch"),
        ("lightgbm", "lightgbm-rank", "trees"),
        ("pyarrow", "tlp", "records"),
    ):
        code = (
            f"import sys; sys.modules['{module}'] = None; sys.argv = ['tlp', 'train', 'd', "
            f"'--split', 's', '--out', {str(tmp_path / 'o')!r}, '--model', '{model}'];"
            "from tlp.cli.main import main; main()"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert f"tlp[{extra}]" in done.stderr


def test_trees_are_trained_and_judged_without_torch(data, trees, tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['tlp', *sys.argv[1:]]\n"
        "from tlp.cli.main import main; main()"
    )
    options = [str(data / "data"), "--split", str(data / "split.json")]
    for arguments in (
        ["judge", *options, str(trees[0])],
        [
            *("train", *options, "--out", str(tmp_path / "t")),
            *("--model", "lightgbm-regression", "--set", "rounds=5"),
        ],
    ):
        subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True)


def test_models_for_other_schedules_are_refused(data, trained, tmp_path):
    from safetensors.numpy import save_file

    from tlp.models.checkpoint import load_tensors

    header, tensors = load_tensors(trained[0])
    other = tmp_path / "other"
    save_file(tensors, other, {"tlp": json.dumps({**header, "framework": "metaschedule"})})
    done = tlp_("judge", data / "data", "--split", data / "split.json", other, code=2)
    assert "framework is 'metaschedule', 'ansor' is needed" in done.stderr
