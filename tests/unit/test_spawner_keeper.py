"""The keeper of a slave's spawner: when another is started, and what it says."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.task import Clock

from sector.sphere import channel, keeper
from sector.sphere.keeper import SpawnerKeeper


class Reactor(Clock):
    """A clock with readers that the test calls."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[Any] = []

    def addReader(self, reader: Any) -> None:
        self.readers.append(reader)

    def removeReader(self, reader: Any) -> None:
        self.readers.remove(reader)


class FakeSpawner:
    """A socket pair for a process; `fails` restarts cannot be made."""

    def __init__(self) -> None:
        self.fails = self.restarts = 0
        self.stopped = False
        self._pair()

    def _pair(self) -> None:
        self.sock, self.far = channel.pair()
        self.sock.setblocking(False)

    def restart(self) -> None:
        self.sock.close()
        if self.fails:
            self.fails -= 1
            raise OSError("no processes left")
        self.restarts += 1
        self._pair()

    def stop(self) -> None:
        self.stopped = True
        self.sock.close()
        self.far.close()


class World:
    """A keeper and what it has told."""

    def __init__(self) -> None:
        self.reactor, self.spawner = Reactor(), FakeSpawner()
        self.said: list[Any] = []
        self.lost: list[str] = []
        self.back = 0
        spawner: Any = self.spawner
        self.keeper = SpawnerKeeper(self.reactor, spawner, self.said.append, self.lost.append, self._back)

    def _back(self) -> None:
        self.back += 1

    def die(self) -> None:
        self.spawner.far.close()
        self.reactor.readers[0].doRead()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.keeper.stop()


def test_messages_pass_until_the_end(world: World) -> None:
    channel.send(world.spawner.far, {"op": "started", "id": 1, "pid": 7})
    world.reactor.readers[0].doRead()
    assert world.said == [{"op": "started", "id": 1, "pid": 7}] and world.lost == []


def test_each_start_comes_later_than_the_one_before(world: World) -> None:
    waits = []
    for _ in range(9):
        world.die()
        assert world.reactor.readers == []
        waits.append(world.reactor.getDelayedCalls()[0].getTime() - world.reactor.seconds())
        world.reactor.advance(waits[-1])
    assert waits == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    assert world.back == world.spawner.restarts == len(world.lost) == 9
    assert "another is started in 0.5 s" in world.lost[0]


def test_one_that_lived_long_is_replaced_at_once(world: World) -> None:
    for _ in range(3):
        world.die()
        world.reactor.advance(10)
    world.reactor.advance(keeper.STEADY_S)
    world.die()
    world.reactor.advance(keeper.FIRST_S)
    assert world.spawner.restarts == 4


def test_a_start_that_fails_is_tried_again(world: World) -> None:
    world.spawner.fails = 2
    world.die()
    world.reactor.pump([0.5, 1.0])
    assert (world.spawner.restarts, world.back) == (0, 0)
    world.reactor.advance(2)
    assert (world.spawner.restarts, world.back) == (1, 1)


def test_nothing_is_started_once_it_is_stopped() -> None:
    world = World()
    world.die()
    world.keeper.stop()
    world.reactor.advance(100)
    assert (world.spawner.restarts, world.spawner.stopped) == (0, True)
    assert isinstance(world.spawner.sock, socket.socket) and world.spawner.sock.fileno() == -1
