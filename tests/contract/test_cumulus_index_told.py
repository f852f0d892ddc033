"""Objects of which the index is told without waiting: who reads afterwards sees them, whatever happens."""

from __future__ import annotations

import logging
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cumulus_bench import Bench, held, row, run_all

from cumulus.index import tide, wire, writer
from cumulus.index.admin_api import Quota
from cumulus.index.api import Away, Index, OverQuota, Put, Remove, Reservation
from cumulus.index.registry import sqlite_path
from cumulus.index.remote import SMALL, RemoteIndex, connect_index
from cumulus.index.sqlite import SqliteIndex


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A head and one worker."""
    made = Bench(tmp_path, "remote")
    yield made
    made.close()


@pytest.fixture
def other(bench: Bench) -> Iterator[RemoteIndex]:
    """A second worker."""
    assert bench.server is not None
    made, _ = connect_index(bench.server.path, sqlite_path(bench.url))
    assert isinstance(made, RemoteIndex)
    yield made
    made.close()


def head(bench: Bench) -> SqliteIndex:
    """The index of the head."""
    assert isinstance(bench.head[0], SqliteIndex)
    return bench.head[0]


def until(condition: Callable[[], object]) -> None:
    """Wait for something that other threads do."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.005)


READS: dict[str, Callable[[Index, str], object]] = {
    "lookup": lambda index, key: index.lookup("b", key),
    "page": lambda index, key: index.page("b", prefix=key).rows,
    "lines": lambda index, key: index.lines("b", prefix=key).lines,
    "page_versions": lambda index, key: index.page_versions("b", prefix=key).rows,
}


@pytest.mark.parametrize("how", READS)
def test_what_was_told_is_seen_by_all(bench: Bench, other: RemoteIndex, how: str) -> None:
    """At once, by the worker itself, by another one and by the head."""
    for number, reader in enumerate([bench.index, other, head(bench)] * 20):
        for teller in (bench.index, head(bench)):
            key = f"{number:03}-{'head' if teller is head(bench) else 'worker'}"
            teller.tell(Put(row=row(key)))
            assert READS[how](reader, key)


def test_sums_and_removals_wait_for_what_was_told(bench: Bench, other: RemoteIndex) -> None:
    """What a user holds is exact, and a removal takes what came before it."""
    for number in range(30):
        bench.index.tell(Put(row=row(f"k{number}", 1, 10)))
        assert other.usage("bucket", "b").objects == number + 1
    bench.index.tell(Put(row=row("k0", 5, 30)))
    other.apply([Remove(bucket="b", key="k0", stamp=6)])
    assert bench.index.lookup("b", "k0") is None
    assert held(other) == (290, 29)


def test_many_share_a_transaction(bench: Bench, other: RemoteIndex) -> None:
    """Nobody waits for it; reservations end with it."""
    before = head(bench).commits

    def tell(index: RemoteIndex, name: str) -> None:
        for turn in range(10):
            mine = index.reserve("b", SMALL + 1)
            index.tell(Put(row=row(f"{name}-{turn}"), reservation=mine))

    assert isinstance(bench.index, RemoteIndex)
    first = bench.index
    run_all([lambda n=n: tell(first, f"a{n}") for n in range(20)])
    run_all([lambda n=n: tell(other, f"b{n}") for n in range(20)])
    assert held(other) == (4000, 400)
    assert head(bench).reservations == 0
    assert head(bench).commits - before < 300


