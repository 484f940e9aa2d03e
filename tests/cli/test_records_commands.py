"""`tlp import`, `tlp inspect` and `tlp split`, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data" / "primitives"


def tlp(*arguments, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "tlp", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "data"
    log = DATA / "ansor_records.jsonl"
    done = tlp("import", log, DATA / "metaschedule_records.jsonl", "--out", out)
    assert "7 lines of 2 files = 7 rows + 0 rejected + 0 blank + 0 comments" in done.stdout
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 100
    return out


def test_importing_again_is_no_work_and_json_tells_all(data):
    log = DATA / "ansor_records.jsonl"
    done = tlp("import", log, DATA / "metaschedule_records.jsonl", "--out", data, "--json")
    answer = json.loads(done.stdout)
    assert answer["complete_before"]
    assert answer["counts"]["rows"] == 7


def test_a_data_set_and_the_raw_logs_are_inspected_alike(data):
    shown = tlp("inspect", data).stdout
    assert "7 rows, 7 workloads" in shown
    assert "microsoft" not in shown
    assert max(map(len, shown.splitlines())) <= 100
    kept = json.loads(tlp("inspect", data, "--json").stdout)
    raw = json.loads(
        tlp(
            "inspect",
            DATA / "ansor_records.jsonl",
            DATA / "metaschedule_records.jsonl",
            "--json",
        ).stdout
    )
    assert raw == kept
    assert kept["kinds"]["split"] > 0


def test_splits_are_written_beside_the_data(data):
    shown = tlp("split", data, "--hold-out", "Ansor-Records").stdout
    path = data / "splits" / "ansor_records.json"
    assert str(path) in shown
    (one,) = json.loads(path.read_text())["splits"]
    assert len(one["test"]) == 3
    answer = json.loads(tlp("split", data, "--folds", 2, "--json", "--valid", 0).stdout)
    assert [len(one["train"]) for one in answer["splits"]] in ([3, 4], [4, 3])


def test_mistakes_end_with_two_and_the_way_out(data, tmp_path):
    for arguments, says in (
        (("import", tmp_path / "nowhere", "--out", tmp_path / "o"), "does not exist"),
        (("import", DATA / "ansor_records.jsonl", "--out", data), "--replace"),
        (("inspect", tmp_path), "there is no log"),
        (("split", tmp_path, "--folds", 2), "tlp import"),
        (("split", data), "--hold-out"),
        (("split", data, "--hold-out", "vgg"), "Known are: ansor_records, metaschedule_records"),
    ):
        done = tlp(*arguments, code=2)
        assert says in done.stderr
    answer = json.loads(tlp("split", data, "--json", code=2).stdout)
    assert answer["error"] == "RecordsError"


def test_a_missing_package_names_the_extra():
    code = (
        "import sys; sys.modules['pyarrow'] = None; sys.argv = ['tlp', 'inspect', '.'];"
        "from tlp.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "tlp[records]" in done.stderr


def test_neither_tvm_nor_torch_is_loaded(data):
    code = (
        "import sys; sys.argv = ['tlp', 'inspect', sys.argv[1], '--json'];"
        "from tlp.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print({'tvm', 'torch', 'lightgbm', 'scipy'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(data)], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "set()"
