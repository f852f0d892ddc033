"""A system that gives no further thread for a while: what is answered is true, and all goes on afterwards."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cumulus.backends.posix import freeing, journal
from cumulus.backends.posix.store import PosixStore
from cumulus.storage.api import Missing, Unavailable


class Threads:
    """Those whose name begins with `name` cannot be started while `none`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.none = True
        self.refused = 0
        real = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if self.none and thread.name.startswith(name):
                self.refused += 1
                raise RuntimeError("can't start new thread")
            real(thread)

        monkeypatch.setattr(threading.Thread, "start", start)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PosixStore]:
    """Plain files with a bucket."""
    made = PosixStore(str(tmp_path / "store"))
    made.create_bucket("b")
    yield made
    made.close()


def put(store: PosixStore, name: str, body: bytes) -> None:
    """One object."""
    with contextlib.closing(store.open_write("b", name, len(body))) as stream:
        stream.write(memoryview(body))
        stream.commit(b"meta")


def until(condition: Callable[[], object]) -> None:
    """Wait for what other threads do."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.01)


def test_an_object_is_refused_until_its_journal_has_a_keeper(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And later journals go again, as they should, and the store can be closed."""
    monkeypatch.setattr(journal, "MAX_AGE_S", 0.1)
    threads = Threads(monkeypatch, "cumulus-journal")
    for _ in range(2):
        with pytest.raises(Unavailable, match="thread"):
            put(store, "k", b"body")
    with pytest.raises(Missing):
        store.stat("b", "k")
    threads.none = False
    put(store, "k", b"body")
    until(lambda: not list((tmp_path / "store/journal").iterdir()))
    assert threads.refused == 2 and store.stat("b", "k").size == 4


def test_a_large_object_is_replaced_and_freed_at_once(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing stays open."""
    monkeypatch.setattr(freeing, "SPARE", 10**9)
    monkeypatch.setattr(
        freeing.Held,
        "hold",
        lambda held, directory, name, status: (
            held.descriptors.append(os.open(name, os.O_PATH, dir_fd=directory)) if status else None
        ),
    )
    put(store, "k", bytes(freeing.LARGE))
    threads = Threads(monkeypatch, "cumulus-free")
    before = len(os.listdir("/proc/self/fd"))
    for number in range(3):
        put(store, "k", bytes(freeing.LARGE + number))
    assert threads.refused == 3 and len(os.listdir("/proc/self/fd")) == before
    threads.none = False
    put(store, "k", b"")
    until(lambda: len(os.listdir("/proc/self/fd")) == before)
