"""TLS channels: login, join, and masters to the security server (spec/security.md, TLS channels).

TLS 1.3 only, against the cluster's private CA, pinned by its file or its SHA-256. A frame is a u32 length
(big-endian) and that many bytes of msgpack: a request [number, body], a reply [0, body] or a refusal
[1, [code, message, hint]]; at most 64 KiB, one request at a time, 10 s for each. Who shows no certificate
and is refused a session, or told to come later, has to connect again.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast
from typing import Protocol as Protocols

import msgspec
from OpenSSL import SSL
from twisted.internet import defer, error
from twisted.internet.interfaces import (
    IHandshakeListener,
)
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from sector import errors, keys, pki
from sector.frames import FrameBuffer, Refusal, frame, parse_frame
from sector.pki import Credentials, Identity, Trust, load_node
from sector.resolve import tcp_endpoint
from sector.tls_contexts import ClientTls, ServerTls
from sector.wire.base import REGISTRY, Message, Request, decode, encode
from sector.wire.login import Resume

__all__ = [
    "Credentials",
    "Identity",
    "TlsCaller",
    "TlsServer",
    "Trust",
    "load_node",
    "open_tls",
    "tls_request",
]
log = Logger()

DEADLINE_S = 10.0
IDLE_S = 60.0
MAX_CONNECTIONS = 1024
_FINAL = (errors.SessionExpired, errors.LoginRefused, errors.Busy)
"""Refusals after which a stranger's connection is closed."""


def _peer_identity(connection: SSL.Connection, trust: Trust) -> Identity | None:
    """Who stands at the other end, checked once more by ourselves; None without a certificate.

    Raises `NotAllowed`."""
    leaf = connection.get_peer_certificate(as_cryptography=True)
    if leaf is None:
        return None
    ca = trust.ca
    if ca is None:
        chain = connection.get_peer_cert_chain(as_cryptography=True) or []
        ca = next((certificate for certificate in chain if trust.is_ca(certificate)), None)
    if ca is None:
        raise errors.NotAllowed("the server does not show the CA that is pinned")
    return pki.check_certificate(leaf, ca, datetime.now(UTC))


def exporter(connection: SSL.Connection) -> bytes:
    """32 bytes that only the two ends of this TLS connection know (RFC 8446 section 7.5)."""
    value: bytes = connection.export_keying_material(keys.EXPORTER_LABEL, 32, b"")
    return value


def literal(host: str) -> str:
    """The canonical address of a socket's peer: without zone, IPv4 in IPv6 form as IPv4."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def site(address: str) -> str:
    """Whoever is counted for what comes from an IP literal: the address, of IPv6 its /64, which is one
    subscriber's to choose addresses from."""
    found = ipaddress.ip_address(address)
    return address if found.version == 4 else str(ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))


# server ---------------------------------------------------------------------------------------------
class _Listener(TLSMemoryBIOFactory):
    """Closes a connection at once, before any TLS, when the server has no room for it."""

    def buildProtocol(self, addr: Any) -> Any:
        server: Any = self.wrappedFactory
        return super().buildProtocol(addr) if server.has_room() else None


@dataclass(frozen=True)
class TlsPeer:
    """Who sent a request: `address` of its socket (IP literal), `identity` from its certificate, None
    for clients; `exporter` of the connection (32 bytes)."""

    address: str
    identity: Identity | None
    exporter: bytes = field(repr=False)


Handler = Callable[[Any, TlsPeer], Awaitable["Message | Switch"]]


class Raw(Protocols):
    """Takes a connection over after a request was answered."""

    def data(self, data: bytes) -> None:
        """Bytes from the peer."""

    def ended(self) -> None:
        """The connection is gone."""


@dataclass(frozen=True)
class Switch:
    """A handler's reply after which the connection carries something else: `begin(transport)` makes it. A
    SectorError that it raises is sent in place of the reply."""

    reply: Message
    begin: Callable[[Any], Raw]
    idle_s: float


