"""One lock a name, between threads, processes and servers on one tree; and the stamps of what is gone.

A name's lock is one of `STRIPES` byte ranges of one file. Between processes it is an open file description
lock (fcntl(2)), which network file systems carry too and which ends with its process; between our own threads
it is an ordinary lock. The same eight bytes hold the largest stamp given by removals and changes of meta of
the stripe's names, which no file's mtime shows.

Behind the stripes each bucket has a gate: any number who make something in the bucket are inside, or one who
removes the bucket is alone.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final
from weakref import WeakValueDictionary

STRIPES: Final = 1024
_WIDTH: Final = 8
_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux
_STAMP: Final = struct.Struct("<q")


def try_range(fd: int, offset: int, size: int) -> bool:
    """Lock bytes of an open file for this descriptor alone, until it is closed; `size` 0 is all that follows.
    False when somebody has one of them. Raises `OSError`."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, size, 0))
    except BlockingIOError:
        return False
    except PermissionError:  # EACCES, as some file systems say it
        return False
    return True


class Stripe:
    """Context manager: held inside. `floor` is the stamp that new ones must exceed. Whoever holds several
    takes them in the order of their `number`s."""

    __slots__ = ("_fd", "_lock", "_offset", "floor", "number")

    def __init__(self, fd: int, number: int) -> None:
        self._fd = fd
        self.number = number
        self._offset = number * _WIDTH
        self._lock = threading.Lock()
        self.floor = 0

    def __enter__(self) -> Stripe:
        self._lock.acquire()
        try:
            self._range(fcntl.F_WRLCK, fcntl.F_OFD_SETLKW)
            data = os.pread(self._fd, _WIDTH, self._offset)
            self.floor = _STAMP.unpack(data)[0] if len(data) == _WIDTH else 0
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._range(fcntl.F_UNLCK, fcntl.F_OFD_SETLK)
        finally:
            self._lock.release()

    def _range(self, how: int, command: int) -> None:
        fcntl.fcntl(self._fd, command, _FLOCK.pack(how, os.SEEK_SET, self._offset, _WIDTH, 0))

    def raise_floor(self, stamp: int) -> None:
        """Remember a stamp that no file shows; only while held."""
        if stamp > self.floor:
            os.pwrite(self._fd, _STAMP.pack(stamp), self._offset)
            self.floor = stamp


class Gate:
    """Context manager: inside, beside others, while it is held; may be entered again by who is inside. It is
    taken before any stripe; whoever takes several takes them in the order of their `number`s."""

    __slots__ = ("__weakref__", "_fd", "_free", "_inside", "_lock", "_offset", "_shared", "number")

    def __init__(self, fd: int, number: int) -> None:
        self._fd = fd
        self.number = number
        self._offset = STRIPES * _WIDTH + number
        self._shared = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, self._offset, 1, 0)
        self._free = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, self._offset, 1, 0)
        self._lock = threading.Lock()
        self._inside = 0

    def __enter__(self) -> Gate:
        with self._lock:
            if not self._inside:
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLKW, self._shared)
            self._inside += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, self._free)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Nobody else is inside, in any process, if it is true. It waits for nobody. Raises `OSError`."""
        with self._lock:
            if self._inside or not try_range(self._fd, self._offset, 1):
                yield False
                return
            try:
                yield True
            finally:
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, self._free)


class Locks:
    """All stripes and gates of one tree; `path` is made where it is missing."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        self._stripes = [Stripe(self._fd, number) for number in range(STRIPES)]
        self._gates: WeakValueDictionary[int, Gate] = WeakValueDictionary()
        self._lock = threading.Lock()

    def gate(self, bucket: str) -> Gate:
        """The gate of a bucket; two buckets may share one."""
        number = zlib.crc32(bucket.encode())
        with self._lock:
            found = self._gates.get(number)
            if found is None:
                found = self._gates[number] = Gate(self._fd, number)
        return found

    def of(self, bucket: str, name: str) -> Stripe:
        """The lock of a name; two names may share one, so hold one at a time."""
        return self._stripes[zlib.crc32(f"{bucket}/{name}".encode()) % STRIPES]

    def close(self) -> None:
        """Give back the descriptor."""
        os.close(self._fd)
