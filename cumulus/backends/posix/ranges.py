"""Files that several writers fill at once, each a range of its own, and that become an object in the end:
parts of uploads at their final place.

A writer locks its range (an open file description lock, as `locks.py`), so no two write the same bytes, on
whatever server. Who publishes the file locks all of it, finds nobody writing, and renames it while it is
locked; a writer that had opened it before sees that the name is gone and goes elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from typing import Final

from cumulus.backends.posix import bodies, paths
from cumulus.backends.posix.ahead import LARGE_PART, Ahead
from cumulus.backends.posix.bodies import Draft
from cumulus.backends.posix.errors import translated
from cumulus.backends.posix.files import XATTR, Files
from cumulus.backends.posix.paths import FILE_MODE, Directory, Root
from cumulus.backends.posix.streams import RESERVE
from cumulus.file_locks import try_range
from cumulus.storage.api import Missing, RangeStream, StorageError, Sums

_KNOWN: Final = 1024  # files whose names are known to be durable
_OPEN: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Ranges:
    """All files of this kind in one store. `sync` false: nothing is synced."""

    def __init__(self, files: Files, ahead: Ahead, sync: bool) -> None:
        self._files = files
        self.ahead = ahead
        self._sync = sync
        self._lock = threading.Lock()
        self._durable: OrderedDict[tuple[tuple[int, int], str], None] = OrderedDict()

    def open(self, root: Root, name: str, offset: int, size: int, *, create: bool) -> Range | None:
        """As `FileStore.open_range`."""
        segments = paths.split(name)
        with translated(f"{root.bucket}/{name}"), root.gate:
            root.check()
            try:
                make = paths.make_parent(root, segments, self._files) if create else None
                with make or paths.open_parent(root, segments) as parent:
                    fd = self._open_range(parent, segments[-1], offset, size, create)
            except (Missing, FileNotFoundError):
                if create:
                    raise
                return None
        return None if fd is None else Range(self, root, name, fd, offset, size)

    def _open_range(self, parent: Directory, last: str, offset: int, size: int, create: bool) -> int | None:
        """A descriptor at the range, which is locked; None: somebody else is at it. Raises `OSError`."""
        try:
            fd = self._files.create(parent.fd, last, FILE_MODE) if create else -1
        except FileExistsError:
            fd = -1
        if fd < 0:
            fd = os.open(last, _OPEN, dir_fd=parent.fd)
        try:
            if not _take(fd, parent, last, offset, size):
                os.close(fd)
                return None
            if size >= RESERVE:
                self._files.reserve(fd, size, offset)
            os.lseek(fd, offset, os.SEEK_SET)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def hold(self, root: Root, name: str) -> Filled | None:
        """The file as a draft that can be published; None when somebody writes in it, or when a crash
        interrupted its publishing. Raises `Missing`."""
        segments = paths.split(name)
        parent = paths.open_parent(root, segments)
        fd, draft = -1, None
        try:
            with translated(f"{root.bucket}/{name}"):
                fd = os.open(segments[-1], _OPEN, dir_fd=parent.fd)
                if _take(fd, parent, segments[-1], 0, 0):
                    draft = Filled(root, parent, segments, fd, self._files)
        finally:
            if draft is None:
                parent.close()
                if fd >= 0:
                    os.close(fd)
        return draft

    def write(self, fd: int, data: memoryview) -> None:
        """At the descriptor's position. Raises `OSError`."""
        self._files.write(fd, data)

    def take(self, connection: int, fd: int, sums: Sums, room: memoryview, moment_s: float) -> int:
        """Write what `sums` take from a connection at the descriptor's position. Raises `OSError`."""
        return self._files.take(connection, fd, sums, room, moment_s)

    def free(self, fd: int, offset: int, size: int) -> None:
        """The range has nothing that counts: what was reserved for it and written in it takes no room."""
        with contextlib.suppress(OSError):  # then the file's end gives it back
            if os.fstat(fd).st_size < offset + size:  # ext4 frees nothing behind the end of a file
                os.lseek(fd, offset + size - 1, os.SEEK_SET)
                self._files.write(fd, b"\0")
            self._files.free(fd, offset, size)

    def settle(self, root: Root, name: str, fd: int) -> None:
        """Sync the file, and once for each file the directories above it. Raises `OSError`."""
        if not self._sync:
            return
        self._files.sync_data(fd)
        key = (root.identity, name)
        if key in self._durable:
            return
        paths.sync_path(root, paths.split(name), self._files)
        with self._lock:
            self._durable[key] = None
            while len(self._durable) > _KNOWN:
                self._durable.popitem(last=False)

    def published(self, draft: Filled) -> None:
        """It has its name: the old one is gone for good, and directories that this leaves empty go."""
        with contextlib.suppress(OSError):  # it is published; what remains is swept
            if self._sync:
                draft.sync_directory()
        paths.prune(draft.root, draft.segments, self._files)


