"""Index and users for a worker process: the same interfaces, answered by the head over a Unix socket, but for
rows of objects, uploads and parts, which are read from the database (decision 0126).

When the head goes away, calls raise `Away`; the next call connects again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from cumulus.index import wire
from cumulus.index.api import (
    Away,
    Change,
    Directory,
    Index,
    IndexFailure,
    NoSuch,
    OverQuota,
    Put,
    Reservation,
    Upload,
    Usage,
)
from cumulus.index.cache import Fresh
from cumulus.index.channel import Channel
from cumulus.index.reading import RowReader, RowsIndex
from cumulus.model import Bucket, Credential, Part, User, written

FRESH_S: Final = 0.4  # beside half a second in the head
SMALL: Final = 64 << 10  # bytes that need not be held where nothing is limited
UNLIMITED_S: Final = 0.25  # for which that is taken to be so, beside half a second in the head


class Link:
    """The connection to the head that all of a process's threads share, made when it is needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._closed = False

    def call(self, name: str, *arguments: Any) -> Any:
        """Raises `Away`, and the errors of the index."""
        return self.channel().call(name, arguments)

    def channel(self) -> Channel:
        """One that is not broken yet. Raises `Away`."""
        channel = self._channel
        return self._connect() if channel is None or channel.broken is not None else channel

    def behind(self) -> bool:
        """Whether the index lacks something that was told, as far as this process can see."""
        return bool((self._channel or self.channel()).tide.behind())

    def _connect(self) -> Channel:
        with self._lock:
            if self._closed:
                raise Away(f"{self._path}: the index is closed")
            if self._channel is None or self._channel.broken is not None:
                self._channel = Channel(self._path)
            return self._channel

    def close(self) -> None:
        """For good."""
        with self._lock:
            self._closed = True
            if self._channel is not None:
                self._channel.close()


