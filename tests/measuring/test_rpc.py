"""Devices behind a real tracker on loopback: measured on, killed, restarted, misused."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest

from tlp.cli.options import parse_devices
from tlp.errors import DeviceError, MeasureError, TargetError
from tlp.measuring.batch import Batch, reference
from tlp.measuring.messages import BuildRequest, Program, RunRequest, Unreached
from tlp.measuring.place import LocalPlace
from tlp.measuring.pool import Limits, WorkerPool
from tlp.measuring.remote import Devices, make_remote_place
from tlp.measuring.remote_network import try_device
from tlp.measuring.tracker import Address, count_devices
from tlp.measuring.worker import Subject, stored_latency
from tlp.metaschedule.arguments import describe_arguments
from tlp.metaschedule.sketches import decision_space, make_design
from tlp.processes import die_with_parent, run_isolated
from tlp.records.status import Status

pytestmark = pytest.mark.timeout(600)

START_SECONDS = 300.0


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def until(condition, seconds=START_SECONDS):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


class Farm:
    """A tracker and servers, each a process group of its own with a log."""

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        self.running = []
        self.tracker = self._start(
            "tracker", "rpc_tracker", "--port", self.port, "--port-end", self.port + 1
        )

    @property
    def address(self):
        return Address("127.0.0.1", self.port)

    def _start(self, name, module, *options, **environment):
        log = (self.folder / f"{name}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", f"tvm.exec.{module}", "--host", "127.0.0.1", *map(str, options)],
            env={**os.environ, "TVM_BIND_THREADS": "0", **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            # Whatever becomes of the tests, no server outlives them.
            preexec_fn=die_with_parent,
        )
        log.close()
        self.running.append(process)
        return process

    def serve(self, name, key, **environment):
        port = free_port()
        return self._start(
            name,
            "rpc_server",
            *("--port", port, "--port-end", port + 1, "--tracker", self.address, "--key", key),
            **environment,
        )

    def wait_for(self, key, count):
        def listed():
            try:
                return count_devices(self.address, key) == count
            except DeviceError:
                return count == 0

        until(listed)

    def sessions(self, name):
        return len(re.findall("start serving", (self.folder / f"{name}.log").read_text()))

    def close(self):
        for process in self.running:
            kill(process)


def kill(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def farm(tmp_path_factory):
    """A tracker, two equal devices, and one that has no compiler."""
    farm = Farm(tmp_path_factory.mktemp("farm"))
    try:
        farm.first = farm.serve("first", "toy")
        farm.second = farm.serve("second", "toy")
        farm.serve("bare", "bare", PATH="/nonexistent")
        farm.wait_for("toy", 2)
        farm.wait_for("bare", 1)
        yield farm
    finally:
        farm.close()


@pytest.fixture(scope="module")
def subject(matmul_design, matmul_mod):
    return Subject(matmul_design, describe_arguments(matmul_mod), reduction_length=64)


@pytest.fixture(scope="module")
def endless(tvm, small_target):
    from tests_helpers import endless_sum

    mod = endless_sum(tvm)
    return Subject(make_design(mod, small_target), describe_arguments(mod), 2**29)


def programs(subject, count, task="matmul"):
    space = decision_space(subject.design)
    rows = np.unique(space.uniform(np.random.default_rng(0), 4 * count), axis=0)[:count]
    return [Program(task, *space.decisions(row)) for row in rows]


def any_of(subject):
    """A program without a second buffer, whose size would not fit."""
    space = decision_space(subject.design)
    last = len(space.sketches) - 1
    row = space.row(last, tuple(decision.values[0] for decision in space.sketches[last]))
    return Program("endless", *space.decisions(row))


def place_of(farm, target, key="toy", **options):
    return make_remote_place(Devices(farm.address, key, **options), target)


@contextlib.contextmanager
def pool_of(folder, place, subjects, **options):
    with WorkerPool(
        subjects, place, folder / "references", log_dir=folder / "logs", **options
    ) as pool:
        yield pool


def infinity():
    return math.inf


# --- addresses and mistakes -----------------------------------------------------------------


@pytest.mark.parametrize("text", ["localhost", ":9190", "host:", "host:x", "host:70000", "host:0"])
def test_an_address_needs_host_and_port(text):
    with pytest.raises(DeviceError, match="HOST:PORT"):
        Address.parse(text)


def test_addresses_are_written_as_they_are_read():
    for text in ("10.0.0.1:9190", "[::1]:80", "farm.local:1"):
        assert str(Address.parse(text)) == text


def test_a_tracker_that_is_not_there_is_named():
    port = free_port()
    with pytest.raises(DeviceError, match=f"127.0.0.1:{port}: no tracker answers"):
        count_devices(Address("127.0.0.1", port), "toy")


@pytest.mark.slow
def test_what_answers_may_be_no_tracker(farm):
    """A server answers on its port, but not as a tracker does."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        child = os.fork()
        if child == 0:
            connection, _ = other.accept()
            connection.sendall(b"HTTP/1.1 400")
            os._exit(0)
        with pytest.raises(DeviceError, match="no RPC tracker"):
            count_devices(Address("127.0.0.1", port), "toy")
        os.waitpid(child, 0)


