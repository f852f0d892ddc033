"""A backend for Cumulus of one's own: objects in one SQLite file.

A package brings it by an entry point, and `backend = "vault:/srv/objects.db"` in `[storage]` finds it:

    [project.entry-points."cumulus.backends"]
    vault = "cumulus_backend:make"

It has what every backend needs and nothing else. Names are keys of a table, so replacing is a transaction,
and so are a body and its meta. Bodies are held in memory while they are written: fit for many small objects.
The contract suite of the repository (tests/contract/test_file_store.py) runs on it; run it on yours.
"""

from __future__ import annotations

import itertools
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cumulus.storage.api import (
    INTERNAL,
    BadName,
    Capabilities,
    Entry,
    FileStore,
    Forbidden,
    IfToken,
    Missing,
    NoBucket,
    NoSpace,
    NotEmptyStore,
    ObjectStream,
    ReadOnly,
    ReadStream,
    StorageError,
    Taken,
    Token,
    Unavailable,
    WriteStream,
    check_token,
)
from cumulus.storage.names import check_bucket, check_name

TABLES = """
CREATE TABLE IF NOT EXISTS bucket (name TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS object (
    bucket TEXT NOT NULL, name TEXT NOT NULL, body BLOB NOT NULL, meta BLOB NOT NULL,
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, stamp INTEGER NOT NULL, PRIMARY KEY (bucket, name));
CREATE TABLE IF NOT EXISTS clock (stamp INTEGER NOT NULL);
INSERT INTO clock SELECT 0 WHERE NOT EXISTS (SELECT * FROM clock);
"""
ENTRY = "SELECT name, size, mtime_ns, stamp, meta FROM object WHERE bucket = ? AND "
ERRORS = {
    sqlite3.SQLITE_FULL: NoSpace,
    sqlite3.SQLITE_TOOBIG: NoSpace,
    sqlite3.SQLITE_READONLY: ReadOnly,
    sqlite3.SQLITE_PERM: Forbidden,
    sqlite3.SQLITE_CANTOPEN: Forbidden,
}
Row = tuple[str, int, int, int, bytes]


def make(argument: str, *, fsync: bool = True) -> FileStore:
    """The factory that the entry point names; `argument` is what follows "vault:"."""
    return VaultStore(argument, fsync=fsync)


class VaultReader(ReadStream):
    """One version of an object, read whole when it was opened."""

    def __init__(self, entry: Entry, body: bytes) -> None:
        self.entry = entry
        self.body = body

    def read_at(self, offset: int, size: int) -> bytes:
        return self.body[offset : offset + size]

    def close(self) -> None:
        self.body = b""


class VaultWriter(WriteStream):
    """Collects a body; `commit` is one transaction."""

    def __init__(self, store: VaultStore, bucket: str, name: str) -> None:
        self.store, self.bucket, self.name = store, bucket, name
        self.body: bytearray | None = bytearray()

    def opened(self) -> bytearray:
        """What has been written. Raises `StorageError` after the end."""
        if self.body is None:
            raise StorageError(f"the stream of {self.name!r} is closed")
        return self.body

    def write(self, data: memoryview) -> None:
        body = self.opened()
        body += data

    def commit(self, meta: bytes, if_token: IfToken = None, name: str = "") -> Entry:
        entry = self.store.publish(self.bucket, name or self.name, bytes(self.opened()), meta, if_token)
        self.body = None
        return entry

    def abort(self) -> None:
        self.body = None


