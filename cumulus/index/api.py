"""What the database holds for the floors above: users, keys, buckets, the quota ledger, uploads in progress
and the index of objects (specification: Cumulus, where truth is).

One interface, several stores (SQLite, PostgreSQL), one contract suite. All methods block and are called from
several threads. A method that changes something returns when it is durable; changes that wait at the same
time share one transaction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Literal

import msgspec

from cumulus.model import Bucket, Credential, ObjectMeta, Part, User


class IndexFailure(Exception):
    """The database did not do it; the message says what and where."""


class Away(IndexFailure):
    """The database does not answer; trying again may help."""


class Damaged(Away):
    """The database is damaged, or is read wrongly from its disk, which may pass."""


class NameTaken(IndexFailure):
    """There is one of that name already."""


class AddressTaken(NameTaken):
    """Another user has that e-mail address."""


class NoSuch(IndexFailure):
    """There is none of that name."""


class StillUsed(IndexFailure):
    """It cannot go while something depends on it (a bucket with objects, a user with buckets)."""


class OverQuota(IndexFailure):
    """A reservation does not fit. The fields are for the message to the user."""

    def __init__(
        self,
        scope: str,
        name: str,
        what: Literal["bytes", "objects"],
        used: int,
        reserved: int,
        limit: int,
    ) -> None:
        super().__init__(f"quota of {scope} {name} reached")
        self.scope, self.name, self.what = scope, name, what
        self.used, self.reserved, self.limit = used, reserved, limit


class Row(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One version of an object as the index knows it. `name` is where the storage has it (an odd key's name
    differs from `key`); `token` is the storage's. `marker` is a delete marker: no name, no bytes. `stamp`
    orders the versions of a key, newest largest."""

    bucket: str
    key: str
    version: str = "null"
    stamp: int
    name: str
    token: bytes
    size: int
    etag: str
    modified_ns: int
    owner: str
    latest: bool = True
    marker: bool = False
    checksum: str = ""  # algorithms, comma-separated, as listings say them
    checksum_type: str = ""


