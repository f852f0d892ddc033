"""A disk that is full to the last byte: what removes something is done all the same."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from posix_disk import Faulty
from s3_world import People, World

from cumulus.backends.posix.store import PosixStore
from cumulus.index import registry, schema
from cumulus.index.api import Away, Damaged
from cumulus.index.registry import make_index
from cumulus.index.writer import BATCH, WAITING, Writer
from cumulus.reserve import PIECE, SIZE, Reserve
from cumulus.storage.api import NoSpace


class Full(Faulty):
    """A disk on which nothing can be written but what a reserve has let go of."""

    def __init__(self, reserve: Path) -> None:
        super().__init__()
        self._reserve = reserve
        self.full = False

    def step(self, name: str) -> None:
        super().step(name)
        writes = name in ("write", "take", "create", "set_xattr", "make_dir", "link", "reserve")
        if self.full and writes and self._reserve.stat().st_size == SIZE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A service on such a disk, with room kept, a bucket and an object."""
    reserve = tmp_path / "store/reserve"
    made = World(PosixStore(str(tmp_path / "store"), files=Full(reserve)))
    made.store.keep_room()
    assert made.ask("PUT", "/bkt").status == 200
    assert made.ask("PUT", "/bkt/k", b"old").status == 200
    yield made
    disk(made).full = False
    made.close()


def disk(world: World) -> Full:
    """Below the store."""
    assert isinstance(world.store, PosixStore) and isinstance(world.store._files, Full)
    return world.store._files


def test_a_reserve_is_given_in_pieces_and_made_whole(tmp_path: Path) -> None:
    """Two processes may share it."""
    one, other = Reserve(str(tmp_path / "r")), Reserve(str(tmp_path / "r"))
    assert not one.give()
    one.keep()
    other.keep()
    assert (tmp_path / "r").stat().st_size == SIZE and (tmp_path / "r").stat().st_mode & 0o777 == 0o600
    given = 0
    while one.give():
        given += 1
        assert (tmp_path / "r").stat().st_size == SIZE - given * PIECE
    assert given * PIECE == SIZE and not other.give()
    other.keep()
    assert (tmp_path / "r").stat().st_size == SIZE


def test_a_disk_without_room_has_no_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing fails; what could be had is kept, the rest is tried again."""
    real, calls = os.pwrite, 0

    def write(fd: int, data: bytes, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    made = Reserve(str(tmp_path / "r"))
    made.keep()
    assert (tmp_path / "r").stat().st_size == 2 * PIECE
    monkeypatch.undo()
    made.keep()
    assert (tmp_path / "r").stat().st_size == SIZE
    away = Reserve(str(tmp_path / "none/r"))
    away.keep()
    assert not away.give() and not away.give_if_full()


def test_an_object_goes_from_a_full_disk(world: World) -> None:
    """An upload does not come in; later the reserve is whole again."""
    disk(world).full = True
    assert world.ask("PUT", "/bkt/new", b"x").status == 507
    assert world.ask("DELETE", "/bkt/k").status == 204
    assert world.ask("GET", "/bkt/k").status == 404
    disk(world).full = False
    world.store.keep_room()
    disk(world).full = True
    assert world.ask("PUT", "/bkt/new", b"x").status == 507


def test_a_file_of_others_is_read_from_a_full_disk(world: World, tmp_path: Path) -> None:
    """Its record cannot be written; what it holds, and its MD5 sum, are told all the same."""
    (tmp_path / "store/data/bkt/outside").write_bytes(b"of others")
    disk(world).full = True
    answer = world.ask("GET", "/bkt/outside")
    assert (answer.status, answer.body) == (200, b"of others")
    assert answer.headers["etag"] == f'"{hashlib.md5(b"of others").hexdigest()}"'


def test_without_a_reserve_a_full_disk_says_so(world: World) -> None:
    """And the object stays."""
    while world.store.make_room():
        pass
    disk(world).fail("write", errno.ENOSPC)
    assert world.ask("DELETE", "/bkt/k").status == 507
    disk(world).heal()
    assert world.ask("GET", "/bkt/k").body == b"old"


def test_versions_are_marked_and_go_on_a_full_disk(world: World) -> None:
    """The marker's small file and record fit into the reserve; a version comes back."""
    world.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Enabled"})
    assert world.ask("PUT", "/bkt/k", b"new").status == 200
    disk(world).full = True
    marked = world.ask("DELETE", "/bkt/k")
    assert marked.status == 204 and marked.headers["x-amz-delete-marker"] == "true"
    assert world.ask("GET", "/bkt/k").status == 404
    disk(world).full = False
    world.store.keep_room()
    disk(world).full = True
    marker = marked.headers["x-amz-version-id"]
    assert world.ask("DELETE", "/bkt/k", query=f"versionId={marker}").status == 204
    assert world.ask("GET", "/bkt/k").body == b"new"


