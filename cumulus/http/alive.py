"""Signs of life while an answer takes long, as S3 gives them: clients that hear nothing for a minute give up,
and ask again for what is still being done.

Who waits gets the beginning of an answer, 200 and the first line of a document, then a blank from time to
time, and at last the document, which tells an error where there is one. Clients of S3 know that of copies and
of completions. Pages in browsers wait longer, and are not told so: what their bucket's rules say for them is
known with the answer only.
"""

from __future__ import annotations

from typing import Final

from cumulus.auth import hop
from cumulus.http.head import Head
from cumulus.http.reply import HeadWriter
from cumulus.rest.call import Reply

END: Final = b"0\r\n\r\n"
_SOURCE: Final = "x-amz-copy-source"
_FIRST_LINE: Final = b'<?xml version="1.0" encoding="UTF-8"?>\n'


def may_last(head: Head) -> bool:
    """Whether it is a request that may take long, by a client who knows the signs. One that another server
    has passed on is left to that."""
    headers = head.headers
    if not head.continues or "origin" in headers or hop.HEADER in headers:
        return False
    if head.method == "PUT":
        return _SOURCE in headers
    query = head.target.partition("?")[2]
    return head.method == "POST" and any(part.startswith("uploadId=") for part in query.split("&"))


def takes_long(head: Head) -> bool:
    """Whether it may keep a thread for as long as its client likes: a copy, a completion, a deletion of many,
    with signs or without."""
    if head.method not in ("PUT", "POST"):
        return False
    names = {part.partition("=")[0].lower() for part in head.target.partition("?")[2].split("&")}
    if head.method == "PUT":
        return _SOURCE in head.headers or _SOURCE in names
    return "uploadid" in names or "delete" in names


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


class Signs:
    """Those of one request; what it gives is to be sent."""

    __slots__ = ("_at", "_skipped", "begun")

    def __init__(self) -> None:
        self.begun = False
        self._at = 0.0
        self._skipped = 0  # of the document's first line, as far as the answer's own was left out

    def due(self, since: float, now: float, silence_s: float) -> bool:
        """Whether nothing was told for `silence_s`; `since` is when the request was there."""
        return now - max(since, self._at) >= silence_s

    def sign(self, heads: HeadWriter, request_id: str, now: float, *, close: bool) -> bytes:
        """The next one."""
        self._at = now
        if self.begun:
            return _chunk(b" ")
        self.begun = True
        reply = Reply(200, [("Content-Type", "application/xml")])
        return heads.head(reply, request_id, None, close=close) + _chunk(_FIRST_LINE)

    def piece(self, data: bytes) -> bytes:
        """The next bytes of the document, whose first line has been sent."""
        rest = _FIRST_LINE[self._skipped :]
        same = min(len(rest), len(data))
        if data[:same] != rest[:same]:
            return _chunk(data)
        self._skipped += same
        return _chunk(data[same:])
