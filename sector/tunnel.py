"""Datagrams inside a TLS connection, for networks that let no UDP through: the client's end and the master's.

A frame is u16 length, then family u8 (4, 6), port u16, address 16 bytes (IPv4 in the first four), payload;
big-endian. The address is the destination on the way to the master, the source on the way back. Datagrams
keep their GMP sealing; TLS hides and orders them, nothing more. What does not fit is lost, as on any path.
Source: docs/guide/firewalls.md; docs/decisions/0081.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import DatagramProtocol
from zope.interface import implementer

HEAD = 19
SPACE = ipaddress.IPv6Network("100::/64")
"""Addresses that tunnels' ends have at a master: a prefix that nobody can send from (RFC 6666), and that the
core takes nothing from but what is injected, so that no client outside a tunnel ever has the same."""
MOST = 0xFFFF - HEAD
_READS = 64

Where = tuple[str, int]


def pack(where: Where) -> bytes:
    """The address of a frame."""
    ip = ipaddress.ip_address(where[0].partition("%")[0])
    return bytes([ip.version]) + where[1].to_bytes(2, "big") + ip.packed.ljust(16, b"\0")


def unpack(head: bytes) -> Where:
    """The address in a frame. Raises ValueError."""
    if len(head) < HEAD or head[0] not in (4, 6):
        raise ValueError("not an address")
    raw = head[3:7] if head[0] == 4 else head[3:19]
    return str(ipaddress.ip_address(raw)), int.from_bytes(head[1:3], "big")


class Aliases:
    """Addresses of a master for the ends of tunnels, each used once, and where those ends are."""

    def __init__(self) -> None:
        self._next = 0
        self._real: dict[str, str] = {}

    def take(self, host: str) -> Where:
        """An address for a client at `host`."""
        self._next += 1
        alias = str(SPACE[self._next])
        self._real[alias] = host
        return alias, 1

    def give_back(self, alias: Where) -> None:
        """Its tunnel has ended."""
        self._real.pop(alias[0], None)

    def real(self, host: str) -> str:
        """Where the end of a tunnel is; `host` itself when it is not in one."""
        return self._real.get(host, host)


class Frames:
    """Takes bytes of the connection, gives (address and payload) of each whole frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """What is complete now. Raises ValueError on what cannot be a frame."""
        self._buffer += data
        found, at = [], 0
        while len(self._buffer) - at >= 2:
            size = int.from_bytes(self._buffer[at : at + 2], "big")
            if size <= HEAD:
                raise ValueError("an empty frame")
            if len(self._buffer) - at - 2 < size:
                break
            found.append(bytes(self._buffer[at + 2 : at + 2 + size]))
            at += 2 + size
        del self._buffer[:at]
        return found


class Gmp(Protocol):
    """What a tunnel needs of a GMP endpoint."""

    @property
    def address(self) -> tuple[str, int]:
        """Local (host, port)."""

    def divert(self, peer: Where | None, fd: int) -> None:
        """Datagrams to `peer` go to a socket."""

    def inject(self, peer: Where, data: bytes) -> None:
        """A datagram as if from `peer`."""


@implementer(IPushProducer)
class Exit:
    """One end: what the endpoint sends (to `peer`, None = to anybody) leaves over `transport`."""

    def __init__(self, reactor: Any, gmp: Gmp, peer: Where | None, transport: Any) -> None:
        self._reactor = reactor
        self._gmp = gmp
        self._peer = peer
        self._transport = transport
        self._full = False
        self._mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._mine.setblocking(False)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        try:
            gmp.divert(peer, theirs.fileno())
        except BaseException:
            self._mine.close()
            raise
        finally:
            theirs.close()
        transport.registerProducer(self, True)
        reactor.addReader(self)

    def rename(self, frame: bytes) -> bytes:
        """What a frame says on its way out."""
        return frame

    def send(self, frame: bytes) -> None:
        """One frame to the other end; lost while the connection is full."""
        if not self._full and len(frame) <= 0xFFFF:
            self._transport.write(len(frame).to_bytes(2, "big") + frame)

    def close(self) -> None:
        """The endpoint sends over UDP again."""
        if self._mine.fileno() >= 0:
            self._reactor.removeReader(self)
            self._mine.close()
            self._gmp.divert(self._peer, -1)
            self._transport.unregisterProducer()  # else TLS would wait for it before it closes

    # reactor
    def fileno(self) -> int:
        return self._mine.fileno()

    def logPrefix(self) -> str:
        return "tunnel"

    def connectionLost(self, reason: Any) -> None:
        self.close()

    def doRead(self) -> None:
        for _ in range(_READS):
            try:
                frame = self._mine.recv(0x10000)
            except OSError:
                return
            self.send(self.rename(frame))

    # producer
    def pauseProducing(self) -> None:
        self._full = True

    def resumeProducing(self) -> None:
        self._full = False

    def stopProducing(self) -> None:
        self._full = True


