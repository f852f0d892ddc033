"""What is in a journal, and how it is framed: length u32, CRC-32 u32, MessagePack of one `Change`.

Reading stops at the first frame that is cut off or damaged: nothing behind it was ever acknowledged.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from typing import Final

import msgspec

from cumulus.storage.api import Token

_FRAME: Final = struct.Struct("<II")
MAX_RECORD: Final = 8 << 20  # a longer one is damage: a small body, and the meta of an object of many parts
PUT, REMOVAL, VOID, NOTE, HEAD = range(5)


class Change(msgspec.Struct, frozen=True, array_like=True):
    """One change of one name.

    `kind`: PUT has the whole new object; REMOVAL takes it away; VOID says that the change with this stamp did
    not happen after all; NOTE, that the name is about to be changed by other means, which sync by themselves.
    HEAD opens a file: `name` is what this run of the machine is called, `bucket` the journal before it and
    `stamp` the length of that one that counts, or -1 for all of it. `inode` is the new file's, `before` the
    token of what was replaced or removed, b"" for nothing.
    """

    kind: int
    bucket: str
    name: str
    stamp: int = 0
    inode: int = 0
    before: Token = b""
    meta: bytes = b""
    body: bytes = b""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Change)


def encode(change: Change) -> bytes:
    """One frame."""
    payload = _encoder.encode(change)
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def read(fd: int, offset: int = 0) -> Iterator[tuple[int, Change]]:
    """(offset, change) of a journal from `offset` up to its torn tail, if it has one."""
    while True:
        head = os.pread(fd, _FRAME.size, offset)
        if len(head) < _FRAME.size:
            return
        size, check = _FRAME.unpack(head)
        payload = os.pread(fd, size, offset + _FRAME.size) if 0 < size <= MAX_RECORD else b""
        if not payload or len(payload) < size or zlib.crc32(payload) != check:
            return
        try:
            change = _decoder.decode(payload)
        except msgspec.DecodeError:
            return
        yield offset, change
        offset += _FRAME.size + size
