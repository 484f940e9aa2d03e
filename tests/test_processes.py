from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tlp.errors import MeasureError, MissingExtraError, NetworkError
from tlp.processes import deferred_interrupt, native_output_to, require, run_isolated


def add(first, second, progress):
    progress("adding")
    return first + second


def refuse(progress):
    raise NetworkError("no such network")


def fail(progress):
    print("last words")
    raise KeyError("gone")


def die(progress):
    os.write(2, b"about to die\n")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_result_and_progress_come_back(start):
    said = []
    assert run_isolated(add, 2, 3, start=start, on_progress=said.append) == 5
    assert said == ["adding"]


def test_a_user_error_keeps_its_class_and_text():
    with pytest.raises(NetworkError, match="no such network"):
        run_isolated(refuse, start="fork")


@pytest.mark.parametrize(("function", "says"), [(fail, "KeyError"), (die, "exit code -9")])
def test_other_ends_become_one_error_with_the_log(tmp_path, function, says):
    with pytest.raises(MeasureError, match=says) as caught:
        run_isolated(function, start="fork", log=tmp_path / "log")
    words = "last words" if function is fail else "about to die"
    assert words in str(caught.value)


PARENT = """
import os, sys, time
from tlp.processes import run_isolated
def sleep(progress):
    progress(str(os.getpid()))
    time.sleep(600)
run_isolated(sleep, start="fork", on_progress=lambda text: print(text, flush=True))
"""


def test_a_child_dies_with_its_parent():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = Path("/proc") / parent.stdout.readline().strip()
    assert child.exists()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    end = time.monotonic() + 10
    while child.exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not child.exists()


def test_native_output_goes_to_the_file_and_comes_back(tmp_path, capfd):
    with native_output_to(tmp_path / "log"):
        os.write(2, b"from native code\n")
    os.write(2, b"afterwards\n")
    assert (tmp_path / "log").read_text() == "from native code\n"
    assert capfd.readouterr().err == "afterwards\n"


def test_a_missing_package_names_its_extra():
    with pytest.raises(MissingExtraError, match=r"no_such_package.*tlp\[tune\]"):
        require("no_such_package", "tune")


def test_an_interrupt_is_kept_for_the_next_check_even_where_exceptions_are_lost():
    class Careless:
        def __del__(self):  # an exception raised in here is printed and forgotten
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with deferred_interrupt() as interrupt:
        interrupt.check()
        Careless()
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()
        interrupt.check()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_does_not_wait():
    with deferred_interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