class VaultStore(FileStore):
    """One connection, used by one thread at a time; the file may be shared by several processes."""

    capabilities = Capabilities(atomic_replace=True, plain_names=False, concat=True)

    def __init__(self, path: str, *, fsync: bool = True) -> None:
        self.lock = threading.Lock()
        self.db = sqlite3.connect(path, timeout=30, check_same_thread=False, isolation_level=None)
        self.db.executescript(f"PRAGMA synchronous={'FULL' if fsync else 'OFF'}; {TABLES}")

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """One transaction that writes: whole and durable at its end, or not at all."""
        with self.lock:
            try:
                self.db.execute("BEGIN IMMEDIATE")
                yield self.db
                self.db.execute("COMMIT")
            except sqlite3.Error as error:
                kind = ERRORS.get(error.sqlite_errorcode & 0xFF, Unavailable)
                raise kind(f"vault: {error}") from error
            finally:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")

    # within a transaction

    def find(self, db: sqlite3.Connection, bucket: str, name: str) -> Entry | None:
        """What is under the name. Raises `BadName`, and `Missing` for the bucket."""
        check_name(name)
        if not db.execute("SELECT 1 FROM bucket WHERE name = ?", (bucket,)).fetchone():
            raise NoBucket(f"no bucket {bucket!r}")
        row = db.execute(ENTRY + "name = ?", (bucket, name)).fetchone()
        return entry_of(row) if row else None

    def must(self, db: sqlite3.Connection, bucket: str, name: str, token: IfToken = None) -> Entry:
        """As `find`. Raises `Missing`, and `Changed` where a token does not fit."""
        found = self.find(db, bucket, name)
        if found is None:
            raise Missing(f"no {name!r} in bucket {bucket!r}")
        check_token(name, found.token, token)
        return found

    def stamp(self, db: sqlite3.Connection) -> int:
        """A number larger than all before it."""
        db.execute("UPDATE clock SET stamp = max(stamp + 1, ?)", (time.time_ns(),))
        return int(db.execute("SELECT stamp FROM clock").fetchone()[0])

    def store(
        self, db: sqlite3.Connection, bucket: str, name: str, body: bytes, meta: bytes, token: IfToken
    ) -> Entry:
        """Put an object, if the condition holds and the name is free of files and directories."""
        old = self.find(db, bucket, name)
        check_token(name, old.token if old else None, token)
        above = list(itertools.accumulate(name.split("/")[:-1], lambda path, segment: f"{path}/{segment}"))
        marks = ",".join("?" * len(above))
        taken = f"SELECT 1 FROM object WHERE bucket = ? AND (name IN ({marks}) OR name > ? AND name < ?)"
        if db.execute(taken, (bucket, *above, name + "/", name + "0")).fetchone():  # "0" follows "/"
            raise Taken(f"{name!r} lies below or above another object")
        stamp = self.stamp(db)
        row = (bucket, name, body, bytes(meta), len(body), stamp, stamp)
        db.execute("REPLACE INTO object VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        return self.must(db, bucket, name)

    def body(self, db: sqlite3.Connection, bucket: str, name: str) -> bytes:
        """The bytes of an object that is there."""
        found = db.execute("SELECT body FROM object WHERE bucket = ? AND name = ?", (bucket, name)).fetchone()
        return bytes(found[0])

    # the interface

    def create_bucket(self, bucket: str, path: str = "") -> None:
        check_bucket(bucket)
        if path:
            raise BadName("a vault has no directories to adopt")
        with self.change() as db:
            db.execute("INSERT OR IGNORE INTO bucket VALUES (?)", (bucket,))

    def has_buckets(self) -> bool:
        with self.change() as db:
            return db.execute("SELECT 1 FROM bucket LIMIT 1").fetchone() is not None

    def delete_bucket(self, bucket: str) -> None:
        with self.change() as db:
            self.find(db, bucket, "x")
            if db.execute("SELECT 1 FROM object WHERE bucket = ? LIMIT 1", (bucket,)).fetchone():
                raise NotEmptyStore(f"bucket {bucket!r} has objects")
            db.execute("DELETE FROM bucket WHERE name = ?", (bucket,))

    def names(self, bucket: str, after: str = "", prefix: str = "", limit: int = 1000) -> list[Entry]:
        inside = INTERNAL + "/"
        hidden = (inside, INTERNAL + "0") if not prefix.startswith(inside) else ("", "")
        query = "name > ? AND substr(name, 1, ?) = ? AND NOT (name > ? AND name < ?) ORDER BY name LIMIT ?"
        with self.change() as db:
            self.find(db, bucket, "x")
            rows = db.execute(ENTRY + query, (bucket, after, len(prefix), prefix, *hidden, limit))
            return [entry_of(row) for row in rows]

    def stat(self, bucket: str, name: str) -> Entry:
        with self.change() as db:
            return self.must(db, bucket, name)

    def publish(self, bucket: str, name: str, body: bytes, meta: bytes, if_token: IfToken) -> Entry:
        """Body and meta under the name, in one transaction."""
        with self.change() as db:
            return self.store(db, bucket, name, body, meta, if_token)

    def delete(self, bucket: str, name: str, if_token: Token | None = None) -> int:
        with self.change() as db:
            self.must(db, bucket, name, if_token)
            db.execute("DELETE FROM object WHERE bucket = ? AND name = ?", (bucket, name))
            return self.stamp(db)

    def set_meta(self, bucket: str, name: str, meta: bytes, if_token: Token) -> Entry:
        with self.change() as db:
            self.must(db, bucket, name, if_token)
            query = "UPDATE object SET meta = ?, stamp = ? WHERE bucket = ? AND name = ?"
            db.execute(query, (bytes(meta), self.stamp(db), bucket, name))
            return self.must(db, bucket, name)

    def open_read(self, bucket: str, name: str, token: Token | None = None) -> ObjectStream:
        with self.change() as db:
            entry = self.must(db, bucket, name, token)
            return VaultReader(entry, self.body(db, bucket, name))

    def open_write(self, bucket: str, name: str, size_hint: int | None = None) -> ObjectStream:
        with self.change() as db:
            self.find(db, bucket, name)
        return VaultWriter(self, bucket, name)

    def sweep(self, older_than_s: float) -> int:
        return 0  # what was not committed is nowhere

    def recover(self) -> Iterator[tuple[str, Entry]]:
        return iter(())  # SQLite has done it

    def close(self) -> None:
        self.db.close()


def entry_of(row: Row) -> Entry:
    """The entry of a row of `ENTRY`; the stamp changes with every change, so it is the token, too."""
    name, size, mtime_ns, stamp, meta = row
    token = stamp.to_bytes(8, "big")
    return Entry(name=name, size=size, mtime_ns=mtime_ns, stamp=stamp, token=token, meta=meta)
