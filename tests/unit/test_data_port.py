"""Which port a slave takes its data at, when TCP ports are taken."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.logger import globalLogPublisher

from sector._udt.errors import CoreError
from sector.cli.services import PORT_TRIES, open_data_port

IN_USE, SYSTEM = -10, -11  # udt_err.h


class Ports:
    """A machine on which the TCP ports of some numbers are taken."""

    def __init__(self, taken: set[int], error: int = IN_USE) -> None:
        self.taken = taken
        self.error = error
        self.open: set[int] = set()
        self.next = 9000

    def opening(self) -> Any:
        """Any free UDP port."""
        self.next += 1
        self.open.add(self.next)
        return _Port(self, self.next)


class _Port:
    def __init__(self, ports: Ports, number: int) -> None:
        self.ports = ports
        self.address = "127.0.0.1", number

    def listen_tls(self) -> None:
        if self.address[1] in self.ports.taken:
            raise CoreError(self.ports.error)

    def stop(self) -> Deferred[None]:
        self.ports.open.discard(self.address[1])
        return succeed(None)


def opened(ports: Ports, *, any_number: bool) -> int:
    """The number of the port, once it is open; nothing else is left open."""
    found: list[Any] = []
    ensureDeferred(open_data_port(ports.opening, any_number=any_number)).addCallback(found.append)
    assert ports.open == {found[0].address[1]}
    return int(found[0].address[1])


@pytest.fixture
def warnings() -> Any:
    seen: list[Any] = []
    globalLogPublisher.addObserver(seen.append)
    yield seen
    globalLogPublisher.removeObserver(seen.append)


def test_another_number_is_taken_where_any_will_do(warnings: list[Any]) -> None:
    """Its TLS fall-back works then; nobody has to hear of it."""
    assert opened(Ports({9001, 9002, 9003}), any_number=True) == 9004
    assert warnings == []


def test_a_number_that_was_asked_for_is_kept_and_the_log_says_what_is_missing(warnings: list[Any]) -> None:
    """Peers look for it there."""
    assert opened(Ports({9001}), any_number=False) == 9001
    assert [(event["port"], event["host"]) for event in warnings] == [(9001, "127.0.0.1")]


def test_the_search_has_an_end(warnings: list[Any]) -> None:
    """And what is no clash is not searched for."""
    assert opened(Ports(set(range(9001, 9999))), any_number=True) == 9000 + PORT_TRIES
    assert opened(Ports({9001}, SYSTEM), any_number=True) == 9001
    assert len(warnings) == 2
