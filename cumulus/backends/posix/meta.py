"""The record beside a body (extended attribute, or sidecar where that cannot hold it), and tokens.

The record repeats inode, size and mtime of the file it was made for: a file copied, replaced or rewritten by
others no longer fits it, and then has no meta. Layout, little endian: version u8, place u8 (0 here, 1 in the
sidecar), inode u64, size i64, mtime_ns i64, stamp i64, then the meta.
"""

from __future__ import annotations

import os
import struct
from typing import Final, NamedTuple

from cumulus.storage.api import Entry, Token, kept_time

_RECORD: Final = struct.Struct("<BBQqqq")
_TOKEN: Final = struct.Struct("<QQqqq")
_VERSION: Final = 1
MAX_INLINE: Final = 3072  # bytes of record that we put into an extended attribute (ext4 holds 4 KB in all)


class Record(NamedTuple):
    """`meta` is empty where `aside` is true."""

    inode: int
    size: int
    mtime_ns: int
    stamp: int
    meta: bytes
    aside: bool = False

    def fits(self, status: os.stat_result) -> bool:
        """Whether it was made for this file as it is now."""
        return (
            self.inode == status.st_ino and self.mtime_ns == mtime_of(status) and self.size == status.st_size
        )


def encode(record: Record) -> bytes:
    """Inverse of `decode`."""
    head = _RECORD.pack(_VERSION, record.aside, record.inode, record.size, record.mtime_ns, record.stamp)
    return head + record.meta


def decode(data: bytes) -> Record | None:
    """None for what is not a record of ours."""
    if len(data) < _RECORD.size:
        return None
    version, aside, inode, size, mtime_ns, stamp = _RECORD.unpack_from(data)
    if version != _VERSION or aside > 1:
        return None
    return Record(inode, size, mtime_ns, stamp, data[_RECORD.size :], bool(aside))


def mtime_of(status: os.stat_result) -> int:
    """In ns, as records and entries have it."""
    return kept_time(status.st_mtime_ns)


def token_of(status: os.stat_result) -> Token:
    """Device, inode, size, mtime, ctime: whatever others do to a file changes one of them."""
    return _TOKEN.pack(status.st_dev, status.st_ino, status.st_size, mtime_of(status), status.st_ctime_ns)


def inode_of(token: Token) -> int:
    """The inode in a token."""
    return int(_TOKEN.unpack(token)[1])


def last_change(status: os.stat_result) -> int:
    """When a file got its bytes or its name, in ns: whoever moves an old file keeps its mtime."""
    return max(mtime_of(status), status.st_ctime_ns)


def entry_of(name: str, status: os.stat_result, record: Record | None) -> Entry:
    """`record` must fit; None for a file that others made or changed."""
    return Entry(
        name=name,
        size=status.st_size,
        mtime_ns=mtime_of(status),
        token=token_of(status),
        stamp=record.stamp if record else last_change(status),
        meta=record.meta if record else None,
    )
