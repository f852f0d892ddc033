"""Servers that are asked for their load: those that answer, and all the ways in which they do not. Time and
connections are in memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError, TimeoutError
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.logger import globalLogPublisher
from twisted.python.failure import Failure

from cumulus.http.load_poll import ANSWER_S, EVERY_S, LoadPoller
from cumulus.redirect import Balancer, Server, parse_hosts

GOOD = b'HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n{"requests_in_flight": 7}'


class Polled:
    """A poller of one server, whose connections a test answers."""

    def __init__(self) -> None:
        self.reactor = MemoryReactorClock()
        self.servers: tuple[Server, ...] = (Server(False, "s1:80", "127.0.0.1:9"),)
        self.balancer = Balancer("least-loaded", lambda: self.servers, random.Random(1))
        self.poller = LoadPoller(self.reactor, self.balancer)
        self.said: list[str] = []
        self.transport = StringTransport()

    def note(self, event: Any) -> None:
        """What it logs."""
        if event.get("log_namespace") == "cumulus.http.load_poll":
            self.said.append(event["log_level"].name)

    def connect(self) -> Any:
        """The connection that is asked for is made; where the answer goes."""
        factory = self.reactor.tcpClients[-1][2]
        protocol = factory.buildProtocol(None)
        self.transport = StringTransport()
        protocol.makeConnection(self.transport)
        return protocol

    def fail(self, why: Exception) -> None:
        """The connection is not made; a little later it is known that the name has no other address."""
        self.reactor.tcpClients[-1][2].clientConnectionFailed(None, Failure(why))
        self.reactor.advance(EVERY_S / 2)

    def answer(self, data: bytes) -> None:
        """It connects and answers."""
        self.connect().dataReceived(data)

    @property
    def known(self) -> bool:
        """Whether requests are sent to it."""
        return self.balancer.choose("other", secure=False) is not None

    def next(self) -> None:
        """A second later it is asked again."""
        self.reactor.advance(EVERY_S)


@pytest.fixture
def polled() -> Iterator[Polled]:
    """One that has answered once."""
    made = Polled()
    globalLogPublisher.addObserver(made.note)
    made.poller.start()
    made.answer(GOOD)
    assert made.known and made.transport.value().startswith(b"GET /load HTTP/1.1\r\n")
    made.next()
    yield made
    made.poller.stop()
    globalLogPublisher.removeObserver(made.note)
    assert not made.poller._asked and not made.reactor.getDelayedCalls()


def refused(polled: Polled) -> None:
    """Nobody listens."""
    polled.fail(ConnectionRefusedError())


def never_connected(polled: Polled) -> None:
    """The machine is gone: the connection is not made in time."""
    polled.fail(TimeoutError())


def silent(polled: Polled) -> None:
    """It connects and says nothing."""
    polled.connect()
    polled.reactor.advance(ANSWER_S)


def slow(polled: Polled) -> None:
    """It sends its answer by bytes, too late."""
    protocol = polled.connect()
    protocol.dataReceived(GOOD[:50])
    polled.reactor.advance(ANSWER_S)


def cut(polled: Polled) -> None:
    """It goes within its answer."""
    protocol = polled.connect()
    protocol.dataReceived(GOOD[:50])
    protocol.connectionLost(Failure(ConnectionRefusedError()))


def saying(data: bytes) -> Callable[[Polled], None]:
    """It answers that."""

    def answer(polled: Polled) -> None:
        polled.answer(data)

    return answer


BAD = {
    "refused": refused,
    "never connected": never_connected,
    "silent": silent,
    "slow": slow,
    "cut": cut,
    "no HTTP": saying(b"220 mail.example.org ESMTP\r\n\r\n"),
    "no JSON": saying(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"),
    "other JSON": saying(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
    "a word for a number": saying(
        b'HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n{"requests_in_flight": "x"}'
    ),
    "503": saying(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"),
    "busy": saying(b"HTTP/1.1 503 Busy\r\nContent-Length: 99\r\n\r\n"),
    "huge": saying(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b" " * 70_000),
    "endless": saying(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"3e8\r\n%1000s\r\n" % b"" * 70
    ),
}


@pytest.mark.parametrize("how", list(BAD))
def test_a_server_that_does_not_answer_gets_nothing_until_it_does(polled: Polled, how: str) -> None:
    """It is told once, however long it lasts; the first good answer brings it back."""
    for _ in range(3):
        BAD[how](polled)
        assert not polled.known
        polled.next()
    assert polled.said == ["warn"]
    polled.answer(GOOD)
    assert polled.known and polled.said == ["warn", "info"]


@pytest.mark.parametrize("how", ["silent", "slow", "huge", "endless", "busy"])
def test_connections_do_not_pile_up(polled: Polled, how: str) -> None:
    """One that is given up is closed: what is huge is not read to its end, nor what comes with an error."""
    BAD[how](polled)
    assert polled.transport.disconnecting


def test_a_server_taken_from_the_list_is_forgotten(polled: Polled) -> None:
    """And not asked any more."""
    polled.answer(GOOD)
    polled.servers = parse_hosts("http://s2:1 127.0.0.1:10\n", None, admin_needed=True)  # type: ignore[arg-type]
    polled.next()
    assert not polled.known and polled.reactor.tcpClients[-1][1] == 10
    polled.answer(GOOD)
    assert polled.known and not polled.said


def test_nobody_waits_for_the_file_of_servers() -> None:
    """Who was known is asked while somebody looks at it, once at a time; what he finds counts."""
    polled, looks = Polled(), list[tuple[Callable[[], list[str]], Deferred[list[str]]]]()

    def aside(look: Callable[[], list[str]]) -> Deferred[list[str]]:
        looks.append((look, Deferred()))
        return looks[-1][1]

    def looked() -> None:
        look, told = looks[-1]
        told.callback(look())

    polled.poller = LoadPoller(polled.reactor, polled.balancer, aside=aside)
    polled.poller.start()
    assert len(looks) == 1 and not polled.reactor.tcpClients
    looked()
    polled.answer(GOOD)
    polled.servers = (Server(False, "s1:80", "127.0.0.1:9"), Server(False, "s2:80", "127.0.0.1:10"))
    for _ in range(3):
        polled.next()
        polled.answer(GOOD)
    assert len(looks) == 2
    assert [client[1] for client in polled.reactor.tcpClients] == [9] * 4
    looked()
    polled.next()
    assert [client[1] for client in polled.reactor.tcpClients[4:]] == [9, 10]
    polled.poller.stop()