@pytest.mark.slow
def test_an_unknown_key_names_the_known_ones(farm, small_target):
    with pytest.raises(DeviceError, match=r"no device of that key, but bare \(1\), toy \(2\)"):
        place_of(farm, small_target, key="rasp")


def tlp(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "tlp", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("localhost", "toy"), "HOST:PORT"),
        (("localhost:9190", None), "--rpc-key"),
        ((None, "toy"), "--rpc-key goes with --rpc"),
        ((None, None, "gcc"), "--rpc-cc goes with --rpc"),
    ],
)
def test_options_that_lack_another(options, says):
    with pytest.raises(DeviceError, match=says):
        parse_devices(*options)


def test_mistakes_on_the_command_line_end_with_two(tmp_path):
    done = tlp("tune", "squeezenet", "--work-dir", tmp_path / "w", "--rpc", "localhost")
    assert done.returncode == 2
    assert "HOST:PORT" in done.stderr
    assert not (tmp_path / "w").exists()


def test_an_unreachable_tracker_ends_with_two(tmp_path):
    options = ("--rpc", f"127.0.0.1:{free_port()}", "--rpc-key", "toy", "--json")
    target = ("--target", "llvm -mcpu=x86-64-v2 -num-cores=1")
    done = tlp("tune", "squeezenet", "--work-dir", tmp_path / "w", *options, *target)
    assert done.returncode == 2
    answer = json.loads(done.stdout)
    assert answer["error"] == "DeviceError"
    assert "rpc_tracker" in answer["message"]


def test_the_target_of_another_machine_must_be_said(tvm):
    from tlp.metaschedule.targets import check_compiles, parse_target

    for text, says in (("native", "not native"), ("llvm -mcpu=haswell", "-num-cores")):
        with pytest.raises(TargetError, match=says):
            parse_target(text, here=False)
    check_compiles(parse_target("raspberry-pi/4b-aarch64", here=False))
    arm = {"kind": "llvm", "mtriple": "armv7l-linux-gnueabihf", "num-cores": 4}
    check_compiles(arm)
    for wrong, says in (
        ({**arm, "mtriple": "pdp11-unix"}, "pdp11"),
        ({**arm, "mcpu": "haswell"}, "haswell"),
        ({"kind": "cuda", "arch": "sm_80"}, "llvm targets only"),
    ):
        with pytest.raises(TargetError, match=says):
            check_compiles(wrong)


