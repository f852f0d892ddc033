"""The chunked transfer encoding of a request's body (RFC 9112, section 7.1), decoded with bounds."""

from __future__ import annotations

import re
from typing import Final

LINE_MAX: Final = 1024  # of a chunk's size with its extensions
TRAILER_MAX: Final = 8192  # of all trailer fields together
# what mostly stands before a chunk's bytes, the first one's and another's
_FIRST: Final = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_NEXT: Final = re.compile(rb"\r\n([0-9A-Fa-f]{1,15})\r\n")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?")


class MalformedChunk(Exception):
    """The framing is not what RFC 9112 says."""


class ChunkedDecoder:
    """Takes bytes as they come and gives the body's. After the end `finished` is true and `rest` holds what
    followed on the connection. Trailer fields are read and dropped."""

    def __init__(self) -> None:
        self.finished = False
        self.rest = b""
        self._line = bytearray()
        self._left = 0
        self._state = "size"
        self._trailer = 0

    def feed(self, data: memoryview) -> list[memoryview]:
        """The body's bytes in `data`, as views of it. Raises `MalformedChunk`."""
        out: list[memoryview] = []
        at = 0
        while at < len(data) and not self.finished:
            if self._state == "data":
                part = data[at : at + self._left]
                out.append(part)
                at += len(part)
                self._left -= len(part)
                if not self._left:
                    self._state = "end"
            elif (size := self._plain_size(data, at)) is not None:
                at = size.end()
                self._begin(int(size[1], 16))
            else:
                at = self._read_line(data, at)
        if self.finished:
            self.rest = bytes(data[at:])
        return out

    def _plain_size(self, data: memoryview, at: int) -> re.Match[bytes] | None:
        """A size that is all there, without anything unusual: who sends a million chunks of a byte is not to
        cost ten times as much."""
        if self._line or self._state == "trailer":
            return None
        return (_NEXT if self._state == "end" else _FIRST).match(data, at)

    def _begin(self, size: int) -> None:
        self._left = size
        self._state = "data" if size else "trailer"

    def _read_line(self, data: memoryview, at: int) -> int:
        """Take in bytes up to a line's end, which may come later; the place behind them."""
        room = LINE_MAX + 2 - len(self._line)
        window = bytes(data[at : at + room])
        end = window.find(b"\n")
        if end < 0:
            if len(window) == room:
                raise MalformedChunk("a line of the chunked body is too long")
            self._line += window
            return at + len(window)
        self._line += window[: end + 1]
        line, self._line = self._line, bytearray()
        if not line.endswith(b"\r\n"):
            raise MalformedChunk("a line of the chunked body does not end with CR LF")
        self._take_line(bytes(line[:-2]))
        return at + end + 1

    def _take_line(self, line: bytes) -> None:
        if self._state == "end":
            if line:
                raise MalformedChunk("a chunk is longer than it says")
            self._state = "size"
        elif self._state == "size":
            match = _SIZE.fullmatch(line)
            if match is None:
                raise MalformedChunk("a chunk's size is not a hexadecimal number")
            self._begin(int(match[1], 16))
        elif line:
            self._trailer += len(line)
            if self._trailer > TRAILER_MAX:
                raise MalformedChunk("the trailer is too long")
        else:
            self.finished = True
