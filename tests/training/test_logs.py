"""What a training run tells while it goes."""

from __future__ import annotations

import csv
import io
import sys

import pytest

from tlp.training import logs
from tlp.training.logs import Progress, ProgressLine, tensorboard_writer, write_csv


class Terminal(io.StringIO):
    def isatty(self):
        return True


def progress(epoch):
    return Progress(epoch, 20, 0.5, {"top1": 0.75, "other": 1.0}, 1234.5, 3725.0)


def test_a_line_has_the_figures_the_speed_and_the_time_left():
    assert progress(3).line() == (
        "epoch 3/20  loss 0.5000  top1 0.7500  1,234 samples/s  1:02:05 left"
    )


@pytest.mark.parametrize(
    ("stream", "every", "wanted"), [(Terminal, 0.2, "\r"), (io.StringIO, 15, "\n")]
)
def test_a_terminal_is_rewritten_and_a_log_grows_now_and_then(monkeypatch, stream, every, wanted):
    clock = [100.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: clock[0])
    out = stream()
    line = ProgressLine(stream=out)
    for epoch in range(1, 6):
        line(progress(epoch))
        clock[0] += 0.4 * every
    line.close()
    text = out.getvalue()
    # The first is shown, then one after at least the time has passed: the fourth.
    assert [f"epoch {epoch}/" in text for epoch in range(1, 6)] == [True, False, False, True, False]
    assert text.count(wanted) >= 2
    assert ("\r" in text) == (stream is Terminal)
    assert text.endswith("\n")


def test_quiet_runs_say_nothing():
    out = io.StringIO()
    line = ProgressLine(quiet=True, stream=out)
    line(progress(1))
    line.close()
    assert out.getvalue() == ""


def test_a_table_is_written_with_the_columns_of_all_rows(tmp_path):
    write_csv(
        tmp_path / "t.csv", [{"epoch": 1, "loss": None}, {"epoch": 2, "loss": 0.5, "top1": 1}]
    )
    with (tmp_path / "t.csv").open() as opened:
        rows = list(csv.DictReader(opened))
    assert rows == [
        {"epoch": "1", "loss": "", "top1": ""},
        {"epoch": "2", "loss": "0.5", "top1": "1"},
    ]


def test_without_tensorboard_there_is_no_writer(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setattr(logs.importlib.util, "find_spec", lambda name: None)
    assert tensorboard_writer(tmp_path, 0) is None
    assert list(tmp_path.iterdir()) == []
