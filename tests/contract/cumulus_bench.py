"""A database of Cumulus with two users and a bucket, for the contract tests."""

from __future__ import annotations

import functools
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from postgres import shared

from cumulus.index.admin import SqlAdmin
from cumulus.index.api import Directory, Index, Put, Row, Upload
from cumulus.index.registry import Options, make_admin, make_index, prepare
from cumulus.index.remote import connect_index
from cumulus.index.server import IndexServer
from cumulus.index.sqlite import SqliteIndex
from cumulus.index.tables import tables_of
from cumulus.index.text_file import TextFile
from cumulus.model import Acl, Bucket, ObjectMeta, Part, User
from cumulus.secrets import Keyring

ALICE, BOB = "a" * 64, "b" * 64
DAY_NS = 86400 * 10**9


@functools.cache
def empty_database() -> bytes:
    """SQLite's file with all tables, made once."""
    with tempfile.TemporaryDirectory() as where:
        path = Path(where, "cumulus.db")
        prepare(path)
        return path.read_bytes()


@functools.cache
def postgres_database() -> str:
    """The URL of a database in PostgreSQL, made once; `Bench` empties it. Fixtures call it that are wider
    than one test."""
    made = shared().local(shared().database())
    index, directory = make_index(made, directory=TextFile(_no_users(), lambda bad: None))
    index.close()
    directory.close()
    return made


def _no_users() -> Path:
    path = shared().directory / "users"
    path.touch(0o600)
    return path


def emptied(url: str) -> str:
    """The same URL; its database has no rows."""
    tables = [table.name for table in reversed(tables_of("postgresql"))]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(";".join(f"DELETE FROM {name}" for name in tables))  # type: ignore[call-overload]
    return url


class Bench:
    """An index with two users and one bucket `b` of alice, and a clock that stands. `kind` is sqlite, remote
    (as a worker has it) or postgresql."""

    def __init__(self, path: Path, kind: str = "sqlite", options: Options | None = None) -> None:
        self.now_ns = 10**18
        self.keyring = Keyring.create(path / "secret.key")
        if kind == "postgresql":
            self.url = emptied(postgres_database())
            self.database = urlsplit(self.url).path[1:]
        else:
            self.url = f"sqlite:///{path / 'cumulus.db'}"
            (path / "cumulus.db").write_bytes(empty_database())
        self.index: Index
        self.directory: Directory
        self.index, self.directory = make_index(
            self.url, self.keyring, sync=kind == "postgresql", clock=self.clock, options=options
        )
        self.head = self.index, self.directory
        self.server: IndexServer | None = None
        if kind == "remote":
            assert isinstance(self.index, SqliteIndex)
            self.server = IndexServer(self.index, self.directory, path / "index.sock")
            self.index, self.directory = connect_index(path / "index.sock", path / "cumulus.db")
        self.admin: SqlAdmin = make_admin(self.url, self.keyring, self.clock)
        self.admin.add_user(User(id=ALICE, name="alice"))
        self.admin.add_user(User(id=BOB, name="bob", email="Bob@example.org"))
        self.index.add_bucket(bucket("b"))

    def clock(self) -> int:
        """The time that tests set."""
        return self.now_ns

    def fresh(self) -> None:
        """What other processes changed is seen now, as it is within a second."""
        for one in (*self.head, self.index, self.directory):
            one.forget()  # type: ignore[union-attr]

    def close(self) -> None:
        """All of it."""
        self.admin.close()
        if self.server is not None:
            self.index.close()
            self.server.close()
        for one in self.head:
            one.close()


def bucket(name: str, owner: str = ALICE, **more: object) -> Bucket:
    """A bucket without settings."""
    return Bucket(name=name, owner=owner, created_ns=1, acl=Acl(owner=owner), **more)  # type: ignore[arg-type]


def row(key: str, stamp: int = 1, size: int = 10, **more: object) -> Row:
    """A row of bucket `b`."""
    fields: dict[str, object] = {
        "bucket": "b",
        "key": key,
        "stamp": stamp,
        "size": size,
        "name": key,
        "token": b"t%d" % stamp,
        "etag": f"e{stamp}",
        "modified_ns": stamp,
        "owner": ALICE,
    }
    return Row(**(fields | more))  # type: ignore[arg-type]


def put(index: Index, *keys: str, stamp: int = 1, size: int = 10) -> None:
    """Publish objects."""
    index.apply([Put(row=row(key, stamp, size)) for key in keys])


def held(index: Index) -> tuple[int, int]:
    """(bytes, objects) of bucket b; the same must be said of its owner."""
    usage = index.usage("bucket", "b")
    owner = index.usage("user", "alice")
    assert (usage.bytes, usage.objects) == (owner.bytes, owner.objects)
    return usage.bytes, usage.objects


def upload(id: str, key: str = "big", created_ns: int = 1) -> Upload:
    """An upload to bucket `b`."""
    meta = ObjectMeta(key=key, size=0, etag="", modified_ns=0, acl=Acl(owner=ALICE))
    return Upload(
        id=id,
        bucket="b",
        key=key,
        owner=ALICE,
        initiator=BOB,
        created_ns=created_ns,
        meta=meta,
        algorithm="CRC32",
    )


def part(number: int, size: int) -> Part:
    """A part."""
    return Part(number=number, size=size, etag=f"p{number}", checksums={"crc32": "x"})


def run_all(calls: list[Callable[[], None]]) -> None:
    """Each in a thread of its own."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
