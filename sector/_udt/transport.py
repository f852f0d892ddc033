"""A UDT stream connection as a Twisted transport: any Protocol runs over it, with back-pressure both ways.

Also message mode: `UdtMessageTransport.send_message` and a protocol's `messageReceived(bytes)`.
Each `write` copies into the core's bounded send buffer; what does not fit waits here, and a registered
producer is paused meanwhile. Reading stops while paused, which closes the peer's window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from twisted.internet import error as twisted_errors
from twisted.internet.interfaces import IConsumer, IPushProducer, ITransport
from twisted.python.failure import Failure
from zope.interface import implementer

from sector._udt._ffi import ffi, lib
from sector._udt.address import unpack_address
from sector._udt.context import Core, struct_dict
from sector._udt.errors import CoreError, check, error_text

STREAM, MESSAGE = 1, 2
_CONNECTED, _ACCEPTED, _READABLE, _WRITABLE, _DRAINED, _PEER_CLOSED, _FAILED, _CLOSED = range(1, 9)
_AGAIN, _PEERCLOSED, _VANISHED, _UNCONFIRMED = -4, -103, -109, -110
READ_BYTES = 1 << 16
READS_PER_TURN = 16


class PeerVanished(twisted_errors.ConnectionLost):
    """A foreign peer (libudt) fell silent without a farewell, and nothing is known to be missing: all that
    came was complete and acknowledged, all of ours was acknowledged. A crash looks like that, and so does a
    normal end whose only shutdown packet was lost. `confirmed`: the peer knew that we have it all."""

    def __init__(self, code: int) -> None:
        super().__init__(error_text(code))
        self.confirmed = code == _VANISHED


def _lost(code: int) -> Failure:
    """Why a connection ended, from the core's error code."""
    if code in (_VANISHED, _UNCONFIRMED):
        return Failure(PeerVanished(code))
    return Failure(twisted_errors.ConnectionLost(str(CoreError(code))))


