"""The index over a Unix socket: a head that goes and comes, workers that go, what is no message."""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cumulus_bench import ALICE, Bench, bucket, held, put, row, run_all, upload

from cumulus.index import wire
from cumulus.index.admin_api import Quota
from cumulus.index.api import Away, Damaged, IndexFailure, OverQuota, Put, StillUsed
from cumulus.index.registry import sqlite_path
from cumulus.index.remote import connect_index
from cumulus.index.server import IndexServer
from cumulus.index.sqlite import SqliteIndex
from cumulus.model import Bucket


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A head and one worker."""
    made = Bench(tmp_path, "remote")
    yield made
    made.close()


def head(bench: Bench) -> SqliteIndex:
    """The index of the head."""
    assert isinstance(bench.head[0], SqliteIndex)
    return bench.head[0]


def until(condition: object, seconds: float = 10.0) -> None:
    """Wait for something that other threads do."""
    waiting = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():  # type: ignore[operator]
            return
        waiting.wait(0.01)
    raise AssertionError("it does not come")


def test_socket_is_its_owners_alone(bench: Bench) -> None:
    """It gives secrets to whoever connects; nothing is left of it at the end."""
    assert bench.server is not None
    path = bench.server.path
    assert path.stat().st_mode & 0o777 == 0o600
    bench.server.close()
    assert not path.exists()


def test_what_a_worker_reserved_ends_with_it(bench: Bench) -> None:
    """A worker that dies holds no room; what it had settled is not given back twice."""
    bench.admin.set_quota(Quota(scope="user", name="alice", hard_bytes=100))
    bench.fresh()
    assert bench.server is not None
    other, _ = connect_index(bench.server.path, sqlite_path(bench.url))
    settled = other.reserve("b", 30)
    other.reserve("b", 60)
    other.apply([Put(row=row("k", 1, 30), reservation=settled)])
    with pytest.raises(OverQuota) as refused:
        bench.index.reserve("b", 60)
    assert (refused.value.used, refused.value.reserved, refused.value.name) == (30, 60, "alice")
    other.close()
    until(lambda: head(bench).reservations == 0)
    mine = bench.index.reserve("b", 70)
    assert bench.index.usage("bucket", "b").reserved_bytes == 70
    bench.index.release(mine)


def test_a_worker_that_dies_while_it_completes_an_upload_leaves_it_free(bench: Bench) -> None:
    """Clients who ask again at once had 409 for a minute. What another has claimed since stays his."""
    assert bench.server is not None
    for id in ("u1", "u2", "u3", "u4"):
        bench.index.add_upload(upload(id, key=id))
    other, _ = connect_index(bench.server.path, sqlite_path(bench.url))
    for id in ("u1", "u2", "u3", "u4"):
        assert other.claim_upload(id, "who dies", 60.0)
    assert other.claim_upload("u2", "who dies", 0.0) and bench.index.claim_upload("u2", "mine", 60.0)
    assert other.drop_upload("u3", None, "who dies")
    assert not bench.index.claim_upload("u1", "mine", 60.0)
    other.close()
    until(lambda: bench.index.claim_upload("u1", "mine", 60.0))
    assert not bench.index.claim_upload("u2", "another", 60.0)

    def dropped() -> bool:
        """They are freed one after the other, the last of them when the first is to be had already."""
        try:
            return bench.index.drop_upload("u4")
        except StillUsed:
            return False

    until(dropped)


def test_head_that_goes_is_away_and_that_comes_back_is_found(bench: Bench) -> None:
    """Calls at work and new ones are told; no restart of the worker is needed."""
    put(bench.index, "k")
    assert bench.server is not None
    path = bench.server.path
    told: list[BaseException] = []

    def call() -> None:
        try:
            while True:
                bench.index.usage("bucket", "b")
        except Away as bad:
            told.append(bad)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    bench.server.close()
    for thread in threads:
        thread.join()
    assert len(told) == 4
    with pytest.raises(Away, match="No such file"):
        bench.index.usage("bucket", "b")
    bench.server = IndexServer(head(bench), bench.head[1], path)
    assert bench.index.usage("bucket", "b").objects == 1
    bench.index.close()
    with pytest.raises(Away, match="closed"):
        bench.index.lookup("b", "k")


def test_socket_left_by_a_killed_head_is_replaced(bench: Bench, tmp_path: Path) -> None:
    """And a place where none can be made is told."""
    left = tmp_path / "left.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(left))
    stale.close()
    server = IndexServer(head(bench), bench.head[1], left)
    index, directory = connect_index(left, sqlite_path(bench.url))
    assert index.bucket("b") is not None and directory.user("alice") is not None
    index.close()
    server.close()
    for bad in (tmp_path / "none" / "x.sock", tmp_path / ("x" * 200)):
        with pytest.raises(Away):
            IndexServer(head(bench), bench.head[1], bad)


class Short:
    """A listening socket that has no descriptors for connections, `times` times."""

    def __init__(self, real: socket.socket, times: int) -> None:
        self._real = real
        self.times = times

    def accept(self) -> tuple[socket.socket, Any]:
        """As accept(2), which takes a descriptor before it waits for somebody."""
        if self.times:
            self.times -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._real.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def asked(path: Path, url: str) -> str:
    """What a new worker hears of the bucket; "" if it hears nothing for a while."""
    heard: list[str] = []

    def ask() -> None:
        index, _ = connect_index(path, sqlite_path(url))
        found = index.bucket("b")
        heard.append(found.name if found else "no bucket")
        index.close()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(30)
    return "".join(heard)


def test_a_head_that_had_no_descriptors_left_lets_workers_in_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that starts in such a moment waits until there are some; the log says why, once."""
    assert bench.server is not None
    short = Short(bench.server._listener, 3)
    monkeypatch.setattr(bench.server, "_listener", short)
    with caplog.at_level(logging.ERROR):
        assert asked(bench.server.path, bench.url) == "b"  # that thread waited already
        assert asked(bench.server.path, bench.url) == "b"
    assert short.times == 0
    assert caplog.text.count("a worker cannot be let in") == 1 and "Too many open files" in caplog.text


