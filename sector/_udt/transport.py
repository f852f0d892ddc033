"""A UDT stream connection as a Twisted transport: any Protocol runs over it, with back-pressure both ways.

Also message mode: `UdtMessageTransport`, whose `write` sends one message and whose protocol has
`messageReceived(bytes)`.

Writing: each `write` goes into the core's bounded send buffer; what does not fit waits here, and a
registered producer is paused meanwhile (a pull producer is not asked again). Reading: while paused nothing is
taken from the core, whose receive buffer is bounded too; when it is full the peer's window closes, its send
buffer fills, and its producer is paused. UDT has no half-close: there is no `loseWriteConnection`, and
`loseConnection` ends both directions once all that was written is acknowledged; what the peer sends meanwhile
is not delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from twisted.internet import error as twisted_errors
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IConsumer, IPushProducer, ITransport
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from sector._udt._ffi import ffi, lib
from sector._udt.address import source_towards, unpack_address
from sector._udt.context import Core, CoreEvent, struct_dict
from sector._udt.errors import check
from sector._udt.reasons import PeerVanished, UdtConnectionLost, lost
from sector._udt.trace import Trace

log = Logger()
STREAM, MESSAGE = 1, 2
_CONNECTED, _ACCEPTED, _READABLE, _WRITABLE, _DRAINED, _PEER_CLOSED, _FAILED, _CLOSED = range(1, 9)
_AGAIN, _TOO_BIG, _PORT_CLOSED, _PEERCLOSED = -4, -5, -8, -103
_OF_THE_PEER = -100  # error codes from here on: the peer or the network, and the connection has ended
_ANY = ("0.0.0.0", "::")
_UNSENT = "closed by the peer before all was sent"
READ_BYTES = 1 << 16
READS_PER_TURN = 16
PULLS_PER_TURN = 16
WRITES_WAITING = 16
MAX_MESSAGE = 16 << 20
BUFFER_BYTES = 8192 * 1456  # of the core in message mode, unless UdtOptions say
KEY_BYTES = 32
CONGESTION_CONTROL = ("bbr", "udt", "cubic", "fixed")
# of UdtOptions, where they are not 0
_BOUNDS = (
    ("mss", 576, 65535),
    ("max_bandwidth", 1, 1 << 62),
    ("connect_timeout_s", 0.001, 86400),
    ("idle_timeout_s", 0.001, 86400),
    ("send_buffer", 65536, 1 << 31),
    ("receive_buffer", 65536, 1 << 31),
    ("tag", 1, 0xFFFFFFFF),
)


def udt_address(host: str, port: int) -> IPv4Address | IPv6Address:
    """Where a connection ends, in the class that protocols and logs know."""
    return IPv6Address("UDP", host, port) if ":" in host else IPv4Address("UDP", host, port)


@dataclass(frozen=True, slots=True)
class UdtOptions:
    """How a connection is made and runs; 0 and None leave the choice to the core.

    `kind` STREAM or MESSAGE; `cc` the congestion control ("udt" towards any peer; see `udtcat --help`);
    `mss` bytes of a packet with its UDP and IP headers; `max_bandwidth` bytes per second;
    `connect_timeout_s` 3 s by default, of a rendezvous 30 s; `idle_timeout_s` of silence until a peer counts
    as dead; `send_buffer` and `receive_buffer` bytes at most (else as the flow needs); `tag` of a rendezvous;
    `key` KEY_BYTES that both ends have: every packet is sealed, and a peer that cannot prove the key is
    refused, a foreign one (libudt) too; without a key nothing is encrypted or authenticated; `trace` records
    what happens, of a server in all its connections. Raises ValueError."""

    kind: int = STREAM
    cc: str | None = None
    mss: int = 0
    max_bandwidth: int = 0
    connect_timeout_s: float = 0
    idle_timeout_s: float = 0
    send_buffer: int = 0
    receive_buffer: int = 0
    tag: int = 0
    key: bytes | None = field(default=None, repr=False)
    trace: Trace | None = None

    def __post_init__(self) -> None:
        if self.kind not in (STREAM, MESSAGE):
            raise ValueError(f"kind is STREAM or MESSAGE, not {self.kind!r}")
        if self.cc and self.cc not in CONGESTION_CONTROL:
            raise ValueError(f"cc {self.cc!r} is none of {', '.join(CONGESTION_CONTROL)}")
        if self.key is not None and len(self.key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(self.key)}")
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            if value and not low <= value <= high:
                raise ValueError(f"{name} is 0 or within {low:g} and {high:g}, not {value}")

    @property
    def max_message(self) -> int:
        """Bytes of the largest message that can be sent: it must fit into the send buffer."""
        return min(self.send_buffer or BUFFER_BYTES, MAX_MESSAGE)

    def packed(self) -> tuple[Any, Any]:
        """A udt_sock_opts and what it points to."""
        opts = ffi.new("udt_sock_opts *")
        opts.type = self.kind
        opts.mss = self.mss
        opts.max_bw_Bps = self.max_bandwidth
        opts.connect_timeout_ms = int(self.connect_timeout_s * 1000)
        opts.idle_timeout_ms = int(self.idle_timeout_s * 1000)
        opts.snd_buf_bytes = self.send_buffer
        opts.rcv_buf_bytes = self.receive_buffer
        opts.tag = self.tag
        opts.trace = self.trace.raw if self.trace is not None else ffi.NULL
        name = ffi.new("char[]", self.cc.encode()) if self.cc else ffi.NULL
        opts.cc = name
        key = ffi.NULL
        if self.key is not None:
            key = ffi.new("uint8_t[]", self.key)
            opts.psk, opts.require_key = key, True
        return opts, (name, key)


@implementer(ITransport, IConsumer, IPushProducer)
class UdtTransport:
    """One stream connection. `on_closed` hears the last event."""

    disconnecting = False

    def __init__(
        self, core: Core, sock: int, local: tuple[str, int], on_closed: Callable[[], None] | None = None
    ) -> None:
        self._core = core
        self._sock = sock
        self._local = udt_address(*local)
        self._on_closed = on_closed
        self._protocol: Any = None
        self._out: deque[bytes] = deque()
        self._offset = 0  # bytes of the first that are sent
        self._producer: Any = None
        self._streaming = False
        self._producer_paused = False
        self._paused = False
        self._reading = False
        self._reason: Failure | None = None
        self._closing = False
        self._lingering = False  # closing, when all that was written is acknowledged
        self._over: Failure | None = None  # the peer is gone; what it sent before may still be read
        self._buffer: Any = None
        self._pulling = False
        self._read_due = self._pull_due = False  # the reactor will call: once, however often it was asked to
        self._written_through = False
        self._peer: IPv4Address | IPv6Address | None = None
        self._tls: Any = None  # the layer that startTLS has put below the protocol
        self.is_client = False  # this end has connected: with startTLS it is the client there too
        self.connected = True
        self.final_stats: dict[str, int] = {}
        self.discarded = 0  # bytes that came after loseConnection
        core.watch(sock, self.event)

    def start(self, protocol: Any) -> None:
        """Bind the protocol and begin to read, when who connected has heard of it. What its connectionMade
        raises ends the connection."""
        self._protocol = protocol
        self.getPeer()  # remembered for the time after the end
        try:
            protocol.makeConnection(self)
        except Exception:
            self._break(Failure())
            raise
        self._read_soon()

    def _read_soon(self) -> None:
        if not self._read_due:
            self._read_due = True
            self._core.reactor.callLater(0, self._read_now)

    def _read_now(self) -> None:
        self._read_due = False
        self._read()

    # events of the core
    def event(self, event: CoreEvent) -> None:
        """One event of this socket."""
        if event.kind == _READABLE:
            if not self._read_due:
                self._read()
        elif event.kind == _WRITABLE:
            self._asked(self._flush)
        elif event.kind == _PEER_CLOSED:
            self._over = self._over or self._unsent(_PEERCLOSED)
            self._read()
        elif event.kind == _FAILED:
            if self._closing:
                self._reason = self._reason or lost(event.err)
            else:
                self._over = self._over or lost(event.err)
                self._read()  # what has arrived before comes first, then the error
        elif event.kind == _CLOSED:
            if event.err and self._reason is None:
                self._reason = lost(event.err, "not all that was sent has arrived")
            elif not self._closing:
                self._reason = self._reason or lost(_PORT_CLOSED)
            self._gone()

    def _gone(self) -> None:
        if not self.connected:
            return
        self.final_stats = self.stats()  # the core keeps them until this event was handled
        self.connected = False
        self._core.unwatch(self._sock)
        self._out.clear()
        protocol, self._protocol = self._protocol, None
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                producer.stopProducing()
            except Exception:  # the others hear of the end all the same
                log.failure("a producer raised in stopProducing")
        if self._on_closed is not None:
            self._on_closed()  # first: who hears of the end may wait for what ends with it
        if protocol is not None:
            protocol.connectionLost(self._reason or Failure(twisted_errors.ConnectionDone()))

    def _take(self) -> int:
        self._buffer = self._core.scratch(READ_BYTES)
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
                if self._closing or self._protocol is None:
                    return
                if self._paused:
                    if self._over is not None and self._out:
                        self._break(self._over)  # nobody reads up to the end, but somebody waits for room
                    return
                size = self._take()
                if size == _AGAIN:
                    return
                if size < 0:
                    if size != _PEERCLOSED or self._out:
                        self._reason = self._unsent(size)
                    self._close(0)
                    return
                if self.disconnecting:
                    self.discarded += size  # it comes too late
                    continue
                try:
                    self._deliver(ffi.buffer(self._buffer, size)[:])
                except Exception:
                    log.failure("a protocol raised where data came; its connection ends")
                    self._break(Failure())
                    return
            self._read_soon()
        finally:
            self._reading = False

    def _send(self, data: bytes) -> int:
        """Offer what is left of the first chunk: bytes taken, or an error."""
        rest = ffi.from_buffer("uint8_t[]", data) + self._offset
        sent: int = lib.udt_send(self._core.ctx, self._sock, rest, len(data) - self._offset)
        return sent

    def _flush(self) -> None:
        while self._out:
            data = self._out[0]
            sent = self._send(data)
            if sent == _AGAIN:
                self._pause_producer()
                return
            if sent < 0:
                self._refused(sent)
                return
            self._offset += sent
            if self._offset == len(data):
                self._out.popleft()
                self._offset = 0
        self._written()

    def _refused(self, code: int) -> None:
        """Nothing more can be sent. Where the connection has ended, what has arrived before comes first."""
        if code > _OF_THE_PEER:
            self._break(lost(code))
            return
        self._pause_producer()
        self._over = self._over or self._unsent(code)
        self._read_soon()

    @staticmethod
    def _unsent(code: int) -> Failure:
        return Failure(UdtConnectionLost(_UNSENT, "PEERCLOSED")) if code == _PEERCLOSED else lost(code)

    def _written(self) -> None:
        self._written_through = True
        if self._producer is not None:
            if not self._streaming:
                self._pull()
            elif self._producer_paused:
                self._producer_paused = False
                self._producer.resumeProducing()
        elif self.disconnecting:
            self._close(-1)

    def _pull(self) -> None:
        """Ask a pull producer while what it writes goes out at once; then the reactor has its turn."""
        if self._pulling:
            return
        self._pulling = True
        try:
            for _ in range(PULLS_PER_TURN):
                if self._producer is None or self._streaming or self._out or self._closing:
                    return
                self._written_through = False
                self._producer.resumeProducing()
                if not self._written_through:
                    return  # it wrote nothing, or not all of it went out: the next write asks again
            if not self._pull_due:
                self._pull_due = True
                self._core.reactor.callLater(0, self._pull_on)
        finally:
            self._pulling = False

    def _pull_on(self) -> None:
        self._pull_due = False
        self._asked(self._pull)

    def _asked(self, producer: Callable[[], None]) -> None:
        """The core or the reactor asks a producer for more. One that raises would never be asked again, and
        had more to say."""
        try:
            producer()
        except Exception:
            log.failure("a producer raised where it was asked for more; its connection ends")
            self._reason = self._reason or Failure()
            self._abort(True)

    def _pause_producer(self) -> None:
        if self._producer is not None and self._streaming and not self._producer_paused:
            self._producer_paused = True
            self._producer.pauseProducing()

    def _break(self, reason: Failure) -> None:
        """Close at once, for this reason if there is none yet."""
        self._reason = self._reason or reason
        self._abort(bool(self._out))

    def _abort(self, is_unfinished: bool, silent: bool = False) -> None:
        self._out.clear()
        self._offset = 0
        if is_unfinished and not self._closing and self.connected:
            self._closing = True
            lib.udt_abort(self._core.ctx, self._sock, silent)
        self._close(0)

    def _close(self, linger_ms: int) -> None:
        if not self._closing and self.connected:
            self._closing, self._lingering = True, linger_ms != 0
            lib.udt_close(self._core.ctx, self._sock, linger_ms)

    # ITransport; after startTLS by way of its layer, which writes below
    def write(self, data: bytes) -> None:
        """Queue bytes (copied). After loseConnection only a producer that is still registered may write."""
        if self._tls is None:
            self.write_below(data)
        elif self.connected:
            self._tls.write(data)

    def write_below(self, data: bytes) -> None:
        """Queue bytes as they go to the peer."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data must be bytes, not {type(data).__name__}")
        if not data or self._closing or not self.connected:
            return
        if self.disconnecting and self._producer is None:
            return
        self._out.append(bytes(data))
        if len(self._out) == 1:
            self._flush()
        elif len(self._out) > WRITES_WAITING:
            self._pause_producer()

    def writeSequence(self, data: Any) -> None:
        """Queue several chunks."""
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        """Close when all written bytes are acknowledged."""
        if self._tls is None:
            self.lose_below()
        elif self.connected and not self.disconnecting:
            self._tls.loseConnection()

    def lose_below(self) -> None:
        """Close when all that was queued is acknowledged."""
        self.disconnecting = True
        if not self._out and self._producer is None:
            self._close(-1)

    def abortConnection(self) -> None:
        """Close at once, also what loseConnection lets end; what has not arrived is lost, and one of our own
        peers is told so. A producer that is still registered had more to say."""
        self._end_at_once(False, bool(self._out) or self._producer is not None)

    def breakOff(self) -> None:
        """As abortConnection, for a program that is itself cut short. A libudt peer would take a farewell for
        the proper end, so it gets none and finds out by the silence."""
        self._end_at_once(True, True)

    def _end_at_once(self, silent: bool, is_unfinished: bool) -> None:
        if not self.connected:
            return
        self._reason = Failure(twisted_errors.ConnectionAborted())
        if self._lingering:
            self._lingering = False
            lib.udt_close(self._core.ctx, self._sock, 0)
        self._abort(is_unfinished, silent)

    def getPeer(self) -> IPv4Address | IPv6Address:
        """The other end, where it was when the connection was made."""
        if self._peer is None:
            out = ffi.new("udt_addr *")
            check(lib.udt_sock_peer(self._core.ctx, self._sock, out))
            self._peer = udt_address(*unpack_address(out[0]))
        return self._peer

    def getHost(self) -> IPv4Address | IPv6Address:
        """This end: its port, and the address that it sends to the peer from, where the port is bound to
        all of the machine's."""
        if self._local.host in _ANY:
            peer = self.getPeer()
            found = source_towards(peer.host, peer.port)
            if found is not None:
                self._local = udt_address(found, self._local.port)
        return self._local

    # IConsumer
    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Attach a producer that is paused when the send buffer is full."""
        if self._tls is None:
            self.register_below(producer, streaming)
        else:
            self._tls.registerProducer(producer, streaming)

    def register_below(self, producer: Any, streaming: bool) -> None:
        """Attach whoever writes as it goes to the peer."""
        if self._producer is not None:
            raise RuntimeError("a producer is registered already")
        if not self.connected or self._closing:
            producer.stopProducing()
            return
        self._producer, self._streaming, self._producer_paused = producer, streaming, False
        if not streaming:
            self._pull()
        elif len(self._out) > WRITES_WAITING:
            self._pause_producer()

    def unregisterProducer(self) -> None:
        """The producer is done."""
        if self._tls is None:
            self.unregister_below()
        else:
            self._tls.unregisterProducer()

    def unregister_below(self) -> None:
        """Who wrote as it goes to the peer is done."""
        self._producer = None
        if self.disconnecting and not self._out:
            self._close(-1)

    # what TCP's transports have for protocols that are written for them
    def startTLS(self, contextFactory: Any, normal: bool = True) -> None:
        """TLS from here on, as over TCP: what the protocol writes and gets is unencrypted, what goes to the
        peer is. The end that has connected is TLS's client (`normal` False: its server); of a rendezvous both
        have, so one of them says False."""
        from sector._udt import starttls

        producer, streaming = self._producer, self._streaming
        if producer is not None:
            self.unregisterProducer()
        self._tls = self._protocol = starttls.begin(
            self, self._protocol, contextFactory, self.is_client == normal
        )
        if producer is not None:
            self.registerProducer(producer, streaming)

    @property
    def TLS(self) -> bool:
        """Whether startTLS was called."""
        return self._tls is not None

    def getTcpNoDelay(self) -> bool:
        """UDT sends at once what it may send."""
        return True

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Nothing to set."""

    def getTcpKeepAlive(self) -> bool:
        """UDT looks after a peer that is silent."""
        return True

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """Nothing to set; `UdtOptions.idle_timeout_s` says how long a silent peer is waited for."""

    # IPushProducer
    def pauseProducing(self) -> None:
        """Stop reading; the peer's window closes."""
        self._paused = True

    def resumeProducing(self) -> None:
        """Read on."""
        self._paused = False
        self._read_soon()

    def stopProducing(self) -> None:
        """Close."""
        self.loseConnection()

    def stats(self) -> dict[str, int]:
        """udt_sock_stats of this connection, at most 250 ms old; after its end the final ones."""
        if not self.connected:
            return self.final_stats
        out = ffi.new("udt_sock_stats *")
        if lib.udt_stats_get(self._core.ctx, self._sock, out) < 0:
            return self.final_stats
        return struct_dict(out[0])


