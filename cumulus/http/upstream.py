"""Connections of a proxy to the servers behind it: one request at a time on each, kept for the next one for a
moment. Bodies pass in large pieces, and whoever is too fast is paused.

The servers are Cumulus too, so each reply has a Content-Length or no body; what is otherwise is an error.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import wrapClientTLS
from twisted.internet.interfaces import IHandshakeListener, IPushProducer
from twisted.internet.protocol import Factory
from twisted.internet.protocol import Protocol as Connection
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from cumulus.http.settings import HEAD_BYTES
from cumulus.http.trust import Trust
from cumulus.redirect import Server
from sector.resolve import tcp_endpoint

CONNECT_S: Final = 3.0
KEPT_S: Final = 15.0  # an idle connection; well below the time after which a server ends one
KEPT: Final = 64  # idle connections to one server
# a machine that answers nothing at all for half a minute is gone (decision 0206)
_TCP: Final = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 4}
GONE_S: Final = 30.0
_UNANSWERED: Final = 3  # packets or probes of the kernel
_INFO: Final = struct.Struct("=2xBB52xI")  # of TCP_INFO: retransmits, probes, ms since the last answer
PIECE: Final = 256 * 1024  # bytes of a body at a time
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?")
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NO_BODY: Final = frozenset((204, 304))

Pairs = list[tuple[str, str]]


class Malformed(Exception):
    """What came is no reply of a Cumulus."""


class Owner(Protocol):
    """Whoever has a request under way on a connection."""

    def up_continue(self) -> None:
        """The server wants the body."""

    def up_drained(self) -> None:
        """What was written has left; more may come."""

    def up_head(self, status: int, headers: Pairs, length: int) -> None:
        """The reply begins; `length` bytes of a body follow, or would follow HEAD."""

    def up_data(self, data: bytes) -> None:
        """Bytes of the reply's body."""

    def up_end(self) -> None:
        """The reply is complete; the connection is no longer the owner's."""

    def up_lost(self, why: str) -> None:
        """The connection ended before that."""


def parse_head(block: bytes, method: str) -> tuple[int, Pairs, int, bool]:
    """(status, headers, length of the body by its header, whether the connection ends) of a reply's head.
    Raises `Malformed`."""
    first, *lines = block.split(b"\r\n")
    match = _STATUS.fullmatch(first)
    if match is None:
        raise Malformed("its first line is none of HTTP")
    status, headers, lengths, close = int(match[1]), Pairs(), set[bytes](), False
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.fullmatch(name):
            raise Malformed("a header is malformed")
        low, text = name.lower(), value.strip(b" \t")
        if low == b"content-length":
            lengths.add(text)
        elif low == b"transfer-encoding":
            raise Malformed("its length is not told")
        elif low == b"connection":
            close = text.lower() == b"close"
        else:
            headers.append((name.decode("ascii"), text.decode("latin-1")))
    if len(lengths) > 1 or not all(one.isdigit() and len(one) <= 18 for one in lengths):
        raise Malformed("its Content-Length is no number")
    if not lengths and status >= 200 and status not in _NO_BODY and method != "HEAD":
        raise Malformed("its length is not told")
    return status, headers, int(lengths.pop()) if lengths else 0, close


def is_gone(info: bytes) -> bool:
    """Whether TCP_INFO (tcp(7)) says that the other machine has answered nothing for GONE_S, though it was
    sent or asked something. One that only does not read says so each time it is asked."""
    again, probes, silent_ms = _INFO.unpack_from(info)
    return bool(max(again, probes) >= _UNANSWERED and silent_ms >= GONE_S * 1000)