class RemoteDirectory(Directory):
    """Users by a link; answers are at most a second old."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._credentials: Fresh[str, Credential | None] = Fresh(FRESH_S, keep_none=True)
        self._users: Fresh[str, User | None] = Fresh(FRESH_S, keep_none=True)

    def credential(self, access_key: str) -> Credential | None:
        return self._credentials.get(access_key, lambda key: self._link.call("credential", key))

    def credential_now(self, access_key: str) -> Credential | None:
        return self._credentials.peek(access_key)

    def user(self, id_or_name: str) -> User | None:
        return self._users.get(id_or_name, lambda name: self._link.call("user", name))

    def by_email(self, email: str) -> User | None:
        found: User | None = self._link.call("by_email", email)
        return found

    def members(self, group: str) -> list[str] | None:
        found: list[str] | None = self._link.call("members", group)
        return found

    def group_id(self, name: str) -> str | None:
        found: str | None = self._link.call("group_id", name)
        return found

    def forget(self) -> None:
        """Ask the head the next time."""
        self._credentials.drop()
        self._users.drop()


class RemoteIndex(RowsIndex):
    """The index by a link; objects and uploads are looked up and listed by `rows`. `close` closes both."""

    together = True
    lag_s = FRESH_S  # the head knows its own changes at once

    def __init__(self, link: Link, rows: RowReader) -> None:
        self._link = link
        self._rows = rows
        # one that was just made is found at once
        self._buckets: Fresh[str, Bucket | None] = Fresh(FRESH_S, weigh=written)
        self._unlimited: Fresh[str, bool] = Fresh(UNLIMITED_S)

    def forget(self) -> None:
        """Ask the head the next time."""
        self._buckets.drop()
        self._unlimited.drop()

    def close(self) -> None:
        self._link.close()
        self._rows.close()

    # buckets
    def bucket(self, name: str) -> Bucket | None:
        return self._buckets.get(name, lambda one: self._link.call("bucket", one))

    def bucket_now(self, name: str) -> Bucket | None:
        return self._buckets.peek(name)

    def buckets(self, owner: str | None = None) -> list[Bucket]:
        found: list[Bucket] = self._link.call("buckets", owner)
        return found

    def brief_buckets(self, owner: str | None = None) -> list[Bucket]:
        found: list[Bucket] = self._link.call("brief_buckets", owner)
        return found

    def add_bucket(self, bucket: Bucket) -> None:
        self._change("add_bucket", bucket.name, bucket)

    def set_bucket(self, bucket: Bucket, fields: Sequence[str]) -> None:
        self._change("set_bucket", bucket.name, bucket, list(fields))

    def drop_bucket(self, name: str) -> None:
        self._change("drop_bucket", name, name)

    def _change(self, method: str, name: str, *arguments: Any) -> None:
        try:
            self._link.call(method, *arguments)
        finally:
            self._buckets.drop(name)

    # objects
    def catch_up(self) -> None:
        """Wait until the head has taken in what workers told it. Raises `Away`."""
        if self._link.behind():
            self._link.call("catch_up")

    def apply(self, changes: Sequence[Change]) -> None:
        self._link.call("apply", [wire.altered(one) for one in changes], False)

    def apply_soon(self, changes: Sequence[Change]) -> None:
        self._link.call("apply", [wire.altered(one) for one in changes], True)

    def tell(self, put: Put) -> None:
        self.tell_all([put])

    def tell_all(self, puts: Sequence[Put]) -> None:
        channel = self._link.channel()
        if channel.tide.ailing or not channel.tell(puts):
            self.apply_soon(puts)

    def sync(self) -> None:
        self._link.call("sync")

    # the ledger
    def reserve(self, bucket: str, size: int, objects: int = 1) -> Reservation:
        if 0 < size <= SMALL and self._unlimited.peek(bucket):
            return Reservation(id=0, bucket=bucket, bytes=size, objects=objects, limited=False)
        made: Reservation = self._again("reserve", bucket, size, objects)
        if not made.limited:
            self._unlimited.keep(bucket, True)
        return made

    def _again(self, method: str, *arguments: Any) -> Any:
        """Ask a second time for what does not fit: the head, which must not wait, may have counted what was
        told beside what it replaces."""
        try:
            return self._link.call(method, *arguments)
        except OverQuota:
            self.catch_up()
            return self._link.call(method, *arguments)

    def reserve_all(self, asked: Sequence[tuple[str, int]]) -> list[Reservation | OverQuota | NoSuch]:
        free = [self._free(bucket, size) for bucket, size in asked]
        found: list[wire.Held] = []
        if None in free:
            found = self._link.call(
                "reserve_all", [one for one, made in zip(asked, free, strict=True) if not made]
            )
        rest = iter([self._noted(wire.held(one)) for one in found])
        made = [one or next(rest) for one in free]
        if any(isinstance(one, OverQuota) for one in made):
            self._retry(asked, made)
        return made

    def _retry(self, asked: Sequence[tuple[str, int]], made: list[Reservation | OverQuota | NoSuch]) -> None:
        """Ask again for those that did not fit, as `_again`."""
        refused = [place for place, one in enumerate(made) if isinstance(one, OverQuota)]
        try:
            self.catch_up()
            again: list[wire.Held] = self._link.call("reserve_all", [asked[place] for place in refused])
            for place, held in zip(refused, again, strict=True):
                if held.reservation is not None:
                    made[place] = held.reservation
        except BaseException:
            for one in made:
                if isinstance(one, Reservation):
                    with contextlib.suppress(IndexFailure):
                        self.release(one)
            raise

    def _free(self, bucket: str, size: int) -> Reservation | None:
        """Room that need not be held, since nothing is limited."""
        if 0 < size <= SMALL and self._unlimited.peek(bucket):
            return Reservation(id=0, bucket=bucket, bytes=size, objects=1, limited=False)
        return None

    def _noted(self, found: Reservation | OverQuota | NoSuch) -> Reservation | OverQuota | NoSuch:
        if isinstance(found, Reservation) and not found.limited:
            self._unlimited.keep(found.bucket, True)
        return found

    def grow(self, reservation: Reservation, size: int) -> None:
        reservation.bytes = self._again("grow", reservation, size).bytes

    def release(self, reservation: Reservation) -> None:
        if reservation.id:
            self._link.call("release", reservation)

    def usage(self, scope: Literal["user", "group", "bucket"], name: str) -> Usage:
        found: Usage = self._link.call("usage", scope, name)
        return found

    def recount(self, bucket: str) -> None:
        self._link.call("recount", bucket)

    # uploads
    def add_upload(self, upload: Upload) -> None:
        self._link.call("add_upload", upload)

    def set_upload(self, upload: Upload) -> None:
        self._link.call("set_upload", upload)

    def put_part(self, upload_id: str, part: Part, reservation: Reservation | None) -> int:
        return int(self._link.call("put_part", upload_id, part, reservation))

    def claim_upload(self, upload_id: str, claimant: str, life_s: float) -> bool:
        return bool(self._link.call("claim_upload", upload_id, claimant, life_s))

    def drop_upload(self, upload_id: str, put: Put | None = None, claimant: str = "") -> bool:
        return bool(self._link.call("drop_upload", upload_id, put, claimant))


def connect_index(path: Path, database: Path) -> tuple[Index, Directory]:
    """Index and users of the head that listens at `path`; it need not be there yet. `database` is its file of
    SQLite, from which objects are read without asking it."""
    link = Link(path)
    return RemoteIndex(link, RowReader(database)), RemoteDirectory(link)
