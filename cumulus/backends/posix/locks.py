"""One lock a name, between threads, processes and servers on one tree; and the stamps of what is gone.

A name's lock is one of `STRIPES` byte ranges of one file (`cumulus.file_locks`). The same eight bytes hold
the largest stamp given by removals and changes of meta of the stripe's names, which no file's mtime shows.

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

from cumulus.file_locks import RangeLock, open_locks, set_range, try_range

STRIPES: Final = 1024
_WIDTH: Final = 8
_STAMP: Final = struct.Struct("<q")


class Stripe(RangeLock):
    """Context manager: held inside. `floor` is the stamp that new ones must exceed. Whoever holds several
    takes them in the order of their `number`s."""

    __slots__ = ("floor", "number")

    def __init__(self, fd: int, number: int) -> None:
        super().__init__(fd, number * _WIDTH, _WIDTH)
        self.number = number
        self.floor = 0

    def __enter__(self) -> Stripe:
        super().__enter__()
        return self

    def _taken(self) -> None:
        data = os.pread(self._fd, _WIDTH, self._offset)
        self.floor = _STAMP.unpack(data)[0] if len(data) == _WIDTH else 0

    def raise_floor(self, stamp: int) -> None:
        """Remember a stamp that no file shows; only while held."""
        if stamp > self.floor:
            os.pwrite(self._fd, _STAMP.pack(stamp), self._offset)
            self.floor = stamp


class Gate:
    """Context manager: inside, beside others, while it is held; may be entered again by who is inside. It is
    taken before any stripe; whoever takes several takes them in the order of their `number`s."""

    __slots__ = ("__weakref__", "_fd", "_inside", "_lock", "_offset", "number")

    def __init__(self, fd: int, number: int) -> None:
        self._fd = fd
        self.number = number
        self._offset = STRIPES * _WIDTH + number
        self._lock = threading.Lock()
        self._inside = 0

    def __enter__(self) -> Gate:
        with self._lock:
            if not self._inside:
                set_range(self._fd, fcntl.F_OFD_SETLKW, fcntl.F_RDLCK, self._offset, 1)
            self._inside += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._free()

    def _free(self) -> None:
        set_range(self._fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, self._offset, 1)

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
                self._free()


class Locks:
    """All stripes and gates of one tree; `path` is made where it is missing."""

    def __init__(self, path: str) -> None:
        self._fd = open_locks(path)
        self._stripes: list[Stripe | None] = [None] * STRIPES  # each is made when it is first needed
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
        number = zlib.crc32(f"{bucket}/{name}".encode()) % STRIPES
        return self._stripes[number] or self._made(number)

    def _made(self, number: int) -> Stripe:
        with self._lock:
            found = self._stripes[number]
            if found is None:
                found = self._stripes[number] = Stripe(self._fd, number)
        return found

    def close(self) -> None:
        """Give back the descriptor."""
        os.close(self._fd)