@implementer(IHandshakeListener, IPushProducer)
class Upstream(Connection):
    """A connection to a server. `begin` a request, `send` pieces of its body, each after `up_drained`, until
    `complete`; as a producer it reads on or not. `gone` is called when it can carry no more requests."""

    transport: Any

    def __init__(self, gone: Callable[[Upstream], None]) -> None:
        self._gone = gone
        self._owner: Owner | None = None
        self._method = ""
        self._head = bytearray()
        self._left = -1  # bytes of the reply's body; -1 = its head has not come
        self._sent_all = False
        self._close = False
        self._full = False
        self._lost = False
        self._secured: Deferred[Upstream] | None = None

    def connectionMade(self) -> None:
        """Ready for a request."""
        transport = self.transport
        below: Any = transport.transport if isinstance(transport, TLSMemoryBIOProtocol) else transport
        below.bufferSize = PIECE
        below.setTcpNoDelay(True)
        below.setTcpKeepAlive(True)
        handle: socket.socket = below.getHandle()
        for option, value in _TCP.items():
            handle.setsockopt(socket.IPPROTO_TCP, option, value)
        transport.registerProducer(_Fullness(self), True)

    def secured(self) -> Deferred[Upstream]:
        """Fires when TLS is there, with the server that was meant; fails when the connection ends before."""

        def give_up(_secured: Deferred[Upstream]) -> None:
            self._secured = None
            self.abandon()

        self._secured = Deferred(give_up)
        return self._secured

    def handshakeCompleted(self) -> None:
        """From Twisted."""
        secured, self._secured = self._secured, None
        if secured is not None:
            secured.callback(self)

    def check(self) -> None:
        """End it if the server's machine is gone."""
        if self._lost or self._owner is None:
            return
        transport = self.transport
        below: Any = transport.transport if isinstance(transport, TLSMemoryBIOProtocol) else transport
        handle: socket.socket = below.getHandle()
        if is_gone(handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)):
            owner, self._owner = self._owner, None
            transport.abortConnection()
            owner.up_lost("its machine does not answer")

    # the request
    def begin(self, owner: Owner, method: str, head: bytes) -> None:
        """Send a request's head."""
        self._owner, self._method = owner, method
        self._left, self._sent_all, self._close = -1, False, False
        self._head.clear()
        self.transport.write(head)

    def send(self, *pieces: bytes | memoryview) -> bool:
        """Send them; False when more is to wait for `up_drained`."""
        for piece in pieces:
            self.transport.write(piece)
        return not self._full

    def complete(self) -> None:
        """The request has been sent whole."""
        self._sent_all = True

    def fullness(self, full: bool) -> None:
        """What was written waits, or has left."""
        self._full = full
        if not full and self._owner is not None:
            self._owner.up_drained()

    def abandon(self) -> None:
        """The owner wants no more of it."""
        self._owner = None
        if not self._lost:
            self.transport.abortConnection()

    # the reply
    def dataReceived(self, data: bytes) -> None:
        """The next bytes of it."""
        owner = self._owner
        if owner is None:  # nobody has asked
            self.transport.abortConnection()
            return
        try:
            rest = data if self._left >= 0 else self._read_heads(owner, data)
        except Malformed as bad:
            self._owner = None
            self.transport.abortConnection()
            owner.up_lost(str(bad))
            return
        if rest is not None and self._owner is owner:
            self._body(owner, rest)

    def _read_heads(self, owner: Owner, data: bytes) -> bytes | None:
        """What follows the head; None while it is not complete. Interim replies are passed over."""
        self._head += data
        while (end := self._head.find(b"\r\n\r\n")) >= 0:
            block = bytes(self._head[:end])
            del self._head[: end + 4]
            status, headers, length, close = parse_head(block, self._method)
            if status == 100:
                owner.up_continue()
            if status >= 200:
                rest = bytes(self._head)
                self._head.clear()
                self._close = close
                self._left = 0 if self._method == "HEAD" or status in _NO_BODY else length
                owner.up_head(status, headers, length)
                return rest
        if len(self._head) > HEAD_BYTES:
            raise Malformed("its head is too long")
        return None

    def _body(self, owner: Owner, data: bytes) -> None:
        if len(data) > self._left:
            self._close = True
            data = data[: self._left]
        self._left -= len(data)
        if data:
            owner.up_data(data)
        if not self._left and self._owner is owner:
            self._owner = None
            self.transport.resumeProducing()
            owner.up_end()

    @property
    def reusable(self) -> bool:
        """Whether another request may follow."""
        return not self._lost and not self._close and self._owner is None and self._sent_all

    def connectionLost(self, reason: Any = None) -> None:
        """It is over."""
        self._lost = True
        self._gone(self)
        secured, self._secured = self._secured, None
        if secured is not None:
            secured.errback(reason)
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.up_lost(reason.getErrorMessage() if reason is not None else "it ended")

    # as the producer of the client's connection
    def pauseProducing(self) -> None:
        """Read no more for now."""
        if not self._lost:
            self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        """Read on."""
        if not self._lost:
            self.transport.resumeProducing()

    def stopProducing(self) -> None:
        """The client is gone; the owner hears of it otherwise."""


