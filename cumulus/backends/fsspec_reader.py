"""One object of the fsspec store that is open for reading."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cumulus.backends.fsspec_record import asked
from cumulus.storage.api import Changed, Entry, ReadStream, StorageError

if TYPE_CHECKING:
    from cumulus.backends.fsspec_store import FsspecStore


class Reader(ReadStream):
    """Reads through the file system, or from a descriptor where the file is local."""

    def __init__(self, store: FsspecStore, path: str, entry: Entry, fd: int) -> None:
        self.entry = entry
        self._store = store
        self._path = path
        self._fd = fd
        self._open = True

    def read_at(self, offset: int, size: int) -> bytes:
        if not self._open:
            raise StorageError(f"the stream of {self.entry.name!r} is closed")
        size = min(size, self.entry.size - offset)
        if size <= 0:
            return b""
        if self._fd >= 0:
            with asked(self.entry.name):
                return os.pread(self._fd, size, offset)
        data = self._store.read(self._path, offset, offset + size)
        if len(data) < size or not self.unchanged():
            raise Changed(f"{self.entry.name!r} was changed while it was read")
        return data

    def sendable(self) -> tuple[int, int] | None:
        return (self._fd, 0) if self._fd >= 0 else None

    def unchanged(self) -> bool:
        if self._fd >= 0:
            return True
        try:
            if self.entry.meta is None:
                return self._store.entry(self.entry.name, self._path).token == self.entry.token
            return self._store.token(self._path) == self.entry.token
        except StorageError:
            return False

    def close(self) -> None:
        self._open = False
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
