"""Locks on parts of a file, between processes and between threads.

Between processes it is an open file description lock (fcntl(2)), which network file systems carry too and
which ends with its process; between our own threads it is an ordinary lock.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from types import TracebackType
from typing import Final

_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux


def open_locks(path: str) -> int:
    """The descriptor of a file for locks, which is made where it is missing. Raises `OSError`."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)


def set_range(fd: int, command: int, how: int, offset: int, size: int) -> None:
    """`command` F_OFD_SETLK or F_OFD_SETLKW; `size` 0 is all that follows. Raises `OSError`."""
    fcntl.fcntl(fd, command, _FLOCK.pack(how, os.SEEK_SET, offset, size, 0))


def try_range(fd: int, offset: int, size: int) -> bool:
    """Lock bytes of an open file for this descriptor alone, until it is closed; `size` 0 is all that follows.
    False when somebody has one of them. Raises `OSError`."""
    try:
        set_range(fd, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, offset, size)
    except BlockingIOError:
        return False
    except PermissionError:  # EACCES, as some file systems say it
        return False
    return True


class RangeLock:
    """Context manager: held inside, by one thread of all processes; not by the same thread again."""

    __slots__ = ("_fd", "_lock", "_offset", "_size")

    def __init__(self, fd: int, offset: int, size: int) -> None:
        self._fd, self._offset, self._size = fd, offset, size
        self._lock = threading.Lock()

    def __enter__(self) -> object:
        self._lock.acquire()
        try:
            set_range(self._fd, fcntl.F_OFD_SETLKW, fcntl.F_WRLCK, self._offset, self._size)
            self._taken()
        except BaseException:
            self._lock.release()
            raise
        return self

    def _taken(self) -> None:
        """First inside."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            set_range(self._fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, self._offset, self._size)
        finally:
            self._lock.release()
