"""MD5 of several streams side by side (RFC 1321): the ETags of S3, not for security.

One stream of MD5 leaves most of a core unused, since each step waits for the one before. Two in one call take
little longer than one, and eight share the vector units. SHA-256 of the same bytes (FIPS 180-4) fits into
those waits too, on processors that have instructions for it. No call holds the interpreter's lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sector._udt._ffi import ffi, lib

Data = bytes | bytearray | memoryview

# whether this processor has the instructions for SHA-256 beside MD5
WITH_SHA256: Final[bool] = bool(lib.udt_md5_sha256_there())


class Md5:
    """One stream, in the manner of hashlib, `with_sha256` if asked for. Not for several threads at once."""

    __slots__ = ("_state", "with_sha256")

    def __init__(self, *, sha256: bool = False) -> None:
        """Raises `RuntimeError` if it is to make SHA-256 too and `WITH_SHA256` is false."""
        self._state: Any = ffi.new("udt_md5 *")
        self.with_sha256 = sha256
        if not sha256:
            lib.udt_md5_init(self._state)
        elif lib.udt_md5_sha256_init(self._state):
            raise RuntimeError("this processor has no instructions for SHA-256 beside MD5")

    def update(self, data: Data, /) -> None:
        """Take in the next bytes (contiguous)."""
        lib.udt_md5_update(self._state, ffi.from_buffer("uint8_t[]", data), memoryview(data).nbytes)

    def digest(self) -> bytes:
        """Of all bytes so far, 16 bytes; the stream may go on."""
        out = ffi.new("uint8_t[16]")
        lib.udt_md5_digest(self._state, out)
        return bytes(ffi.buffer(out))

    def sha256(self) -> bytes:
        """SHA-256 of all bytes so far, 32 bytes. Raises `RuntimeError` if it was not asked for at the
        beginning."""
        if not self.with_sha256:
            raise RuntimeError("this stream was begun without SHA-256")
        out = ffi.new("uint8_t[32]")
        lib.udt_md5_sha256_digest(self._state, out)
        return bytes(ffi.buffer(out))

    def take(self, connection: int, file: int, room: memoryview, moment_s: float) -> int:
        """Receive from the descriptor of a connection through `room` (writable), take that in, and write it
        at the position of a file, until `room` is full, nothing came for `moment_s` in all, or the connection
        is at its end. How many bytes came, all of them taken in and written. Raises `OSError` of the file."""
        count = ffi.new("size_t *")
        buffer, wait_us = ffi.from_buffer("uint8_t[]", room, require_writable=True), int(moment_s * 1e6)
        failed = lib.udt_take(connection, file, self._state, buffer, room.nbytes, wait_us, count)
        if failed:
            raise OSError(failed, os.strerror(failed))
        return int(count[0])


def update_together(streams: Iterable[tuple[Md5, Sequence[Data]]]) -> None:
    """Each stream takes in its pieces (contiguous), all streams side by side; none may be there twice."""
    lines, kept = [], []
    for stream, pieces in streams:
        buffers = [ffi.from_buffer("uint8_t[]", piece) for piece in pieces]
        sizes = [memoryview(piece).nbytes for piece in pieces]
        spans = ffi.new("udt_span[]", list(zip(buffers, sizes, strict=True)))
        kept += [*buffers, spans]
        lines.append((stream._state, spans, len(buffers)))
    lib.udt_md5_update_lines(ffi.new("udt_md5_line[]", lines), len(lines))
