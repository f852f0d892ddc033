"""Large bodies are synced while they arrive; what is acknowledged still hangs on the sync at the end."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest
from posix_disk import Faulty

from cumulus.backends.posix.ahead import LARGE, LARGE_PART, STEP, THREADS, Ahead
from cumulus.backends.posix.store import PosixStore
from cumulus.storage.api import FileStore, ObjectStream, RangeStream, StorageError

PIECE = bytes(STEP)


class Watched(Faulty):
    """Counts syncs ahead, and holds them up for as long as `go` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.running = threading.Semaphore(0)

    def sync_ahead(self, fd: int) -> None:
        self.running.release()
        assert self.go.wait(30)
        self.step("sync_ahead")
        super().sync_ahead(fd)

    def begun(self) -> int:
        """How many have begun since the last look."""
        found = 0
        while self.running.acquire(timeout=0.3):
            found += 1
        return found


@pytest.fixture
def disk() -> Watched:
    return Watched()


@pytest.fixture
def store(tmp_path: Path, disk: Watched) -> Iterator[FileStore]:
    with closing(PosixStore(str(tmp_path / "store"), files=disk)) as opened:
        opened.create_bucket("b")
        yield opened
        disk.go.set()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def written(stream: ObjectStream | RangeStream, size: int) -> None:
    for _ in range(size // STEP):
        stream.write(memoryview(PIECE))


def test_a_large_body_is_synced_while_it_arrives_and_at_its_end(store: FileStore, disk: Watched) -> None:
    left = set()
    for _ in range(2):
        stream = store.open_write("b", "large", 2 * LARGE)
        written(stream, LARGE)
        assert disk.begun() >= 1
        before = disk.calls["sync"]
        written(stream, LARGE)
        assert stream.commit(b"").size == 2 * LARGE
        assert disk.calls["sync"] > before
        disk.begun()
        left.add(descriptors())
    assert len(left) == 1  # none is left open


@pytest.mark.parametrize("size", [LARGE_PART - STEP, LARGE_PART])
def test_the_largest_parts_of_uploads_are_synced_while_they_arrive(
    store: FileStore, disk: Watched, size: int
) -> None:
    part = store.open_range("b", "parts", 0, size)
    assert part is not None
    written(part, size - STEP)
    assert (disk.begun() >= 1) == (size >= LARGE_PART)
    part.sync()
    part.close()
    assert disk.calls["sync_data"] == 1


def test_a_small_body_is_synced_once(store: FileStore, disk: Watched) -> None:
    stream = store.open_write("b", "small", LARGE - STEP)
    written(stream, LARGE - STEP)
    stream.commit(b"")
    assert disk.begun() == 0


def test_without_syncs_there_are_none_ahead(tmp_path: Path, disk: Watched) -> None:
    with closing(PosixStore(str(tmp_path / "store"), fsync=False, files=disk)) as store:
        store.create_bucket("b")
        stream = store.open_write("b", "large", 2 * LARGE)
        written(stream, 2 * LARGE)
        stream.commit(b"")
    assert disk.begun() == 0


def test_one_at_a_time_of_a_body_and_few_of_all_and_nobody_waits(store: FileStore, disk: Watched) -> None:
    disk.go.clear()
    streams = [store.open_write("b", f"n{number}", 2 * LARGE) for number in range(THREADS + 2)]
    for stream in streams:
        written(stream, LARGE)
    assert disk.begun() == THREADS
    for stream in streams:
        written(stream, LARGE)
        assert stream.commit(b"").size == 2 * LARGE
    disk.go.set()


@pytest.mark.parametrize("late", [False, True], ids=["while it arrives", "after the last byte"])
def test_a_sync_that_fails_ahead_fails_the_upload(store: FileStore, disk: Watched, late: bool) -> None:
    """Also when the one at the end, told of an error that another had heard before, would say that all is
    well."""
    disk.fail("sync_ahead", errno.EIO)
    if late:
        disk.go.clear()
    stream = store.open_write("b", "large", 2 * LARGE)
    written(stream, 2 * LARGE if late else STEP)
    disk.go.set()
    disk.begun()
    with pytest.raises(StorageError):
        stream.commit(b"") if late else written(stream, LARGE)
    stream.abort()
    assert [entry.name for entry in store.names("b")] == []


def test_a_store_that_closes_waits_for_them(tmp_path: Path, disk: Watched) -> None:
    disk.go.clear()
    store = PosixStore(str(tmp_path / "store"), files=disk)
    store.create_bucket("b")
    stream = store.open_write("b", "large", 2 * LARGE)
    before = descriptors()
    written(stream, LARGE)
    assert disk.begun() == 1
    stream.abort()
    ending = threading.Thread(target=store.close)
    ending.start()
    ending.join(0.2)
    assert ending.is_alive()
    disk.go.set()
    ending.join(30)
    assert not ending.is_alive() and descriptors() < before


def test_without_proc_an_upload_goes_on(
    store: FileStore, disk: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refused(path: str, *arguments: int, **more: int) -> int:
        if str(path).startswith("/proc/self/fd/"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return real(path, *arguments, **more)

    monkeypatch.setattr(os, "open", refused)
    for number in range(THREADS + 1):
        stream = store.open_write("b", f"n{number}", 2 * LARGE)
        written(stream, 2 * LARGE)
        assert stream.commit(b"").size == 2 * LARGE
    assert disk.begun() == 0


def test_a_sync_that_never_began_since_the_store_closed_is_no_error(disk: Watched) -> None:
    never: Future[None] = Future()
    never.cancel()

    class Closed(Ahead):
        def begin(self, fd: int) -> Future[None] | None:
            return never

    body = Closed(disk, True).body(-1, 0, 2 * LARGE)
    body.wrote(STEP)
    assert body.settled()
