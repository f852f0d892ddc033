"""More buckets than a process may have files open: what is open follows what is used."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cumulus.backends.posix import paths
from cumulus.backends.posix.store import PosixStore
from cumulus.storage.api import Whole

COUNT = 120


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PosixStore]:
    monkeypatch.setattr(paths, "MOST_OPEN", 10, raising=False)
    made = PosixStore(str(tmp_path / "store"))
    for number in range(COUNT):
        made.create_bucket(f"b{number:03}")
    yield made
    made.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def put(store: PosixStore, bucket: str, body: bytes) -> None:
    stream = store.open_write(bucket, "k", len(body))
    stream.write(memoryview(body))
    stream.commit(b"meta")
    stream.close()


def test_buckets_that_are_not_used_are_closed(store: PosixStore) -> None:
    """Whatever is done in each of them, also while the journal remembers it."""
    before = descriptors()
    for number in range(COUNT):
        bucket = f"b{number:03}"
        put(store, bucket, b"small")
        put(store, bucket, b"large" * 20_000)
        assert [entry.name for entry in store.names(bucket)] == ["k"]
        part = store.open_range(bucket, ".cumulus/parts/u/slots.131072", 0, 131_072)
        assert part is not None
        part.write(memoryview(b"p" * 131_072))
        part.sync()
        part.close()
    store.put_all([Whole(f"b{number:03}", "many", b"x", b"") for number in range(COUNT)])
    assert descriptors() <= before + 3 * 11 + 8
    for number in range(COUNT):
        assert store.stat(f"b{number:03}", "k").size == 100_000
        assert store.stat(f"b{number:03}", "many").size == 1


def test_what_is_under_way_in_a_bucket_goes_on_when_it_is_closed(store: PosixStore) -> None:
    """Others are asked for meanwhile; so does who is in it from several threads."""
    writer = store.open_write("b000", "k", 100_000)
    put(store, "b001", b"read me")
    reader = store.open_read("b001", "k")
    for number in range(2, COUNT):
        put(store, f"b{number:03}", b"x")
    writer.write(memoryview(b"y" * 100_000))
    writer.commit(b"")
    writer.close()
    assert reader.read_at(0, 100) == b"read me"
    reader.close()
    assert store.stat("b000", "k").size == 100_000
    failed: list[Exception] = []

    def work(first: int) -> None:
        try:
            for turn in range(200):
                put(store, f"b{(first + 7 * turn) % COUNT:03}", b"z")
        except Exception as bad:
            failed.append(bad)

    threads = [threading.Thread(target=work, args=(31 * number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_a_tenth_of_the_open_files_is_for_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand buckets are open at most, and a few under whatever limit."""
    for files, most in ((65_536, 1024), (4096, 136), (100, 8), (resource.RLIM_INFINITY, 1024)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert paths._most_open() == most