# --- measuring ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_batch_is_measured_on_both_devices(farm, tmp_path, subject, small_target):
    place = place_of(farm, small_target)
    assert place.lanes == 2
    assert place.platform.startswith("toy-")
    assert place_of(farm, small_target, platform="mine").platform == "mine"
    before = [farm.sessions(name) for name in ("first", "second")]
    with pool_of(tmp_path, place, {"matmul": subject}) as pool:
        done = reference(pool, "matmul")
        assert 0 < done.latency < 1
        wanted = programs(subject, 6)
        results = {m.program: m.run for m in Batch(pool, wanted, infinity).results()}
        (slow,) = Batch(pool, wanted[:1], lambda: 1e-9).results()
    assert set(results) == set(wanted)
    for run in results.values():
        assert (run.status, run.error) == (Status.OK, "")
        assert run.verified
        assert len(run.latencies) == 5
        assert all(0 < value < 0.1 for value in run.latencies)
    assert slow.run.status is Status.SLOW
    after = [farm.sessions(name) for name in ("first", "second")]
    assert all(now > then for now, then in zip(after, before, strict=True))
    path = tmp_path / "references" / "matmul.npz"
    assert stored_latency(path, place.platform) == done.latency
    assert stored_latency(path, "another") is None
    # The reference output was made here, for this CPU; a device's output equals it.
    with np.load(path) as stored:
        arrays = dict(stored)
    arrays["output0"][3, 5] += 0.01
    np.savez(path, **arrays)
    with pool_of(tmp_path, place, {"matmul": subject}) as pool:
        (wrong,) = Batch(pool, wanted[:1], infinity).results()
    assert wrong.run.status is Status.WRONG_OUTPUT


@pytest.mark.slow
def test_a_device_ends_what_takes_too_long_and_goes_on(
    farm, tmp_path, subject, endless, small_target
):
    place = dataclasses.replace(place_of(farm, small_target), lanes=1)
    subjects = {"matmul": subject, "endless": endless}
    with pool_of(tmp_path, place, subjects, size=1, limits=Limits(run=3.0)) as pool:
        reference(pool, "matmul")
        before = pool.pids
        good = programs(subject, 1)[0]
        runs = {m.program: m.run for m in Batch(pool, [any_of(endless), good], infinity).results()}
        assert runs[any_of(endless)].status is Status.RUN_TIMEOUT
        assert "ended by the device after 3 s" in runs[any_of(endless)].error
        assert runs[good].status is Status.OK
        assert pool.pids == before


@pytest.mark.slow
def test_without_a_compiler_on_the_device_the_way_out_is_to_link_here(farm, small_target):
    with pytest.raises(DeviceError, match="--rpc-cc"):
        run_isolated(try_device, place_of(farm, small_target, "bare"), small_target, start="fork")
    linked_here = place_of(farm, small_target, "bare", cc="g++")
    run_isolated(try_device, linked_here, small_target, start="fork")
    missing = place_of(farm, small_target, "bare", cc="no-such-compiler")
    with pytest.raises(DeviceError, match="no-such-compiler"):
        run_isolated(try_device, missing, small_target, start="fork")


@pytest.mark.slow
def test_a_program_for_another_machine_is_found_out_at_once(farm):
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "num-cores": 1}
    with pytest.raises(DeviceError, match="-mtriple and -mcpu"):
        run_isolated(try_device, place_of(farm, target), target, start="fork")


@pytest.mark.slow
def test_a_lost_device_does_not_cost_the_candidate_and_a_new_one_is_used(
    farm, tmp_path, subject, endless, small_target
):
    server = farm.serve("lonely", "lonely")
    farm.wait_for("lonely", 1)
    place = place_of(farm, small_target, "lonely")
    subjects = {"matmul": subject, "endless": endless}
    with pool_of(tmp_path, place, subjects, size=1, limits=Limits(run=120.0)) as pool:
        pool.submit(0, BuildRequest(any_of(endless)))
        while not pool.collect():
            pass
        pool.submit(0, RunRequest(any_of(endless), math.inf))
        while not farm.sessions("lonely"):
            assert not pool.collect()
        time.sleep(0.5)
        kill(server)
        replies = []
        while not replies:
            replies = pool.collect()
        assert isinstance(replies[0][2], Unreached)
        assert "was lost" in replies[0][2].error
        # No device is left: the run waits, says so, and goes on with the next that comes.
        batch = Batch(pool, programs(subject, 2), infinity)
        said = []

        def tick():
            text = pool.waiting()
            if text and not said:
                said.append(text)
                farm.serve("again", "lonely")

        reference(pool, "matmul", tick)
        assert "waiting for a device lonely" in said[0]
        assert [m.run.status for m in batch.results()] == [Status.OK] * 2
    assert farm.sessions("again") == 3


