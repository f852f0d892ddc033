"""Room that is kept on a disk for the day when it is full: what removes something needs a little itself.

A file of a megabyte lies there. Removals that fail for want of room let go of it, a piece at a time, and are
done again; it is made whole again when there is room.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final

SIZE: Final = 1 << 20
PIECE: Final = 128 << 10


class Reserve:
    """The file at `path`, which several processes may share. Nothing here raises `OSError`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def keep(self) -> None:
        """Make it whole, as far as there is room; quick when it is."""
        with contextlib.suppress(OSError):
            if os.stat(self._path).st_size >= SIZE:
                return
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(fd).st_size
                while size < SIZE:  # bytes that no file system makes smaller
                    size += os.pwrite(fd, os.urandom(min(PIECE, SIZE - size)), size)
            finally:
                os.close(fd)

    def give(self) -> bool:
        """Let go of a piece; False when nothing is left."""
        try:
            size = os.stat(self._path).st_size
            if size:
                os.truncate(self._path, max(0, size - PIECE))
        except OSError:
            return False
        return size > 0

    def give_if_full(self) -> bool:
        """The same, where there is no room for such a piece; False where there is."""
        return self._lacks_room() and self.give()

    def _lacks_room(self) -> bool:
        """On the disk, or in a quota of the file system, of which only who writes hears."""
        where = os.path.dirname(self._path) or "."
        try:
            status = os.statvfs(where)
            if status.f_bavail * status.f_frsize < PIECE:
                return True
            fd = os.open(where, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                return os.pwrite(fd, os.urandom(PIECE), 0) < PIECE
            finally:
                os.close(fd)
        except OSError as bad:
            return bad.errno in (errno.ENOSPC, errno.EDQUOT)