class TlsServer(Factory):
    """Serves requests over TLS. `handlers` request class -> async handler(request, peer) -> reply (to no one
    who has not proved that he may ask); `roles` whose certificates may come (others are refused before any
    request), () = anyone."""

    noisy = False

    def __init__(
        self,
        clock: Any,
        mine: Credentials,
        trust: Trust,
        handlers: dict[type[Request], Handler],
        *,
        roles: tuple[str, ...] = (),
        idle_s: float = IDLE_S,
        renewed: Callable[[], Credentials | None] = lambda: None,
    ) -> None:
        """`renewed()` gives another certificate when there is one."""
        self.clock = clock
        self.trust = trust
        self.cluster = mine.identity.cluster
        self.roles = roles
        self.idle_s = idle_s
        self.handlers = {cls.NUMBER: (cls, handler) for cls, handler in handlers.items()}
        self.open: dict[ServerProtocol, None] = {}  # the oldest first
        self._tls = ServerTls(mine, trust, need_cert=bool(roles), renewed=renewed)

    def listener(self) -> TLSMemoryBIOFactory:
        """The factory to give to listenTCP."""
        factory = _Listener(cast(Any, self._tls), False, cast(Any, self), clock=self.clock)
        factory.noisy = False
        return factory

    def has_room(self) -> bool:
        """Whether a further connection may come; the oldest that has proved nothing makes room for it."""
        if len(self.open) < MAX_CONNECTIONS:
            return True
        stranger = next((protocol for protocol in self.open if not protocol.proved), None)
        if stranger is None:
            return False
        del self.open[stranger]
        stranger.drop()
        return True

    def buildProtocol(self, addr: Any) -> Protocol:
        return ServerProtocol(self, literal(addr.host))

    def close_all(self, role: str = "", node_id: str = "") -> None:
        """Drop open connections: all of them, or those of one node."""
        for protocol in list(self.open):
            who = protocol.identity
            if not role or (who is not None and (who.role, who.id) == (role, node_id)):
                protocol.drop()