def test_a_head_without_threads_lets_workers_in_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker that could have none is refused, and comes again."""
    assert bench.server is not None
    real, refused = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        if thread.name == "cumulus-index" and len(refused) < 2:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    for _ in range(2):
        with pytest.raises(Away):
            connect_index(bench.server.path, sqlite_path(bench.url))[0].bucket("b")
    assert asked(bench.server.path, bench.url) == "b"


def test_a_head_answers_all_with_the_threads_that_it_has(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls take turns where the system gives no more."""
    real, refused, names = threading.Thread.start, list[str](), list[list[str]]()

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("cumulus-index_"):
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        real(thread)

    def ask() -> None:
        names.append([one.name for one in bench.index.buckets()])

    monkeypatch.setattr(threading.Thread, "start", start)
    look = head(bench).buckets

    def slowly(owner: str | None = None) -> list[Bucket]:
        time.sleep(0.02)  # the others come meanwhile
        return look(owner)

    monkeypatch.setattr(head(bench), "buckets", slowly)
    asking = [threading.Thread(target=ask, daemon=True) for _ in range(40)]
    for one in asking:
        one.start()
    for one in asking:
        one.join(30)
    assert names == [["b"]] * 40 and refused


def test_calls_at_the_same_time_share_transactions(bench: Bench) -> None:
    """64 threads of one worker: no thread of the head waits for each."""
    index = bench.index
    before = head(bench).commits

    def write(number: int) -> None:
        for turn in range(5):
            mine = index.reserve("b", 10)
            index.apply([Put(row=row(f"k{number:02}-{turn}"), reservation=mine)])

    run_all([lambda number=number: write(number) for number in range(64)])
    assert held(index) == (3200, 320) and head(bench).reservations == 0
    assert head(bench).commits - before < 250


