"""The whole way on a small network: tuned, stopped in bad ways, resumed, loaded, rebuilt by TVM."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tlp
from tlp.errors import TlpError, WorkDirError
from tlp.networks.spec import NetworkSpec
from tlp.records.status import Status
from tlp.records.store import Store
from tlp.reports.history import read_history
from tlp.reports.progress import TerminalObserver
from tlp.reports.report import make_report
from tlp.tuning.run import TuneSettings
from tlp.tuning.run import tune as run_tune
from tlp.tuning.workdir import WorkDir

pytestmark = pytest.mark.timeout(600)


def tiny_module():
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 24, 1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(24, 10),
    )
    module[1].running_mean.normal_()
    module[1].running_var.uniform_(0.5, 2)
    return module.eval(), (torch.randn(1, 3, 16, 16),)


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    from tlp.networks.load import export_module

    path = tmp_path_factory.mktemp("network") / "tiny.pt2"
    export_module(*tiny_module(), path)
    return path


def command(source, folder, *options):
    return [
        *(sys.executable, "-m", "tlp", "tune", str(source)),
        *("--work-dir", str(folder), "--quiet", *map(str, options)),
    ]


def tune(source, folder, *options):
    done = subprocess.run(
        command(source, folder, *options, "--json"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def tuned(exported, tmp_path_factory):
    """A finished run: its folder and its summary."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    return folder, tune(exported, folder, "--trials", 40)


def rows(folder):
    store = Store(WorkDir(folder).store)
    found = list(store.candidates())
    store.close()
    return found


def processes_of(folder):
    """Processes of a run: their command line, forked or not, names its folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] if line else ""
        except OSError:
            continue
        if str(folder).encode() in line and state != "Z":
            found.append(int(entry.name))
    return found


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def count(folder):
    path = WorkDir(folder).store
    if not path.exists():
        return 0
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        return int(connection.execute("SELECT COUNT(*) FROM candidates").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def test_summary_says_what_happened(tuned):
    folder, summary = tuned
    assert summary["trials"] == 40 == sum(task["trials"] for task in summary["tasks"])
    assert summary["output_error"] <= 1e-3
    assert set(summary["latency_ms"]) == {"tuned", "untuned", "pytorch"}
    assert all(value > 0 for value in summary["latency_ms"].values())
    assert {"search", "replay", "build", "run", "learn"} <= set(summary["seconds_by_phase"])
    best = {task["key"]: task["best_us"] for task in summary["tasks"]}
    for key, value in best.items():
        verified = [
            c.latency for c in rows(folder) if c.task == key and c.verified and c.status.timed
        ]
        assert value == (pytest.approx(1e6 * min(verified)) if verified else None)
    assert json.loads((folder / "summary.json").read_text()) == summary


def test_a_task_with_one_program_gets_one_trial_and_leaves(tuned):
    _, summary = tuned
    (reshape,) = [task for task in summary["tasks"] if task["name"].startswith("reshape")]
    assert reshape["trials"] == reshape["rows"] == 1
    assert reshape["all_programs_measured"]


def test_no_program_is_measured_twice(tuned):
    folder, _ = tuned
    measured = [(c.task, c.program) for c in rows(folder) if c.status.replayed]
    assert len(measured) == len(set(measured))
    tried = [(c.task, c.sketch, c.decisions) for c in rows(folder)]
    assert len(tried) == len(set(tried))


def test_the_report_agrees_with_the_summary(tuned):
    folder, summary = tuned
    report = make_report(read_history(folder))
    assert report["complete"]
    assert report["seconds_by_phase"] == pytest.approx(summary["seconds_by_phase"])
    for key in summary.keys() - {"tasks", "seconds_by_phase", "resumed_from_trials"}:
        assert report[key] == summary[key], key
    for told, task in zip(report["tasks"], summary["tasks"], strict=True):
        assert {key: told[key] for key in task} == task
    page = (folder / "report.html").read_text()
    assert all(task["name"] in page for task in summary["tasks"])


def test_csv_has_a_line_for_every_row(tuned):
    folder, _ = tuned
    with (folder / "trials.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    assert len(lines) == len(rows(folder))
    for line, row in zip(lines, rows(folder), strict=True):
        assert line["status"] == row.status.value
        assert line["host"] == row.host
        if row.latencies:
            assert float(line["latency_us"]) == pytest.approx(1e6 * row.latency, rel=1e-3)


def test_loaded_network_agrees_with_pytorch(tuned):
    import torch

    folder, _ = tuned
    module, _ = tiny_module()
    network = tlp.load(folder)
    for seed in range(3):
        torch.manual_seed(seed)
        value = torch.randn(1, 3, 16, 16)
        with torch.inference_mode():
            want = module(value).numpy()
        (got,) = network(value)
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


RECIPE = """
import sys, json
import numpy as np
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

