"""The index in PostgreSQL, for several servers at once (decision 0124).

Every process has the database itself. A change is one call of a function in the database
(`cumulus.index.functions`), so one round trip; changes that are made at the same time by one process share a
transaction.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from cumulus.index import listing, objects, uploads
from cumulus.index.advisory import AdvisoryKeys
from cumulus.index.api import (
    Away,
    Change,
    Directory,
    Index,
    IndexFailure,
    NameTaken,
    NoSuch,
    Page,
    Put,
    Reservation,
    Row,
    StillUsed,
    Upload,
    Usage,
)
from cumulus.index.brief import AT_A_TIME, briefly
from cumulus.index.cache import Fresh
from cumulus.index.combine import Combiner
from cumulus.index.leader import Leader
from cumulus.index.leases import LIFE_S, Leases
from cumulus.index.postgres_pool import CONNECTIONS, Pool, Target
from cumulus.index.readers import Run
from cumulus.index.scopes import Scopes
from cumulus.model import Bucket, Part, written

T = TypeVar("T")
FRESH_S: Final = 0.5
_OWED: Final = 10_000  # changes of storage of which the database could not be told
_FORGET_S: Final = 10.0
_SILENT_S: Final = 10.0  # after which a database that hangs is away
_APPLY: Final = "SELECT cumulus_apply(?::json, ?::bigint[], ?::bigint)"
_MARK_SOFT: Final = "SELECT cumulus_mark_soft(?::json, ?::bigint)"
_NOW_S: Final = "extract(epoch FROM clock_timestamp())"
_CLAIM: Final = (
    f"UPDATE uploads SET claimant = ?, claimed_until_ns = (({_NOW_S} + ?::float8) * 1000000000)::bigint "
    f"WHERE id = ? AND (claimant = ? OR claimed_until_ns <= {_NOW_S} * 1000000000)"
)
_PAGE: Final = (
    "SELECT common, "
    + ", ".join(f"(item).{name.strip()}" for name in objects.FIELDS.split(","))
    + " FROM cumulus_page(?, ?, ?, ?::integer, ?, ?::integer)"
)
_packer = msgspec.msgpack.Encoder()
_json = msgspec.json.Encoder()
_bucket = msgspec.msgpack.Decoder(Bucket)


class _Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change as `cumulus_apply` takes it; bytes travel as base64."""

    kind: str
    bucket: str
    key: bytes
    stamp: int
    version: str | None
    name: str | None = None
    token: bytes | None = None  # an empty one is no default: it would not be sent
    size: int | None = None
    etag: str | None = None
    modified_ns: int | None = None
    owner: str | None = None
    checksum: str | None = None
    checksum_type: str | None = None
    keep: bool | None = None


class _Told(NamedTuple):
    """Changes that go to the database together, as (bucket, JSON), and the reservations that end. `alone`:
    the bucket of what was published, if that is all."""

    changes: list[tuple[str, bytes]]
    settled: list[int]
    alone: str = ""


def _encode(change: Change) -> tuple[str, bytes]:
    """Raises ValueError for what is no text, `IndexFailure` for what PostgreSQL cannot hold as text."""
    if isinstance(change, Put):
        row = change.row
        made = _Change(
            "marker" if row.marker else "put",
            row.bucket,
            row.key.encode(),
            row.stamp,
            row.version,
            None if row.name == row.key else row.name,
            row.token,
            row.size,
            row.etag,
            row.modified_ns,
            row.owner,
            row.checksum,
            row.checksum_type,
            change.keep,
        )
    else:
        made = _Change("remove", change.bucket, change.key.encode(), change.stamp, change.version)
    data = _json.encode(made)
    if b"\\u0000" in data and any(
        "\0" in text for text in msgspec.structs.astuple(made) if type(text) is str
    ):
        raise IndexFailure("the database cannot hold a text with a zero byte")
    return made.bucket, data


