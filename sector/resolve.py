"""How a host is found: its address (GMP and the data channel need one), where TCP connects to, and whether
anything listens there."""

from __future__ import annotations

import ipaddress
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as Late
from twisted.internet.endpoints import HostnameEndpoint, TCP4ClientEndpoint, TCP6ClientEndpoint
from twisted.internet.error import (
    ConnectError,
    ConnectingCancelledError,
    ConnectionRefusedError,
    DNSLookupError,
)
from twisted.internet.interfaces import (
    IAddress,
    IHostResolution,
    IResolutionReceiver,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure
from zope.interface import implementer

from sector.errors import Unreachable


@implementer(IResolutionReceiver)
class _First:
    """Keeps the first address; IPv4 wins over IPv6 where both are found."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: list[str] = []
        self.done: Deferred[str] = Deferred()

    def resolutionBegan(self, resolutionInProgress: IHostResolution) -> None:
        pass

    def addressResolved(self, address: IAddress) -> None:
        self.found.append(str(getattr(address, "host", "")))

    def resolutionComplete(self) -> None:
        if not self.found:
            self.done.errback(Unreachable(f"host name {self.name} is not known", hint="check the name"))
            return
        self.done.callback(min(self.found, key=lambda host: ":" in host))


async def literal_host(reactor: Any, host: str) -> str:
    """`host` itself if it is an IP literal, else its address. Raises Unreachable for unknown names."""
    try:
        return str(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        pass
    receiver = _First(host)
    reactor.nameResolver.resolveHostName(receiver, host)
    return await receiver.done


@implementer(IStreamClientEndpoint)
class _Tcp:
    """Whoever cancels a connection on its way meets one kind of error, whatever is under way."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def connect(self, factory: Any) -> Deferred[Any]:
        """As of the endpoint inside; errbacks with `CancelledError` when it is cancelled."""
        connected: Deferred[Any] = self._plain.connect(factory)
        return connected.addErrback(_cancelled)


def _cancelled(failure: Failure) -> Failure:
    return Failure(CancelledError()) if failure.check(ConnectingCancelledError) else failure


def tcp_endpoint(reactor: Any, host: str, port: int, timeout_s: float) -> Any:
    """Where to connect to. An IP literal waits for no thread of the resolver, which may be busy with a name
    server that does not answer; a name is tried at all of its addresses (RFC 8305)."""
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return _Tcp(HostnameEndpoint(reactor, host, port, timeout=timeout_s))
    endpoint = TCP6ClientEndpoint if version == 6 else TCP4ClientEndpoint
    return _Tcp(endpoint(reactor, host, port, timeout=timeout_s))


async def is_refused(reactor: Any, host: str, port: int, timeout_s: float = 5.0) -> bool:
    """Whether the host itself says that nothing listens there; False when it listens or is only silent."""
    plain: Any = Factory.forProtocol(Protocol)
    plain.noisy = False
    try:
        connected: Any = await tcp_endpoint(reactor, host, port, timeout_s).connect(plain)
    except (ConnectError, DNSLookupError, Late) as bad:
        return isinstance(bad, ConnectionRefusedError)
    connected.transport.abortConnection()
    return False