folder, target, layouts = sys.argv[1], tvm.target.Target(json.loads(sys.argv[2])), sys.argv[3]
with open(folder + "/network/module.json") as stream:
    mod = tvm.ir.load_json(stream.read())
database = ms.database.JSONDatabase(work_dir=folder + "/database")
if layouts == "yes":
    with target, database:
        mod = relax.transform.MetaScheduleApplyDatabase(enable_warning=True)(mod)
        mod = relax.transform.SplitLayoutRewritePreproc()(mod)
        mod = relax.transform.FoldConstant()(mod)
    executable = relax.build(mod, target=target)
else:
    executable = ms.relax_integration.compile_relax(
        database, mod, target, params=None, enable_warning=True
    )
machine = relax.VirtualMachine(executable, tvm.cpu())
with np.load(folder + "/network/reference.npz") as stored:
    result = machine["main"](tvm.runtime.tensor(stored["x1_0"]))
result = result if hasattr(result, "numpy") else result[0]
assert not any(name.split(".")[0] == "tlp" for name in sys.modules)
np.save(folder + "/stock.npy", result.numpy())
"""


def rebuild_with_stock_tvm(folder, summary, layouts):
    """Run the documented recipe, which knows nothing of this package; returns its warnings."""
    arguments = [str(folder), json.dumps(summary["target"]), layouts]
    done = subprocess.run(
        [sys.executable, "-c", RECIPE, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    reference = np.load(folder / "network" / "reference.npz")
    got = np.load(folder / "stock.npy")
    np.testing.assert_allclose(got, reference["y1_0"], rtol=1e-3, atol=1e-4)
    (ours,) = tlp.load(folder)(reference["x1_0"])
    np.testing.assert_allclose(got, ours, rtol=1e-5, atol=1e-6)
    return re.findall(r"not found for primfunc: (\w+)|record.*?for.*?(\w+)$", done.stderr, re.M)


def test_stock_tvm_rebuilds_the_network_from_the_folder(tuned):
    folder, summary = tuned
    warnings = rebuild_with_stock_tvm(folder, summary, "yes")
    without = [task for task in summary["tasks"] if task["best_us"] is None]
    assert len(warnings) == len(without), warnings


def test_tlp_run_prints_the_latency(tuned):
    folder, _ = tuned
    done = subprocess.run(
        [sys.executable, "-m", "tlp", "run", str(folder), "--repeats", "5", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["inputs"] == ["float32[1, 3, 16, 16]"]
    assert answer["outputs"] == ["float32[1, 10]"]
    assert 0 < answer["latency_ms"]["min"] <= answer["latency_ms"]["median"]


def test_the_same_folder_goes_on(tuned, exported):
    folder, _ = tuned
    before = rows(folder)
    summary = tune(exported, folder, "--trials", 50)
    after = rows(folder)
    assert after[: len(before)] == before
    assert summary["resumed_from_trials"] == 40
    assert summary["trials"] == 50
    assert max(c.elapsed_s for c in before) <= min(c.elapsed_s for c in after[len(before) :])
    test_no_program_is_measured_twice((folder, summary))


def test_another_folder_compiles_from_what_this_one_knows(tuned, exported, tmp_path):
    """Records of the same platform and host count; nothing is measured but the network."""
    folder, _ = tuned
    there = {(c.task, c.program): c for c in rows(folder) if c.program}
    new = tmp_path / "new"
    summary = tune(exported, new, "--trials", 0, "--reuse", folder, "--tasks", "conv2d")
    assert summary["trials"] == 0
    assert summary["reused"] == len(there)
    (count,) = summary["reuse"]
    assert count["measured"] == len(rows(new))
    assert count["unused"] == {}
    assert {task["left_out"] for task in summary["tasks"]} == {True, False}
    for task in summary["tasks"]:
        best = [c.latency for c in there.values() if c.task == task["key"] and c.verified]
        assert task["best_us"] == (pytest.approx(1e6 * min(best)) if best else None)
        assert task["reused"] == sum(c.task == task["key"] for c in there.values())
    assert summary["output_error"] <= 1e-3
    assert not list((new / "logs").glob("worker*"))
    with (new / "trials.csv").open() as stream:
        assert {line["origin"] for line in csv.DictReader(stream)} == {str(folder)}


def test_a_damaged_store_is_named_with_the_way_out(tuned, exported, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(tuned[0], folder)
    path = WorkDir(folder).store
    path.write_bytes(path.read_bytes()[:3000] + b"garbage" * 500)
    for other in folder.glob("state.sqlite-*"):
        other.unlink()
    before = path.read_bytes()
    settings = TuneSettings(NetworkSpec(str(exported)), folder, trials=60)
    with pytest.raises(WorkDirError, match=f"(?s){path} is damaged.*--reuse {folder}"):
        run_tune(settings, TerminalObserver(quiet=True))
    assert path.read_bytes() == before


def test_tasks_that_match_nothing_are_listed(tuned, exported):
    settings = TuneSettings(NetworkSpec(str(exported)), tuned[0], trials=60, tasks=("conv3d",))
    with pytest.raises(TlpError, match=r"--tasks 'conv3d' matches none of the tasks: .*conv2d"):
        run_tune(settings, TerminalObserver(quiet=True))


@pytest.mark.parametrize(
    ("source", "changes", "says"),
    [
        ("squeezenet", {}, "network"),
        (None, {"target": "llvm -mcpu=x86-64-v2"}, "target"),
        (None, {"weight_layouts": False}, "weight_layouts"),
    ],
)
def test_another_network_or_target_is_refused(tuned, exported, source, changes, says):
    folder, _ = tuned
    spec = NetworkSpec(source or str(exported))
    settings = TuneSettings(spec, folder, trials=60, **changes)
    with pytest.raises(WorkDirError, match=f"its {says} is .*--work-dir"):
        run_tune(settings, TerminalObserver(quiet=True))


def test_an_exported_file_that_changed_is_refused(tuned, exported, tmp_path):
    folder, _ = tuned
    config = json.loads((folder / "used_config.json").read_text())
    assert config["identity"]["network_sha256"]
    before = exported.read_bytes()
    try:
        exported.write_bytes(before + b"more")
        with pytest.raises(WorkDirError, match="network_sha256"):
            run_tune(TuneSettings(NetworkSpec(str(exported)), folder), TerminalObserver(quiet=True))
    finally:
        exported.write_bytes(before)


def test_kill_nine_of_the_parent_at_random_moments(exported, tmp_path):
    folder = tmp_path / "killed"
    seed = random.SystemRandom().randrange(10**6)
    print("seed of the moments:", seed)
    moments = random.Random(seed)
    known: list = []
    for _ in range(2):
        process = subprocess.Popen(
            command(exported, folder, "--trials", 500),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        goal = len(known) + moments.randrange(1, 15)
        assert wait_until(lambda goal=goal: count(folder) >= goal, 120)
        time.sleep(moments.random())
        seen = count(folder)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert wait_until(lambda: not processes_of(folder), 20), processes_of(folder)
        now = rows(folder)
        assert len(now) >= seen
        assert now[: len(known)] == known
        known = now
    trials = sum(c.status.replayed for c in known) + 5
    summary = tune(exported, folder, "--trials", trials)
    assert rows(folder)[: len(known)] == known
    assert summary["trials"] == trials
    assert summary["output_error"] <= 1e-3


def test_killed_workers_and_control_c(exported, tmp_path):
    folder = tmp_path / "interrupted"
    process = subprocess.Popen(
        command(exported, folder, "--trials", 500),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert wait_until(lambda: count(folder) >= 3, 120)
    killed = 0
    for _ in range(3):
        workers = [pid for pid in processes_of(folder) if pid != process.pid]
        if workers:
            os.kill(random.choice(workers), signal.SIGKILL)
            killed += 1
        time.sleep(0.7)
    assert killed
    goal = count(folder) + 5
    assert wait_until(lambda: count(folder) >= goal, 60)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "goes on from here" in said
    assert not processes_of(folder)
    found = rows(folder)
    crashed = {Status.BUILD_CRASH, Status.RUN_CRASH, Status.REPLAY_ERROR}
    assert sum(c.status in crashed for c in found) <= killed
    assert (folder / "database" / "database_tuning_record.json").exists()
    assert len((folder / "trials.csv").read_text().splitlines()) == len(found) + 1
    assert "not complete" in (folder / "report.html").read_text()


def test_a_folder_in_use_is_refused(tmp_path):
    folder = WorkDir(tmp_path / "busy")
    with folder.locked():
        done = subprocess.run(
            command("squeezenet", folder.root, "--trials", 1),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert "in use by another tlp process" in done.stderr


def test_library_call_and_stock_compile_relax(tmp_path):
    """From Python, one core, without weight layouts: the folder also serves `compile_relax`."""
    module, inputs = tiny_module()
    folder = tmp_path / "library"
    result = tlp.tune(
        module,
        inputs,
        target={"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 1},
        trials=15,
        work_dir=folder,
        weight_layouts=False,
        quiet=True,
    )
    import torch

    with torch.inference_mode():
        want = module(*inputs).numpy()
    (got,) = result.network()(*[value.numpy() for value in inputs])
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
    assert result.summary["target"]["num-cores"] == 1
    warnings = rebuild_with_stock_tvm(folder, result.summary, "no")
    without = [task for task in result.summary["tasks"] if task["best_us"] is None]
    assert len(warnings) == len(without), warnings
    with pytest.raises(WorkDirError, match="another module"):
        tlp.tune(module, (torch.randn(2, 3, 16, 16),), trials=15, work_dir=folder, quiet=True)