@implementer(IPushProducer)
class _Fullness:
    """Hears from a transport whether what was written to it waits."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def pauseProducing(self) -> None:
        self._upstream.fullness(True)

    def resumeProducing(self) -> None:
        self._upstream.fullness(False)

    def stopProducing(self) -> None:
        """The connection is lost."""


def _endpoint(reactor: Any, server: Server, trust: Trust) -> Any:
    parts = urlsplit(server.url)
    host, port = parts.hostname or "", parts.port or (443 if server.secure else 80)
    plain = tcp_endpoint(reactor, host, port, CONNECT_S)
    return wrapClientTLS(trust.options(host), plain) if server.secure else plain


class Upstreams:
    """Connections to all servers."""

    def __init__(self, reactor: Any, trust: Trust | None = None) -> None:
        self._reactor = reactor
        self._trust = trust or Trust()
        self._kept: dict[str, list[tuple[Upstream, Any]]] = {}
        self._all: set[Upstream] = set()

    def kept(self, server: Server) -> Upstream | None:
        """An idle connection to it, if there is one."""
        idle = self._kept.get(server.url, [])
        while idle:
            found, timer = idle.pop()
            timer.cancel()
            if found.reusable:
                return found
        return None

    def connect(self, server: Server) -> Deferred[Upstream]:
        """A new one. Fails with what the endpoint says, or TLS."""
        factory = Factory.forProtocol(lambda: Upstream(self._forget))
        factory.noisy = False
        made: Deferred[Upstream] = _endpoint(self._reactor, server, self._trust).connect(factory)
        return made.addCallback(self._note, server.secure)

    def _note(self, made: Upstream, secure: bool) -> Upstream | Deferred[Upstream]:
        self._all.add(made)
        if not secure:
            return made
        late = Failure(TimeoutError(f"no TLS in {CONNECT_S:g} s"))
        return made.secured().addTimeout(CONNECT_S, self._reactor, lambda _failed, _s: late)

    def give_back(self, server: Server, upstream: Upstream) -> None:
        """Its reply is complete; it is kept for a while."""
        idle = self._kept.setdefault(server.url, [])
        if not upstream.reusable or len(idle) >= KEPT:
            upstream.abandon()
            return
        idle.append((upstream, self._reactor.callLater(KEPT_S, upstream.abandon)))

    def _forget(self, upstream: Upstream) -> None:
        self._all.discard(upstream)
        for idle in self._kept.values():
            for pair in [pair for pair in idle if pair[0] is upstream]:
                idle.remove(pair)
                if pair[1].active():
                    pair[1].cancel()

    def check(self) -> None:
        """End those whose servers' machines are gone; to be called every few seconds."""
        for upstream in list(self._all):
            upstream.check()

    def close(self) -> None:
        """End all of them."""
        for upstream in list(self._all):
            upstream.abandon()