class UdtMessageTransport(UdtTransport):
    """One message connection: whole messages in and out."""

    max_message = BUFFER_BYTES

    def write(self, data: bytes) -> None:
        """Queue one in-order message (copied). Raises ValueError above UdtOptions.max_message bytes."""
        if isinstance(data, (bytes, bytearray, memoryview)) and memoryview(data).nbytes > self.max_message:
            raise ValueError(f"a message has at most {self.max_message} bytes, not {memoryview(data).nbytes}")
        super().write(data)

    def startTLS(self, contextFactory: Any, normal: bool = True) -> None:
        """Raises NotImplementedError: TLS needs a stream."""
        raise NotImplementedError("TLS needs a stream; messages are sealed with UdtOptions(key=...)")

    def _take(self) -> int:
        self._buffer = self._core.scratch(MAX_MESSAGE)
        size: int = lib.udt_recvmsg(self._core.ctx, self._sock, self._buffer, MAX_MESSAGE)
        return size if size <= MAX_MESSAGE else _TOO_BIG  # a part of it is no message

    def _deliver(self, data: bytes) -> None:
        self._protocol.messageReceived(data)

    def _send(self, data: bytes) -> int:
        code: int = lib.udt_sendmsg(self._core.ctx, self._sock, data, len(data), -1, True)
        return code if code < 0 else len(data)


def make_transport(
    options: UdtOptions, core: Core, sock: int, local: tuple[str, int], on_closed: Callable[[], None]
) -> UdtTransport:
    """The transport that the options ask for."""
    if options.kind != MESSAGE:
        return UdtTransport(core, sock, local, on_closed)
    transport = UdtMessageTransport(core, sock, local, on_closed)
    transport.max_message = options.max_message
    return transport


__all__ = [
    "MESSAGE",
    "STREAM",
    "PeerVanished",
    "UdtMessageTransport",
    "UdtOptions",
    "UdtTransport",
    "make_transport",
    "udt_address",
]