def _take(fd: int, parent: Directory, last: str, offset: int, size: int) -> bool:
    """Lock a range (size 0: all of the file) of what has the name now and is not being published."""
    if not try_range(fd, offset, size):
        return False
    status = os.fstat(fd)
    there = bodies.look(parent, last)
    if there is None or (there.st_dev, there.st_ino) != (status.st_dev, status.st_ino):
        return False
    try:
        return XATTR not in os.listxattr(fd)
    except OSError:
        return True  # a file system without attributes


class Range(RangeStream):
    """One range, locked while this is open."""

    receives = True

    def __init__(self, ranges: Ranges, root: Root, name: str, fd: int, offset: int, size: int) -> None:
        self._ranges = ranges
        self._root = root
        self._name = name
        self._fd = fd
        self._begin = self._at = offset
        self._end = offset + size
        self._kept = False
        self._body = ranges.ahead.body(fd, offset, self._end, LARGE_PART)

    def _opened(self) -> int:
        if self._fd < 0:
            raise StorageError(f"the range of {self._name!r} is closed")
        return self._fd

    def write(self, data: memoryview) -> None:
        fd = self._opened()
        if self._at + len(data) > self._end:
            raise StorageError(f"more bytes than the range of {self._name!r} has")
        with translated(f"{self._root.bucket}/{self._name}"):
            self._ranges.write(fd, data)
            self._at += len(data)
            self._body.wrote(self._at)

    def receive(self, connection: int, sums: Sums, room: memoryview, moment_s: float) -> int:
        fd = self._opened()
        if self._at + len(room) > self._end:
            raise StorageError(f"more bytes than the range of {self._name!r} has")
        with translated(f"{self._root.bucket}/{self._name}"):
            count = self._ranges.take(connection, fd, sums, room, moment_s)
            self._at += count
            self._body.wrote(self._at)
        return count

    def sync(self) -> None:
        with translated(f"{self._root.bucket}/{self._name}"):
            fd = self._opened()
            self._body.settled()
            self._ranges.settle(self._root, self._name, fd)
        self._kept = True

    def leave(self) -> None:
        self._kept = True
        self.close()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            if not self._kept:  # no quota counts it any more
                self._ranges.free(fd, self._begin, self._end - self._begin)
        finally:
            os.close(fd)


class Filled(Draft):
    """A file of ranges that gets its name like any draft. Whoever fails to publish it finds it as it was."""

    __slots__ = ("_parent", "segments")

    def __init__(self, root: Root, parent: Directory, segments: list[str], fd: int, files: Files) -> None:
        status = os.fstat(fd)
        self._adopt(root, parent.fd, segments[-1], fd, files, status)
        self.size = status.st_size
        self._parent = parent
        self.segments = segments

    def trim(self, size: int) -> None:
        """Cut off what is behind the last piece. Raises `Missing` when it is shorter."""
        if self.size < size:
            raise Missing(f"{'/'.join(self.segments)!r} is shorter than its pieces")
        if self.size > size:
            with translated(self.root.bucket):
                self._files.truncate(self.fd, size)
            self.size = size

    def sync_directory(self) -> None:
        """Of the name that it had. Raises `OSError`."""
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._parent.fd)
        try:
            self._files.sync(fd)
        finally:
            os.close(fd)

    def drop(self) -> None:
        """Let it go on as a file of ranges, unless it has got its name as an object."""
        if not self.named:
            self.unstamp()
        self.close()

    def close(self) -> None:
        super().close()
        self._parent.close()