class UdtAddress:
    """Where a UDT connection ends: `host` an IP literal, `port` UDP."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def __repr__(self) -> str:
        return f"UdtAddress({self.host!r}, {self.port})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UdtAddress) and (self.host, self.port) == (other.host, other.port)

    def __hash__(self) -> int:
        return hash((self.host, self.port))


def socket_options(
    kind: int = STREAM, *, cc: str | None = None, max_bandwidth: int = 0, connect_timeout_s: float = 0
) -> tuple[Any, Any]:
    """A udt_sock_opts and what it points to. `max_bandwidth` bytes per second, 0 = unlimited."""
    opts = ffi.new("udt_sock_opts *")
    opts.type = kind
    opts.max_bw_Bps = max_bandwidth
    opts.connect_timeout_ms = int(connect_timeout_s * 1000)
    name = ffi.new("char[]", cc.encode()) if cc else ffi.NULL
    opts.cc = name
    return opts, name


@implementer(ITransport, IConsumer, IPushProducer)
class UdtTransport:
    """One stream connection. `on_closed` hears the last event."""

    disconnecting = False

    def __init__(
        self, core: Core, sock: int, local: tuple[str, int], on_closed: Callable[[], None] | None = None
    ) -> None:
        self._core = core
        self._sock = sock
        self._local = UdtAddress(*local)
        self._on_closed = on_closed
        self._protocol: Any = None
        self._out: deque[bytes] = deque()
        self._producer: Any = None
        self._streaming = False
        self._producer_paused = False
        self._paused = False
        self._reading = False
        self._reason: Failure | None = None
        self._closing = False
        self._buffer = ffi.new("uint8_t[]", READ_BYTES)
        self.connected = True
        self.final_stats: dict[str, int] = {}
        core.watch(sock, self.event)

    def start(self, protocol: Any) -> None:
        """Bind the protocol and begin to read."""
        self._protocol = protocol
        protocol.makeConnection(self)
        self._read()

    # events of the core
    def event(self, event: Any) -> None:
        """One event of this socket."""
        if event.kind == _READABLE:
            self._read()
        elif event.kind == _WRITABLE:
            self._flush()
        elif event.kind == _PEER_CLOSED:
            self._read()
        elif event.kind == _FAILED:
            if self._closing:
                self._reason = self._reason or _lost(event.err)
            else:
                self._read()  # what has arrived before comes first, then the error
        elif event.kind == _CLOSED:
            if event.err and self._reason is None:
                lost = f"not all that was sent has arrived: {CoreError(event.err)}"
                self._reason = Failure(twisted_errors.ConnectionLost(lost))
            self._gone()

    def _gone(self) -> None:
        self.connected = False
        self.final_stats = self.stats()  # the core keeps them until this event was handled
        self._core.unwatch(self._sock)
        self._out.clear()
        protocol, self._protocol = self._protocol, None
        if self._producer is not None:
            self._producer.stopProducing()
            self._producer = None
        if protocol is not None:
            protocol.connectionLost(self._reason or Failure(twisted_errors.ConnectionDone()))
        if self._on_closed is not None:
            self._on_closed()

    def _take(self) -> int:
        size: int = lib.udt_recv(self._core.ctx, self._sock, self._buffer, READ_BYTES)
        return size

    def _deliver(self, data: bytes) -> None:
        self._protocol.dataReceived(data)

    def _read(self) -> None:
        if self._reading or self._protocol is None:
            return
        self._reading = True
        try:
            for _ in range(READS_PER_TURN):
                if self._paused or self._closing or self._protocol is None:
                    return
                size = self._take()
                if size == _AGAIN:
                    return
                if size < 0:
                    if size != _PEERCLOSED:
                        self._reason = _lost(size)
                    elif self._out:
                        unsent = "closed by the peer before all was sent"
                        self._reason = Failure(twisted_errors.ConnectionLost(unsent))
                    self._close(0)
                    return
                self._deliver(ffi.buffer(self._buffer, size)[:])
            self._core.reactor.callLater(0, self._read)
        finally:
            self._reading = False

    def _flush(self) -> None:
        while self._out:
            data = self._out[0]
            sent = lib.udt_send(self._core.ctx, self._sock, data, len(data))
            if sent == _AGAIN:
                self._pause_producer()
                return
            if sent < 0:
                self._out.clear()
                self._reason = self._reason or _lost(sent)
                self._close(0)
                return
            if sent < len(data):
                self._out[0] = data[sent:]
            else:
                self._out.popleft()
        self._written()

    def _written(self) -> None:
        if self._producer is not None and (self._producer_paused or not self._streaming):
            self._producer_paused = False
            self._producer.resumeProducing()
        elif self.disconnecting and self._producer is None:
            self._close(-1)

    def _pause_producer(self) -> None:
        if self._producer is not None and self._streaming and not self._producer_paused:
            self._producer_paused = True
            self._producer.pauseProducing()

    def _close(self, linger_ms: int) -> None:
        if not self._closing:
            self._closing = True
            lib.udt_close(self._core.ctx, self._sock, linger_ms)

    # ITransport
    def write(self, data: bytes) -> None:
        """Queue bytes (copied)."""
        if not data or self._closing or self.disconnecting:
            return
        self._out.append(bytes(data))
        if len(self._out) == 1:
            self._flush()
        elif len(self._out) > 16:
            self._pause_producer()

    def writeSequence(self, data: Any) -> None:
        """Queue several chunks."""
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        """Close when all written bytes are acknowledged."""
        self.disconnecting = True
        if not self._out and self._producer is None:
            self._close(-1)

    def abortConnection(self) -> None:
        """Close at once; unsent bytes are lost."""
        self._reason = Failure(twisted_errors.ConnectionAborted())
        self._out.clear()
        self._close(0)

    def getPeer(self) -> UdtAddress:
        """The other end."""
        out = ffi.new("udt_addr *")
        check(lib.udt_sock_peer(self._core.ctx, self._sock, out))
        return UdtAddress(*unpack_address(out[0]))

    def getHost(self) -> UdtAddress:
        """This end's port."""
        return self._local

    # IConsumer
    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Attach a producer that is paused when the send buffer is full."""
        if self._producer is not None:
            raise RuntimeError("a producer is registered already")
        self._producer, self._streaming = producer, streaming
        if not streaming:
            producer.resumeProducing()

    def unregisterProducer(self) -> None:
        """The producer is done."""
        self._producer = None
        if self.disconnecting and not self._out:
            self._close(-1)

    # IPushProducer
    def pauseProducing(self) -> None:
        """Stop reading; the peer's window closes."""
        self._paused = True

    def resumeProducing(self) -> None:
        """Read on."""
        self._paused = False
        self._core.reactor.callLater(0, self._read)

    def stopProducing(self) -> None:
        """Close."""
        self.loseConnection()

    def stats(self) -> dict[str, int]:
        """udt_sock_stats of this connection, at most 250 ms old; after its end the final ones."""
        out = ffi.new("udt_sock_stats *")
        if lib.udt_stats_get(self._core.ctx, self._sock, out) < 0:
            return self.final_stats
        return struct_dict(out[0])


class UdtMessageTransport(UdtTransport):
    """One message connection: whole messages in and out. `write(data)` sends one in-order message."""

    def _take(self) -> int:
        size: int = lib.udt_recvmsg(self._core.ctx, self._sock, self._buffer, len(self._buffer))
        if size > len(self._buffer):
            size = len(self._buffer)
        return size

    def __init__(self, *args: Any, max_message: int = 16 << 20, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._buffer = ffi.new("uint8_t[]", max_message)

    def _deliver(self, data: bytes) -> None:
        self._protocol.messageReceived(data)

    def _flush(self) -> None:
        while self._out:
            data = self._out[0]
            sent = lib.udt_sendmsg(self._core.ctx, self._sock, data, len(data), -1, True)
            if sent == _AGAIN:
                self._pause_producer()
                return
            if sent < 0:
                self._out.clear()
                self._reason = self._reason or _lost(sent)
                self._close(0)
                return
            self._out.popleft()
        self._written()


def make_transport(kind: int) -> type[UdtTransport]:
    """The transport class of a socket type."""
    return UdtMessageTransport if kind == MESSAGE else UdtTransport
