"""Training runs: what is learned, stopped and gone on with, and how weights are averaged."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import made
import numpy as np
import pytest
import torch

from tlp.errors import CheckpointError, TrainingError
from tlp.models.scoring import score_sequences
from tlp.ranking.losses import LOSSES
from tlp.ranking.metrics import kendall_tau
from tlp.training import trainer
from tlp.training.trainer import train

NOTHING = made.programs().take(np.arange(0))


def weights(model):
    return {name: values.clone() for name, values in model.state_dict().items()}


def equal(one, other):
    return all(torch.equal(values, other[name]) for name, values in one.items())


def run(work_dir=None, validation=NOTHING, seed=0, on_progress=None, **changes):
    model = made.model(seed)
    done = train(
        model,
        made.programs(),
        validation,
        made.settings(seed=seed, **changes),
        work_dir=work_dir,
        on_progress=on_progress,
    )
    return model, done


@pytest.mark.parametrize("loss", [*LOSSES, "across"])
def test_a_model_learns_a_planted_order_of_workloads_that_it_has_not_seen(loss):
    changes = {"within_groups": False} if loss == "across" else {"loss": loss}
    data, unseen = made.programs(12, failed=0.02), made.programs(6, first=100, failed=0)
    model = made.model()

    def tau():
        scores = score_sequences(model, unseen.table, unseen.indices, unseen.mask)
        return kendall_tau(scores, unseen.labels, groups=unseen.groups).mean()

    before = tau()
    settings = made.settings(epochs=10, patience=10, learning_rate=1e-2, **changes)
    done = train(model, data, made.programs(3, first=50, failed=0), settings)
    assert abs(before) < 0.2
    assert tau() > 0.5
    assert done.history[0]["loss"] > done.history[-1]["loss"]
    assert done.metrics["top5"] > 0.8


def test_the_same_seed_gives_the_same_weights_and_another_gives_others():
    one, two, other = (weights(run(seed=seed)[0]) for seed in (0, 0, 1))
    assert equal(one, two)
    assert not equal(one, other)


@pytest.fixture(autouse=True)
def one_thread():
    """Sums depend on the number of threads; the processes that tests start have one, too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


CHILD = """
import sys, time, made
from pathlib import Path
from tlp.training.trainer import train
steps = []
def stop(now):
    steps.append(now)
    if len(steps) == 9:
        print("nine", flush=True)
        time.sleep(600)
train(made.model(), made.programs(), made.programs(2, first=50),
      made.settings(save_seconds=0.0), work_dir=Path(sys.argv[1]), on_progress=stop)
"""


def environment():
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def test_a_run_that_was_killed_ends_with_the_weights_of_one_that_was_not(tmp_path):
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "nine\n"
    child.kill()
    child.wait()
    steps = []
    validation = made.programs(2, first=50)
    resumed, after = run(tmp_path, validation, on_progress=steps.append)
    whole, before = run(validation=validation)
    # The ninth step was not saved yet.
    assert len(steps) == before.history[-1]["step"] - 8
    assert equal(weights(resumed), weights(whole))
    assert [row["loss"] for row in after.history] == [row["loss"] for row in before.history]
    assert after.metrics == pytest.approx(before.metrics, nan_ok=True)
    assert after.best_epoch == before.best_epoch


@pytest.mark.parametrize("average", ["none", "swa"])
def test_ctrl_c_saves_and_the_run_goes_on_from_there(tmp_path, average):
    seen = []
    handler = signal.getsignal(signal.SIGINT)  # Of a job in the background it is ignored.

    def interrupt(now):
        seen.append(now)
        if len(seen) == 13:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, on_progress=interrupt, save_seconds=1e9, average=average)
    assert len(seen) == 13
    resumed, done = run(tmp_path, on_progress=interrupt, average=average)
    whole, _ = run(average=average)
    assert equal(weights(resumed), weights(whole))
    assert len(seen) == done.history[-1]["step"]
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_run_that_is_complete_is_not_repeated(tmp_path):
    first, done = run(tmp_path)
    steps = []
    again, known = run(tmp_path, on_progress=steps.append)
    assert not steps
    assert equal(weights(first), weights(again))
    assert known.history == done.history
    with (tmp_path / "training.csv").open() as opened:
        rows = list(csv.DictReader(opened))
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3]
    assert float(rows[-1]["loss"]) == done.history[-1]["loss"]


