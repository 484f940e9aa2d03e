"""Full disks: told apart from other failures, and reported with the way out."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tlp.errors import DiskFullError

_NUMBERS = frozenset({errno.ENOSPC, errno.EDQUOT})
# The same from children, linkers and SQLite, which hand on a text only.
_TEXTS = (*(os.strerror(number) for number in sorted(_NUMBERS)), "database or disk is full")
_NOTHING = 64 * 1024


def says_full(error: BaseException) -> bool:
    """Whether an error says that a disk or a quota is full."""
    if isinstance(error, DiskFullError) or getattr(error, "errno", None) in _NUMBERS:
        return True
    return any(text in str(error) for text in _TEXTS)


def free_bytes(path: Path) -> int:
    """Bytes that this user may still write beside ``path``."""
    while not path.exists() and path != path.parent:
        path = path.parent
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


@contextlib.contextmanager
def full_disk_reported(folder: Path) -> Iterator[None]:
    """Turn errors that come from a full disk into one that names the disk and the way out.

    Raises
    ------
    DiskFullError
        If an error says so, or happens where nothing at all can be written any more.
    """
    try:
        yield
    except Exception as error:
        temporary = Path(tempfile.gettempdir())
        bare = [place for place in (folder, temporary) if free_bytes(place) < _NOTHING]
        if not bare and not says_full(error):
            raise
        # Whoever failed may have removed its file: then take the disk with less room.
        where = bare[0] if bare else min((folder, temporary), key=free_bytes)
        what = "TMPDIR" if where == temporary else "the work folder"
        raise DiskFullError(
            f"the disk of {where} ({what}) is full, {free_bytes(where) / 2**20:.1f} MiB are free. "
            f"Everything measured until now is kept in {folder}. Free some space, or move "
            f"{'TMPDIR' if where == temporary else 'the folder'} to a larger disk, then repeat "
            "the command: it goes on from there"
        ) from error