def test_what_is_no_message_ends_its_connection_only(bench: Bench) -> None:
    """Bad lengths, bad MessagePack, unknown methods, wrong arguments."""
    assert bench.server is not None
    good = wire.frame(1, "bucket", ("b",))
    bad_ones = [
        struct.pack(">I", 2**31),
        struct.pack(">I", 3) + b"abc",
        wire.frame(1, "close", ()),
        wire.frame(1, "bucket", (5,)),
        wire.frame(1, "apply", ({"put": 1},)),
        good[:-1] + b"\xc1",
    ]
    for data in bad_ones:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(bench.server.path))
            connection.sendall(data)
            assert connection.recv(100) == b""
    assert bench.index.bucket("b") is not None
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(bench.server.path))
        for piece in (good[:3], good[3:9], good[9:] + wire.frame(2, "apply", ([wire.Altered()], False))):
            connection.sendall(piece)
        frames, found = wire.Frames(), []
        while len(found) < 2:
            found += frames.feed(connection.recv(1 << 16))
    assert [(number, kind) for number, kind, _ in found] == [(1, ""), (2, "IndexFailure")]


def test_errors_arrive_as_they_were(bench: Bench) -> None:
    """Also those that are not the index's own."""
    for bad in (Away("a"), Damaged("d"), OverQuota("user", "alice", "objects", 1, 2, 3)):
        kind, value = wire.error_value(bad)
        again = wire.error(kind, msgspec.Raw(msgspec.msgpack.encode(value)))
        assert type(again) is type(bad) and again.args == bad.args and vars(again) == vars(bad)
    bench.admin.add_key("alice", "AK", "longsecret")
    bench.keyring.path.write_text("ab" * 32 + "\n")
    bench.head[1]._keyring.load()  # type: ignore[attr-defined]
    with pytest.raises(IndexFailure, match=r"secret\.key: does not open the secret of AK") as refused:
        bench.directory.credential("AK")
    assert "longsecret" not in str(refused.value)


def test_message_that_is_too_long_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """On both sides, and the connection stays."""
    monkeypatch.setattr(wire, "MOST", 2000)
    with pytest.raises(IndexFailure, match="too long"):
        bench.index.add_bucket(bucket("x", policy="p" * 3000))
    put(bench.index, *(f"key-{number:020}" for number in range(5)))
    put(bench.index, *(f"more-{number:020}" for number in range(5)))
    with pytest.raises(IndexFailure, match="too long"):
        put(bench.index, *(f"long-{number:0200}" for number in range(20)))
    for name in ("one", "two", "three"):
        bench.index.add_bucket(bucket(name, policy="p" * 900))
    with pytest.raises(IndexFailure, match="too long"):
        bench.index.buckets()
    found = bench.index.bucket("two")
    assert found is not None and found.name == "two"
    assert [one.name for one in bench.index.brief_buckets()] == ["b", "one", "three", "two"]


def test_answers_that_are_not_taken_at_once_come_whole(bench: Bench) -> None:
    """More than the socket holds, read when all was asked."""
    assert bench.server is not None
    count = 8000
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(bench.server.path))
        for number in range(count):
            client.sendall(wire.frame(number, "bucket", ("b",)))
        frames, numbers = wire.Frames(), []
        while len(numbers) < count:
            numbers += [number for number, kind, _ in frames.feed(client.recv(1 << 16)) if kind == ""]
    assert sorted(numbers) == list(range(count))


def test_answers_are_kept_for_less_than_a_second(bench: Bench) -> None:
    """A worker asks the head again for users and buckets; a change of its own counts at once."""
    assert bench.directory.user("alice") is not None and bench.index.bucket("new") is None
    bench.index.add_bucket(bucket("new", ALICE))
    assert bench.index.bucket("new") is not None
    bench.admin.add_key("alice", "AK", "longsecret")
    bench.fresh()
    found = bench.directory.credential("AK")
    assert found is not None and found.secret == "longsecret"
    bench.admin.remove_key("AK")
    until(lambda: bench.directory.credential("AK") is None, 1.5)
