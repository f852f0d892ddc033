"""Workers of a server take new connections in turn."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure

from cumulus.fair.board import Board, make_shared, open_shared
from cumulus.http.door import FRESH_S, LOOK_S, YIELD_S, Door
from cumulus.http.transport import S3Port


class Hands:
    """Two doors on shared memory, with a clock that stands still."""

    def __init__(self, columns: int = 2, limit: int = 10_000) -> None:
        fd = make_shared(columns)
        self.now = 1000.0
        self.boards: list[Board] = [open_shared(fd, columns, column) for column in range(columns)]
        self.doors = [Door(board, lambda: self.now, limit) for board in self.boards]


@pytest.mark.parametrize(
    ("mine", "other", "room"),
    [(0, 0, 1), (1, 0, 0), (7, 7, 1), (8, 7, 0), (8, 8, 2), (10, 8, 0), (9, 8, 1), (800, 800, 101)],
)
def test_who_has_more_open_leaves_new_ones_to_the_other(mine: int, other: int, room: int) -> None:
    """The others may have one less, an eighth where there are many."""
    hands = Hands()
    hands.doors[0].tell(mine)
    hands.doors[1].tell(other)
    assert hands.doors[0].room() == room


def test_nobody_waits_for_who_is_silent_or_gone() -> None:
    """A worker that hangs says nothing; one that ended has its column cleared."""
    hands = Hands(3)
    for door, count in zip(hands.doors, (40, 1, 39), strict=True):
        door.tell(count)
    assert hands.doors[0].room() == 0
    hands.boards[2].clear(1)
    assert hands.doors[0].room() == 4
    hands.now += FRESH_S
    assert hands.doors[0].room() == hands.doors[0].most() == 11
    assert Door(open_shared(make_shared(1), 1), lambda: 0.0, 100).room() == 1


@pytest.mark.parametrize(
    ("mine", "other", "room", "insisting"),
    [(57, 56, 0, 0), (57, 57, 8, 15), (56, 57, 1, 1), (56, 56, 1, 1), (50, 40, 0, 7), (60, 1, 0, 0)],
)
def test_who_is_full_takes_none_while_another_is_not(
    mine: int, other: int, room: int, insisting: int
) -> None:
    """However long; and when all are full they are taken, to be refused."""
    hands = Hands(limit=57)
    hands.doors[0].tell(mine)
    hands.doors[1].tell(other)
    assert (hands.doors[0].room(), hands.doors[0].room(True)) == (room, insisting)
    hands.now += FRESH_S
    assert hands.doors[0].room() == hands.doors[0].most() > 0, "nobody waits for one that is silent"


def test_nobody_waits_for_one_that_takes_none_any_more() -> None:
    """It ends, and tells how many are open until then."""
    hands = Hands(limit=57)
    hands.doors[0].tell(57)
    hands.doors[1].tell(3)
    assert hands.doors[0].room(True) == 0
    hands.doors[1].leave()
    hands.doors[1].tell(2)
    assert hands.doors[0].room() == 15


class Clients:
    """Connections to a port whose reactor is turned by hand."""

    def __init__(self, stack: ExitStack) -> None:
        self.hands = Hands()
        self.reactor: Any = MemoryReactorClock()
        factory = Factory.forProtocol(Protocol)
        factory.noisy = False
        self.port: Any = S3Port(0, factory, interface="127.0.0.1", reactor=self.reactor)
        self.port.door = self.hands.doors[0]
        self.port.startListening()
        self._stack = stack

    def connect(self) -> None:
        """One more that waits."""
        self._stack.enter_context(socket.create_connection(self.port.socket.getsockname()))

    def leave_one(self) -> list[Door]:
        """One waits that is left to the other door, which has fewer; both doors."""
        self.hands.doors[0].tell(4)
        self.hands.doors[1].tell(3)
        self.connect()
        self.port.doRead()
        assert not self.listens
        return self.hands.doors

    @property
    def taken(self) -> int:
        """Connections that the port has taken."""
        return len(self.reactor.getReaders()) - self.listens

    @property
    def listens(self) -> bool:
        """Whether it looks at its socket."""
        return self.port in self.reactor.getReaders()


@pytest.fixture
def clients() -> Iterator[Clients]:
    """Closed at the end."""
    with ExitStack() as stack:
        found = Clients(stack)
        yield found
        for reader in found.reactor.getReaders():
            if reader is not found.port:
                reader.connectionLost(Failure(ConnectionDone()))
        if found.port.connected:
            found.port.stopListening()
            found.reactor.advance(0)


def test_what_the_others_do_not_take_is_taken_a_moment_later(clients: Clients) -> None:
    """No connection waits longer than that, and the port does not spin meanwhile."""
    clients.hands.doors[0].tell(4)
    clients.hands.doors[1].tell(0)
    for _ in range(3):
        clients.connect()
    clients.port.doRead()
    assert clients.taken == 0 and not clients.listens
    clients.reactor.advance(YIELD_S)
    assert clients.listens
    clients.port.doRead()
    assert clients.taken == 2
    clients.port.doRead()
    assert clients.taken == 2 and not clients.listens, "the last is left to the other again"
    clients.hands.doors[1].tell(4)
    clients.reactor.advance(YIELD_S)
    clients.port.doRead()
    assert clients.taken == 3


def test_a_connection_waits_no_longer_than_until_the_other_has_as_many(clients: Clients) -> None:
    """It is looked every millisecond, not only at the end of the time that is left to the other."""
    _here, there = clients.leave_one()
    clients.reactor.advance(LOOK_S)
    assert not clients.listens, "it still has fewer"
    there.tell(4)
    clients.reactor.advance(LOOK_S)
    clients.port.doRead()
    assert clients.taken == 1
    clients.reactor.advance(YIELD_S)
    assert not clients.reactor.getDelayedCalls(), "nothing is left to be done"


@pytest.mark.parametrize("ended", [False, True])
def test_a_connection_that_is_over_makes_room_at_once(clients: Clients, ended: bool) -> None:
    """Where each request has a connection of its own all workers would wait for one another otherwise."""
    here, _there = clients.leave_one()
    if ended:
        clients.port.stopListening()
    here.tell(3)
    assert clients.listens is not ended
    assert not clients.reactor.getDelayedCalls() or ended
    clients.reactor.advance(YIELD_S)
    assert clients.listens is not ended
    if not ended:
        clients.port.doRead()
        assert clients.taken == 1


def test_one_turn_that_finds_nothing_is_enough(clients: Clients) -> None:
    """The others took them: the next connection is left to them again."""
    clients.hands.doors[0].tell(4)
    clients.hands.doors[1].tell(0)
    clients.port.doRead()
    clients.reactor.advance(YIELD_S)
    clients.reactor.advance(YIELD_S)
    clients.connect()
    clients.port.doRead()
    assert clients.taken == 0 and not clients.listens


def test_a_port_that_was_closed_meanwhile_stays_closed(clients: Clients) -> None:
    clients.hands.doors[0].tell(4)
    clients.hands.doors[1].tell(0)
    clients.connect()
    clients.port.doRead()
    clients.port.stopListening()
    clients.reactor.advance(YIELD_S)
    assert not clients.listens and not clients.port.connected
