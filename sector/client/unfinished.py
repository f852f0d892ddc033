"""What a put that is killed leaves for the next one: under which lease its bytes went, where to, how many.

A small file for each large file under way, beside the session, locked as long as its put lives; it is removed
when that ends by itself. It holds hints only: slaves compare what they have with what they are told.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
import time
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from sector.model import Bytes16, Name

FROM_BYTES = 16 << 20
"""Smaller files are sent anew."""
NOTE_S = 2.0
_MOST_BYTES = 4096
_OLD_S = 86400.0


class Left(msgspec.Struct, frozen=True):
    """A put under way: its lease, the slave, about how many bytes have arrived there."""

    lease: Bytes16
    node: Name
    got: Annotated[int, Meta(ge=0, le=1 << 62)]


class Note:
    """The file of one put. `left`: what one that was killed wrote there. For several threads."""

    def __init__(self, file: Path, fd: int) -> None:
        self._file = file
        self._fd = fd
        self._lock = threading.Lock()
        self.left: Left | None = None
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            self.left = msgspec.msgpack.decode(os.pread(fd, _MOST_BYTES, 0), type=Left)

    def write_thd(self, left: Left) -> None:
        """Keep it, if that is possible."""
        raw = msgspec.msgpack.encode(left)
        with self._lock, contextlib.suppress(OSError):
            if self._fd >= 0:
                os.ftruncate(self._fd, os.pwrite(self._fd, raw, 0))

    def close_thd(self, keep: bool = False) -> None:
        """The put has ended; `keep` = the next one may go on."""
        with self._lock:  # no write is under way to a number that another file may get
            fd, self._fd = self._fd, -1
        if not keep:
            with contextlib.suppress(OSError):
                os.unlink(self._file)
        if fd >= 0:
            os.close(fd)


class Unfinished:
    """The notes of one user, in `folder` beside the session file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open_thd(self, local: str, *names: str) -> Note | None:
        """The note of a put of the file `local`; `names`: user, cloud path. None if such a put is under way,
        or if nothing can be kept. What is a day old is removed."""
        key = hashlib.sha256(repr((os.path.abspath(local), names)).encode()).hexdigest()[:32]
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._clear()
            fd = os.open(self._folder / key, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:  # no locks here
            os.unlink(self._folder / key)
            os.close(fd)
            return None
        return Note(self._folder / key, fd)

    def _clear(self) -> None:
        for entry in list(os.scandir(self._folder)):
            if time.time() - entry.stat().st_mtime > _OLD_S:
                os.unlink(entry.path)