def test_a_sync_does_not_wait_until_enough_has_gathered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a journal is dropped what it remembers is in the database."""
    monkeypatch.setattr(writer, "GATHER_S", 60.0)
    began = time.monotonic()
    for number in range(5):
        bench.index.tell(Put(row=row(f"k{number}")))
        bench.index.sync()
        assert bench.index.committed("b", f"k{number}") is not None
    assert time.monotonic() - began < 30


def test_a_database_that_fails_takes_it_in_later(
    bench: Bench, other: RemoteIndex, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Meanwhile listings show what there is, new objects are refused and no journal may be dropped."""
    bench.index.tell(Put(row=row("before")))
    assert other.lookup("b", "before") is not None

    def broken(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(head(bench)._writer, "_flush", broken)
    with caplog.at_level(logging.ERROR):
        mine = bench.index.reserve("b", SMALL + 1)
        bench.index.tell(Put(row=row("k"), reservation=mine))
        until(lambda: head(bench).tide.ailing)
    assert "tried again: " in caplog.text and "disk I/O error" in caplog.text
    assert [one.key for one in other.page("b").rows] == ["before"]
    for index in (bench.index, head(bench)):
        with pytest.raises(Away):
            index.tell(Put(row=row("later")))
        with pytest.raises(Away):
            index.sync()
    assert head(bench).reservations == 1
    monkeypatch.undo()
    until(lambda: not head(bench).tide.ailing)
    assert [one.key for one in other.page("b").rows] == ["before", "k"]
    assert held(other) == (20, 2) and head(bench).reservations == 0
    bench.index.sync()


def test_an_index_that_closes_while_it_fails_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Journals still have what is lost here; the log says so."""

    def broken(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(head(bench)._writer, "_flush", broken)
    head(bench).tell(Put(row=row("k")))
    until(lambda: head(bench).tide.ailing)
    head(bench)._writer.close()
    assert "cannot take in an object" in caplog.text
    with pytest.raises(Away):
        head(bench).tell(Put(row=row("l")))


def test_one_that_cannot_be_taken_in_spoils_no_other(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """They came in one message; who waits for them does not wait for ever."""
    assert bench.server is not None
    puts = [Put(row=row("good")), Put(row=row("bad", size=2**63)), Put(row=row("fine"))]
    frames = [wire.frame(1, "join", ()), *(wire.frame(0, wire.TELL, (put,)) for put in puts)]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(bench.server.path))
        connection.sendall(b"".join([*frames, wire.frame(2, "bucket", ("b",))]))
        assert connection.recv(1 << 16)
        counters = tide.open_tide(wire.counters(bench.server.path))
        counters.tell(2, 3)  # after the head's slot and the worker's
        until(lambda: [one.key for one in bench.index.page("b").rows] == ["fine", "good"])
        assert counters.behind() == []
    assert "cannot take in an object: Python int too large" in caplog.text


@pytest.mark.parametrize("where", ["worker", "head"])
def test_room_of_what_cannot_be_taken_in_comes_back(bench: Bench, where: str) -> None:
    """Alone or with others of one message: no commit ends its reservation."""
    bench.admin.set_quota(Quota(scope="user", name="alice", hard_bytes=1000))
    bench.fresh()
    index: Index = bench.index if where == "worker" else head(bench)
    for number in range(3):
        found = index.reserve_all([("b", 10), ("b", 10), ("b", 10)])
        sizes = [10, 2**63, 10]
        puts = [
            Put(row=row(f"{number}-{place}", size=size), reservation=one)
            for place, (size, one) in enumerate(zip(sizes, found, strict=True))
            if isinstance(one, Reservation)
        ]
        assert len(puts) == 3
        index.tell_all(puts)
    until(lambda: head(bench).reservations == 0)
    assert [one.key for one in index.page("b").rows] == [f"{n}-{place}" for n in range(3) for place in (0, 2)]
    assert head(bench).tide.behind() == []


def test_what_is_no_message_ends_its_connection(bench: Bench) -> None:
    """Something else than an object."""
    assert bench.server is not None
    for bad in ((), ("x",), ({"row": 1},)):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(bench.server.path))
            connection.sendall(wire.frame(0, wire.TELL, bad))
            assert connection.recv(100) == b""


def test_a_worker_that_ends_leaves_nothing_to_wait_for(bench: Bench) -> None:
    """What it told arrives; what it counted and did not send is not waited for."""
    assert bench.server is not None
    for turn in range(3):
        gone, _ = connect_index(bench.server.path, sqlite_path(bench.url))
        assert isinstance(gone, RemoteIndex)
        gone.tell(Put(row=row(f"k{turn}")))
        channel = gone._link.channel()
        assert channel._slot is not None
        channel.tide.tell(channel._slot, 99)
        gone.close()
        until(lambda: head(bench).tide.behind() == [])
        assert bench.index.lookup("b", f"k{turn}") is not None
        with pytest.raises(Away):
            gone.tell(Put(row=row("x")))


def test_slots_have_a_rest_and_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one, changes are answered as others are."""
    counters = tide.private_tide()
    slots = [counters.join() for _ in range(tide.SLOTS)]
    assert slots == list(range(tide.SLOTS)) and counters.join() is None
    counters.tell(7, 5)
    assert counters.behind() == [(7, 5)] and not counters.reached([(7, 5)])
    counters.leave(7)
    assert counters.behind() == [] and counters.join() is None
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert counters.join() == 7 and counters.behind() == []


def test_without_a_slot_it_is_answered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that has no more of them takes in what comes all the same."""
    monkeypatch.setattr(tide.Tide, "join", lambda self: None)
    assert bench.server is not None
    late, _ = connect_index(bench.server.path, sqlite_path(bench.url))
    late.tell(Put(row=row("k")))
    assert bench.index.committed("b", "k") is not None
    late.close()


def test_nothing_is_held_where_nothing_is_limited(bench: Bench) -> None:
    """For small objects of known size, for a moment; a quota counts within a second, and then exactly."""
    index = bench.index
    first, second = index.reserve("b", 100), index.reserve("b", 100)
    assert first.id and not second.id and head(bench).reservations == 1
    index.release(first)
    index.release(second)
    for size in (0, SMALL + 1):
        assert index.reserve("b", size).id
    index.tell(Put(row=row("k", 1, 60), reservation=second))
    index.sync()
    bench.admin.set_quota(Quota(scope="user", name="alice", hard_objects=3))
    bench.fresh()
    with pytest.raises(OverQuota) as refused:
        index.reserve("b", 100)
    assert (refused.value.used, refused.value.reserved, refused.value.limit) == (1, 2, 3)


@pytest.mark.parametrize("where", ["worker", "head"])
def test_what_replaces_an_object_again_and_again_fits(bench: Bench, where: str) -> None:
    """Room for two: the one that is there and the one that comes, not also those just told."""
    bench.admin.set_quota(Quota(scope="user", name="alice", hard_bytes=100))
    bench.fresh()
    index: Index = bench.index if where == "worker" else head(bench)
    stamp = 0
    for _ in range(10):
        stamp += 3
        index.tell(Put(row=row("k", stamp, 40), reservation=index.reserve("b", 40)))
        index.tell(Put(row=row("k", stamp + 1, 20), reservation=index.reserve("b", 20)))
        (made,) = index.reserve_all([("b", 40)])
        assert isinstance(made, Reservation)
        index.tell(Put(row=row("k", stamp + 2, 40), reservation=made))
        growing = index.reserve("b", 10)
        index.grow(growing, 50)
        index.release(growing)
    with pytest.raises(OverQuota):
        index.reserve("b", 61)
    assert isinstance(index.reserve_all([("b", 61)])[0], OverQuota)
    assert held(index) == (40, 1)
