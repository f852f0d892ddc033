"""Bodies on their way in: hashed in another thread while they are written and while the next bytes come."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from s3_world import World

from cumulus.backends.memory import MemoryStore
from cumulus.checksums import Part
from cumulus.ops import hashing
from cumulus.ops.hashing import Hashing, Line
from cumulus.ops.incoming import BESIDE, Incoming
from sector._udt.md5 import Md5, update_together


def function(part: Part) -> Callable[[memoryview], None]:
    """What does it, without others."""
    return part.update if isinstance(part, Md5) else part


class Slow(Hashing):
    """Hashes only when it is told to."""

    def __init__(self) -> None:
        super().__init__(1)
        self.begun = 0  # pieces whose turn has come
        self.came = threading.Condition()
        self.turns: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def line(self, part: Part) -> Line:
        update = function(part)

        def when_told(data: memoryview) -> None:
            with self.came:
                self.begun += 1
                self.came.notify_all()
            if error := self.turns.get(timeout=20):
                raise error
            update(data)

        return super().line(when_told)

    def wait_begun(self, count: int) -> None:
        """Until so many pieces have had their turn."""
        with self.came:
            assert self.came.wait_for(lambda: self.begun >= count, 20)

    def turn(self, error: BaseException | None = None) -> None:
        """Do the next piece of work, or fail at it."""
        self.turns.put(error)


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
    made.shutdown()


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
    slow.wait_begun(1)
    assert thread.is_alive()
    slow.turn()
    slow.turn()
    thread.join(20)
    assert taken.hasher.hex("md5") == hashlib.md5(first + b"small" + second).hexdigest()
    taken.abort()


def test_what_is_written_waits_to_be_hashed_before_the_call_before_is_hashed(
    world: World, slow: Slow
) -> None:
    """The hashing thread never waits for the one that writes; but a third buffer is not taken before the
    first is free."""
    taken = incoming(world, "md5")
    data = [bytes([number]) * BESIDE for number in range(3)]
    taken.write(memoryview(data[0]))
    thread, done = in_thread(lambda: [taken.write(memoryview(data[1])), taken.write(memoryview(data[2]))])
    slow.turn()
    slow.wait_begun(2)  # the second call's, while nobody has said that the first was over
    assert thread.is_alive() and not done
    slow.turn()
    thread.join(20)
    assert done and taken.size == 3 * BESIDE
    slow.turn()
    assert taken.hasher.hex("md5") == hashlib.md5(b"".join(data)).hexdigest()
    taken.abort()


def test_pieces_of_one_buffer_are_hashed_together_however_small_they_are(world: World, slow: Slow) -> None:
    """A body in chunks of 8 KB; a buffer that holds nothing of it frees the one before all the same."""
    taken = incoming(world, "md5")
    whole = os.urandom(BESIDE)
    pieces = [memoryview(whole)[at : at + 8192] for at in range(0, BESIDE, 8192)]
    taken.take(pieces)
    thread, _ = in_thread(lambda: taken.take([]))
    slow.wait_begun(1)
    assert thread.is_alive()
    for _ in pieces:
        slow.turn()
    thread.join(20)
    assert not thread.is_alive()
    assert taken.hasher.hex("md5") == hashlib.md5(whole).hexdigest()
    taken.abort()


def test_each_body_is_hashed_in_its_turn(slow: Slow) -> None:
    """One that always has more does not keep the thread from the others."""
    order: list[str] = []
    lines = {name: slow.line(lambda _, name=name: order.append(name)) for name in "ab"}
    for _ in range(3):
        lines["a"].put([memoryview(b"")])
    slow.wait_begun(1)
    lines["b"].put([memoryview(b"")])
    for _ in range(4):
        slow.turn()
    lines["a"].wait()
    lines["b"].wait()
    assert order == ["a", "b", "a", "a"]


def test_after_its_end_nothing_more_is_hashed(slow: Slow) -> None:
    """What waits is; a piece that comes later is refused."""
    done: list[bytes] = []
    line = slow.line(lambda data: done.append(bytes(data)))
    line.put([memoryview(b"a")])
    line.put([memoryview(b"b")])
    slow.turn()
    slow.turn()
    slow.shutdown()
    assert done == [b"a", b"b"]
    with pytest.raises(RuntimeError):
        line.put([memoryview(b"c")])


def test_the_sum_is_of_all_bytes_whenever_it_is_asked_for(world: World, slow: Slow) -> None:
    """It waits for the last of them."""
    taken = incoming(world, "md5", "crc32")
    taken.write(memoryview(b"a" * BESIDE))
    thread, done = in_thread(lambda: taken.hasher.hex("md5"))
    slow.turn()
    slow.wait_begun(2)
    assert thread.is_alive(), "the other sum is not there yet"
    slow.turn()
    thread.join(20)
    assert done == [hashlib.md5(b"a" * BESIDE).hexdigest()]
    taken.abort()


def test_md5_and_the_other_sums_are_made_beside_each_other(world: World) -> None:
    """A signed body is hashed as quickly as MD5 is, not as slowly as both together."""
    meet, real = threading.Barrier(2), Hashing.line

    class Meeting(Hashing):
        def line(self, part: Part) -> Line:
            update = function(part)

            def after_both_began(data: memoryview) -> None:
                meet.wait(20)
                update(data)

            return real(self, after_both_began)

    before, world.site.hashing = world.site.hashing, Meeting(2)
    try:
        taken = incoming(world, "md5", "sha256", "crc32")
        taken.write(memoryview(b"a" * BESIDE))
        taken.write(memoryview(b"b" * BESIDE))
        data = b"a" * BESIDE + b"b" * BESIDE
        assert taken.hasher.hex("md5") == hashlib.md5(data).hexdigest()
        assert taken.hasher.hex("sha256") == hashlib.sha256(data).hexdigest()
        assert taken.hasher.digest("crc32") == zlib.crc32(data).to_bytes(4, "big")
        taken.abort()
    finally:
        meet.abort()
        world.site.hashing.shutdown()
        world.site.hashing = before


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
    """Its room is given back, and what waits is not hashed any more."""
    taken = incoming(world, "md5")
    taken.write(memoryview(b"a" * BESIDE))
    slow.wait_begun(1)
    taken.abort()
    assert world.index.usage("bucket", "bkt").reserved_bytes == 0
    slow.turn()


def test_where_nobody_asks_for_a_sum_nothing_is_hashed(slow: Slow, world: World) -> None:
    """With opaque ETags and no checksum."""
    taken = incoming(world)
    taken.write(memoryview(b"a" * BESIDE))
    taken.abort()
    assert slow.begun == 0


def test_md5_of_bodies_that_wait_goes_on_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that wait when a thread is free, up to eight; other sums have their turn."""
    counts: list[int] = []

    def count(streams: Any) -> None:
        work = list(streams)
        counts.append(len(work))
        update_together(work)

    def wait(_: Any) -> None:
        go.wait(20)

    monkeypatch.setattr(hashing, "update_together", count)
    threads, go, sums = Hashing(1), threading.Event(), [Md5() for _ in range(10)]
    busy, other = threads.line(wait), threads.line(lambda _: None)
    lines = [threads.line(one) for one in sums]
    busy.put([memoryview(b"x")])
    for number, line in enumerate(lines):
        line.put([memoryview(bytes([number]) * 1000), memoryview(b"end")])
        line.put([memoryview(b"more")])
    other.put([memoryview(b"y")])
    go.set()
    for line in (*lines, other):
        line.wait()
    threads.shutdown()
    assert counts[0] == 8 and sum(counts) == 20
    assert [one.digest() for one in sums] == [
        hashlib.md5(bytes([number]) * 1000 + b"endmore").digest() for number in range(10)
    ]