class Page(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One page of a listing. `prefixes` are common prefixes; `next` is where the following page begins (to be
    given as `after`, with `next_version` as `after_version`), "" at the end. `next_version` is a version's id
    and more, and holds also when that version has gone."""

    rows: list[Row]
    prefixes: list[str]
    truncated: bool
    next: str = ""
    next_version: str = ""


# what a listing shows of an object: key, etag, size, modified_ns, owner, checksum, checksum_type of its `Row`
Line = tuple[str, str, int, int, str, str, str]


class Lines(msgspec.Struct, frozen=True, kw_only=True):
    """As `Page`, with plain tuples for rows: a thousand of them cost little more than to read them."""

    lines: list[Line]
    prefixes: list[str]
    truncated: bool
    next: str = ""


class Reservation(msgspec.Struct, kw_only=True):
    """Room held in the ledger until `settle` or `release`. `id` 0 when no quota applies. `limited` False:
    none applies at present, though it is held."""

    id: int
    bucket: str
    bytes: int
    objects: int
    limited: bool = True


class Put(msgspec.Struct, frozen=True, kw_only=True):
    """An object was published. It replaces the row of the same key (`keep` False: the former current version
    is gone from storage) or the former one stays as an older version (`keep` True). Rows of larger stamp
    win, so that changes may arrive in any order. `reservation` is given back in the same transaction."""

    row: Row
    keep: bool = False
    reservation: Reservation | None = None


class Remove(msgspec.Struct, frozen=True, kw_only=True):
    """A version went from storage. `version` None = the current one, whatever it is; `stamp` is that of the
    removal: what is newer stays."""

    bucket: str
    key: str
    stamp: int
    version: str | None = None


Change = Put | Remove


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a user, group or bucket holds and may hold (0 = no limit)."""

    scope: Literal["user", "group", "bucket"]
    name: str
    bytes: int
    objects: int
    reserved_bytes: int = 0
    reserved_objects: int = 0
    hard_bytes: int = 0
    hard_objects: int = 0
    soft_bytes: int = 0
    soft_objects: int = 0
    grace_s: int = 0
    over_soft_since_ns: int = 0


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """A multipart upload in progress. `meta` is the object's to be (size and etag are not known yet);
    `algorithm` and `checksum_type` as asked at its creation."""

    id: str
    bucket: str
    key: str
    owner: str
    initiator: str
    created_ns: int
    meta: ObjectMeta
    algorithm: str = ""
    checksum_type: str = ""


class Directory(ABC):
    """Users, keys, groups: what authorization asks. Read-only here; the admin commands of a source are its
    own (a text file is changed with an editor)."""

    @abstractmethod
    def credential(self, access_key: str) -> Credential | None:
        """None: no such key. Expired keys and disabled users are returned as they are. Answers may be up to
        a second old."""

    def credential_now(self, access_key: str) -> Credential | None:
        """The same without waiting for anything; None: ask `credential`."""
        return None

    @abstractmethod
    def user(self, id_or_name: str) -> User | None:
        """By canonical id or by name. Answers may be up to a second old."""

    @abstractmethod
    def by_email(self, email: str) -> User | None:
        """For ACL grants by e-mail address."""

    @abstractmethod
    def members(self, group: str) -> list[str] | None:
        """Canonical ids of a group's users; None when there is no such group."""

    def group_id(self, name: str) -> str | None:
        """By which rights are given to a group of that name; None when there is none. An id is its name, or
        the name, a # and more. Here: a group is its name."""
        return name if self.members(name) is not None else None

    def check_secrets(self) -> list[str]:
        """Access keys whose secrets cannot be read; asked once at the start of the service. Raises
        `BadConfig` where that are all, `IndexFailure`."""
        return []

    def unix_users(self) -> dict[str, str]:
        """Users (by name) whose files belong to an account of the machine, with its name; asked once at the
        start of the service."""
        return {}

    def close(self) -> None:
        """Give back what it holds."""
        return None


class Index(ABC):
    """Buckets, objects, uploads, the ledger. After `lag_s` a change of a bucket is known to all processes."""

    lag_s: float = 0.0

    def away(self) -> bool:
        """Whether the database is known not to answer. Does not ask it, and waits for nothing."""
        return False

    # buckets
    @abstractmethod
    def bucket(self, name: str) -> Bucket | None:
        """Answers may be up to a second old, except after a change through this object."""

    def bucket_now(self, name: str) -> Bucket | None:
        """The same without waiting for anything; None: ask `bucket`."""
        return None

    @abstractmethod
    def buckets(self, owner: str | None = None) -> list[Bucket]:
        """In order of their names, with all that their owners have set: megabytes each, maybe."""

    @abstractmethod
    def brief_buckets(self, owner: str | None = None) -> list[Bucket]:
        """The same as `Bucket.brief`, for lists; no more than a few documents are in memory at a time."""

    @abstractmethod
    def add_bucket(self, bucket: Bucket) -> None:
        """Raises `NameTaken`."""

    @abstractmethod
    def set_bucket(self, bucket: Bucket, fields: Sequence[str]) -> None:
        """Replace these of its settings by those of `bucket`; the others stay as they are in the database,
        for `bucket` may be older. Raises `NoSuch`."""

    @abstractmethod
    def drop_bucket(self, name: str) -> None:
        """Raises `NoSuch`, `StillUsed` (it has objects, versions or uploads)."""

    # objects
    @abstractmethod
    def lookup(self, bucket: str, key: str, version: str | None = None) -> Row | None:
        """The current version (a delete marker too), or that one."""

    def gone_at(self, bucket: str, key: str, version: str) -> int:
        """The latest stamp at which that version was removed, or something under the key of which it is not
        known what, as far as that is remembered (a minute); 0: nothing is. What is older is not taken in."""
        return 0

    @abstractmethod
    def apply(self, changes: Sequence[Change]) -> None:
        """Take in what happened in storage, in one transaction, with the ledger of bucket, owner and the
        owner's groups. A `Put` of a bucket that has gone is left out; if there is nothing else, raises
        `NoSuch`."""

    @abstractmethod
    def alone(self, bucket: str, key: str) -> AbstractContextManager[object]:
        """Held inside by one thread of all processes on the database, where storage cannot replace "only if
        it is still that one"; not taken again inside. Raises `Away`, `IndexFailure` on entering."""

    def apply_soon(self, changes: Sequence[Change]) -> None:
        """As `apply`, but a power cut may undo it, whole, until the next `sync`."""
        self.apply(changes)

    def tell(self, put: Put) -> None:
        """As `apply_soon`, but it may return before. Whatever is asked of the index afterwards, by any
        process, waits for it, except `committed`: so what is told must not change the storage name of a key
        that has one. Raises `Away` when it cannot be taken in; without effect then."""
        self.apply_soon([put])

    def committed(self, bucket: str, key: str) -> Row | None:
        """As `lookup` of the current version, but what was told in the last moments may be missing."""
        return self.lookup(bucket, key)

    def tell_all(self, puts: Sequence[Put]) -> None:
        """`tell` for each, in this order."""
        for put in puts:
            self.tell(put)

    def committed_all(self, bucket: str, keys: Sequence[str]) -> list[Row | None]:
        """`committed` for each key, in their order, but None for a delete marker."""
        found = [self.committed(bucket, key) for key in keys]
        return [None if row is None or row.marker else row for row in found]

    def sync(self) -> None:
        """Return when all that `apply_soon` and `tell` did is durable."""
        return None

    @abstractmethod
    def page(
        self, bucket: str, *, prefix: str = "", after: str = "", delimiter: str = "", limit: int = 1000
    ) -> Page:
        """Current versions that are no delete markers, keys greater than `after` (if `after` is a common
        prefix: what follows all of it), in order of UTF-8 bytes; rows and prefixes together at most
        `limit`. Work is proportional to what is returned, not to what a prefix hides."""

    def lines(
        self, bucket: str, *, prefix: str = "", after: str = "", delimiter: str = "", limit: int = 1000
    ) -> Lines:
        """As `page`, but only what a listing shows."""
        found = self.page(bucket, prefix=prefix, after=after, delimiter=delimiter, limit=limit)
        lines = [
            (row.key, row.etag, row.size, row.modified_ns, row.owner, row.checksum, row.checksum_type)
            for row in found.rows
        ]
        return Lines(lines=lines, prefixes=found.prefixes, truncated=found.truncated, next=found.next)

    @abstractmethod
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
        """All versions and markers: keys in order, of each key the newest first. `after_version`: the
        `next_version` of a page, or the id of a version; where that is not there the key begins anew."""

    # the ledger
    @abstractmethod
    def reserve(self, bucket: str, size: int, objects: int = 1) -> Reservation:
        """Hold room in the quotas of the bucket, its owner and the owner's groups. Raises `OverQuota`,
        `NoSuch`. An overwrite is reserved whole: the old bytes go when the new ones are there."""

    together: ClassVar[bool] = False
    """Whether `reserve_all` costs less than one by one."""

    def reserve_all(self, asked: Sequence[tuple[str, int]]) -> list[Reservation | OverQuota | NoSuch]:
        """As `reserve` for an object in each (bucket, bytes); for each, in their order, what is held or why
        nothing is. Raises other errors; nothing is held then."""
        return reserve_each(self.reserve, self.release, asked)

    @abstractmethod
    def grow(self, reservation: Reservation, size: int) -> None:
        """Hold `size` bytes more. Raises `OverQuota`; what was held stays held."""

    def confirm(self, reservation: Reservation) -> None:
        """Asked before what was reserved for is published: it is still held, for some seconds at least.
        Raises `OverQuota` when it was lost (the database was away for long) and does not fit any more."""
        return None

    @abstractmethod
    def release(self, reservation: Reservation) -> None:
        """Give back; twice is once."""

    @abstractmethod
    def usage(self, scope: Literal["user", "group", "bucket"], name: str) -> Usage:
        """Of a user (name or id), group or bucket. Raises `NoSuch`."""

    @abstractmethod
    def recount(self, bucket: str) -> None:
        """Make the ledger of a bucket fit its rows and uploads. Raises `NoSuch`."""

    # uploads
    @abstractmethod
    def add_upload(self, upload: Upload) -> None: ...

    @abstractmethod
    def set_upload(self, upload: Upload) -> None:
        """Its owner and the object's meta to be, if it is there still; its parts stay."""

    @abstractmethod
    def upload(self, bucket: str, key: str, id: str) -> Upload | None: ...

    @abstractmethod
    def uploads(
        self, bucket: str, *, prefix: str = "", after: str = "", after_id: str = "", limit: int = 1000
    ) -> list[Upload]:
        """In order of key, then of creation."""

    @abstractmethod
    def put_part(self, upload_id: str, part: Part, reservation: Reservation | None) -> int:
        """Record a part (the last one of a number counts) and turn its reservation into held bytes of the
        upload. Returns the size of the part it replaces, 0 if none. Raises `NoSuch`."""

    @abstractmethod
    def parts(self, upload_id: str, *, after: int = 0, limit: int = 10_000) -> list[Part]: ...

    @abstractmethod
    def claim_upload(self, upload_id: str, claimant: str, life_s: float) -> bool:
        """For so long only `claimant` may end or claim it; his next claim replaces this one (0: it is free
        again). False: another has claimed it. Raises `NoSuch`."""

    def free_uploads(self) -> None:
        """At the start of the only process that completes uploads: claims of those before it end."""
        return None

    @abstractmethod
    def drop_upload(self, upload_id: str, put: Put | None = None, claimant: str = "") -> bool:
        """End it, complete (`put`, applied in the same transaction) or aborted; its held bytes go. False:
        it was not there (any more), and nothing was done. Raises `StillUsed` while another has claimed it."""

    def keep_room(self) -> None:
        """Have a little room set aside on the database's disk, if that is ours, for removals when there is
        none; called every second or so, and quick when it is there."""
        return None

    def leads(self) -> bool:
        """Whether this process is the one that does the work in the background. Of several servers on one
        database only one does it at a time; another one takes over when that ends."""
        return True

    def close(self) -> None:
        """Make all durable and close."""
        return None


def reserve_each(
    reserve: Callable[[str, int], Reservation],
    release: Callable[[Reservation], None],
    asked: Sequence[tuple[str, int]],
) -> list[Reservation | OverQuota | NoSuch]:
    """`Index.reserve_all` one by one."""
    found: list[Reservation | OverQuota | NoSuch] = []
    try:
        for bucket, size in asked:
            try:
                found.append(reserve(bucket, size))
            except (OverQuota, NoSuch) as bad:
                found.append(bad)
    except BaseException:
        for one in found:
            if isinstance(one, Reservation):
                release(one)
        raise
    return found
