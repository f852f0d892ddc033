"""One connection: twisted.web's HTTP channel, with the request's body given on as it comes, errors as S3
clients know them, and time-outs that a slow client cannot stretch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.protocol import Protocol
from twisted.web import http

from cumulus.errors import S3Error
from cumulus.fair.lane import Flow
from cumulus.fair.limits import Seat
from cumulus.http.chunked import MalformedChunk
from cumulus.http.refuse import refusal, slow_down
from cumulus.http.request import S3Request
from cumulus.http.settings import HEAD_BYTES, LINGER_S
from cumulus.http.transport import S3Server, Taker

if TYPE_CHECKING:
    from cumulus.http.site import Site

_LENGTH_DIGITS = 18
_SPLIT_FROM = 4096


def _ignore(_line: bytes) -> None:
    """What follows a refused line."""


class S3Channel(http.HTTPChannel):
    """A client's connection, from its first byte to its last."""

    requestFactory: Any = S3Request
    MAX_LENGTH = HEAD_BYTES
    totalHeadersSize = HEAD_BYTES
    timeOut = None
    site: Site
    transport: Any
    lineReceived: Any
    _networkProducer: Any
    _command: bytes
    _path: Any
    _version: bytes

    def __init__(self, site: Site, seat: Seat | None = None) -> None:
        super().__init__()
        self.site = site
        self.seat = seat
        self.flows: dict[int, Flow] = {}
        self.peer = ""
        self.secure = False
        self.head_began = 0.0
        self._in_head = False
        self._lingering = False
        self._refused = False
        self._idle_since = site.now()
        self._sent_before = 0
        self._stalled_s = 0.0
        self._deadline = 0.0
        self._tcp: S3Server | None = None

    def connectionMade(self) -> None:
        """Learn who it is."""
        transport = self.transport
        self.peer = str(getattr(transport.getPeer(), "host", ""))
        self.secure = bool(self.isSecure())
        below = getattr(transport, "transport", None) if self.secure else transport
        if isinstance(below, S3Server):
            below.in_thread = self.site.pool.must
            self._tcp = below
        self.site.opened(self)
        super().connectionMade()

    # bytes in -------------------------------------------------------------------------------------------
    def dataReceived(self, data: bytes) -> None:
        """Heads go line by line, bodies in large pieces; a large piece with a head in it is split, so that
        each line does not copy it."""
        if self._lingering or self._refused:
            return
        if self.line_mode and not self._in_head:
            self._head_begins()
        if self.line_mode and len(data) > _SPLIT_FROM and not self._busyReceiving:
            end = data.find(b"\r\n\r\n") + 4
            if end > 4:
                super().dataReceived(data[:end])
                data = data[end:]
                if not data or self._refused or self._lingering or self.transport.disconnecting:
                    return
        super().dataReceived(data)

    def _head_begins(self) -> None:
        self._in_head = True
        self.head_began = self.site.now()

    def lineLengthExceeded(self, line: bytes) -> None:
        """A line longer than all headers may be."""
        self._refuse(S3Error("RequestHeaderSectionTooLarge"))

    def headerReceived(self, line: bytes) -> bool:
        """As the parent; a length of absurd size is malformed."""
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and len(value.strip()) > _LENGTH_DIGITS:
            self._respondToBadRequestAndDisconnect()
            return False
        return bool(super().headerReceived(line))

    def allHeadersReceived(self) -> None:
        """Begin the request; `100 Continue` is its business."""
        if self._refused:
            return
        request: S3Request = self.requests[-1]
        self._in_head = False
        self.persistent = int(self.checkPersistence(request, self._version))
        request.head_complete(self._command, self._path, self._version, self.length)

    def allContentReceived(self) -> None:
        """As the parent, unless the head was refused."""
        if not self._refused:
            super().allContentReceived()

    def rawDataReceived(self, data: bytes) -> None:
        """To the body, or kept until the request before is answered."""
        if self._refused or self._lingering:
            return
        if self._handlingRequest:
            super().rawDataReceived(data)
            return
        request: S3Request = self.requests[-1]
        try:
            request.body_data(data)
        except MalformedChunk as bad:
            request.refuse_body(S3Error("InvalidRequest", f"The chunked body is malformed: {bad}."))

    def _respondToBadRequestAndDisconnect(self) -> None:
        if self._receivedHeaderSize > self.totalHeadersSize or self._receivedHeaderCount > self.maxHeaders:
            self._refuse(S3Error("RequestHeaderSectionTooLarge"))
        else:
            self._refuse(S3Error("InvalidRequest", "The request's head is malformed."))

    def _refuse(self, error: S3Error) -> None:
        """Answer a head that cannot be a request, after which the connection ends."""
        if self._refused:
            return
        self._refused = True
        self._in_head = False
        self.lineReceived = _ignore
        self.requests.clear()
        self.site.refused(self.peer, error)
        request_id = self.site.next_id()
        reply = refusal(error, request_id)
        body = reply.body if isinstance(reply.body, bytes) else b""
        self.writeSequence((self.site.heads.head(reply, request_id, len(body), close=True), body))
        self.linger()

    # for the request --------------------------------------------------------------------------------------
    def set_taker(self, taker: Taker | None) -> None:
        """Who takes the connection's bytes in buffers of its own; nothing changes with TLS."""
        if self._tcp is not None and not self.secure:
            self._tcp.taker = taker

    def pause_reading(self, paused: bool) -> None:
        """Read no more, or again."""
        if paused:
            self._networkProducer.pauseProducing()
        else:
            self._networkProducer.resumeProducing()

    def body_over(self, rest: bytes) -> None:
        """The body of the request has ended; `rest` came behind it."""
        self._finishRequestBody(rest)

    def requestDone(self, request: S3Request) -> None:
        """As the parent: the next one begins, or the connection ends."""
        self._idle_since = self.site.now()
        super().requestDone(request)

    def linger(self) -> None:
        """End the connection when the client has read what was sent; what it still sends is dropped, for a
        while: closing at once would take the reply away from it."""
        if self._lingering:
            return
        self._lingering = True
        self.persistent = 0
        self.set_taker(None)
        self._deadline = self.site.now() + LINGER_S
        if isinstance(self.transport, S3Server):
            self.transport.loseWriteConnection()
        self._networkProducer.resumeProducing()

    def cut(self) -> None:
        """End the connection after what was written, in the middle of a reply."""
        self.persistent = 0
        self.loseConnection()

    def abort(self) -> None:
        """End the connection now."""
        self.transport.abortConnection()

    def end_if_idle(self) -> None:
        """End it unless a request is under way."""
        if not self.requests and not self._lingering:
            self.loseConnection()

    # time -------------------------------------------------------------------------------------------------
    def check(self, now: float, passed_s: float) -> None:
        """End what takes too long; called about once a second, `passed_s` after the last time."""
        settings = self.site.settings
        if self._lingering:
            if now >= self._deadline:
                self.abort()
        elif self._takes_nothing(passed_s) >= settings.write_timeout_s:
            self._too_slow("reply")
            self.abort()
        elif self._in_head:
            if now - self.head_began >= settings.header_timeout_s:
                self._too_slow("head")
                self._refuse(S3Error("RequestTimeout", "The request's head did not arrive in time."))
        elif not self.requests:
            if now - self._idle_since >= settings.idle_timeout_s:
                self.loseConnection()
        else:
            request: S3Request = self.requests[0]
            if request.body_too_slow(passed_s, settings.header_timeout_s, settings.min_body_rate):
                self._too_slow("body")
                request.refuse_body(S3Error("RequestTimeout"))

    def _takes_nothing(self, passed_s: float) -> float:
        """Seconds for which the client has taken nothing of what waits for it."""
        tcp = self._tcp
        if tcp is None or not tcp.unsent or tcp.sent != self._sent_before:
            self._stalled_s = 0.0
        else:
            self._stalled_s += passed_s
        self._sent_before = tcp.sent if tcp is not None else 0
        return self._stalled_s

    def _too_slow(self, what: str) -> None:
        self.site.too_slow(self.peer, what)

    def connectionLost(self, reason: Any = None) -> None:
        """Requests under way hear of it."""
        seat, self.seat = self.seat, None
        if seat is not None:
            seat.leave()
        self.site.closed(self)
        super().connectionLost(reason)


class Refuser(Protocol):
    """A connection beyond the most that may be: told so and ended."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._timer: Any = None

    def connectionMade(self) -> None:
        """Say it; the client has a moment to read it."""
        transport: Any = self.transport
        request_id = self._site.next_id()
        reply = slow_down(request_id)
        body = reply.body if isinstance(reply.body, bytes) else b""
        transport.write(self._site.heads.head(reply, request_id, len(body), close=True) + body)
        if isinstance(transport, S3Server):
            transport.loseWriteConnection()
        self._timer = self._site.reactor.callLater(LINGER_S, transport.abortConnection)
        self._site.refusers.add(self)

    def connectionLost(self, reason: Any = None) -> None:
        """It is gone."""
        self._site.refusers.discard(self)
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
