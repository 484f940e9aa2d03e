"""Devices behind TVM's RPC tracker as a place. Sessions live in workers, never in the parent."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlp.errors import MeasureError
from tlp.host import CorePlan, available_cores
from tlp.measuring.place import ENTRY, ExpiredError, Loaded, Say, UnreachedError
from tlp.measuring.tracker import Address, Offer, Tracker, count_devices
from tlp.metaschedule.arguments import Array
from tlp.metaschedule.build import export

GRACE = 5.0
"""Seconds that a device has to end a run that passed its limit, before the worker is killed."""

_POLL = 1.0
_HEARTBEAT = 60.0
_CONNECT_SECONDS = 20.0
# Session type of a worker's candidates: threads bound to the device's fast cores first.
_BIG_CORES = 1


@dataclass(frozen=True)
class Devices:
    """What the user says of the devices.

    Parameters
    ----------
    tracker, key
        Where to ask for a device, and for which.
    cc
        Cross compiler that links here. Without one, objects are sent and the device links them
        against its own libraries, for which it needs a C++ compiler.
    wait
        Seconds without any device after which a run stops.
    platform
        Name that latencies are kept under; by default the key and a hash of the target.
    """

    tracker: Address
    key: str
    cc: str | None = None
    wait: float = 300.0
    platform: str | None = None


@dataclass(frozen=True)
class Packed:
    """A compiled program as it is sent: objects in a tar, or a linked library."""

    name: str
    content: bytes


@dataclass(frozen=True)
class RemotePlace:
    """Devices of one key: equal machines, each measuring one candidate at a time.

    Parameters
    ----------
    threads
        Cores of the platform; TVM uses as many threads on the device.
    """

    devices: Devices
    plan: CorePlan
    lanes: int
    platform: str
    threads: int
    remote: bool = True
    breaks: bool = False
    one_core: bool = False

    def here(self, target: Any) -> Any:
        """The CPU of this machine: outputs and layouts do not depend on where they are made."""
        import tvm

        from tlp.metaschedule.targets import native_cpu

        return tvm.target.Target({"kind": "llvm", "mcpu": native_cpu()})

    def suffix(self) -> str:
        """How what is sent is named."""
        return ".so" if self.devices.cc else ".tar"

    def finish(self, library: Any) -> Packed:
        """Compile for the device and pack what it needs."""
        with tempfile.TemporaryDirectory(prefix="tlp-") as folder:
            path = Path(folder) / f"candidate{self.suffix()}"
            export(library, path, self.devices.cc, workspace=folder)
            return Packed(path.name, path.read_bytes())

    @contextlib.contextmanager
    def open(self, finished: Packed, seconds: float, say: Say) -> Iterator[Loaded]:
        """Wait for a device, send the program and load it; the limit counts from the session on."""
        with self.session(seconds, say) as session:
            yield _RemoteProgram(session, load(session, finished))

    @contextlib.contextmanager
    def session(self, seconds: float, say: Say) -> Iterator[Any]:
        """A session on a device, which ends it itself after ``seconds``."""
        device, session = self._obtain(seconds, say)
        say("", seconds + GRACE)
        try:
            session.get_function("runtime.config_threadpool")(_BIG_CORES, self.threads)
            yield session
        except Exception as error:
            if type(error).__name__ == "RPCSessionTimeoutError":
                raise ExpiredError(f"ended by the device after {seconds:g} s") from None
            if not _alive(session):
                raise UnreachedError(f"device {device} was lost: {_last_line(error)}") from None
            raise
        finally:
            # Whoever still holds something remote must not keep the device from others.
            with contextlib.suppress(Exception):
                session.get_function("CloseRPCConnection")()

    def _obtain(self, seconds: float, say: Say) -> tuple[Offer, Any]:
        """Queue at the tracker until a device takes the session; says what it waits for.

        Raises
        ------
        MeasureError
            If no device is listed for longer than the limit.
        """
        from tvm import rpc

        tracker: Tracker | None = None
        listed_at = time.monotonic()
        doing = f"waiting for a device {self.devices.key}"
        try:
            while True:
                say(doing, _HEARTBEAT)
                try:
                    if tracker is None:
                        tracker = Tracker(self.devices.tracker)
                        tracker.request(self.devices.key)
                    device = tracker.poll(_POLL)
                    if device is not None:
                        tracker.__exit__()
                        tracker = None
                        say(f"connecting to {device}", _CONNECT_SECONDS)
                        with contextlib.suppress(Exception):
                            key = device.key
                            return device, rpc.connect(device.host, device.port, key, seconds)
                        # It left between the tracker's offer and our call: ask for another.
                        time.sleep(_POLL)
                    with Tracker(self.devices.tracker) as asked:
                        listed = asked.devices().get(self.devices.key, 0)
                    state = f"{listed} at the tracker, all busy" if listed else "none is listed"
                except OSError as error:
                    if tracker is not None:
                        tracker.__exit__()
                    tracker, listed, state = None, 0, f"the tracker does not answer: {error}"
                    time.sleep(_POLL)
                now = time.monotonic()
                if listed:
                    listed_at = now
                elif now - listed_at > self.devices.wait:
                    raise MeasureError(
                        f"no device {self.devices.key} at {self.devices.tracker} for "
                        f"{self.devices.wait:g} s ({state}). Everything measured is kept: start "
                        "the tracker or the devices again and repeat the command to go on; "
                        "--rpc-wait sets the limit"
                    )
                doing = f"waiting for a device {self.devices.key}: {state}"
        finally:
            if tracker is not None:
                tracker.__exit__()


def _alive(session: Any) -> bool:
    try:
        session.get_function("runtime.GetDeviceAttr")(1, 0, 0)
    except Exception:
        return False
    return True


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:500] if lines else type(error).__name__


def load(session: Any, packed: Packed) -> Any:
    """Send a program to a device, which links it if need be, and load it there."""
    session.upload(bytearray(packed.content), packed.name)
    return session.load_module(packed.name)


@dataclass(frozen=True)
class _RemoteProgram:
    session: Any
    library: Any

    def tensor(self, array: Array) -> Any:
        import tvm

        return tvm.runtime.tensor(array, self.session.cpu(0))

    def call(self, buffers: Sequence[Any]) -> None:
        self.library[ENTRY](*buffers)

    def first(self, buffers: Sequence[Any], limit: float) -> float:
        # The device's own clock, after a call that is not timed: the way there does not count.
        return self.time(buffers, 1, 1)[0]

    def time(self, buffers: Sequence[Any], number: int, repeats: int) -> tuple[float, ...]:
        evaluator = self.library.time_evaluator(
            ENTRY, self.session.cpu(0), number=number, repeat=repeats
        )
        return tuple(float(value) for value in evaluator(*buffers).results)


def make_remote_place(devices: Devices, target: dict[str, Any]) -> RemotePlace:
    """The place that a tracker's devices are; as many lanes as it lists now.

    Raises
    ------
    DeviceError
        If the tracker does not answer or lists no such device.
    """
    cores = available_cores()
    digest = hashlib.sha256(json.dumps(target, sort_keys=True).encode()).hexdigest()[:8]
    return RemotePlace(
        devices,
        CorePlan(run=cores, work=cores, exclusive=False),
        count_devices(devices.tracker, devices.key),
        devices.platform or f"{devices.key}-{digest}",
        int(target["num-cores"]),
    )
