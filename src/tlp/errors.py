"""Errors that a user can cause; every message names the way out."""

import reprlib


class TlpError(Exception):
    """Base of all errors that `tlp` reports without a traceback.

    ``exit_code`` is what the command line returns for it.
    """

    exit_code = 2


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60


def _short(value: object, limit: int = 80) -> str:
    try:
        text = _REPR.repr(value)
    except (RecursionError, ValueError):  # too deep, or an integer of thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= limit else f"{text[:limit]}..."


class MissingExtraError(TlpError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed. Install it with: pip install 'tlp[{extra}]'")


class NetworkError(TlpError):
    """A network is unknown, cannot be loaded or cannot be imported."""


class TargetError(TlpError):
    """A compilation target is malformed or does not fit this machine."""


class WorkDirError(TlpError):
    """A work folder is missing, damaged or belongs to another run."""


class RecordsError(TlpError):
    """A log, a data set or a split cannot be read, written or understood."""


class StepError(TlpError, ValueError):
    """A transform step, a trace's instruction or a primitive is malformed.

    Parameters
    ----------
    opcode
        Name of the step or instruction.
    field
        Which of its fields; empty if it is the whole.
    expected
        What should have been there.
    found
        What was there.
    """

    def __init__(self, opcode: str, field: str, expected: str, found: object) -> None:
        place = f"{opcode[:40]}, field {field}" if field else opcode[:40]
        super().__init__(f"{place}: expected {expected}, found {_short(found)}")


class EncodingError(TlpError):
    """An encoding is malformed, of another version, or does not fit the primitives."""


class ModelError(TlpError):
    """A model's name, architecture or settings make no sense."""


class CheckpointError(TlpError):
    """A checkpoint is damaged, or does not fit what it is asked to score."""


class TrainingError(TlpError):
    """Training data or settings leave nothing to learn from, or training broke down."""


class MeasureError(TlpError):
    """Measuring cannot go on (workers die at once, nothing can be built)."""

    exit_code = 3


class DeviceError(TlpError):
    """A tracker cannot be reached, or none of its devices can be measured on."""


class DiskFullError(TlpError):
    """A disk or a quota is full; what was measured before is kept."""

    exit_code = 3


class WrongOutputError(TlpError):
    """The compiled network's output differs from the reference."""

    exit_code = 4
