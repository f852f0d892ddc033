"""IP literals from host names: GMP and the data channel talk to addresses only."""

from __future__ import annotations

import ipaddress
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IHostResolution, IResolutionReceiver
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