@implementer(IHandshakeListener)
class ServerProtocol(Protocol):
    """One connection at the server."""

    transport: Any

    def __init__(self, server: TlsServer, address: str) -> None:
        self.server = server
        self.address = address
        self.identity: Identity | None = None
        self.proved = False  # by a certificate, or by what a good reply was given to
        self._buffer = FrameBuffer()
        self._busy = False
        self._running: defer.Deferred[Any] | None = None
        self._ready = False
        self._over = False
        self._timer: Any = None
        self._raw: Raw | None = None
        self._raw_idle_s = 0.0

    @property
    def established(self) -> bool:
        """Whether the handshake is complete and the peer may ask."""
        return self._ready

    def connectionMade(self) -> None:
        self.server.open[self] = None
        self._wait(DEADLINE_S)

    def _wait(self, seconds: float) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.reset(seconds)
        else:
            self._timer = self.server.clock.callLater(seconds, self.drop)

    def drop(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abortConnection()

    def handshakeCompleted(self) -> None:
        try:
            who = _peer_identity(self.transport.getHandle(), self.server.trust)
            roles = self.server.roles
            if roles and (who is None or who.role not in roles):
                raise errors.NotAllowed(f"{who.principal if who else 'a peer'} may not connect here")
            if who is not None and who.cluster != self.server.cluster:
                raise errors.NotAllowed("the certificate is from another cluster")
        except errors.NotAllowed as bad:
            log.info("refused connection from {address}: {why}", address=self.address, why=bad.message)
            self.transport.write(frame(1, encode(Refusal(bad.code, bad.message, bad.hint))))
            self.transport.loseConnection()
            return
        self.identity = who
        self.proved = who is not None
        self._ready = True

    def dataReceived(self, data: bytes) -> None:
        if self._raw is not None:
            self._wait(self._raw_idle_s)
            self._raw.data(data)
            return
        try:
            if not self._ready or self._over:
                return
            if self._busy:
                raise errors.Protocol("a second request before the reply: one request at a time")
            inner = self._buffer.feed(data)
            if inner is None:
                return
            number, body = parse_frame(inner)
        except errors.Protocol as bad:
            log.debug("malformed input from {address}: {why}", address=self.address, why=bad.message)
            self._last_word(frame(1, encode(Refusal(bad.code, bad.message[:1000]))))
            return
        self._wait(DEADLINE_S)
        self._busy = True
        self._running = defer.ensureDeferred(self._answer(number, body))
        self._running.addErrback(self._broken)

    async def _answer(self, number: int, body: bytes) -> None:
        idle_s, last = self.server.idle_s, False
        try:
            found = self.server.handlers.get(number)
            if found is None:
                name = REGISTRY[number].__name__ if number in REGISTRY else f"request {number:#x}"
                raise errors.Protocol(f"{name} is not served here")
            cls, handler = found
            peer = TlsPeer(self.address, self.identity, exporter(self.transport.getHandle()))
            answer = await handler(decode(cls, body), peer)
            if isinstance(answer, Switch):
                if self not in self.server.open:
                    return
                self._raw_idle_s = idle_s = answer.idle_s
                self._raw = answer.begin(self.transport)  # before it is promised: it may fail
                answer = answer.reply
            reply = frame(0, encode(answer))
            self.proved = True
        except errors.SectorError as refused:
            reply = frame(1, encode(Refusal(refused.code, refused.message[:4000], refused.hint[:1000])))
            last = self.identity is None and isinstance(refused, _FINAL)
        self._busy = False
        if self not in self.server.open:
            return
        if last:
            self._last_word(reply)
            return
        self._reply(reply)
        self._wait(idle_s)

    def _reply(self, data: bytes) -> None:
        self.transport.write(data)

    def _last_word(self, data: bytes) -> None:
        self._over = True
        self._reply(data)
        self.transport.loseConnection()

    def _broken(self, failure: Failure) -> None:
        self._busy = False
        if failure.check(defer.CancelledError):
            return
        log.failure("request from {address} failed", failure, address=self.address)
        self.drop()

    def connectionLost(self, reason: Failure = Failure(error.ConnectionDone())) -> None:
        self.server.open.pop(self, None)
        self._ready = False
        if self._raw is not None:
            self._raw.ended()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if self._running is not None:
            self._running.cancel()


# client ---------------------------------------------------------------------------------------------
class TlsCaller:
    """An open, checked connection to a server; calls run one after the other."""

    def __init__(self, protocol: _ClientProtocol, where: str, identity: Identity) -> None:
        self._protocol = protocol
        self._lock = defer.DeferredLock()
        self.where = where
        self.identity = identity

    @property
    def connected(self) -> bool:
        """Whether the connection still stands."""
        return self._protocol.lost is None

    def exporter(self) -> bytes:
        """32 bytes bound to this connection."""
        return exporter(self._protocol.transport.getHandle())

    async def call(self, request: Request) -> Any:
        """Send `request`, return its reply. Raises the server's error, `Unreachable`, `TimedOut`."""
        await self._lock.acquire()
        try:
            inner = await self._protocol.exchange(frame(type(request).NUMBER, encode(request)))
        finally:
            self._lock.release()
        number, body = parse_frame(inner)
        if number == 0:
            return decode(type(request).REPLY, body)
        raise refusal(body)

    def switch(self, begin: Callable[[Any], Raw]) -> Raw:
        """From now on the connection carries something else (after the reply that allowed it)."""
        self._protocol.raw = begin(self._protocol.transport)
        return self._protocol.raw

    def close(self) -> None:
        """End the connection."""
        if self._protocol.transport is not None:
            self._protocol.transport.loseConnection()


def refusal(body: bytes) -> errors.SectorError:
    """The error in a refusal."""
    try:
        told = msgspec.msgpack.decode(body, type=Refusal)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as bad:
        return errors.Protocol(f"malformed refusal: {bad}")
    return errors.from_wire(told.code, told.message, told.hint)


@implementer(IHandshakeListener)
class _ClientProtocol(Protocol):
    transport: Any

    def __init__(self, clock: Any, where: str, tls: ClientTls, shows_cert: bool) -> None:
        self.clock = clock
        self.where = where
        self.tls = tls
        self.shows_cert = shows_cert
        self.handshake: defer.Deferred[None] = defer.Deferred()
        self.lost: errors.SectorError | None = None
        self._buffer = FrameBuffer()
        self._early: bytes | None = None
        self.raw: Raw | None = None
        self._waiting: defer.Deferred[bytes] | None = None

    def handshakeCompleted(self) -> None:
        if not self.handshake.called:
            self.handshake.callback(None)

    def dataReceived(self, data: bytes) -> None:
        if self.raw is not None:
            self.raw.data(data)
            return
        try:
            inner = self._buffer.feed(data)
        except errors.Protocol as bad:
            self._end(bad)
            self.transport.abortConnection()
            return
        if inner is None:
            return
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(inner)
        else:
            self._early = inner  # a refusal that the server sent before any request

    async def exchange(self, data: bytes) -> bytes:
        if self.lost is not None:
            raise self.lost
        if self._early is not None:
            return self._early
        answer: defer.Deferred[bytes] = defer.Deferred()
        self._waiting = answer
        self.transport.write(data)
        answer.addTimeout(DEADLINE_S, self.clock)
        try:
            return await answer
        except (defer.TimeoutError, defer.CancelledError) as end:
            # the reply that may still come belongs to nobody: the connection cannot be used again
            self._waiting = None
            self.transport.abortConnection()
            if isinstance(end, defer.CancelledError):
                raise
            raise errors.TimedOut(f"{self.where} did not answer within {DEADLINE_S:.0f} s") from None

    def connectionLost(self, reason: Failure = Failure(error.ConnectionDone())) -> None:
        if self.raw is not None:
            self.raw.ended()
        if self._early is not None:
            try:
                self._end(refusal(parse_frame(self._early)[1]))
            except errors.Protocol as bad:
                self._end(bad)
        elif self.tls.problem:
            self._end(
                errors.NotAllowed(
                    f"the certificate of {self.where} {self.tls.problem}", hint="check the address and the CA"
                )
            )
        elif reason.check(SSL.Error):
            self._end(self._ssl_error(reason.value))
        else:
            self._end(errors.Unreachable(f"{self.where} closed the connection"))

    def _ssl_error(self, bad: Any) -> errors.SectorError:
        words = " ".join(str(part) for entry in (bad.args[0] if bad.args else ()) for part in entry if part)
        if self.shows_cert and "alert" in words:
            return errors.NotAllowed(f"{self.where} refuses this node's certificate ({words})")
        return errors.Unreachable(f"{self.where} does not speak the TLS of this cluster ({words})")

    def _end(self, why: errors.SectorError) -> None:
        if self.lost is None:
            self.lost = why
        if not self.handshake.called:
            self.handshake.errback(why)
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.errback(why)


async def open_tls(
    reactor: Any,
    host: str,
    port: int,
    trust: Trust,
    cert: Credentials | None = None,
    role: str = "master",
    timeout_s: float = DEADLINE_S,
) -> TlsCaller:
    """Connect to a server of `role` and check that it is one. Raises `Unreachable`, `NotAllowed`."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    tls = ClientTls(cert, trust)
    protocol = _ClientProtocol(reactor, where, tls, cert is not None)
    plain: Any = Factory.forProtocol(lambda: protocol)
    plain.noisy = False
    factory: Any = TLSMemoryBIOFactory(cast(Any, tls), True, plain, clock=reactor)
    factory.noisy = False
    endpoint = tcp_endpoint(reactor, host, port, timeout_s)
    try:
        await endpoint.connect(factory)
    except (error.ConnectError, error.DNSLookupError, defer.TimeoutError, defer.CancelledError) as bad:
        if isinstance(bad, defer.CancelledError):
            raise
        if isinstance(bad, error.DNSLookupError):
            raise errors.Unreachable(f"no address is known for the host {host!r}") from None
        why = "refused" if isinstance(bad, error.ConnectionRefusedError) else "not possible"
        raise errors.Unreachable(f"connection to {where} {why}") from None
    try:
        protocol.handshake.addTimeout(timeout_s, reactor)
        await protocol.handshake
        identity = _peer_identity(protocol.transport.getHandle(), trust)
        if identity is None or identity.role != role:
            shown = identity.principal if identity else "nobody"
            raise errors.NotAllowed(f"{where} is {shown}, not a {role}", hint="check host and port")
        if cert is not None and identity.cluster != cert.identity.cluster:
            raise errors.NotAllowed(f"{where} belongs to cluster {identity.cluster}")
    except defer.TimeoutError:
        protocol.transport.abortConnection()
        raise errors.TimedOut(f"{where} did not finish the TLS handshake") from None
    except BaseException:
        protocol.transport.abortConnection()
        raise
    return TlsCaller(protocol, where, identity)


async def tls_request(
    reactor: Any,
    host: str,
    port: int,
    trust: Trust,
    request: Request,
    cert: Credentials | None = None,
    role: str = "master",
) -> Any:
    """One request over a new connection: connect, ask, close. Raises the server's error, `Unreachable`,
    `NotAllowed`, `TimedOut`."""
    caller = await open_tls(reactor, host, port, trust, cert, role)
    try:
        return await caller.call(request)
    finally:
        caller.close()


async def tls_resume(
    reactor: Any, host: str, port: int, trust: Trust, session_id: bytes, secret: bytes
) -> Any:
    """Prove a session's secret to a master and get the session's current data (`Session`, without
    secret). Raises as `tls_proved`."""
    return await tls_proved(reactor, host, port, trust, secret, lambda proof: Resume(session_id, proof))


async def tls_proved(
    reactor: Any, host: str, port: int, trust: Trust, secret: bytes, make: Callable[[bytes], Request]
) -> Any:
    """The reply to `make(proof)`, the proof being that of a session's secret on this connection. Raises
    `SessionExpired`, `Unreachable`, `NotAllowed`, `TimedOut`, and what the request says."""
    caller = await open_tls(reactor, host, port, trust)
    try:
        return await caller.call(make(keys.resume_proof(secret, caller.exporter())))
    finally:
        caller.close()


async def first_that_answers(addresses: Iterable[Any], attempt: Callable[[Any], Awaitable[Any]]) -> Any:
    """`attempt(address)` for one after the other until one does not raise `Unreachable` or `TimedOut`."""
    last: errors.SectorError = errors.Unreachable("no master is configured", hint="sector login HOST:PORT")
    for address in addresses:
        try:
            return await attempt(address)
        except (errors.Unreachable, errors.TimedOut) as failed:
            last = failed
    raise last
