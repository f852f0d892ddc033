"""One connection: heads one after another, each request's body given on as it comes, errors as S3 clients
know them, and time-outs that a slow client cannot stretch.

At most one request is under way; what comes behind it waits, and beyond a little the client does too. As the
producer of the transport a channel begins nothing while the client takes no replies.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IHalfCloseableProtocol, ISSLTransport, ITCPTransport
from twisted.internet.protocol import Protocol
from zope.interface import implementer

from cumulus.errors import S3Error
from cumulus.fair.lane import Flow
from cumulus.fair.limits import Seat
from cumulus.http.chunked import MalformedChunk
from cumulus.http.head import MalformedHead, TooManyHeaders, may_become, parse
from cumulus.http.refuse import refusal, slow_down
from cumulus.http.request import S3Request
from cumulus.http.settings import AT_ONCE, EAGER, HEAD_BYTES, LINGER_S
from cumulus.http.transport import S3Server, Taker
from cumulus.proxies import is_among

if TYPE_CHECKING:
    from cumulus.http.site import Site

_END = b"\r\n\r\n"


@implementer(IHalfCloseableProtocol)
class S3Channel(Protocol):
    """A client's connection, from its first byte to its last."""

    transport: Any

    def __init__(self, site: Site, seat: Seat | None = None) -> None:
        self.site = site
        self.seat = seat
        self.flows: dict[int, Flow] = {}
        self.peer = ""
        self.secure = False
        self.is_proxy = False  # one that is believed whom it speaks for
        self.head_began = 0.0
        self.persistent = True  # whether another request may follow
        self.requests: list[S3Request] = []  # the one under way
        self._buffer = b""
        self._searched = 0  # bytes of it in which no head ends
        self._blank = False  # an empty line before the head was skipped
        self._in_head = False
        self._body: S3Request | None = None  # whose body comes now
        self._beginning = False
        self._choked = False  # the client does not take what was written
        self._producer: Any = None
        self._deaf = False  # what comes is dropped
        self._heard_all = False  # the client has ended its direction
        self._turn_due = False  # `_begin` will be called
        self._lingering = False
        self._idle_since = site.now()
        self._taken_before = 0
        self._stalled_s = 0.0
        self._deadline = 0.0
        self._tcp: S3Server | None = None

    def connectionMade(self) -> None:
        """Learn who it is."""
        transport = self.transport
        self.peer = str(getattr(transport.getPeer(), "host", ""))
        self.is_proxy = is_among(self.peer, self.site.settings.proxies)
        self.secure = ISSLTransport.providedBy(transport)
        below = getattr(transport, "transport", None) if self.secure else transport
        if isinstance(below, S3Server):
            below.in_thread = self.site.pool.must
            self._tcp = below
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
        transport.registerProducer(self, True)
        self.site.opened(self)

    # bytes in -------------------------------------------------------------------------------------------
    def dataReceived(self, data: bytes) -> None:
        """To the body, to the head, or kept until the request before is answered."""
        if self._deaf:
            return
        if self._body is not None:
            self._to_body(self._body, data)
            return
        self._buffer = self._buffer + data if self._buffer else data
        if not self.requests and not self._choked and not self._turn_due:
            self._begin()
        if self._behind:
            self.transport.pauseProducing()

    @property
    def _behind(self) -> bool:
        """Whether enough lies here that cannot be begun now: a request is under way, or the other connections
        come first. (Otherwise it is the beginning of a head.)"""
        busy = self.requests or self._choked or self._beginning or self._turn_due
        return bool(busy) and self._body is None and not self._deaf and len(self._buffer) > EAGER

    def _begin(self) -> None:
        """Begin what is there, one request after the other as they are answered."""
        if self._beginning:
            return
        self._beginning = True
        try:
            waits = self._begin_some()
        finally:
            self._beginning = False
        if waits:
            self._read_on()

    def _begin_some(self) -> bool:
        """Whether more has to come before another can be begun."""
        for _ in range(AT_ONCE):
            if self.requests or self._deaf or self._choked:
                return False
            if not self._buffer or not self._take_head():
                if self._heard_all and not self._deaf:
                    self.lose()
                return not self._deaf
        if not self._turn_due:
            self._turn_due = True
            self.site.reactor.callLater(0, self._next_turn)  # the other connections come first
        return False

    def _next_turn(self) -> None:
        self._turn_due = False
        self._begin()

    def _take_head(self) -> bool:
        """Begin the request whose head is in the buffer; False when more of it has to come, or it is none."""
        data = self._buffer
        if not self._in_head:
            self._in_head = True
            self.head_began = self.site.now()
        if not self._blank and data.startswith(b"\r\n"):  # some clients end a body with it
            self._blank, self._in_head = True, False
            self._buffer = data[2:]
            return True
        end = data.find(_END, max(0, self._searched - len(_END) + 1))
        if max(end, 0 if end >= 0 else len(data)) > HEAD_BYTES:
            self._refuse(S3Error("RequestHeaderSectionTooLarge"))
            return False
        if end < 0:
            self._searched = len(data)
            if not may_become(data):
                self._refuse_malformed()
            return False
        try:
            head = parse(data[:end])
        except MalformedHead:
            self._refuse_malformed()
            return False
        except TooManyHeaders:
            self._refuse(S3Error("RequestHeaderSectionTooLarge"))
            return False
        self._in_head = self._blank = False
        self._searched = 0
        self.persistent = head.persistent
        request = self.site.request_factory(self, head)
        self.requests.append(request)
        rest = data[end + len(_END) :]
        if head.length == 0:
            self._buffer = rest
            request.head_complete()
            request.request_received()
        else:
            self._buffer = b""
            self._body = request
            self._read_on()
            request.head_complete()
            if rest:
                self._to_body(request, rest)
        return True

    def _to_body(self, request: S3Request, data: bytes) -> None:
        try:
            request.body_data(data)
        except MalformedChunk as bad:
            self._deaf = True
            request.refuse_body(S3Error("InvalidRequest", f"The chunked body is malformed: {bad}."))

    def _refuse_malformed(self) -> None:
        self._refuse(S3Error("InvalidRequest", "The request's head is malformed."))

    def _refuse(self, error: S3Error) -> None:
        """Answer a head that cannot be a request, after which the connection ends."""
        self._deaf = True
        self._in_head = False
        self._buffer = b""
        self.site.refused(self.peer, error)
        request_id = self.site.next_id()
        reply = refusal(error, request_id)
        body = reply.body if isinstance(reply.body, bytes) else b""
        self.write(self.site.heads.head(reply, request_id, len(body), close=True) + body)
        self.linger()

    # for the request --------------------------------------------------------------------------------------
    def set_taker(self, taker: Taker | None) -> None:
        """Who takes the connection's bytes in buffers of its own; nothing changes with TLS."""
        if self._tcp is not None and not self.secure:
            self._tcp.taker = taker

    @property
    def lends(self) -> bool:
        """Whether `lend_socket` may be asked: not with TLS."""
        return self._tcp is not None and not self.secure and bool(self._tcp.connected)

    def waiting(self) -> int:
        """Bytes that have come and were not read."""
        assert self._tcp is not None
        return self._tcp.waiting()

    def lend_socket(self) -> int:
        """Another descriptor of the connection, for a thread that reads from it while nobody else does and
        closes it; -1: there are too many open."""
        assert self._tcp is not None
        try:
            return os.dup(self._tcp.fileno())
        except OSError:
            return -1

    def pause_reading(self, paused: bool) -> None:
        """Read no more, or again."""
        if paused:
            self.transport.pauseProducing()
        else:
            self._read_on()

    def _read_on(self) -> None:
        if self._behind:
            return
        if not self._heard_all and (self._tcp is None or self._tcp.halted):
            self.transport.resumeProducing()

    def body_over(self, rest: bytes) -> None:
        """The body of the request has ended; `rest` came behind it."""
        request, self._body = self._body, None
        self._buffer = rest
        if request is not None:
            request.request_received()

    def write(self, data: bytes) -> None:
        """Send it."""
        self.transport.write(data)

    def write_whole(self, data: bytes) -> None:
        """Send a reply for which `Held.take` found room."""
        self.transport.write(data)
        if self._choked:
            self.site.held.given(self)
        else:
            self.site.held.free(self)

    @property
    def owner(self) -> str:
        """Who has the reply to the request under way."""
        return self.peer if self.seat is None else self.seat.who

    @property
    def quiet(self) -> bool:
        """Whether no request and no end is under way."""
        return not self.requests and not self._lingering

    @property
    def idle(self) -> bool:
        """Whether it is quiet and the client has taken all replies, also what lay in the kernel."""
        if self._choked or not self.quiet:
            return False
        tcp = self._tcp
        return tcp is None or not (tcp.unsent or tcp.taken() < tcp.sent)

    @property
    def taken(self) -> int:
        """Bytes that the client has taken."""
        return 0 if self._tcp is None else self._tcp.taken()

    def request_done(self) -> None:
        """It is answered and its body has been read: the next one begins, or the connection ends, as it does
        with the service where the reply had begun before."""
        self._idle_since = self.site.now()
        self.requests.clear()
        if not self.persistent or self.site.stopping:
            self.lose()
            return
        if not self._choked:
            if len(self._buffer) <= EAGER:  # else as soon as it is, or the next one has a body
                self._read_on()
            if self._buffer or self._heard_all:
                self._begin()

    def linger(self) -> None:
        """End the connection when the client has read what was sent; what it still sends is dropped, for a
        while: closing at once would take the reply away from it."""
        if self._lingering:
            return
        self._lingering = self._deaf = True
        self.persistent = False
        self.set_taker(None)
        self._deadline = self.site.now() + LINGER_S
        if self._heard_all:
            self.lose()
            return
        if isinstance(self.transport, S3Server):
            self.transport.loseWriteConnection()
        self._read_on()

    def lose(self) -> None:
        """End the connection when all is sent that was written. With TLS our farewell is the last of it: who
        keeps a connection for later does not read it, and its answer is not waited for (RFC 8446, 6.1)."""
        self._deaf = True
        self.transport.unregisterProducer()
        self.transport.loseConnection()
        if self._tcp is not None:
            self._tcp.loseConnection()

    def cut(self) -> None:
        """End the connection after what was written, in the middle of a reply."""
        self.persistent = False
        self.lose()

    def abort(self) -> None:
        """End the connection now."""
        self.transport.abortConnection()

    def end_if_idle(self) -> None:
        """End it unless a request is under way."""
        if self.quiet:
            self.lose()

    # producers --------------------------------------------------------------------------------------------
    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """What a request sends piece by piece stops when the client takes no more."""
        self._producer = producer
        if self._choked:
            producer.pauseProducing()

    def unregisterProducer(self) -> None:
        """It has sent all."""
        self._producer = None

    def pauseProducing(self) -> None:
        """The client does not take what was written."""
        self._choked = True
        if self._producer is not None:
            self._producer.pauseProducing()
        if not self.requests:
            self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        """It does again."""
        self._choked = False
        self.site.held.free(self)
        if self._producer is not None:
            self._producer.resumeProducing()
        if not self.requests:
            self._read_on()
            self._begin()

    def stopProducing(self) -> None:
        """The connection ends."""
        if self._producer is not None:
            self._producer.stopProducing()

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
                self.lose()
        else:
            request = self.requests[0]
            if request.body_too_slow(passed_s, settings.header_timeout_s, settings.min_body_rate):
                self._too_slow("body")
                request.refuse_body(S3Error("RequestTimeout"))
            else:
                request.show_life(now)

    def _takes_nothing(self, passed_s: float) -> float:
        """Seconds for which the client has taken nothing of what waits for it."""
        tcp = self._tcp
        if tcp is None or not tcp.unsent:
            self._stalled_s = 0.0
            return 0.0
        taken = tcp.taken()
        self._stalled_s = self._stalled_s + passed_s if taken == self._taken_before else 0.0
        self._taken_before = taken
        return self._stalled_s

    def _too_slow(self, what: str) -> None:
        self.site.too_slow(self.peer, what)

    def readConnectionLost(self) -> None:
        """The client sends no more, but may wait for answers to what it has sent whole (or it is gone: then
        what is written to it will tell)."""
        self._heard_all = True
        if self._body is not None or self._lingering:
            self.lose()
        elif not self.requests and not self._choked:
            self._begin()

    def writeConnectionLost(self) -> None:
        """We have ended our direction."""

    def connectionLost(self, reason: Any = None) -> None:
        """A request under way hears of it."""
        self._deaf = True
        seat, self.seat = self.seat, None
        if seat is not None:
            seat.leave()
        self.site.closed(self)
        for request in self.requests:
            request.connection_lost()


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
