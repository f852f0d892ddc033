"""A listening port of a process that has no descriptors left."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import pytest
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.logger import LogEvent, globalLogPublisher
from twisted.python.failure import Failure

from cumulus.http.listening import REST_S, TELL_S, RestingPort
from cumulus.http.transport import S3Port


class Turning(Clock):
    """A reactor that only notes who wants to read."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: set[Any] = set()

    def addReader(self, one: Any) -> None:
        """It is called when something is there."""
        self.readers.add(one)

    def removeReader(self, one: Any) -> None:
        """Not any more."""
        self.readers.discard(one)

    def removeWriter(self, one: Any) -> None:
        """Nobody writes here."""


class Met(Factory):
    """Notes who came."""

    noisy = False

    def __init__(self) -> None:
        self.met: list[Protocol] = []

    def buildProtocol(self, addr: Any) -> Protocol:
        """Of a connection."""
        self.met.append(Protocol())
        return self.met[-1]


@pytest.mark.parametrize("lacking", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
@pytest.mark.parametrize("kind", [RestingPort, S3Port])
def test_a_port_rests_while_no_connection_can_be_taken(
    kind: type[RestingPort], lacking: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks again ten times a second, with a line of the log a minute; who waits is taken then."""
    reactor, factory, told = Turning(), Met(), []
    real = socket.socket.accept

    def note(event: LogEvent) -> None:
        told.append(str(event.get("log_namespace", "")))

    def full(one: socket.socket) -> Any:
        raise OSError(lacking, os.strerror(lacking))

    port = kind(0, factory, interface="127.0.0.1", reactor=reactor)
    port.startListening()
    globalLogPublisher.addObserver(note)
    try:
        with socket.create_connection(("127.0.0.1", port.getHost().port)):
            monkeypatch.setattr(socket.socket, "accept", full)
            turns = 0
            for _ in range(int((TELL_S + 1) / (REST_S / 4))):
                if port in reactor.readers:
                    turns += 1
                    port.doRead()
                reactor.advance(REST_S / 4)
            assert not factory.met
            assert turns <= (TELL_S + 1) / REST_S + 1
            assert told.count("cumulus.http.listening") == 2 and len(told) < 5
            monkeypatch.setattr(socket.socket, "accept", real)
            reactor.advance(REST_S)
            assert port in reactor.readers
            port.doRead()
            assert len(factory.met) == 1
            reactor.advance(REST_S)
            assert port in reactor.readers
            monkeypatch.setattr(socket.socket, "accept", full)
            port.doRead()
            assert port not in reactor.readers
            transport: Any = factory.met[0].transport
            transport.connectionLost(Failure(ConnectionDone()))
            port.connectionLost(Failure(ConnectionDone()))
        assert not reactor.getDelayedCalls()
    finally:
        globalLogPublisher.removeObserver(note)
