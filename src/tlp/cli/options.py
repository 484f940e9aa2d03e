"""Options that several commands share."""

from __future__ import annotations

from tlp.errors import TlpError


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


NETWORK_HELP = "Name of a built-in network, a torch.export file (.pt2) or an ONNX file."
TARGET_HELP = (
    "native, a TVM tag, JSON, or the short form: 'llvm -mcpu=haswell -num-cores=2', "
    "'cuda -arch=sm_80'."
)
BATCH_HELP = "Inputs at once: the first dimension, where it is not fixed."
SHAPE_HELP = "Input shape without the batch, such as 3,224,224 or 128, where it is not fixed."
LAYOUT_HELP = "Lay constant weights out for the tuned loops."