def test_the_state_of_another_run_is_refused_and_says_what_differs(tmp_path):
    run(tmp_path)
    with pytest.raises(TrainingError, match=r"run: setting learning_rate was 0.001 and is"):
        run(tmp_path, learning_rate=1e-2)
    with pytest.raises(TrainingError, match="data was"):
        train(made.model(), made.programs(7), NOTHING, made.settings(), work_dir=tmp_path)
    state = tmp_path / "training.safetensors"
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="cut short"):
        run(tmp_path)


def test_batches_whose_loss_is_not_finite_are_skipped(monkeypatch, tmp_path):
    original, count = trainer._Run._loss, []

    def poisoned(self, batch):
        count.append(1)
        loss = original(self, batch)
        return loss * math.nan if len(count) % 3 == 0 else loss

    monkeypatch.setattr(trainer._Run, "_loss", poisoned)
    model, done = run(tmp_path)
    assert all(values.isfinite().all() for values in model.state_dict().values())
    assert all(math.isfinite(row["loss"]) for row in done.history)


@pytest.mark.parametrize(("epochs", "rows"), [(50, 16), (1, 64)])
def test_a_run_that_cannot_take_a_step_says_so_and_moves_nothing(monkeypatch, epochs, rows):
    original = trainer._Run._loss
    monkeypatch.setattr(trainer._Run, "_loss", lambda self, batch: original(self, batch) * math.inf)
    model = made.model()
    before = weights(model)
    with pytest.raises(TrainingError, match=r"not finite in (20|any).*Lower the learning rate"):
        train(model, made.programs(), NOTHING, made.settings(epochs=epochs, batch_rows=rows))
    assert equal(before, weights(model))


def test_without_two_latencies_there_is_nothing_to_learn():
    data = replace(made.programs(), latencies=np.full(320, 2.0))
    with pytest.raises(TrainingError, match="nothing to learn from: of 320 programs"):
        train(made.model(), data, NOTHING, made.settings())
    train(made.model(), data, NOTHING, made.settings(loss="mse", epochs=1))


def trajectory(monkeypatch, **changes):
    """Weights of one parameter after each step, and the run's result."""
    seen = []
    original = trainer._Run._step

    def step(self, batch):
        original(self, batch)
        seen.append(
            (self.model.state_dict()["encoder.0.weight"].clone(), self.optimizer.param_groups[0])
        )
        seen[-1] = (seen[-1][0], seen[-1][1]["lr"])

    with monkeypatch.context() as patch:
        patch.setattr(trainer._Run, "_step", step)
        model, done = run(**changes)
    return [w for w, _ in seen], [rate for _, rate in seen], model, done


def test_averages_are_those_of_the_weights_along_the_way(monkeypatch):
    start = made.model().state_dict()["encoder.0.weight"]
    path, _, model, done = trajectory(monkeypatch, average="none")
    assert torch.equal(model.state_dict()["encoder.0.weight"], path[-1])
    wanted = start.double()
    for step, now in enumerate(path, 1):
        decay = min(0.9, (1 + step) / (10 + step))
        wanted = decay * wanted + (1 - decay) * now
    model = trajectory(monkeypatch, average="ema", ema_decay=0.9)[2]
    torch.testing.assert_close(model.state_dict()["encoder.0.weight"], wanted.float())
    ends = [path[row["step"] - 1] for row in done.history]
    model = trajectory(monkeypatch, average="swa")[2]
    # The second and third of three epochs lie behind the half.
    torch.testing.assert_close(model.state_dict()["encoder.0.weight"], (ends[1] + ends[2]) / 2)


def test_the_rate_rises_and_falls_as_a_cosine(monkeypatch):
    _, rates, _, _ = trajectory(monkeypatch, learning_rate=0.01, warmup=4)
    total = len(rates)
    for step, rate in enumerate(rates):
        low = 0.01 + 0.99 * (1 + math.cos(math.pi * step / total)) / 2
        assert rate == pytest.approx(0.01 * min(1, (step + 1) / 4) * low, rel=1e-2)
    assert trajectory(monkeypatch, schedule="constant", warmup=0)[1] == [1e-3] * total


def test_gradients_are_clipped_to_a_norm(monkeypatch):
    norms = []
    original = torch.optim.Adam.step

    def step(self, *arguments):
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        norms.append(float(torch.cat([g.flatten() for g in gradients]).norm()))
        return original(self, *arguments)

    monkeypatch.setattr(torch.optim.Adam, "step", step)
    run(clip=1e-3, epochs=1)
    assert max(norms) == pytest.approx(1e-3, rel=1e-3)