class Both(Md5):
    """MD5 that the threads take for one with SHA-256, on any processor."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.with_sha256 = True


def test_md5_with_sha256_is_made_by_several_threads_and_side_by_side_where_many_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two bodies go on beside each other; the next five, which came meanwhile, in one call."""
    counts: list[int] = []
    meet, go = threading.Barrier(3), threading.Event()

    def count(streams: Any) -> None:
        work = list(streams)
        counts.append(len(work))
        if len(counts) <= 2:
            meet.wait(20)
            go.wait(20)
        update_together(work)

    monkeypatch.setattr(hashing, "update_together", count)
    threads, sums = Hashing(2), [Both() for _ in range(7)]
    lines = [threads.line(one) for one in sums]
    for line in lines[:2]:
        line.put([memoryview(b"data")])
    meet.wait(20)  # both are at it, in a thread each
    for line in lines[2:]:
        line.put([memoryview(b"data")])
    go.set()
    for line in lines:
        line.wait()
    threads.shutdown()
    assert sorted(counts) == [1, 1, 5]
    assert {one.digest() for one in sums} == {hashlib.md5(b"data").digest()}


def test_a_failure_of_several_bodies_together_reaches_each_and_none_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None of them is published with a sum that may be wrong; the thread serves those that come later."""
    left = [MemoryError("no room")]

    def fail_once(streams: Any) -> None:
        if left:
            raise left.pop()
        update_together(streams)

    def wait(_: Any) -> None:
        go.wait(20)

    monkeypatch.setattr(hashing, "update_together", fail_once)
    threads, go, later = Hashing(1), threading.Event(), Md5()
    busy, lines = threads.line(wait), [threads.line(Md5()) for _ in range(3)]
    busy.put([memoryview(b"x")])
    for line in lines:
        line.put([memoryview(b"data")])
    go.set()
    for line in lines:
        with pytest.raises(MemoryError, match="no room"):
            line.wait()
    after = threads.line(later)
    after.put([memoryview(b"data")])
    after.wait()
    threads.shutdown()
    assert later.digest() == hashlib.md5(b"data").digest()