class ClientTunnel:
    """The client's end: all that its GMP port sends goes to the master, `lost` hears of the end."""

    def __init__(self, reactor: Any, gmp: Gmp, transport: Any, lost: Callable[[], None]) -> None:
        self._gmp = gmp
        self._frames = Frames()
        self._transport = transport
        self._exit = Exit(reactor, gmp, None, transport)
        self._lost = lost

    def data(self, data: bytes) -> None:
        """Bytes from the master."""
        try:
            for frame in self._frames.feed(data):
                self._gmp.inject(unpack(frame[:HEAD]), frame[HEAD:])
        except ValueError:
            self._transport.abortConnection()

    def ended(self) -> None:
        """The connection is gone."""
        self._exit.close()
        self._lost()

    def close(self) -> None:
        """End it."""
        self._exit.close()
        self._transport.loseConnection()


class _MasterExit(Exit):
    alias: Where | None = None  # the name that the client has for this master

    def rename(self, frame: bytes) -> bytes:
        return pack(self.alias) + frame[HEAD:] if self.alias is not None else frame


class _Relay(DatagramProtocol):
    noisy = False

    def __init__(self, end: MasterTunnel) -> None:
        self._end = end

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        self._end.from_slave((addr[0], addr[1]), datagram)


class MasterTunnel:
    """The master's end of one client's tunnel. Frames go to this master's endpoint, or by UDP to a slave;
    `slaves()` says which addresses are, and nothing else is reached."""

    def __init__(
        self,
        reactor: Any,
        gmp: Gmp,
        client: Where,
        transport: Any,
        is_mine: Callable[[Where], bool],
        slaves: Callable[[], set[Where]],
        over: Callable[[], None],
    ) -> None:
        self._reactor = reactor
        self._gmp = gmp
        self._client = client
        self._is_mine = is_mine
        self._over = over
        self._slaves = slaves
        self._transport = transport
        self._frames = Frames()
        self._exit = _MasterExit(reactor, gmp, client, transport)
        self._relays: dict[str, Any] = {}

    def data(self, data: bytes) -> None:
        """Bytes from the client."""
        try:
            for frame in self._frames.feed(data):
                self._route(unpack(frame[:HEAD]), frame[HEAD:])
        except ValueError:
            self._transport.abortConnection()

    def _route(self, to: Where, payload: bytes) -> None:
        if to in self._slaves():
            self._relay(to).write(payload, to)
        elif self._is_mine(to):
            self._exit.alias = to
            self._gmp.inject(self._client, payload)

    def _relay(self, to: Where) -> Any:
        here = "::" if ":" in to[0] else "0.0.0.0"
        if here not in self._relays:
            port = self._reactor.listenUDP(0, _Relay(self), interface=here, maxPacketSize=0xFFFF)
            self._relays[here] = port
        return self._relays[here]

    def from_slave(self, slave: Where, payload: bytes) -> None:
        """A datagram that came to the relay."""
        if slave in self._slaves() and len(payload) <= MOST:
            self._exit.send(pack(slave) + payload)

    def close(self) -> None:
        """End it."""
        self._exit.close()
        self._transport.loseConnection()

    def ended(self) -> None:
        """The connection is gone."""
        try:
            self._exit.close()
            for port in self._relays.values():
                port.stopListening()
            self._relays.clear()
        finally:
            self._over()
