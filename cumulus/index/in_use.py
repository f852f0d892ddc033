"""Who works with a database of SQLite, so that nobody changes its tables meanwhile: a lock on a file beside
it.

What has the index open holds it together with others, who changes the tables alone. A service that met other
tables than it knows would go on with them, and write what they do not mean.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cumulus.index.api import IndexFailure
from cumulus.index.revision import BUSY_MS
from cumulus.unix import keep_owner

_TRIES: Final = 5  # in which the lock is others' together: who looks whether it is holds it for a moment, too
_PAUSE_S: Final = 0.05


def _open(path: Path) -> int:
    """The file's descriptor; it belongs to the owner of the database. Raises `OSError`."""
    name, flags = f"{path}.lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    database = os.stat(path)
    try:
        fd = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return os.open(name, flags)
    try:
        keep_owner(fd, database)
    except OSError:
        os.close(fd)
        raise
    return fd


def _take(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class InUse:
    """The database at `path` is used until `close`. Where the file cannot be made (a full disk, a directory
    that is only read, no database yet) nobody is told. Raises `IndexFailure` when somebody changes the tables
    for long."""

    def __init__(self, path: Path) -> None:
        self._fd = -1
        try:
            self._fd = _open(path)
            end = time.monotonic() + BUSY_MS / 1000
            while not _take(self._fd, fcntl.LOCK_SH):
                if time.monotonic() > end:
                    raise IndexFailure(f"{path}: its tables are being upgraded; try again when that is over")
                time.sleep(_PAUSE_S)
        except OSError:
            self.close()
        except IndexFailure:
            self.close()
            raise

    def close(self) -> None:
        """Not any more."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Nobody has the database at `path` open meanwhile; another one who changes its tables is waited for.
    Raises `IndexFailure`, `OSError`."""
    fd = _open(path)
    try:
        tries = 0
        while not _take(fd, fcntl.LOCK_EX):
            if _take(fd, fcntl.LOCK_SH):
                fcntl.flock(fd, fcntl.LOCK_UN)
                tries += 1
            if tries == _TRIES:
                raise IndexFailure(f"{path}: a service of an older version uses it; stop it first")
            time.sleep(_PAUSE_S)
        yield
    finally:
        os.close(fd)