class PostgresIndex(Index):
    """The tables are there already (`cumulus.index.schema`). `directory` tells users' groups. `life_s` is
    after how long reservations of a process that died are free."""

    lag_s = FRESH_S

    def __init__(
        self,
        target: Target,
        directory: Directory,
        *,
        clock: Callable[[], int] = time.time_ns,
        connections: int = CONNECTIONS,
        life_s: float = LIFE_S,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._pool = Pool(target, connections)
        self._leader = Leader(target)
        self._keys = AdvisoryKeys(target)
        self._buckets: Fresh[str, Bucket | None] = Fresh(FRESH_S, weigh=written)
        self._scopes = Scopes(self._pool, directory, self._owner, FRESH_S)
        self._leases = Leases(self._pool, self._scopes.charged, self._scopes.name_of, clock, life_s)
        self._combiner: Combiner[_Told, None] = Combiner(self._apply_all)
        self._owed: deque[_Told] = deque(maxlen=_OWED)
        self._forget_at = 0.0
        self._heard_at = time.monotonic()  # of the database, by the keeper
        self._missed = False  # by the keeper's last attempt
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="cumulus-keeper", daemon=True)
        self._keeper.start()

    @property
    def commits(self) -> int:
        """Transactions of changes so far; less than changes when several shared one."""
        return self._combiner.batches

    @property
    def reservations(self) -> int:
        """How many this process has."""
        return len(self._leases)

    def forget(self) -> None:
        """Answer from the database the next time, as it is when answers have grown old."""
        self._buckets.drop()
        self._scopes.forget()

    def alone(self, bucket: str, key: str) -> AbstractContextManager[object]:
        return self._keys.of(bucket, key)

    def leads(self) -> bool:
        return self._leader.leads()

    def close(self) -> None:
        self._closing.set()
        self._keeper.join()
        self._leases.close()
        self._leader.close()
        self._keys.close()
        self._pool.close()

    # upkeep
    def _keep(self) -> None:
        """The keeper's thread: reservations live on, what is owed is told, old removals are forgotten."""
        while not self._closing.wait(self._leases.every_s):
            try:
                self._turn()
            except Away:
                self._missed = True
            except IndexFailure:
                continue
            else:
                self._heard_at, self._missed = time.monotonic(), False

    def _turn(self) -> None:
        self._leases.turn()
        self._tell_owed()
        if time.monotonic() >= self._forget_at:
            self._forget_at = time.monotonic() + _FORGET_S
            with self._pool.run() as run:
                at_ns = self._clock() - objects.REMEMBER_NS
                run("DELETE FROM removed WHERE at_ns < ?::bigint", (at_ns,))

    def away(self) -> bool:
        return self._missed or time.monotonic() - self._heard_at > _SILENT_S + self._leases.every_s

    def _tell_owed(self) -> None:
        while self._owed:
            told = self._owed.popleft()
            try:
                self._combiner.do(told)
            except Away:
                self._owed.appendleft(told)
                raise

    # buckets
    def bucket(self, name: str) -> Bucket | None:
        return self._buckets.get(name, self._read_bucket)

    def bucket_now(self, name: str) -> Bucket | None:
        return self._buckets.peek(name)

    def _read_bucket(self, name: str) -> Bucket | None:
        found = self._pool.one("SELECT record FROM buckets WHERE name = ?", (name,))
        return _bucket.decode(found[0]) if found is not None else None

    def _owner(self, name: str) -> str:
        bucket = self.bucket(name)
        if bucket is None:
            raise NoSuch(f"there is no bucket {name}")
        return bucket.owner

    def buckets(self, owner: str | None = None) -> list[Bucket]:
        query = "SELECT record FROM buckets WHERE ?1::text IS NULL OR owner = ?1 ORDER BY name"
        with self._pool.run() as run:
            return [_bucket.decode(row[0]) for row in run(query, (owner,)).fetchall()]

    def brief_buckets(self, owner: str | None = None) -> list[Bucket]:
        query = (
            "SELECT record FROM buckets WHERE (?1::text IS NULL OR owner = ?1) AND name > ?2 "
            "ORDER BY name LIMIT ?3"
        )
        with self._pool.run() as run:
            return briefly(lambda after: run(query, (owner, after, AT_A_TIME)).fetchall())

    def _change_bucket(self, name: str, work: Callable[[Run], T]) -> T:
        try:
            with self._pool.transaction() as run:
                return work(run)
        finally:
            self._buckets.drop(name)
            self._scopes.forget()

    def add_bucket(self, bucket: Bucket) -> None:
        def work(run: Run) -> None:
            values = (bucket.name, bucket.owner, _packer.encode(bucket))
            made = run(
                "INSERT INTO buckets (name, owner, record) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", values
            )
            if not made.rowcount:
                raise NameTaken(f"there is a bucket {bucket.name} already")
            run("INSERT INTO ledger (bucket, bytes, objects, held) VALUES (?, 0, 0, 0)", (bucket.name,))

        self._change_bucket(bucket.name, work)

    def set_bucket(self, bucket: Bucket, fields: Sequence[str]) -> None:
        def work(run: Run) -> None:
            found = run("SELECT record FROM buckets WHERE name = ? FOR UPDATE", (bucket.name,)).fetchone()
            if found is None:
                raise NoSuch(f"there is no bucket {bucket.name}")
            old = _bucket.decode(found[0])
            new = old.taking(bucket, fields)
            values = (new.owner, _packer.encode(new), new.name)
            run("UPDATE buckets SET owner = ?, record = ? WHERE name = ?", values)
            for owner in sorted({old.owner, new.owner}) if old.owner != new.owner else ():
                run(_MARK_SOFT, (self._scopes.of_owner(owner).decode(), self._clock()))

        self._change_bucket(bucket.name, work)

    def drop_bucket(self, name: str) -> None:
        def work(run: Run) -> None:
            if not run("SELECT 1 FROM ledger WHERE bucket = ? FOR UPDATE", (name,)).fetchone():
                raise NoSuch(f"there is no bucket {name}")
            for table, what in (("objects", "objects"), ("versions", "versions"), ("uploads", "uploads")):
                if run(f"SELECT 1 FROM {table} WHERE bucket = ? LIMIT 1", (name,)).fetchone():
                    raise StillUsed(f"bucket {name} still has {what}")
            run("DELETE FROM buckets WHERE name = ?", (name,))
            run("DELETE FROM ledger WHERE bucket = ?", (name,))
            run("DELETE FROM removed WHERE bucket = ?", (name,))
            run("DELETE FROM quotas WHERE scope = 'bucket' AND name = ?", (name,))

        self._change_bucket(name, work)

    # objects
    def lookup(self, bucket: str, key: str, version: str | None = None) -> Row | None:
        return self._pool.repeat(lambda run: objects.find(run, bucket, key, version))

    def gone_at(self, bucket: str, key: str, version: str) -> int:
        return self._pool.repeat(lambda run: objects.gone_at(run, bucket, key, version))

    def apply(self, changes: Sequence[Change]) -> None:
        encoded = [_encode(change) for change in changes]
        ending = [
            (change.reservation, change.reservation.id)
            for change in changes
            if isinstance(change, Put) and change.reservation is not None
        ]
        alone = encoded[0][0] if len(changes) == 1 and isinstance(changes[0], Put) else ""
        told = _Told(encoded, [id for _, id in ending if id], alone)
        try:
            self._combiner.do(told)
        except Away:
            self._owed.append(told)  # storage has changed: the index follows when the database is back
            raise
        for reservation, id in ending:
            self._leases.settled(reservation, id)
        self._mark_soft({bucket for bucket, _ in encoded})

    def _apply_all(self, all_told: list[_Told]) -> list[BaseException | None]:
        try:
            missing = self._pool.repeat(lambda run: self._apply_now(run, all_told))
        except Away:
            raise
        except IndexFailure as bad:
            if len(all_told) == 1:
                return [bad]
            return [self._apply_all([one])[0] for one in all_told]  # only that which it is about fails
        gone = {bucket: NoSuch(f"there is no bucket {bucket}") for bucket in missing}
        return [gone.get(one.alone) for one in all_told]

    def _apply_now(self, run: Run, all_told: Sequence[_Told]) -> list[str]:
        """Buckets that are gone."""
        missing: list[str] = run(_APPLY, (*_joined(all_told), self._clock())).fetchone()[0]
        return missing

    def _mark_soft(self, buckets: set[str]) -> None:
        for bucket in buckets:
            with contextlib.suppress(NoSuch):
                if self._scopes.soft(bucket):
                    scopes = self._scopes.charged(bucket).decode()
                    self._pool.one(_MARK_SOFT, (scopes, self._clock()))

    def page(
        self, bucket: str, *, prefix: str = "", after: str = "", delimiter: str = "", limit: int = 1000
    ) -> Page:
        cut = listing.Cut(prefix, delimiter)
        start = cut.start(after)
        if not delimiter or limit <= 0 or start >= cut.end:
            with self._pool.run() as run:
                return listing.page(run, bucket, prefix=prefix, after=after, delimiter="", limit=limit)
        values = (bucket, start, cut.end, len(cut.prefix), cut.delimiter, limit)
        with self._pool.run() as run:
            found = run(_PAGE, values).fetchall()
        return listing.from_items(bucket, found, limit)

    def page_versions(
        self,
        bucket: str,
        *,
        prefix: str = "",
        after: str = "",
        after_version: str = "",
        delimiter: str = "",
        limit: int = 1000,
    ) -> Page:
        with self._pool.run() as run:
            return listing.page_versions(
                run,
                bucket,
                prefix=prefix,
                after=after,
                after_version=after_version,
                delimiter=delimiter,
                limit=limit,
                rows=listing.in_pieces(64 if delimiter else min(limit, 1000) + 1),
            )

    # the ledger
    def reserve(self, bucket: str, size: int, objects: int = 1) -> Reservation:
        made = Reservation(id=0, bucket=bucket, bytes=size, objects=objects)
        if self._scopes.limited(bucket):
            self._leases.hold(made)
        return made

    def grow(self, reservation: Reservation, size: int) -> None:
        if reservation.id:
            self._leases.grow(reservation, size)
            return
        reservation.bytes += size
        try:
            self.confirm(reservation)
        except BaseException:
            reservation.bytes -= size
            raise

    def confirm(self, reservation: Reservation) -> None:
        if reservation.id:
            self._leases.confirm(reservation)
        elif self._scopes.limited(reservation.bucket):  # the first quota was set while it was written
            self._leases.hold(reservation)

    def release(self, reservation: Reservation) -> None:
        self._leases.release(reservation)

    def usage(self, scope: Literal["user", "group", "bucket"], name: str) -> Usage:
        found = self._scopes.named(scope, name)
        with self._pool.run() as run:
            sums = run(
                "SELECT used, objects, held + reserved, reserved_objects, hard_bytes, hard_objects, "
                "soft_bytes, soft_objects, grace_s, over_soft_since_ns FROM cumulus_sums(?::json)",
                (_json.encode([found.scope]).decode(),),
            ).fetchone()
        return Usage(
            scope=scope,
            name=found.name,
            bytes=sums[0],
            objects=sums[1],
            reserved_bytes=sums[2],
            reserved_objects=sums[3],
            hard_bytes=sums[4],
            hard_objects=sums[5],
            soft_bytes=sums[6],
            soft_objects=sums[7],
            grace_s=sums[8],
            over_soft_since_ns=sums[9],
        )

    def recount(self, bucket: str) -> None:
        found = self._pool.one("SELECT cumulus_recount(?)", (bucket,))
        if not found[0]:
            raise NoSuch(f"there is no bucket {bucket}")

    # uploads
    def add_upload(self, upload: Upload) -> None:
        with self._pool.transaction() as run:
            if not run("SELECT 1 FROM ledger WHERE bucket = ? FOR SHARE", (upload.bucket,)).fetchone():
                raise NoSuch(f"there is no bucket {upload.bucket}")
            made = run(
                "INSERT INTO uploads (id, bucket, key, created_ns, record) VALUES (?, ?, ?, ?::bigint, ?) "
                "ON CONFLICT DO NOTHING",
                (upload.id, upload.bucket, upload.key.encode(), upload.created_ns, _packer.encode(upload)),
            )
            if not made.rowcount:
                raise NameTaken(f"there is an upload {upload.id} already")

    def set_upload(self, upload: Upload) -> None:
        with self._pool.run() as run:
            uploads.renew(run, upload)

    def upload(self, bucket: str, key: str, id: str) -> Upload | None:
        return self._pool.repeat(lambda run: uploads.get(run, bucket, key, id))

    def uploads(
        self, bucket: str, *, prefix: str = "", after: str = "", after_id: str = "", limit: int = 1000
    ) -> list[Upload]:
        with self._pool.run() as run:
            return uploads.page(run, bucket, prefix, after, after_id, limit)

    def put_part(self, upload_id: str, part: Part, reservation: Reservation | None) -> int:
        held = reservation.id if reservation is not None else 0
        with self._pool.run() as run:
            (replaced,) = run(
                "SELECT cumulus_put_part(?, ?::integer, ?::bigint, ?, ?::bigint)",
                (upload_id, part.number, part.size, _packer.encode(part), held),
            ).fetchone() or (None,)
        if replaced is None:
            raise NoSuch(f"there is no upload {upload_id}")
        if reservation is not None:
            self._leases.settled(reservation, held)
        return int(replaced)

    def parts(self, upload_id: str, *, after: int = 0, limit: int = 10_000) -> list[Part]:
        return self._pool.repeat(lambda run: uploads.parts(run, upload_id, after, limit))

    def claim_upload(self, upload_id: str, claimant: str, life_s: float) -> bool:
        with self._pool.transaction() as run:
            done = run(_CLAIM, (claimant, life_s, upload_id, claimant))
            if not done.rowcount and not run("SELECT 1 FROM uploads WHERE id = ?", (upload_id,)).fetchone():
                raise NoSuch(f"there is no upload {upload_id}")
            return bool(done.rowcount)

    def drop_upload(self, upload_id: str, put: Put | None = None, claimant: str = "") -> bool:
        reservation = put.reservation if put is not None else None
        ending = [reservation.id] if reservation is not None and reservation.id else []
        told = _Told([_encode(put)] if put is not None else [], ending)
        values = (upload_id, claimant, *_joined([told]), self._clock())
        try:
            with self._pool.run() as run:
                found = run(
                    "SELECT cumulus_drop_upload(?, ?, ?::json, ?::bigint[], ?::bigint)", values
                ).fetchone()
        except Away:
            if put is not None:
                self._owed.append(told)
            raise
        if found and found[0] is None:
            raise uploads.being_completed(upload_id)
        done = bool(found and found[0])
        if done and reservation is not None:
            self._leases.settled(reservation, *ending or [0])
        if done and put is not None:
            self._mark_soft({put.row.bucket})
        return done


def _joined(all_told: Sequence[_Told]) -> tuple[str, list[int]]:
    """Changes as one JSON text in order of buckets, of each bucket in order of time; what is settled."""
    changes = sorted((one for told in all_told for one in told.changes), key=lambda one: one[0])
    settled = [id for told in all_told for id in told.settled]
    return (b"[" + b",".join(data for _, data in changes) + b"]").decode(), settled
