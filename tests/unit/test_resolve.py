"""Where a TCP connection goes to: an address needs no resolver."""

from __future__ import annotations

import pytest
from twisted.internet.defer import CancelledError
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure

from sector.resolve import tcp_endpoint


class Asked(Exception):
    """Somebody wants a name to be resolved."""


class Resolver:
    def resolveHostName(self, *asked: object, **how: object) -> None:
        raise Asked


def a_reactor() -> MemoryReactorClock:
    reactor = MemoryReactorClock()
    reactor.installNameResolver(Resolver())
    return reactor


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%lo"])
def test_an_address_does_not_wait_for_the_resolver(host: str) -> None:
    """Its threads may all be busy with a name server that does not answer."""
    reactor = a_reactor()
    tcp_endpoint(reactor, host, 7000, 5.0).connect(Factory.forProtocol(Protocol))
    [(to, port, _, timeout, _)] = reactor.tcpClients
    assert (to, port, timeout) == (host, 7000, 5.0)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_connection_that_is_cancelled_says_so(host: str) -> None:
    """As anything else that waits; who stops a service cancels what is under way."""
    connecting = tcp_endpoint(a_reactor(), host, 7000, 5.0).connect(Factory.forProtocol(Protocol))
    ended: list[Failure] = []
    connecting.addErrback(ended.append)
    connecting.cancel()
    assert [one.type for one in ended] == [CancelledError]


def test_a_name_is_resolved() -> None:
    with pytest.raises(Asked):
        tcp_endpoint(a_reactor(), "files.example", 7000, 5.0).connect(Factory.forProtocol(Protocol))
