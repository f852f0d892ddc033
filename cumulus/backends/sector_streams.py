"""Streams of objects in Sector: bodies are fetched in windows, and sent from a file of this machine."""

from __future__ import annotations

import os
import tempfile
from typing import Final, Protocol

from cumulus.backends.posix.errors import storage_error as disk_error
from cumulus.storage.api import (
    Entry,
    IfToken,
    ReadStream,
    StorageError,
    WriteStream,
)
from sector.model import Version

KEEP: Final = 1 << 20  # bytes of an object that are fetched when it is opened
_WINDOW: Final = 8 << 20  # most that is fetched ahead of a reader in order


class Cloud(Protocol):
    """What streams need of the store."""

    def fetch(self, path: str, offset: int, size: int, version: Version) -> bytes:
        """Bytes of exactly one version. Raises `Changed` when it is gone."""

    def publish(self, bucket: str, name: str, fd: int, size: int, meta: bytes, if_token: IfToken) -> Entry:
        """Send `size` bytes of the file `fd` with their meta. Raises as `ObjectStream.commit`."""


class Reader(ReadStream):
    """One version of an object: small ones are here already, of others windows are fetched."""

    def __init__(self, store: Cloud, path: str, entry: Entry, version: Version, body: bytes) -> None:
        self.entry = entry
        self._store = store
        self._path = path
        self._version = version
        self._start = 0
        self._held = body
        self._ahead = KEEP
        self._open = True

    def read_at(self, offset: int, size: int) -> bytes:
        if not self._open:
            raise StorageError(f"the stream of {self.entry.name!r} is closed")
        size = min(size, self.entry.size - offset)
        if size <= 0:
            return b""
        end = self._start + len(self._held)
        if not self._start <= offset <= offset + size <= end:
            in_order = offset in (0, end) or self._start < offset <= end
            self._ahead = min(_WINDOW, self._ahead * 2) if in_order else KEEP
            want = min(max(size, self._ahead if in_order else size), self.entry.size - offset)
            self._held = self._store.fetch(self._path, offset, want, self._version)
            self._start = offset
        return self._held[offset - self._start : offset - self._start + size]

    def close(self) -> None:
        self._open = False
        self._held = b""


class Writer(WriteStream):
    """Collects the body in a temporary file of this machine: Sector wants its size first."""

    def __init__(self, store: Cloud, bucket: str, name: str) -> None:
        self._store = store
        self._bucket = bucket
        self._name = name
        self._size = 0
        try:
            self._spool = tempfile.TemporaryFile(prefix="cumulus-", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise disk_error(error, tempfile.gettempdir()) from error

    def _check(self) -> None:
        if self._spool.closed:
            raise StorageError(f"the stream of {self._name!r} is closed")

    def write(self, data: memoryview) -> None:
        self._check()
        try:
            done = 0
            while done < len(data):
                done += os.write(self._spool.fileno(), data[done:])
        except OSError as error:
            raise disk_error(error, tempfile.gettempdir()) from error
        self._size += len(data)

    def commit(self, meta: bytes, if_token: IfToken = None, name: str = "") -> Entry:
        self._check()
        fd, name = self._spool.fileno(), name or self._name
        entry = self._store.publish(self._bucket, name, fd, self._size, bytes(meta), if_token)
        self._spool.close()
        return entry

    def abort(self) -> None:
        self._spool.close()
