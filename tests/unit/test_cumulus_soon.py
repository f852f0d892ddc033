"""One sync a PUT: the index follows without one of its own as long as storage would tell it after a crash."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from posix_disk import Faulty
from s3_world import People, World

from cumulus.backends.posix.store import PosixStore
from cumulus.index.api import Away, Put, Remove
from cumulus.index.registry import make_index
from cumulus.index.sqlite import SqliteIndex
from cumulus.index.writer import Writer
from cumulus.parts import remember_until_synced
from cumulus.storage.api import Unavailable


class Book:
    """What was asked of an index, in order."""

    def __init__(self, index: SqliteIndex, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.fails = False
        for name in ("apply", "apply_soon", "tell", "sync"):
            monkeypatch.setattr(index, name, self._noted(name, getattr(index, name)))

    def _noted(self, name: str, real: object) -> object:
        def call(*arguments: object) -> None:
            self.calls.append(name)
            if self.fails and name == "sync":
                raise Away("no database")
            real(*arguments)  # type: ignore[operator]

        return call


@pytest.fixture
def disk() -> Faulty:
    """The system calls of the store."""
    return Faulty()


@pytest.fixture
def world(tmp_path: Path, disk: Faulty) -> Iterator[World]:
    """A service on plain files with a bucket."""
    made = World(PosixStore(str(tmp_path / "store"), files=disk))
    remember_until_synced(made.site)
    assert made.ask("PUT", "/bkt").status == 200
    yield made
    made.close()


@pytest.fixture
def book(world: World, monkeypatch: pytest.MonkeyPatch) -> Book:
    """From here on."""
    assert isinstance(world.index, SqliteIndex)
    return Book(world.index, monkeypatch)


def checkpoint(world: World) -> None:
    """As the journal's keeper does it."""
    assert isinstance(world.store, PosixStore)
    world.store._journal.checkpoint()


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_put_is_remembered_by_the_journal(world: World, disk: Faulty, book: Book, size: int) -> None:
    """The index has it at once and is synced by the checkpoint, before the journal goes."""
    world.ask("PUT", "/bkt/first", b"x")
    book.calls.clear()
    before = disk.calls["sync_data"]
    assert world.ask("PUT", "/bkt/k", b"x" * size).status == 200
    assert book.calls == ["tell"]
    assert disk.calls["sync_data"] == before + 1
    assert "<Key>k</Key>" in world.ask("GET", "/bkt").body.decode()
    disk.before = lambda name: book.calls.append(name)
    checkpoint(world)
    assert book.calls[1:] == ["sync", "sync_all", "unlink"]


def test_a_put_over_which_the_journal_goes_is_synced_in_the_index(
    world: World, disk: Faulty, book: Book
) -> None:
    """Between its commit and its row a checkpoint comes."""
    world.ask("PUT", "/bkt/first", b"x")
    book.calls.clear()
    real = world.index.tell

    def late(put: Put) -> None:
        checkpoint(world)
        real(put)

    world.index.tell = late  # type: ignore[method-assign]
    assert world.ask("PUT", "/bkt/k", b"x").status == 200
    assert book.calls == ["sync", "tell", "sync"]


def test_a_journal_stays_as_long_as_the_index_cannot_be_synced(
    world: World, tmp_path: Path, book: Book
) -> None:
    """Nothing is forgotten; later it goes."""
    world.ask("PUT", "/bkt/k", b"x")
    book.fails = True
    with pytest.raises(Unavailable):
        checkpoint(world)
    assert len(os.listdir(tmp_path / "store/journal")) == 1
    book.fails = False
    checkpoint(world)
    assert os.listdir(tmp_path / "store/journal") == []


def test_versions_and_conditions_are_synced_in_the_index(world: World, book: Book) -> None:
    """Storage tells only of what is current."""
    world.ask("PUT", "/bkt/k", b"x", headers={"if-none-match": "*"})
    assert book.calls == ["apply"]
    world.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Enabled"})
    book.calls.clear()
    world.ask("PUT", "/bkt/k", b"y")
    assert book.calls == ["apply"]


def test_a_key_that_gets_another_name_is_waited_for(world: World, book: Book) -> None:
    """The next change of it looks for the name in the index."""
    world.ask("PUT", "/bkt/n/m", b"x")
    book.calls.clear()
    assert world.ask("PUT", "/bkt/n", b"y").status == 200
    assert world.ask("PUT", "/bkt/n", b"z").status == 200
    assert book.calls == ["apply_soon", "apply_soon"]
    assert world.ask("DELETE", "/bkt/n/m").status == 204
    assert world.ask("PUT", "/bkt/n", b"w").status == 200
    assert world.ask("GET", "/bkt/n").body == b"w"
    assert world.ask("DELETE", "/bkt/n").status == 204
    assert world.ask("GET", "/bkt/n").status == 404


def test_a_directory_that_had_bytes_leaves_none(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the index has not taken in the bytes yet."""
    monkeypatch.setattr("cumulus.index.writer.GATHER_S", 60.0)
    world.ask("PUT", "/bkt/other", b"x")
    assert "<Key>other</Key>" in world.ask("GET", "/bkt").body.decode()  # from here on changes gather
    assert world.ask("PUT", "/bkt/d/", b"bytes").status == 200
    assert world.ask("PUT", "/bkt/d/").status == 200
    assert world.ask("GET", "/bkt/d/").body == b""
    assert [path for path in tmp_path.rglob("odd/*") if path.is_file()] == []


def test_without_fsync_there_is_nothing_to_remember(tmp_path: Path) -> None:
    """The setting says that a power cut may lose anything."""
    store = PosixStore(str(tmp_path / "store"), fsync=False)
    assert store.mark() is None
    store.close()


def test_only_commits_that_must_be_durable_ask_for_a_sync(tmp_path: Path) -> None:
    """SQLite's own setting at the time of each: 1 = not now, 2 = at the end."""
    path = tmp_path / "db"

    def connect() -> sqlite3.Connection:
        made = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        made.execute("PRAGMA journal_mode = WAL")
        made.execute("PRAGMA synchronous = FULL")
        made.execute("CREATE TABLE IF NOT EXISTS t (x)")
        return made

    writer = Writer(str(path), connect, lambda tx, deltas: None, lambda deltas, settled: None)

    def level(soon: bool) -> int:
        def work(tx: object) -> int:
            return int(tx.run("PRAGMA synchronous").fetchone()[0])  # type: ignore[attr-defined]

        return writer.do(work, soon=soon)

    assert [level(soon) for soon in (False, True, True, False, True)] == [2, 1, 1, 2, 1]
    writer.sync()
    writer.close()
    os.rename(path, tmp_path / "gone")
    writer.sync()  # no log: all was moved into the file


def test_an_index_that_cannot_be_synced_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `Away`."""
    index = make_index(f"sqlite:///{tmp_path}/db", directory=People())[0]
    index.apply([Remove(bucket="b", key="k", stamp=1)])

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(Away):
        index.sync()
    monkeypatch.undo()
    index.sync()
    index.close()
