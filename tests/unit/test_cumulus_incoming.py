"""Bodies on their way in: hashed in another thread while they are written and while the next bytes come."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from s3_world import World

from cumulus.backends.memory import MemoryStore
from cumulus.ops.incoming import BESIDE, Incoming


class Slow:
    """Hashes only when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[None], Callable[[], None]]] = []
        self.came = threading.Condition()

    def submit(self, work: Callable[[memoryview], None], data: memoryview) -> Future[None]:
        future: Future[None] = Future()
        with self.came:
            self.waiting.append((future, lambda: work(data)))
            self.came.notify_all()
        return future

    def turn(self, error: BaseException | None = None) -> None:
        """Do the next piece of work, or fail at it."""
        with self.came:
            assert self.came.wait_for(lambda: self.waiting, 20)
            future, work = self.waiting.pop(0)
        if error:
            future.set_exception(error)
        else:
            work()
            future.set_result(None)


@pytest.fixture
def world() -> Iterator[World]:
    """A service in memory with a bucket."""
    made = World(MemoryStore())
    assert made.ask("PUT", "/bkt").status == 200
    yield made
    made.close()


@pytest.fixture
def slow(world: World) -> Iterator[Slow]:
    """Its hashing."""
    made, real = Slow(), world.site.hashing
    world.site.hashing = made
    yield made
    world.site.hashing = real


def incoming(world: World, *names: str) -> Incoming:
    """A body for the bucket."""
    return Incoming(world.site, "bkt", "k", size=None, limit=1 << 30, algorithms=names)


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Begin it; what it returns comes into the list."""
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(work()))
    thread.start()
    return thread, done


def test_a_write_returns_while_its_bytes_are_hashed_and_the_next_waits(world: World, slow: Slow) -> None:
    """In order, so the sum is right; small pieces between them are hashed in their turn."""
    taken = incoming(world, "md5")
    first, second = b"a" * BESIDE, b"b" * BESIDE
    taken.write(memoryview(first))
    thread, _ = in_thread(lambda: (taken.write(memoryview(b"small")), taken.write(memoryview(second))))
    assert thread.is_alive() and len(slow.waiting) == 1
    slow.turn()
    slow.turn()
    thread.join(20)
    assert taken.hasher.hex("md5") == hashlib.md5(first + b"small" + second).hexdigest()
    taken.abort()


def test_the_sum_is_of_all_bytes_whenever_it_is_asked_for(world: World, slow: Slow) -> None:
    """It waits for the last of them."""
    taken = incoming(world, "md5", "crc32")
    taken.write(memoryview(b"a" * BESIDE))
    thread, done = in_thread(lambda: taken.hasher.hex("md5"))
    slow.turn()
    thread.join(20)
    assert done == [hashlib.md5(b"a" * BESIDE).hexdigest()]
    taken.abort()


def test_what_fails_in_hashing_fails_the_next_step(world: World, slow: Slow) -> None:
    """Nothing is published without its sum."""
    taken = incoming(world, "md5")
    taken.write(memoryview(b"a" * BESIDE))
    slow.turn(MemoryError())
    with pytest.raises(MemoryError):
        taken.write(memoryview(b"b"))
    taken.abort()
    assert world.ask("GET", "/bkt/k").code == "NoSuchKey"


def test_an_abort_waits_for_no_hash(world: World, slow: Slow) -> None:
    """Its room is given back."""
    taken = incoming(world, "md5")
    taken.write(memoryview(b"a" * BESIDE))
    taken.abort()
    slow.turn()
    assert world.index.usage("bucket", "bkt").reserved_bytes == 0


def test_where_nobody_asks_for_a_sum_nothing_is_hashed(slow: Slow, world: World) -> None:
    """With opaque ETags and no checksum."""
    taken = incoming(world)
    taken.write(memoryview(b"a" * BESIDE))
    assert slow.waiting == []
    taken.abort()
