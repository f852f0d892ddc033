"""A reply on its way: with what is still to be read of it, and its head as it goes over the wire."""

from __future__ import annotations

import re
import time
from email.utils import formatdate
from typing import Final

from twisted.web.http import RESPONSES

from cumulus.http.settings import BODILESS, SERVER
from cumulus.rest.call import Download, Reply

_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_KNOWN_NAMES: Final = 1024
_PHRASES: Final = {507: b"Insufficient Storage", **RESPONSES}


class Ready:
    """A reply with all that needs no thread any more: `data`, or a download that is still to be sent, by
    sendfile from `where` if that is not None."""

    __slots__ = ("data", "download", "length", "reply", "where")

    def __init__(
        self,
        reply: Reply,
        data: bytes | None = None,
        download: Download | None = None,
        where: tuple[int, int] | None = None,
        length: int | None = None,
    ) -> None:
        self.reply = reply
        if data is None:
            data = reply.body if isinstance(reply.body, bytes) else b""
        self.data = data
        self.download = download
        self.where = where
        self.length = len(data) if length is None else length


class Opened:
    """A reply whose file is open already, for a thread to read; whoever does not run it closes the stream."""

    def __init__(self, reply: Reply, download: Download) -> None:
        self._reply = reply
        self.download = download

    def __call__(self) -> Reply:
        """The reply."""
        return self._reply


class HeadWriter:
    """Writes heads; keeps the Date line of the second and the constant ones. `host_id` tells which process
    answered (x-amz-id-2)."""

    def __init__(self, host_id: str) -> None:
        self._constant = b"Server: " + SERVER + b"\r\nx-amz-id-2: " + host_id.encode() + b"\r\n"
        self._second = 0
        self._date = b""
        self._names: set[str] = set()

    def head(self, reply: Reply, request_id: str, length: int | None, *, close: bool) -> bytes:
        """Status line and headers; `length` becomes Content-Length, None is for chunks. Header values lose
        control characters, and what can be no name of a header is left out: others may have written what
        belongs to an object, and must not begin a line of their own by it, or another reply."""
        now = int(time.time())
        if now != self._second:
            self._second = now
            self._date = b"Date: " + formatdate(now, usegmt=True).encode() + b"\r\n"
        phrase = _PHRASES.get(reply.status, b"Unknown")
        parts = [
            b"HTTP/1.1 %d %s\r\n" % (reply.status, phrase),
            self._date,
            self._constant,
            b"x-amz-request-id: " + request_id.encode() + b"\r\n",
        ]
        for name, value in reply.headers:
            if name not in self._names and not self._is_name(name):
                continue
            if _CONTROL.search(value):
                value = _CONTROL.sub(" ", value)
            parts.append(f"{name}: {value}\r\n".encode("latin-1", "replace"))
        if length is None:
            parts.append(b"Transfer-Encoding: chunked\r\n")
        elif reply.status not in BODILESS or reply.length is not None:
            parts.append(b"Content-Length: %d\r\n" % length)
        parts.append(b"Connection: close\r\n\r\n" if close else b"\r\n")
        return b"".join(parts)

    def _is_name(self, name: str) -> bool:
        """Whether it can be that of a header; the last are kept."""
        if not _NAME.fullmatch(name):
            return False
        if len(name) <= 64:
            if len(self._names) >= _KNOWN_NAMES:
                self._names.clear()
            self._names.add(name)
        return True
