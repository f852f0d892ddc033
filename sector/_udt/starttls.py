"""TLS inside a UDT connection from some moment on: `transport.startTLS`, as TCP's, for protocols that begin
in clear (AMP, SMTP, IMAP). From the beginning there is Twisted's `wrapClientTLS` around the endpoint, and
`TLSMemoryBIOFactory` around the factory of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from zope.interface import directlyProvides

if TYPE_CHECKING:
    from sector._udt.transport import UdtTransport


class _Below:
    """The transport as the TLS layer sees it: what is written here goes out as it is."""

    def __init__(self, transport: UdtTransport) -> None:
        self._transport = transport
        self.write = transport.write_below
        self.loseConnection = transport.lose_below
        self.registerProducer = transport.register_below
        self.unregisterProducer = transport.unregister_below

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def writeSequence(self, data: Any) -> None:
        """Queue several chunks."""
        self.write(b"".join(data))


def begin(transport: UdtTransport, protocol: Any, context: Any, is_client: bool) -> TLSMemoryBIOProtocol:
    """The TLS layer between a transport and the protocol above it, which has begun its handshake."""
    from twisted.internet.interfaces import ISSLTransport

    nothing: Any = None  # it makes no protocol: there is one
    factory: Any = TLSMemoryBIOFactory(context, is_client, nothing, clock=transport._core.reactor)
    layer: Any = factory.protocol(factory, protocol, False)
    transport.getHandle = layer.getHandle  # type: ignore[attr-defined]
    transport.getPeerCertificate = layer.getPeerCertificate  # type: ignore[attr-defined]
    directlyProvides(transport, ISSLTransport)
    layer.makeConnection(_Below(transport))
    return layer
