"""One writer of a key at a time, in all processes of a machine: for storage that cannot itself say "only if
it is still that one" (fsspec)."""

from __future__ import annotations

import os
import threading
import zlib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from cumulus.file_locks import RangeLock, open_locks
from cumulus.index.api import IndexFailure

STRIPES: Final = 1024


def stripe_of(bucket: str, key: str) -> int:
    """Two keys may share one, so hold one at a time."""
    return zlib.crc32(f"{bucket}/{key}".encode()) % STRIPES


class FileKeys:
    """Locks in a file beside the database, for the processes of one machine; opened when first needed."""

    def __init__(self, database: Path) -> None:
        self._path = Path(f"{database}-keys")
        self._lock = threading.Lock()
        self._fd = -1
        self._stripes: list[RangeLock] = []

    def of(self, bucket: str, key: str) -> AbstractContextManager[object]:
        """Held inside. Raises `IndexFailure`."""
        if not self._stripes:
            self._open()
        return self._stripes[stripe_of(bucket, key)]

    def _open(self) -> None:
        with self._lock:
            if self._stripes:
                return
            try:
                self._fd = open_locks(str(self._path))
            except OSError as error:
                raise IndexFailure(f"{self._path}: {error.strerror}") from error
            self._stripes = [RangeLock(self._fd, number, 1) for number in range(STRIPES)]

    def close(self) -> None:
        """Give back the descriptor; nothing is held any more."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd, self._stripes = -1, []
