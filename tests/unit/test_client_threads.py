"""Descriptors that threads work on when a call of the client is cancelled: none is closed beneath them, none
is left open."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import Clock

from sector.client import cloud as module
from sector.client.cloud import SMALL_PARALLEL, CloudClient, _at_once, _bind
from sector.client.progress import Progress
from sector.client.sending import Put
from sector.client.session import ClientSession
from sector.client.transfer import Link, open_local_thd
from sector.client.unfinished import FROM_BYTES, Left, Unfinished
from sector.model import FileInfo, Version

FILE = FileInfo("/f", "file", 5, Version(1, 1), "u", 0o644, 1.0, "", [])


class Pool:
    """Threads that are busy until `work`: what was asked for begins then, and cannot be cut short."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Deferred[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def run(self, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """As `CloudClient.run`."""
        done: Deferred[Any] = Deferred()
        self.jobs.append((done, function, args))
        return done

    def work(self) -> None:
        """Do all that waits."""
        jobs, self.jobs = self.jobs, []
        for done, function, args in jobs:
            try:
                done.callback(function(*args))
            except Exception:
                done.errback()


class Silent:
    """A session whose master says nothing."""

    clock = Clock()
    rpc = gmp = None
    user = "alice"

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def call(self, request: Any, **_limits: Any) -> Deferred[Any]:
        self.asked.append(request)
        return Deferred()


class Got:
    """A `Get` that has all bytes at once."""

    def __init__(self, *_args: Any) -> None:
        pass

    async def open(self, *_args: Any) -> Any:
        return SimpleNamespace(info=FILE)

    async def whole(self, fd: int, _grant: Any) -> None:
        os.pwrite(fd, b"whole", 0)

    async def parts(self, fd: int, _grant: Any, _offset: int, _size: int) -> None:
        os.pwrite(fd, b"range", 0)


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def cloud(pool: Pool) -> CloudClient:
    return CloudClient(cast(ClientSession, Silent()), cast(Any, None), pool.run)


def outcome(work: Deferred[Any]) -> list[Any]:
    """What it ended with, once it has."""
    said: list[Any] = []
    work.addCallbacks(said.append, lambda failure: said.append(failure.type.__name__))
    return said


def open_here(name: str) -> int:
    """How many descriptors of this process are open on what is called so."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            count += name in os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # that of the directory itself
            continue
    return count


def test_a_cancelled_write_writes_into_no_other_file(cloud: CloudClient, pool: Pool, tmp_path: Path) -> None:
    """The program's next file gets the first number that is free, and a thread knows only numbers."""
    writing = cloud.write("/f", b"from the cancelled call")
    said = outcome(writing)
    writing.cancel()
    place = tmp_path / "notes"
    with place.open("wb", buffering=0) as notes:
        notes.write(b"my own")
        pool.work()
    assert place.read_bytes() == b"my own"
    assert said == ["CancelledError"]
    assert open_here("sector-write") == 0


@pytest.mark.parametrize("whole", [True, False])
def test_a_cancelled_read_leaves_its_file_open_while_a_thread_reads_it(
    cloud: CloudClient, pool: Pool, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    monkeypatch.setattr(module, "Get", Got)
    reading = cloud.read("/f") if whole else cloud.read_at("/f", 0, 5)
    said = outcome(reading)
    reading.cancel()
    assert open_here("sector-read") == 1
    pool.work()
    assert open_here("sector-read") == 0
    assert said == ["CancelledError"]


def putting(pool: Pool, folder: Path) -> Deferred[Any]:
    """A put of a large file that is remembered, on its way to its note."""
    link = Link(cast(ClientSession, Silent()), cast(Any, None), pool.run, unfinished=Unfinished(folder))
    return ensureDeferred(Put(link, "local", "/f", Progress(), resumable=True).run(-1, FROM_BYTES))


def test_a_cancelled_put_leaves_no_note_that_is_locked(pool: Pool, tmp_path: Path) -> None:
    """The next put of the file would believe for ever that this one is under way."""
    work = putting(pool, tmp_path)
    said = outcome(work)
    work.cancel()
    pool.work()
    pool.work()
    assert said == ["CancelledError"]
    assert open_here(str(tmp_path)) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_note_is_not_closed_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads: what is cut to the length of the note would be the file that has its number by then."""
    note = Unfinished(tmp_path).open_thd("local", "alice", "/f")
    assert note is not None
    closing = threading.Thread(target=note.close_thd)
    write = os.pwrite
    waited: list[bool] = []

    def slow(fd: int, raw: bytes, at: int) -> int:
        count = write(fd, raw, at)
        closing.start()
        closing.join(0.3)
        waited.append(closing.is_alive())
        return count

    monkeypatch.setattr(os, "pwrite", slow)
    note.write_thd(Left(b"l" * 16, "s1", 5))
    closing.join(30)
    assert waited == [True] and not closing.is_alive()
    assert open_here(str(tmp_path)) == 0


def test_a_put_that_fails_opens_no_more_files_and_closes_all(
    cloud: CloudClient, pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 600 the 21st is missing: those that wait are never opened, and none stays open."""
    opened: list[str] = []

    def counted(local: str) -> tuple[int, int]:
        opened.append(local)
        return open_local_thd(local)

    monkeypatch.setattr(module, "open_local_thd", counted)
    places = [str(tmp_path / f"{i}") for i in range(600)]
    for place in places:
        Path(place).write_text("x")
    os.unlink(places[20])
    works = [(1, _bind(cloud._put_one, place, f"/{i}", "any", Progress())) for i, place in enumerate(places)]
    said = outcome(ensureDeferred(_at_once(None, works)))
    for _ in range(600):
        pool.work()
    assert said == ["LocalIO"]
    assert open_here(str(tmp_path)) == 0
    assert len(opened) == SMALL_PARALLEL


def test_a_put_that_is_cancelled_while_its_file_is_opened_closes_it(
    cloud: CloudClient, pool: Pool, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("x")
    work = ensureDeferred(cloud._put_one(str(tmp_path / "f"), "/f", "any", Progress()))
    said = outcome(work)
    work.cancel()
    pool.work()
    assert said == ["CancelledError"]
    assert open_here(str(tmp_path)) == 0
