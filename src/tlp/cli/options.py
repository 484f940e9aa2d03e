"""Options that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlp.errors import DeviceError, TlpError

if TYPE_CHECKING:
    from tlp.measuring.remote import Devices


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """Read ``3,224,224``."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise TlpError(
            f"--input-shape is {text!r}; give numbers without the batch, such as 3,224,224"
        ) from None


def parse_devices(
    rpc: str | None,
    key: str | None,
    cc: str | None = None,
    wait: float = 300.0,
    platform: str | None = None,
) -> Devices | None:
    """Read the options of devices behind an RPC tracker; None without ``--rpc``."""
    from tlp.measuring.remote import Devices
    from tlp.measuring.tracker import Address

    if rpc is None:
        given = {"--rpc-key": key, "--rpc-cc": cc, "--platform-name": platform}
        for option, value in given.items():
            if value is not None:
                raise DeviceError(f"{option} goes with --rpc HOST:PORT, the tracker's address")
        return None
    address = Address.parse(rpc)
    if not key:
        raise DeviceError("--rpc needs --rpc-key KEY, the key that the devices have registered")
    return Devices(address, key, cc, wait, platform)


RPC_HELP = "Measure on devices behind this RPC tracker, compiled for --target."
NETWORK_HELP = "Name of a built-in network, a torch.export file (.pt2) or an ONNX file."
TARGET_HELP = (
    "native, a TVM tag, JSON, or the short form: 'llvm -mcpu=haswell -num-cores=2', "
    "'cuda -arch=sm_80'."
)
BATCH_HELP = "Inputs at once: the first dimension, where it is not fixed."
SHAPE_HELP = "Input shape without the batch, such as 3,224,224 or 128, where it is not fixed."
LAYOUT_HELP = "Lay constant weights out for the tuned loops."