def test_an_older_version_comes_back_where_no_copy_has_room(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a second name, with its own metadata."""
    world.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Enabled"})
    new = world.ask("PUT", "/bkt/k", b"new" * 50_000, headers={"x-amz-meta-n": "1"})
    newer = world.ask("PUT", "/bkt/k", b"newer").headers["x-amz-version-id"]

    def full(*arguments: object) -> None:
        raise NoSpace("no room for a copy")

    monkeypatch.setattr(world.store, "copy", full)
    assert world.ask("DELETE", "/bkt/k", query=f"versionId={newer}").status == 204
    monkeypatch.undo()
    found = world.ask("GET", "/bkt/k")
    assert found.body == b"new" * 50_000 and found.headers["x-amz-meta-n"] == "1"
    assert found.headers["x-amz-version-id"] == new.headers["x-amz-version-id"]


# the database
class Database:
    """A writer whose file may not grow while `full`."""

    def __init__(self, path: Path) -> None:
        self.full = False
        self.pieces = 0
        self.tries = 0
        self._path = path
        self.writer = Writer(
            str(path), self._connect, self._check, lambda sums, settled: None, make_room=self._make_room
        )
        self.writer.do(lambda tx: tx.run("CREATE TABLE t (x)"))

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)

    def _check(self, tx: object, sums: object) -> None:
        self.tries += 1
        if self.full:
            bad = sqlite3.OperationalError("database or disk is full")
            bad.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise bad

    def _make_room(self) -> bool:
        self.pieces -= 1
        self.full = self.pieces > 0  # the last one is enough
        return self.pieces >= 0


def insert(value: int) -> object:
    """Work that writes a row."""
    return lambda tx: tx.run("INSERT INTO t VALUES (?)", (value,))


def test_a_file_that_looks_damaged_for_a_while_is_away_for_a_while(tmp_path: Path) -> None:
    """A disk with errors: who asks is to come again, as with any other disk that is away, and what was stored
    meanwhile is told later."""
    made = Database(tmp_path / "db")
    made.writer.do(insert(1))  # type: ignore[arg-type]
    right = (tmp_path / "db").read_bytes()
    (tmp_path / "db").write_bytes(b"x" * len(right))
    with pytest.raises(Damaged, match="not a database"):
        made.writer.do(insert(2))  # type: ignore[arg-type]
    (tmp_path / "db").write_bytes(right)
    made.writer.do(insert(3))  # type: ignore[arg-type]
    assert made.writer.do(lambda tx: tx.run("SELECT x FROM t").fetchall()) == [(1,), (3,)]
    made.writer.close()


def test_removals_reach_a_full_database_and_nothing_else(tmp_path: Path) -> None:
    """They are tried again with each piece that is let go."""
    made = Database(tmp_path / "db")
    made.full, made.pieces = True, 3
    with pytest.raises(Away, match="full"):
        made.writer.do(insert(1))  # type: ignore[arg-type]
    assert made.pieces == 3
    made.writer.do(insert(2), frees=True)  # type: ignore[arg-type]
    assert made.pieces == 0
    made.full = True
    with pytest.raises(Away, match="full"):
        made.writer.do(insert(3), frees=True)  # type: ignore[arg-type]
    made.full = False
    assert made.writer.do(lambda tx: tx.run("SELECT x FROM t").fetchall()) == [(2,)]
    made.writer.close()


def test_removals_reach_a_database_whose_quota_is_used_up(tmp_path: Path) -> None:
    """Of which SQLite says that it cannot write, not that the disk is full; as of any limit that is not the
    disk's, here that of the size of a file."""
    made = Database(tmp_path / "db")
    made.writer.do(lambda tx: tx.run("PRAGMA wal_autocheckpoint = 0"), reads=True)
    made.writer.do(lambda tx: tx.run("PRAGMA journal_mode = WAL").fetchall(), reads=True)
    made.writer.do(lambda tx: tx.run("INSERT INTO t VALUES (zeroblob(4000000))"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = os.stat(tmp_path / "db-wal").st_size

    def room() -> bool:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        return True

    made.writer._make_room = room
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with pytest.raises(Away, match="I/O error"):
            made.writer.do(insert(1))  # type: ignore[arg-type]
        made.writer.do(insert(2), frees=True)  # type: ignore[arg-type]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert made.writer.do(lambda tx: tx.run("SELECT x FROM t WHERE x < 9").fetchall()) == [(2,)]
    made.writer.close()


def test_a_quota_of_the_file_system_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though there is room on it, for others."""
    made = Reserve(str(tmp_path / "r"))
    made.keep()
    assert not made.give_if_full()

    def used_up(*_: object) -> int:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "pwrite", used_up)
    assert made.give_if_full()
    assert (tmp_path / "r").stat().st_size == SIZE - PIECE


@pytest.mark.parametrize("waiting", [3 * BATCH, WAITING])
def test_who_waits_is_answered_before_what_is_told(tmp_path: Path, waiting: int) -> None:
    """However much has gathered for which nobody waits: it cannot be taken in, and is tried again twice a
    second, while requests hear at once that the disk is full, and what makes room is done."""
    made = Database(tmp_path / "db")
    slow, begun = threading.Event(), threading.Event()

    def stall(tx: object) -> None:
        begun.set()
        slow.wait(60)

    made.writer.submit(stall, lambda bad: None)
    assert begun.wait(60)
    made.full = True
    for number in range(waiting):
        made.writer.submit(insert(number), lambda bad: None, lazy=True)  # type: ignore[arg-type]
    heard: list[BaseException | None] = []

    def ask(frees: bool) -> None:
        try:
            made.writer.do(insert(-1), frees=frees)  # type: ignore[arg-type]
            heard.append(None)
        except Away as bad:
            heard.append(bad)

    def asked(frees: bool) -> None:
        thread = threading.Thread(target=ask, args=(frees,), daemon=True)
        thread.start()
        slow.set()
        thread.join(30)

    asked(False)
    assert len(heard) == 1 and "full" in str(heard[0])
    before = made.tries
    time.sleep(1)
    assert made.tries - before < 10
    made.pieces = 1
    asked(True)
    assert heard[1:] == [None]
    made.full = False
    made.writer.close()
    with sqlite3.connect(tmp_path / "db") as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (waiting + 1,)
    connection.close()


def test_a_database_is_opened_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By letting go of what is kept beside it, as often as that helps."""
    index = make_index(f"sqlite:///{tmp_path}/db", directory=People())[0]
    index.keep_room()
    index.close()
    real, attempts = schema.migrate, []

    def migrate(*arguments: object) -> None:
        attempts.append(os.stat(tmp_path / "db.reserve").st_size)
        if len(attempts) < 3:
            raise Away("database or disk is full")
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(schema, "migrate", migrate)
    monkeypatch.setattr(registry, "is_current", lambda _: False)  # it cannot be read
    with pytest.raises(Away):  # there is room: that is not what is wrong
        make_index(f"sqlite:///{tmp_path}/db", directory=People())
    attempts.clear()
    monkeypatch.setattr(Reserve, "give_if_full", Reserve.give)
    make_index(f"sqlite:///{tmp_path}/db", directory=People())[0].close()
    assert attempts == [SIZE, SIZE - PIECE, SIZE - 2 * PIECE]