def judged_as(monkeypatch, values):
    """The judge says these top-1 figures, an epoch each."""
    figures = iter(values)
    monkeypatch.setattr(
        trainer._Run, "_judged", lambda self: {"top1_subsets": next(figures), "top1": 0.5}
    )


def test_the_epoch_that_the_judge_liked_best_is_kept_and_patience_ends_the_run(monkeypatch):
    values = [0.1, 0.5, 0.4, 0.3, 0.2, 0.9]
    judged_as(monkeypatch, values)
    path, _, model, done = trajectory(
        monkeypatch, average="none", epochs=6, patience=3, criterion=("top1_subsets",)
    )
    assert len(done.history) == 5
    assert done.best_epoch == 2
    assert done.metrics["top1_subsets"] == 0.5
    kept = path[done.history[1]["step"] - 1]
    assert torch.equal(model.state_dict()["encoder.0.weight"], kept)


def test_a_criterion_that_the_judge_does_not_know_is_refused():
    with pytest.raises(TrainingError, match="the judge knows no top2; it has top1"):
        run(validation=made.programs(2, first=50), criterion=("top2",))


@pytest.mark.parametrize("budget", ["seconds", "cpu_seconds"])
def test_a_budget_ends_the_run_in_the_middle_of_an_epoch(budget, tmp_path):
    steps = []
    model, done = run(
        tmp_path, on_progress=steps.append, epochs=1000, patience=1000, **{budget: 1e-9}
    )
    assert len(steps) == len(done.history) == 1
    assert steps[0].seconds_left == 0
    again, _ = run(tmp_path, epochs=1000, patience=1000, **{budget: 1e-9})
    assert equal(weights(model), weights(again))


def test_progress_is_one_line_with_the_time_left():
    lines = []
    run(validation=made.programs(2, first=50), on_progress=lambda now: lines.append(now.line()))
    assert lines[0].startswith("epoch 1/3  loss ")
    assert "top1" not in lines[0]
    assert "top1 0." in lines[-1]
    assert lines[-1].endswith(" left")
    assert max(map(len, lines)) <= 100


def test_bfloat16_trains_float32_weights_that_rank():
    data = made.programs(12, failed=0)
    model = made.model()
    train(
        model,
        data,
        NOTHING,
        made.settings(epochs=6, learning_rate=1e-2, dtype="bfloat16"),
    )
    assert all(values.dtype == torch.float32 for values in model.state_dict().values())
    scores = score_sequences(model, data.table, data.indices, data.mask)
    assert kendall_tau(scores, data.labels, groups=data.groups).mean() > 0.6


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(TrainingError, match="finds no GPU here"):
        run(device="cuda")


TOGETHER = """
import sys, made
from pathlib import Path
from safetensors.torch import save_file
from tlp.training.trainer import train
import json, os
model = made.model()
done = train(model, made.programs(), made.programs(2, first=50), made.settings(epochs=1),
             work_dir=Path(sys.argv[1]))
rank = os.environ.get("RANK", "0")
save_file(model.state_dict(), str(Path(sys.argv[1]) / f"weights-{rank}.safetensors"))
told = {**done.metrics, "loss": done.history[-1]["loss"]}
(Path(sys.argv[1]) / f"metrics-{rank}.json").write_text(json.dumps(told))
"""


def test_two_processes_end_with_the_weights_of_one(tmp_path):
    from safetensors.torch import load_file

    script = tmp_path / "together.py"
    script.write_text(TOGETHER)
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(script), str(tmp_path)),
        ],
        env=environment(),
        check=True,
        capture_output=True,
        timeout=240,
    )
    alone, done = run(epochs=1, validation=made.programs(2, first=50))
    both = [load_file(tmp_path / f"weights-{rank}.safetensors") for rank in (0, 1)]
    assert equal(both[0], both[1])
    for name, values in weights(alone).items():
        # Gradients are summed in another order, and Adam makes much of those near zero.
        torch.testing.assert_close(both[0][name], values, rtol=1e-2, atol=1e-3)
    for rank in (0, 1):
        figures = json.loads((tmp_path / f"metrics-{rank}.json").read_text())
        assert figures["loss"] == pytest.approx(done.history[-1]["loss"], rel=1e-3)
        assert figures["top1_subsets"] == pytest.approx(done.metrics["top1_subsets"], abs=0.02)
