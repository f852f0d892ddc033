"""Small objects published together: one question to the ledger, one sync in storage, one change of the index
for all of them, where each alone would wait for each of these.

Only without versions and conditions, where nothing has to be looked at between two steps; what becomes of
one object does not touch the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from cumulus.index.api import IndexFailure, OverQuota, Put, Reservation, Row
from cumulus.model import Bucket, ObjectMeta, Versioning, encode_meta
from cumulus.ops.find import name_for
from cumulus.ops.names import first_name, odd_name
from cumulus.ops.publish import only
from cumulus.ops.quota import quota_error
from cumulus.ops.rows import row_of
from cumulus.ops.site import Site
from cumulus.ops.told import Owed
from cumulus.storage.api import Entry, Taken, Whole


@dataclass(frozen=True, slots=True)
class Small:
    """An object to be published: its body is verified, `meta` lacks only its time."""

    bucket: Bucket
    meta: ObjectMeta
    body: bytes | memoryview


def fits(bucket: Bucket) -> bool:
    """Whether objects of a bucket can be published together."""
    return bucket.versioning is Versioning.OFF


class _One:
    """A small object on its way. `failed` says why it is none."""

    __slots__ = ("bucket", "done", "entry", "failed", "meta", "name", "reservation", "row", "small")

    def __init__(self, small: Small, at_ns: int) -> None:
        self.small = small
        self.bucket = small.bucket
        self.meta = msgspec.structs.replace(small.meta, modified_ns=at_ns)
        self.reservation: Reservation | None = None
        self.row: Row | None = None
        self.name = ""
        self.entry: Entry | None = None
        self.failed: Exception | None = None
        self.done = False


def publish_all(site: Site, smalls: Sequence[Small]) -> list[ObjectMeta | Exception]:
    """For each, in their order, its metadata as published, or the error, after which nothing has changed:
    an `S3Error`, or one of storage or the index."""
    now_ns = site.clock()
    ones = [_One(small, now_ns) for small in smalls]
    try:
        _reserve(site, ones)
        for some in _rounds([one for one in ones if one.failed is None]):
            _publish(site, some)
    except Exception as bad:
        for one in ones:
            if not one.done:
                one.failed = one.failed or bad
    finally:
        for one in ones:
            if one.reservation is not None:
                with suppress(IndexFailure):  # its room comes back with the connection to the index
                    site.index.release(one.reservation)
    return [one.failed or one.meta for one in ones]


def _reserve(site: Site, ones: Sequence[_One]) -> None:
    """Room for all of them. Raises `Away` while the index does not hear of what was written before."""
    site.told.check()
    held = site.index.reserve_all([(one.bucket.name, one.meta.size) for one in ones])
    for one, found in zip(ones, held, strict=True):
        if isinstance(found, Reservation):
            one.reservation = found
        else:
            one.failed = quota_error(found, one.meta.size) if isinstance(found, OverQuota) else found


def _rounds(ones: list[_One]) -> Iterator[list[_One]]:
    """Of one key, one after the other."""
    while ones:
        seen: set[tuple[str, str]] = set()
        now: list[_One] = []
        later: list[_One] = []
        for one in ones:
            key = (one.bucket.name, one.meta.key)
            (later if key in seen else now).append(one)
            seen.add(key)
        yield now
        ones = later


def _publish(site: Site, ones: Sequence[_One]) -> None:
    """Those that fail get their error; raises what is everybody's."""
    _look_up(site, ones)
    mark = site.store.mark()
    _place(site, [one for one in ones if _confirmed(site, one)])
    taken = [one for one in ones if isinstance(one.failed, Taken) and one.name != odd_name(one.meta.key)]
    if taken:
        for one in taken:
            one.name, one.failed = odd_name(one.meta.key), None
        _place(site, taken)
    for one in ones:
        if one.entry is not None:
            one.entry = only(site, one.bucket, one.meta.key, one.entry)
    placed = [(one, one.entry) for one in ones if one.entry is not None]
    if placed:
        _tell(site, placed, mark)


def _look_up(site: Site, ones: Sequence[_One]) -> None:
    """Under which name each is stored now, or will be."""
    for bucket in {one.bucket.name for one in ones}:
        some = [one for one in ones if one.bucket.name == bucket]
        rows = site.index.committed_all(bucket, [one.meta.key for one in some])
        for one, row in zip(some, rows, strict=True):
            one.row, one.name = row, name_for(one.meta.key, row)


def _confirmed(site: Site, one: _One) -> bool:
    if one.reservation is not None:
        try:
            site.index.confirm(one.reservation)
        except OverQuota as error:
            one.failed = quota_error(error, one.meta.size)
    return one.failed is None


def _place(site: Site, ones: Sequence[_One]) -> None:
    wholes = [Whole(one.bucket.name, one.name, one.small.body, encode_meta(one.meta)) for one in ones]
    for one, found in zip(ones, site.store.put_all(wholes), strict=True):
        if isinstance(found, Entry):
            one.entry = found
        else:
            one.failed = found


def _tell(site: Site, placed: Sequence[tuple[_One, Entry]], mark: int | None) -> None:
    """The index, without waiting for it where the key has the name that it would have anyway (as in
    `cumulus.ops.publish`); then let go of what was under another name before."""
    told: list[Put] = []
    waited: list[Put] = []
    for one, entry in placed:
        put = Put(row=row_of(one.bucket, entry, one.meta), reservation=one.reservation)
        stays = entry.name == first_name(one.meta.key) and (one.row is None or one.row.name == entry.name)
        (told if stays else waited).append(put)
    try:
        site.told.tell(lambda: _follow(site, told, waited, mark), told + waited)
    except Owed:
        for one, _ in placed:
            one.reservation = None  # it ends when the database is told
        raise
    for one, entry in placed:
        one.reservation, one.done = None, True
        row = one.row
        if row is not None and row.name not in ("", entry.name):
            site.remove(one.bucket.name, row.name)


def _follow(site: Site, told: list[Put], waited: list[Put], mark: int | None) -> None:
    if mark is None:
        site.index.apply(told + waited)
        return
    site.index.tell_all(told)
    if waited:
        site.index.apply_soon(waited)
    if not site.store.remembers(mark):
        site.index.sync()
