"""The index in one SQLite file: readers each with a connection, one thread that writes (specification:
Cumulus, where truth is)."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from cumulus.index import objects, sums, uploads
from cumulus.index.api import (
    Away,
    Change,
    Directory,
    IndexFailure,
    NameTaken,
    NoSuch,
    OverQuota,
    Put,
    Remove,
    Reservation,
    StillUsed,
    Upload,
    Usage,
)
from cumulus.index.brief import AT_A_TIME, briefly
from cumulus.index.cache import Fresh
from cumulus.index.in_use import InUse
from cumulus.index.ledger import Charge, Ledger
from cumulus.index.readers import Readers, Run
from cumulus.index.reading import RowReader, RowsIndex
from cumulus.index.revision import BUSY_MS
from cumulus.index.tide import make_tide, private_tide
from cumulus.index.writer import Deltas, Tx, Writer
from cumulus.model import Bucket, Part, written
from cumulus.reserve import Reserve

PATIENCE_S: Final = 10.0  # for what was told to be committed
FRESH_S: Final = 0.5  # half of what an answer may be old: two such caches may stand behind one another
_FORGET_S: Final = 10.0
MANY: Final = 20  # changes of one caller, from which those of new keys are inserted together
_log: Final = logging.getLogger(__name__)
_encoder = msgspec.msgpack.Encoder()
_bucket = msgspec.msgpack.Decoder(Bucket)


def _connect(path: str, sync: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for setting in (
        f"busy_timeout = {BUSY_MS}",
        "journal_mode = WAL",
        f"synchronous = {'FULL' if sync else 'OFF'}",
        "cache_size = -16000",
    ):
        connection.execute(f"PRAGMA {setting}")
    return connection


def reserve_path(path: Path) -> str:
    """Where room for removals is kept beside a database."""
    return f"{path}.reserve"


def _frees(changes: Sequence[Change]) -> bool:
    """Whether they are what a removal does."""
    return all(isinstance(change, Remove) or change.row.marker for change in changes)


class SqliteIndex(RowsIndex):
    """`path` has the tables already (`cumulus.index.schema.migrate`). `directory` tells users' groups.
    `scratch` is removed when the index is closed, and `in_use` let go."""

    together = True

    def __init__(
        self,
        path: Path,
        directory: Directory,
        *,
        sync: bool = True,
        clock: Callable[[], int] = time.time_ns,
        scratch: tempfile.TemporaryDirectory[str] | None = None,
        in_use: InUse | None = None,
    ) -> None:
        self._directory = directory
        self._in_use = in_use
        self._clock = clock
        self._scratch = scratch
        self._readers = Readers(str(path), BUSY_MS)
        self._rows = RowReader(path)
        self._ledger = Ledger()
        self._buckets: Fresh[str, Bucket | None] = Fresh(FRESH_S, weigh=written)
        self._soft = False
        self._soft_at = self._forget_at = 0.0
        self._closing = threading.Lock()
        self.tide = private_tide()
        self._slot = self.tide.join()
        self._telling = threading.Lock()
        self._told = self._taken = 0  # changes by `tell`
        self._turn = threading.Condition()  # the writer has ended a batch
        self._reserve = Reserve(reserve_path(path))
        self._writer = Writer(
            str(path),
            lambda: _connect(str(path), sync),
            self._flush,
            self._ledger.committed,
            clock,
            sync,
            self._turned,
            self._reserve.give,
        )

    @property
    def commits(self) -> int:
        """Transactions so far; less than changes when several shared one."""
        return self._writer.commits

    @property
    def reservations(self) -> int:
        """How many are open."""
        return len(self._ledger)

    def forget(self) -> None:
        """Answer from the database the next time, as it is when answers have grown old."""
        self._buckets.drop()
        self._ledger.forget()
        self._soft_at = 0.0

    def keep_room(self) -> None:
        self._reserve.keep()

    def close(self) -> None:
        with self._closing:
            self._writer.close()
            self._readers.close()
            self._rows.close()
            if self._in_use is not None:
                self._in_use.close()
            if self._scratch is not None:
                self._scratch.cleanup()

    def share(self, path: Path) -> None:
        """Count what is told in a file that workers see; before anything is told. Raises `OSError`."""
        self.tide = make_tide(path)
        self._slot = self.tide.join()

    def catch_up(self) -> None:
        """Return when all is committed that was told by anybody before; at once if the database fails (then
        the rows come later). Raises `Away` when it takes too long."""
        wanted = self.tide.behind()
        if not wanted:
            return
        with self._writer.hurry(), self._turn:
            done = self._turn.wait_for(lambda: self.tide.ailing or self.tide.reached(wanted), PATIENCE_S)
        if not done:
            raise Away("the index is busy")

    # the writer's thread
    def _turned(self, bad: IndexFailure | None) -> None:
        """Last in each batch."""
        ailing = self.tide.ailing
        if bad is not None and not ailing:
            _log.error("what was stored is not in the index yet, it will be tried again: %s", bad)
        if ailing is not (bad is not None):
            self.tide.ail(not ailing)
        with self._turn:
            self._turn.notify_all()

    def _flush(self, tx: Tx, deltas: Deltas) -> None:
        """Last in each transaction: the ledger's rows, soft limits, old removals."""
        now = time.monotonic()
        sums.add(tx, deltas)
        if now - self._soft_at >= FRESH_S:
            self._soft_at, self._soft = now, sums.has_soft(tx.run)
        if self._soft:
            for bucket in deltas:
                with contextlib.suppress(NoSuch):
                    found = sums.charges(tx.run, self._directory, bucket)
                    if sums.mark_soft(tx, found):
                        self._ledger.forget()
        if now - self._forget_at >= _FORGET_S:
            self._forget_at = now
            objects.forget(tx)

    def _load(self, bucket: str) -> tuple[Charge, ...]:
        def work(tx: Tx) -> tuple[Charge, ...]:
            found = sums.charges(tx.run, self._directory, bucket)
            return self._ledger.loaded(bucket, time.monotonic(), found)

        return self._writer.do(work, reads=True)

    # buckets
    def bucket(self, name: str) -> Bucket | None:
        return self._buckets.get(name, self._read_bucket)

    def bucket_now(self, name: str) -> Bucket | None:
        return self._buckets.peek(name)

    def _read_bucket(self, name: str) -> Bucket | None:
        found = self._readers.one("SELECT record FROM buckets WHERE name = ?", (name,))
        return _bucket.decode(found[0]) if found is not None else None

    def buckets(self, owner: str | None = None) -> list[Bucket]:
        query, values = "SELECT record FROM buckets", ()
        with self._readers.run() as run:
            if owner is None:
                found = run(f"{query} ORDER BY name", values).fetchall()
            else:
                found = run(f"{query} WHERE owner = ? ORDER BY name", (owner,)).fetchall()
        return [_bucket.decode(row[0]) for row in found]

    def brief_buckets(self, owner: str | None = None) -> list[Bucket]:
        query = (
            "SELECT record FROM buckets WHERE (?1 IS NULL OR owner = ?1) AND name > ?2 ORDER BY name LIMIT ?3"
        )
        with self._readers.run() as run:
            return briefly(lambda after: run(query, (owner, after, AT_A_TIME)).fetchall())

    def add_bucket(self, bucket: Bucket) -> None:
        def work(tx: Tx) -> None:
            if tx.run("SELECT 1 FROM buckets WHERE name = ?", (bucket.name,)).fetchone():
                raise NameTaken(f"there is a bucket {bucket.name} already")
            tx.run(
                "INSERT INTO buckets (name, owner, record) VALUES (?, ?, ?)",
                (bucket.name, bucket.owner, _encoder.encode(bucket)),
            )
            tx.run("INSERT INTO ledger (bucket, bytes, objects, held) VALUES (?, 0, 0, 0)", (bucket.name,))
            self._bucket_changed(tx, bucket.name)

        self._writer.do(work)

    def set_bucket(self, bucket: Bucket, fields: Sequence[str]) -> None:
        def work(tx: Tx) -> None:
            found = tx.run("SELECT record FROM buckets WHERE name = ?", (bucket.name,)).fetchone()
            if found is None:
                raise NoSuch(f"there is no bucket {bucket.name}")
            old = _bucket.decode(found[0])
            new = old.taking(bucket, fields)
            tx.run(
                "UPDATE buckets SET owner = ?, record = ? WHERE name = ?",
                (new.owner, _encoder.encode(new), new.name),
            )
            for owner in {old.owner, new.owner} if old.owner != new.owner else ():
                sums.mark_soft(tx, sums.owner_charges(tx.run, self._directory, owner))
            self._bucket_changed(tx, bucket.name)

        self._writer.do(work)

    def _bucket_changed(self, tx: Tx, name: str) -> None:
        tx.after.append(lambda: self._buckets.drop(name))
        tx.after.append(self._ledger.forget)

    def drop_bucket(self, name: str) -> None:
        def work(tx: Tx) -> None:
            if not tx.run("SELECT 1 FROM buckets WHERE name = ?", (name,)).fetchone():
                raise NoSuch(f"there is no bucket {name}")
            for table, what in (("objects", "objects"), ("versions", "versions"), ("uploads", "uploads")):
                if tx.run(f"SELECT 1 FROM {table} WHERE bucket = ? LIMIT 1", (name,)).fetchone():
                    raise StillUsed(f"bucket {name} still has {what}")
            tx.run("DELETE FROM buckets WHERE name = ?", (name,))
            tx.run("DELETE FROM ledger WHERE bucket = ?", (name,))
            tx.run("DELETE FROM removed WHERE bucket = ?", (name,))
            tx.run("DELETE FROM quotas WHERE scope = 'bucket' AND name = ?", (name,))
            self._bucket_changed(tx, name)

        self.catch_up()
        self._writer.do(work, frees=True)

    # objects
    def apply(self, changes: Sequence[Change]) -> None:
        self._writer.do(lambda tx: self._apply_all(tx, changes), frees=_frees(changes))

    def apply_soon(self, changes: Sequence[Change]) -> None:
        self._writer.do(lambda tx: self._apply_all(tx, changes), soon=True)

    def tell(self, put: Put) -> None:
        if self._slot is None or self.tide.ailing:
            self.apply_soon([put])
            return
        with self._telling:
            self.submit([put], lambda bad: self._taken_in(put, bad), soon=True, lazy=True)
            self._told += 1
            self.tide.tell(self._slot, self._told)

    def _taken_in(self, put: Put, bad: BaseException | None) -> None:
        """In the writer's thread."""
        if bad is not None:
            if not isinstance(bad, NoSuch):  # it went with its bucket
                _log.error("the index cannot take in an object: %s", bad)
            if put.reservation is not None:
                self.release(put.reservation)  # no commit ends it
        assert self._slot is not None
        self._taken += 1
        self.tide.take(self._slot, self._taken)

    def sync(self) -> None:
        self.catch_up()
        if self.tide.ailing:
            raise Away("the database cannot be written")
        self._writer.sync()

    def submit(
        self,
        changes: Sequence[Change],
        told: Callable[[BaseException | None], None],
        *,
        soon: bool = False,
        lazy: bool = False,
    ) -> None:
        """`apply` (`apply_soon`; with `lazy`, `tell`) without waiting: `told` hears of the outcome after the
        commit, in the writer's thread."""
        self._writer.submit(
            lambda tx: self._apply_all(tx, changes), told, soon=soon, lazy=lazy, frees=_frees(changes)
        )

    def _apply_all(self, tx: Tx, changes: Sequence[Change]) -> None:
        if len(changes) >= MANY:
            puts = [one for one in changes if isinstance(one, Put) and one.reservation is None]
            if len(puts) == len(changes):
                changes = objects.put_new(tx, puts)
        for change in changes:
            try:
                self._apply(tx, change)
            except NoSuch:
                if len(changes) == 1:
                    raise
                if isinstance(change, Put):
                    self._settle(tx, change.reservation)

    def _apply(self, tx: Tx, change: Change) -> None:
        if isinstance(change, Put):
            objects.put(tx, change)
            self._settle(tx, change.reservation)
        else:
            objects.remove(tx, change)

    def _settle(self, tx: Tx, reservation: Reservation | None) -> None:
        if reservation is not None:
            tx.settled.append(reservation.id)

    # the ledger
    def reserve(self, bucket: str, size: int, objects: int = 1) -> Reservation:
        try:
            return self.reserve_now(bucket, size, objects)
        except OverQuota:
            self.catch_up()  # what is told holds its room beside what it replaces
            return self.reserve_now(bucket, size, objects)

    def reserve_now(self, bucket: str, size: int, objects: int = 1) -> Reservation:
        """As `reserve`, but where it does not fit at this moment it is refused."""
        if not self._ledger.known(bucket, time.monotonic() - FRESH_S):
            self._load(bucket)
        while (made := self._ledger.reserve(bucket, size, objects, self._clock())) is None:
            self._load(bucket)
        return made

    def grow(self, reservation: Reservation, size: int) -> None:
        try:
            self.grow_now(reservation, size)
        except OverQuota:
            self.catch_up()
            self.grow_now(reservation, size)

    def grow_now(self, reservation: Reservation, size: int) -> None:
        """As `grow`, but where it does not fit at this moment it is refused."""
        if not self._ledger.known(reservation.bucket, time.monotonic() - FRESH_S):
            self._load(reservation.bucket)
        if self._ledger.grow(reservation.id, size, self._clock()):
            reservation.bytes += size

    def release(self, reservation: Reservation) -> None:
        self._ledger.release(reservation.id)

    def usage(self, scope: Literal["user", "group", "bucket"], name: str) -> Usage:
        self.catch_up()
        with self._readers.run() as run:
            charge = self._charge(run, scope, name)
        charge.reserved, charge.reserved_objects = self._ledger.reserved(scope, charge.key)
        return charge.usage()

    def _charge(self, run: Run, scope: Literal["user", "group", "bucket"], name: str) -> Charge:
        if scope == "bucket":
            return sums.bucket_charge(run, name)
        if scope == "group":
            members = self._directory.members(name)
            if members is None:
                raise NoSuch(f"there is no group {name}")
            return sums.owners_charge(run, scope, name, name, members)
        user = self._directory.user(name)
        if user is None:
            raise NoSuch(f"there is no user {name}")
        return sums.owners_charge(run, scope, user.id, user.name, [user.id])

    def recount(self, bucket: str) -> None:
        """Make the ledger of a bucket fit its rows and uploads. Raises `NoSuch`."""

        def work(tx: Tx) -> None:
            if not sums.recount(tx, bucket):
                raise NoSuch(f"there is no bucket {bucket}")
            tx.after.append(self._ledger.forget)

        self.catch_up()
        self._writer.do(work)

    # uploads
    def add_upload(self, upload: Upload) -> None:
        self._writer.do(lambda tx: uploads.add(tx, upload))

    def set_upload(self, upload: Upload) -> None:
        self._writer.do(lambda tx: uploads.renew(tx.run, upload))

    def put_part(self, upload_id: str, part: Part, reservation: Reservation | None) -> int:
        def work(tx: Tx) -> int:
            self._settle(tx, reservation)
            return uploads.put_part(tx, upload_id, part)

        return self._writer.do(work)

    def claim_upload(self, upload_id: str, claimant: str, life_s: float) -> bool:
        return self._writer.do(lambda tx: uploads.claim(tx, upload_id, claimant, life_s), soon=True)

    def free_uploads(self) -> None:
        self._writer.do(uploads.free_all)

    def drop_upload(self, upload_id: str, put: Put | None = None, claimant: str = "") -> bool:
        def work(tx: Tx) -> bool:
            if not uploads.drop(tx, upload_id, claimant):
                return False
            if put is not None:
                self._apply(tx, put)
            return True

        return self._writer.do(work, frees=put is None)
