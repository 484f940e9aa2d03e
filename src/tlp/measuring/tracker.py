"""A client of TVM's RPC tracker that never blocks: it only asks which device is free.

TVM's own client waits for the tracker and for a device without a limit and without a word.
"""

from __future__ import annotations

import select
import socket
import struct
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tlp.errors import DeviceError

_TIMEOUT = 10.0


@dataclass(frozen=True)
class Address:
    """Where a tracker listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``HOST:PORT``; an IPv6 address stands in brackets.

        Examples
        --------
        >>> Address.parse("[::1]:9190")
        Address(host='::1', port=9190)

        Raises
        ------
        DeviceError
            If host or port are missing, or the port is no port.
        """
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise DeviceError(
                f"--rpc is {text!r}; give the tracker's HOST:PORT, such as 192.168.1.2:9190"
            )
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Offer:
    """A device that the tracker gives to us: where it listens and the key that it expects."""

    host: str
    port: int
    key: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Tracker:
    """A connection to a tracker; every failure is an ``OSError``.

    Closing it withdraws a request that was not answered.
    """

    def __init__(self, address: Address) -> None:
        from tvm.rpc import base

        self._base = base
        self._socket = socket.create_connection((address.host, address.port), timeout=_TIMEOUT)
        try:
            self._socket.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
            (magic,) = struct.unpack("<i", base.recvall(self._socket, 4))
            if magic != base.RPC_TRACKER_MAGIC:
                raise OSError("what answers there is no RPC tracker")
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _ask(self, *message: Any) -> None:
        self._base.sendjson(self._socket, list(message))

    def _answer(self) -> Any:
        try:
            code, value = self._base.recvjson(self._socket)
        except (ValueError, TypeError, struct.error) as error:
            raise OSError(f"the tracker's answer cannot be read: {error}") from None
        if code != self._base.TrackerCode.SUCCESS:
            raise OSError(f"the tracker answers {code}")
        return value

    def devices(self) -> dict[str, int]:
        """Number of devices by key, whether free or not."""
        self._ask(self._base.TrackerCode.SUMMARY)
        listed = self._answer()["server_info"]
        return dict(Counter(server["key"].removeprefix("server:") for server in listed))

    def request(self, key: str) -> None:
        """Queue for a device; :meth:`poll` has the answer."""
        self._ask(self._base.TrackerCode.REQUEST, key, "", 1)

    def poll(self, seconds: float) -> Offer | None:
        """The device that was requested, or None if it is not there within ``seconds``."""
        ready, _, _ = select.select([self._socket], [], [], seconds)
        return Offer(*self._answer()) if ready else None


def count_devices(address: Address, key: str) -> int:
    """Number of devices that a tracker lists under a key.

    Raises
    ------
    DeviceError
        If the tracker does not answer or lists none.
    """
    try:
        with Tracker(address) as tracker:
            listed = tracker.devices()
    except OSError as error:
        raise DeviceError(
            f"--rpc {address}: no tracker answers there ({error}); start it with "
            f"'python -m tvm.exec.rpc_tracker --host 0.0.0.0 --port {address.port}', "
            "or give another HOST:PORT"
        ) from None
    if not listed.get(key):
        others = ", ".join(f"{name} ({count})" for name, count in sorted(listed.items()))
        raise DeviceError(
            f"--rpc-key {key}: the tracker at {address} lists no device of that key"
            f"{f', but {others}' if others else ' and no other'}; start one with "
            f"'python -m tvm.exec.rpc_server --tracker {address} --key {key}'"
        )
    return listed[key]
