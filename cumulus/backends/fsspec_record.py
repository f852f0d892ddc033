"""What follows the body in a file of the fsspec store, and which storage error an error of a driver is."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Final, NamedTuple

from cumulus.backends.posix.errors import storage_error
from cumulus.storage.api import (
    Entry,
    Forbidden,
    Missing,
    StorageError,
    Taken,
    Unavailable,
    kept_time,
)

_FOOTER: Final = struct.Struct("<qqI8sI8s")  # mtime_ns, stamp, length of meta, nonce, CRC-32, magic
FOOTER_SIZE: Final = _FOOTER.size
_MAGIC: Final = b"cumulus1"
_MOST: Final = 4 << 20  # bytes of meta: 10,000 parts with their sums take 1.5 MB
_KINDS: Final[tuple[tuple[type[BaseException], type[StorageError]], ...]] = (
    (FileNotFoundError, Missing),
    (PermissionError, Forbidden),
    (FileExistsError, Taken),
    (IsADirectoryError, Taken),
    (NotADirectoryError, Taken),
)


class asked:
    """Context: whatever the file system raises becomes a storage error."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, StorageError):
            return
        for raised, known in _KINDS:
            if isinstance(error, raised):
                raise known(f"{self._what}: {error}") from error
        if isinstance(error, OSError):
            raise storage_error(error, self._what) from error
        raise Unavailable(f"{self._what}: {type(error).__name__}: {error}") from error


class Footer(NamedTuple):
    mtime_ns: int
    stamp: int
    nonce: bytes
    meta: bytes

    def encode(self) -> bytes:
        """Meta and footer, as they follow the body."""
        check = zlib.crc32(self.meta + struct.pack("<qq", self.mtime_ns, self.stamp))
        head = (self.mtime_ns, self.stamp, len(self.meta), self.nonce, check, _MAGIC)
        return self.meta + _FOOTER.pack(*head)

    @classmethod
    def decode(cls, size: int, tail: bytes, read: Callable[[int, int], bytes]) -> Footer | None:
        """Of a file of that size which ends in `tail`; `read(start, end)` where that is not enough. None for
        one that is not ours."""
        if len(tail) < FOOTER_SIZE or not tail.endswith(_MAGIC):
            return None
        mtime_ns, stamp, length, nonce, check, _ = _FOOTER.unpack(tail[-FOOTER_SIZE:])
        end = size - FOOTER_SIZE
        if length > min(end, _MOST):  # somebody else may have written it
            return None
        within = len(tail) - FOOTER_SIZE
        meta = tail[within - length : within] if length <= within else read(end - length, end)
        if zlib.crc32(meta + struct.pack("<qq", mtime_ns, stamp)) != check:
            return None
        return cls(mtime_ns, stamp, nonce, meta)


def plain_entry(name: str, size: int, mtime: object, etag: object = None) -> Entry:
    """A file that has no record of ours."""
    if isinstance(mtime, datetime):  # of SFTP
        mtime = mtime.timestamp()
    try:
        mtime_ns = kept_time(int(float(str(mtime or 0)) * 1e9))
    except (ValueError, OverflowError):
        mtime_ns = 0
    token = f"{size} {mtime} {etag}".encode()
    return Entry(name=name, size=size, mtime_ns=mtime_ns, token=token, stamp=mtime_ns)


def token_of(size: int, tail: bytes) -> bytes | None:
    """The token of a file of that size which ends in `tail`; None for one that is not ours."""
    if len(tail) < FOOTER_SIZE or not tail.endswith(_MAGIC):
        return None
    nonce: bytes = _FOOTER.unpack(tail[-FOOTER_SIZE:])[3]
    return nonce + size.to_bytes(8, "little")


def whole_entry(name: str, size: int, footer: Footer) -> Entry:
    """A file of `size` bytes with a record of ours."""
    return Entry(
        name=name,
        size=size - len(footer.meta) - FOOTER_SIZE,
        mtime_ns=footer.mtime_ns,
        token=footer.nonce + size.to_bytes(8, "little"),
        stamp=footer.stamp,
        meta=footer.meta,
    )