@pytest.mark.slow
def test_no_device_for_too_long_ends_with_the_way_out(farm, tmp_path, subject, small_target):
    place = place_of(farm, small_target, "bare", wait=0.5)
    place = dataclasses.replace(place, devices=dataclasses.replace(place.devices, key="nobody"))
    with (
        pool_of(tmp_path, place, {"matmul": subject}, size=1) as pool,
        pytest.raises(MeasureError, match=r"no device nobody .* --rpc-wait"),
    ):
        reference(pool, "matmul")


def test_local_place_is_one_lane_of_this_machine():
    from tlp.host import CorePlan, fingerprint

    place = LocalPlace(CorePlan((0,), (0,), True))
    assert (place.lanes, place.remote, place.platform) == (1, False, fingerprint())


@pytest.mark.slow
def test_the_survivor_measures_what_the_killed_device_leaves(farm, tmp_path, subject, small_target):
    wanted = programs(subject, 12)
    measured = []
    with pool_of(tmp_path, place_of(farm, small_target), {"matmul": subject}) as pool:
        reference(pool, "matmul")
        for result in Batch(pool, wanted, infinity).results():
            measured.append(result)
            if len(measured) == 4:
                kill(farm.first)
                sessions = farm.sessions("second")
    assert sorted(map(repr, wanted)) == sorted(repr(m.program) for m in measured)
    assert [m.run.status for m in measured] == [Status.OK] * 12
    # Of the eight others, one may have been in the second's hands already.
    assert farm.sessions("second") - sessions >= 7
    assert count_devices(farm.address, "toy") == 1


# --- the whole way --------------------------------------------------------------------------


def count(path):
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT COUNT(*) FROM candidates").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


@pytest.mark.slow
def test_a_network_is_tuned_although_a_server_is_killed(farm, tmp_path):
    from test_tune_end_to_end import tiny_module
    from tlp.networks.load import export_module
    from tlp.records.store import Store

    if farm.first.poll() is not None:
        farm.first = farm.serve("first-again", "toy")
        farm.wait_for("toy", 2)
    network, folder = tmp_path / "tiny.pt2", tmp_path / "w"
    export_module(*tiny_module(), network)
    command = [
        *(sys.executable, "-m", "tlp", "tune", network, "--work-dir", folder, "--trials", 30),
        *("--rpc", farm.address, "--rpc-key", "toy", "--platform-name", "toys", "--json"),
        *("--target", "llvm -mcpu=x86-64-v2 -num-cores=1", "--picks", 5),
    ]
    with (tmp_path / "errors").open("w") as errors:
        run = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        until(lambda: count(folder / "state.sqlite") >= 8 or run.poll() is not None)
        kill(farm.first)
        sessions = farm.sessions("second")
        output, _ = run.communicate()
    finally:
        run.kill()
    assert run.returncode == 0, (tmp_path / "errors").read_text()
    summary = json.loads(output)
    assert summary["trials"] == 30
    assert set(summary["latency_ms"]) == {"tuned", "untuned"}
    assert summary["output_error"] <= summary["output_tolerance"]
    assert summary["platform"] == "toys"
    store = Store(folder / "state.sqlite")
    rows = list(store.candidates())
    store.close()
    built = [row for row in rows if row.status.replayed]
    assert len(built) == 30
    assert len({(row.task, row.program) for row in built}) == 30
    assert {row.host for row in rows} == {"toys"}
    assert sum(not row.status.timed for row in built) <= 1
    later = [row for row in built[10:] if row.status.timed]
    assert later
    # Everything after the kill, and the comparison at the end, went to the survivor.
    assert farm.sessions("second") - sessions >= len(later) - 2
    network = tmp_path / "w" / "network.so"
    assert network.read_bytes()[:4] == b"\x7fELF"
    again = tlp("run", folder, "--rpc", farm.address, "--repeats", 3, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["latency_ms"]["median"] > 0
    local = tlp("run", folder)
    assert local.returncode == 2
    assert "--rpc" in local.stderr
