"""Errors that a user can cause; every message names the way out."""


class TlpError(Exception):
    """Base of all errors that `tlp` reports without a traceback.

    ``exit_code`` is what the command line returns for it.
    """

    exit_code = 2


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
