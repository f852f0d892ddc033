"""Open objects: a reader over one descriptor, a writer that keeps small bodies in memory and spills larger
ones."""

from __future__ import annotations

import os
from typing import Final

from cumulus.backends.posix import marks, now, paths
from cumulus.backends.posix.ahead import Ahead, Body
from cumulus.backends.posix.bodies import Draft
from cumulus.backends.posix.errors import translated
from cumulus.backends.posix.files import Files
from cumulus.backends.posix.meta import mtime_of
from cumulus.backends.posix.paths import Root
from cumulus.backends.posix.publish import SMALL, Publisher
from cumulus.storage.api import (
    Changed,
    Entry,
    IfToken,
    ReadStream,
    StorageError,
    Sums,
    WriteStream,
)

RESERVE: Final = 1 << 20  # bytes announced from which space is reserved


class Reader(ReadStream):
    """Reads the file that had the name when it was opened, also when the name gets another one. `near`: it
    lies on a local file system, where asking for attributes waits for nothing."""

    def __init__(self, fd: int, entry: Entry, *, near: bool = False) -> None:
        self._fd = fd
        self._near = near
        self.entry = entry

    @property
    def fd(self) -> int:
        """The descriptor. Raises `StorageError` after `close`."""
        if self._fd < 0:
            raise StorageError(f"the stream of {self.entry.name!r} is closed")
        return self._fd

    def read_at(self, offset: int, size: int) -> bytes:
        size = min(size, self.entry.size - offset)
        if size <= 0:
            return b""
        with translated(self.entry.name):
            data = os.pread(self.fd, size, offset)
            while 0 < len(data) < size and (more := os.pread(self.fd, size - len(data), offset + len(data))):
                data += more
        if len(data) < size or not self.unchanged():
            raise Changed(f"{self.entry.name!r} was changed while it was read")
        return data

    def read_now(self, offset: int, size: int) -> bytes | None:
        data = now.read(self.fd, offset, size) if self._near else None
        return data if data is not None and self.unchanged() else None

    def sendable(self) -> tuple[int, int] | None:
        return self.fd, 0

    def unchanged(self) -> bool:
        status = os.fstat(self.fd)
        return (status.st_size, mtime_of(status)) == (self.entry.size, self.entry.mtime_ns)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close_now(self) -> bool:
        """The last descriptor of a file without a name frees its blocks, which may take long."""
        if not self._near or (self._fd >= 0 and not os.fstat(self._fd).st_nlink):
            return False
        self.close()
        return True


def check_copied(source: Reader, offset: int, size: int, copied: int) -> None:
    """Raises `Changed` for fewer bytes than were asked for, and where a whole object was copied that is not
    what it was. (A part of a file of ranges may stay while others are written.)"""
    whole = (offset, size) == (0, source.entry.size)
    if copied < size or (whole and not source.unchanged()):
        raise Changed(f"{source.entry.name!r} was changed while it was copied")


class Writer(WriteStream):
    """Up to `SMALL` bytes are held in memory until commit."""

    receives = True

    def __init__(
        self,
        root: Root,
        name: str,
        files: Files,
        publisher: Publisher,
        ahead: Ahead,
        size_hint: int | None,
    ) -> None:
        self._root = root
        self._name = name
        self._files = files
        self._publisher = publisher
        self._ahead = ahead
        self._hint = size_hint or 0
        self._held: bytearray | None = bytearray()
        self._draft: Draft | None = None
        self._body: Body | None = None
        if self._hint >= RESERVE:
            self._spill()

    def write(self, data: memoryview) -> None:
        held = self._open_held()
        if self._draft is None and len(held) + len(data) <= SMALL:
            held += data
            return
        draft = self._draft or self._spill()
        with translated(f"{self._root.bucket}/{self._name}"):
            draft.write(data)
            self._wrote(draft, len(data))

    def receive(self, connection: int, sums: Sums, room: memoryview, moment_s: float) -> int:
        self._open_held()
        draft = self._draft or self._spill()
        with translated(f"{self._root.bucket}/{self._name}"):
            count = self._files.take(connection, draft.fd, sums, room, moment_s)
            draft.size += count
            self._wrote(draft, count)
        return count

    def _wrote(self, draft: Draft, count: int) -> None:
        """Set the disk to work. Raises `OSError`."""
        if self._body is None:
            end = self._hint if self._hint >= RESERVE else 0
            self._body = self._ahead.body(draft.fd, draft.size - count, end)
        self._body.wrote(draft.size)

    def append(self, source: Reader, offset: int, size: int) -> None:
        """Bytes of another object, copied by the kernel. Raises `Changed` when there are fewer of them, or
        when it is all of an object that is not what it was."""
        draft = self._draft or self._spill()
        with translated(f"{self._root.bucket}/{self._name}"):
            copied = self._files.copy(source.fd, offset, size, draft.fd)
            draft.size += copied
        check_copied(source, offset, size, copied)

    def _open_held(self) -> bytearray:
        if self._held is None:
            raise StorageError(f"the stream of {self._name!r} is closed")
        return self._held

    def _spill(self) -> Draft:
        """From here on the body is in a file alone."""
        held = self._open_held()
        draft = self._draft = self._new_draft(held)
        held.clear()
        return draft

    def _new_draft(self, held: bytearray) -> Draft:
        with translated(f"{self._root.bucket}/{self._name}"):
            draft = Draft(self._root, self._files)
            try:
                if self._hint >= RESERVE:
                    self._files.reserve(draft.fd, self._hint)
                if held:
                    draft.write(held)
            except OSError:
                draft.drop()
                raise
        return draft

    def commit(self, meta: bytes, if_token: IfToken = None, name: str = "") -> Entry:
        held = self._open_held()
        name = name or self._name
        if marks.is_directory(name):
            return self._commit_mark(name, bytes(meta), if_token)
        paths.split(name)
        if self._draft is None:
            self._draft = self._new_draft(held)
        draft = self._draft
        small = len(held) == draft.size  # all of it is in memory, too
        if self._hint > draft.size:
            with translated(f"{self._root.bucket}/{name}"):
                self._files.truncate(draft.fd, draft.size)  # gives back what was reserved beyond
        body = bytes(held) if small else None
        if self._body is not None:
            with translated(f"{self._root.bucket}/{name}"):
                self._body.settled()
        entry = self._publisher.publish(self._root, name, draft, bytes(meta), if_token, body)
        self._held = None
        self._draft = None
        draft.close()
        return entry

    def _commit_mark(self, name: str, meta: bytes, if_token: IfToken) -> Entry:
        size = len(self._open_held()) if self._draft is None else self._draft.size
        entry = self._publisher.marks.publish(self._root, name, size, meta, if_token)
        self.abort()
        return entry

    def abort(self) -> None:
        self._held = None
        if self._draft:
            self._draft.drop()
            self._draft = None
