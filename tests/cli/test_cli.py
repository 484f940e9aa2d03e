"""The command line's errors and small commands, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def tlp(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "tlp", *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("tune", "resnet51"), "resnet50"),
        (("tune", "nowhere.pt2"), "no such file"),
        (("tune", "resnet50", "--trials", "-1"), "--trials is -1"),
        (("tune", "resnet50", "--reuse", "/nowhere"), "--reuse /nowhere: no such folder"),
        (("tune", "resnet50", "--reuse", "/"), "is neither a work folder"),
        (("tune", "resnet50", "--minutes", "-1"), "--minutes is -1"),
        (("tune", "resnet50", "--picks", "0"), "--picks"),
        (("tune", "resnet50", "--build-timeout", "0"), "--build-timeout"),
        (("tune", "resnet50", "--input-shape", "3;224"), "--input-shape"),
        (("tune", "resnet50", "--batch", "0"), "batch"),
        (("tasks", "nothing"), "Built in"),
        (("run", "/nowhere"), "is no folder"),
    ],
)
def test_mistakes_end_with_two_and_name_the_option(arguments, says, tmp_path):
    extra = ("--work-dir", str(tmp_path / "w")) if arguments[0] == "tune" else ()
    done = tlp(*arguments, *extra)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "w").exists()


def test_errors_as_json():
    done = tlp("tune", "resnet51", "--json")
    answer = json.loads(done.stdout)
    assert answer["error"] == "NetworkError"
    assert "resnet51" in answer["message"]


def test_unknown_options_and_commands():
    assert tlp("tune", "resnet50", "--no-such").returncode == 2
    assert tlp("no-such-command").returncode == 2


def test_version():
    done = tlp("--version")
    assert done.stdout.startswith("tlp 0.")
    assert done.returncode == 0


def test_a_folder_without_a_finished_run(tmp_path):
    done = tlp("run", str(tmp_path))
    assert done.returncode == 2
    assert "no finished run" in done.stderr


def test_doctor_finds_everything_working():
    done = tlp("doctor", "--json")
    answer = json.loads(done.stdout)
    assert answer["ok"], answer
    assert done.returncode == 0
    names = [check["name"] for check in answer["checks"]]
    assert {"apache-tvm", "apache-tvm-ffi", "native target", "build and run"} <= set(names)


def test_doctor_takes_a_missing_optional_package_for_no_fault(monkeypatch):
    from tlp.cli import doctor

    monkeypatch.setitem(doctor._EXTRAS, "no_such_module", ("no-such-package", "onnx"))
    check = doctor._package("no_such_module")
    assert check.ok
    assert "not installed" in check.found
    assert "tlp[onnx]" in check.found


def test_doctor_reports_what_is_missing(monkeypatch):
    from tlp.cli import doctor

    monkeypatch.setitem(doctor._EXTRAS, "no_such_module", ("no-such-package", "tune"))
    check = doctor._package("no_such_module")
    assert not check.ok
    assert "tlp[tune]" in check.mend
    monkeypatch.setitem(doctor._PINS, "numpy", "0.1")
    check = doctor._package("numpy")
    assert not check.ok
    assert "only 0.1 works" in check.found
    assert check.mend == "pip install numpy==0.1"


@pytest.mark.timeout(180)
def test_tasks_lists_them(tmp_path):
    done = tlp("tasks", "squeezenet", "--input-shape", "3,64,64", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert len(answer["tasks"]) == 27
    assert all(task["rows"] >= 1 and task["sketches"] >= 1 for task in answer["tasks"])
    assert sum(task["weight"] for task in answer["tasks"]) == 39


def test_tuning_for_cuda_without_a_gpu_stops_at_once(tmp_path):
    from tlp.metaschedule.devices import find_gpu

    if find_gpu() is not None:
        pytest.skip("there is a GPU")
    done = tlp("tune", "bert_tiny", "--target", "cuda", "--work-dir", str(tmp_path / "w"))
    assert done.returncode == 2
    assert "GPU" in done.stderr
    assert "tlp tasks" in done.stderr
    assert "native" in done.stderr
    assert not (tmp_path / "w").exists()


@pytest.mark.slow
def test_tasks_of_a_gpu_are_listed_without_one():
    done = tlp("tasks", "bert_tiny", "--target", "nvidia/nvidia-a100", "--json", "--quiet")
    found = json.loads(done.stdout)
    assert found["target"]["arch"] == "sm_80"
    matmuls = [task for task in found["tasks"] if "matmul" in task["name"]]
    assert all(task["sketches"] == 3 and task["rows"] > 10**8 for task in matmuls)
