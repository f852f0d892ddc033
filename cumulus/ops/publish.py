"""The one way by which an object comes to be: name, conditions, versions, then one step in storage, then the
index.

The body is ready by then (a stream, parts, or another object). Without versions and conditions that is one
commit and one change of the index. Otherwise the current object is looked at first, and the commit holds
only if it is still that one; if not, all is looked at again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from cumulus.errors import S3Error
from cumulus.index.api import Change, IndexFailure, NoSuch, Put, Remove, Reservation, Row, StillUsed
from cumulus.model import Bucket, ObjectMeta, Versioning, encode_meta
from cumulus.ops.conditions import NONE, Conditions
from cumulus.ops.current import show
from cumulus.ops.find import NOT_THERE, Found, adopt, find_or_none, is_foreign, name_for, was_removed
from cumulus.ops.names import VERSIONS, body_name, first_name, is_mark, is_plain, odd_name, version_name
from cumulus.ops.rows import meta_of, row_of
from cumulus.ops.site import Site
from cumulus.storage.api import (
    ABSENT,
    Changed,
    Entry,
    IfToken,
    Missing,
    NoBucket,
    StorageError,
    Taken,
    Token,
)

TRIES: Final = 32
PATIENCE: Final = 20  # tries with conditions until what another has begun counts as left by a crash
PAUSE_S: Final = 0.01
Place = Callable[[str, bytes, IfToken], Entry]
_NOT_THAT: Final[tuple[type[StorageError], ...]] = (*NOT_THERE, Changed)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be published. `place(name, meta, if_token)` puts the bytes under a name in one step and may
    be called again after `Changed` and `Taken`. `settle` makes the index know (default: `Index.apply`)."""

    meta: ObjectMeta
    place: Place
    conditions: Conditions = NONE
    reservation: Reservation | None = None
    settle: Callable[[Put], None] | None = None


def publish(site: Site, bucket: Bucket, plan: Plan) -> ObjectMeta:
    """Publish, and give the metadata as published (version and time are set here). Raises `S3Error`
    (conditions, ConditionalRequestConflict) and storage errors; nothing has changed then. Raises `Owed` when
    it is published and the database stays away; then the plan's reservation is not the caller's any more."""
    meta = msgspec.structs.replace(
        plan.meta, modified_ns=site.clock(), version=site.new_version(bucket), marker=False
    )
    if not site.atomic:
        _publish_beside(site, bucket, plan, meta)
        return meta
    if bucket.versioning is Versioning.OFF and not plan.conditions and site.compares:
        if site.has_two_names(meta.key):
            with site.lock(bucket.name, meta.key):
                _publish_at_once(site, bucket, plan, meta, site.index.lookup(bucket.name, meta.key))
        else:
            _publish_at_once(site, bucket, plan, meta, site.index.committed(bucket.name, meta.key))
        return meta
    with site.lock(bucket.name, meta.key):
        for number in range(TRIES):
            try:
                _publish_over(site, bucket, plan, meta, wait=number < PATIENCE)
            except Changed:
                continue
            return meta
    raise S3Error("ConditionalRequestConflict")


def _publish_at_once(site: Site, bucket: Bucket, plan: Plan, meta: ObjectMeta, row: Row | None) -> None:
    """Replace whatever is there; `row` tells under which name it is."""
    mark = site.store.mark()
    entry = _place(plan, meta, name_for(meta.key, row, mark=_may_mark(site, meta)), None)
    entry = only(site, bucket, meta.key, entry)
    _settle(site, plan, bucket, meta, entry, row, mark=mark)


def _publish_beside(site: Site, bucket: Bucket, plan: Plan, meta: ObjectMeta) -> None:
    """Where each body has a name of its own it gets that before the key is locked: the copying may take
    hours, and other keys share the lock. Until a row names it it is nothing, and goes if it is refused."""
    if plan.conditions:  # or all would be copied in vain
        plan.conditions.check_write(_facts(site.index.lookup(bucket.name, meta.key)))
    entry = plan.place(body_name(), encode_meta(meta), None)
    telling = False
    try:
        with site.lock(bucket.name, meta.key):
            row = site.index.lookup(bucket.name, meta.key)
            plan.conditions.check_write(_facts(row))
            entry = later(entry, before(site, bucket, meta, row))
            null = null_beside(site, bucket, meta.key, row)
            gone = drop_null(site, bucket, null)
            telling = True
            _settle(site, plan, bucket, meta, entry, row, lambda: gone)
            discard_null(site, bucket, null)
    except BaseException:
        if not telling:
            with suppress(StorageError):
                site.remove(bucket.name, entry.name)
        raise


def _facts(row: Row | None) -> tuple[str, int, int] | None:
    """`Found.facts` by the row alone, where that says which body counts."""
    return None if row is None or row.marker else (row.etag, row.modified_ns, row.size)


def _publish_over(site: Site, bucket: Bucket, plan: Plan, meta: ObjectMeta, *, wait: bool) -> None:
    """One attempt to replace what is there now, and nothing else, where storage replaces in one step. Raises
    `Changed`."""
    found = find_or_none(site, bucket, meta.key)
    if wait and plan.conditions:
        await_others(found)
    plan.conditions.check_write(None if found is None else found.facts)
    row = site.index.lookup(bucket.name, meta.key)
    keep = keeps(bucket, found)
    token: IfToken = ABSENT
    mark = _may_mark(site, meta)
    name = name_for(meta.key, row, mark=mark)
    if found is not None and not found.entry.name.startswith(VERSIONS):
        token = keep_version(site, bucket, found, row) if keep else found.entry.token
        if mark or not is_mark(found.entry.name):
            name = found.entry.name
        else:
            token = ABSENT  # a directory becomes a file of another name
    patient = wait and bool(plan.conditions)
    former = 0 if site.compares else before(site, bucket, meta, row)
    aside = null_aside(site, bucket, meta.key) if site.compares else None
    left = None  # the marker of a deletion that has not taken what we replace, and cannot any more
    if aside is not None and token is not ABSENT and is_marker(bucket, aside):
        left = aside.token
    entry = _place(plan, meta, name, token, partial(_in_the_way, site, bucket, patient=patient))
    entry = only(site, bucket, meta.key, entry)
    if found is not None and keep and is_mark(found.entry.name) and entry.name != found.entry.name:
        site.remove(bucket.name, found.entry.name)
    entry = entry if site.compares else later(entry, former)

    def gone() -> list[Change]:
        null = null_beside(site, bucket, meta.key, row)
        if null is None and left is not None:
            site.remove_if(bucket.name, version_name(meta.key, "null"), left)
        known = None if aside is None else aside.token
        return [*drop_null(site, bucket, null, entry.stamp, known), *was_removed(site, bucket, row, found)]

    _settle(site, plan, bucket, meta, entry, row, gone)
    if bucket.versioning is not Versioning.OFF:
        with suppress(IndexFailure, StorageError):  # all is done; the next scan sees to it
            show(site, bucket, entry, meta)


def only(site: Site, bucket: Bucket, key: str, entry: Entry) -> Entry:
    """An object that was given an odd name, since something was in the way of its key's own: what has that by
    now is another process's, which came while we were at it. It is replaced as well, or readers, who look
    there first, would find it for ever. Where there are versions that is `_in_the_way`'s."""
    if entry.name == key or bucket.versioning is not Versioning.OFF or not is_plain(key):
        return entry
    gone = remove_other(site, bucket, key)
    return msgspec.structs.replace(entry, stamp=max(entry.stamp, gone + 1)) if gone else entry


def remove_other(site: Site, bucket: Bucket, name: str) -> int:
    """What has the key's own name though the object has an odd one; the stamp of the removal, 0: nothing."""
    try:
        return site.store.delete(bucket.name, name, site.store.stat(bucket.name, name).token)
    except NoBucket:
        raise
    except _NOT_THAT:
        return 0


def before(site: Site, bucket: Bucket, meta: ObjectMeta, row: Row | None) -> int:
    """The last stamp of all that an object replaces and that was removed, for `later`; asked while nobody
    else can change the key, and before storage has changed: the index may be away."""
    gone = site.index.gone_at(bucket.name, meta.key, meta.version)
    return gone if row is None else max(gone, row.stamp)


def later(entry: Entry, former: int) -> Entry:
    """What was published while nobody else could change the key comes after what was there, whatever the
    clocks of the servers say that put and removed that: the index would leave it out. (Storage that compares
    among processes sees to that itself.)"""
    return msgspec.structs.replace(entry, stamp=max(entry.stamp, former + 1))


def await_others(found: Found | None) -> None:
    """What should have the key's own name has only its name as an older version: another process just puts a
    delete marker in its place or makes it current again, or a crash has interrupted that. Before conditions
    are held against it the other gets a moment to end: raises `Changed`."""
    if found is not None and found.entry.name.startswith(VERSIONS):
        time.sleep(PAUSE_S)
        raise Changed(f"{found.meta.key!r} is being changed")


def _may_mark(site: Site, meta: ObjectMeta) -> bool:
    """Whether it may be a directory of the storage below."""
    return site.marks and not meta.size and not meta.parts


def keeps(bucket: Bucket, found: Found | None) -> bool:
    """Whether the current object stays as an older version when it is replaced or deleted."""
    if found is None or bucket.versioning is Versioning.OFF:
        return False
    return bucket.versioning is Versioning.ENABLED or found.meta.version != "null"


def replaces(bucket: Bucket, row: Row) -> bool:
    """Whether the body of that row goes when something else becomes current: what was found to be current may
    have been another one, or nothing, when the row was looked up."""
    if row.marker or bucket.versioning is Versioning.ENABLED:
        return False
    return bucket.versioning is Versioning.OFF or row.version == "null"


def keep_version(site: Site, bucket: Bucket, found: Found, row: Row | None) -> bytes:
    """A second name for the current object, before the first is replaced. Gives its token after that. `row`
    is what the index has for the key: if that is another version it hears of this one, or nobody would ever
    (who put it was killed, or got an error, before he could tell). Raises `Changed` when that is another
    object by now (other processes hold none of our locks)."""
    name = found.entry.name
    try:
        if is_foreign(found.entry):
            found = adopt(site, bucket, found)
        to = version_name(found.meta.key, found.meta.version)
        try:
            entry, linked = site.store.link(bucket.name, name, to), True
        except Taken:  # linked before by someone who did not come further
            entry, linked = site.store.stat(bucket.name, name), False
        now = meta_of(bucket, entry)
        if now is None or now.version != found.meta.version:
            if linked:
                site.remove(bucket.name, to)
            raise Changed(f"{name!r} was replaced")
        if not linked and not is_mark(name):
            there = site.store.stat(bucket.name, to).token
            if there != entry.token:
                # not a second name of this file, but a copy that is about to go; or this one has just lost
                # the first name, and then that is all there is of it
                if site.store.stat(bucket.name, name).token == entry.token:
                    site.store.delete(bucket.name, to, there)
                raise Changed(f"{to!r} was another file")
        known = row is not None and row.version == found.meta.version and not row.marker
        if not known and site.index.lookup(bucket.name, found.meta.key, found.meta.version) is None:
            _tell_kept(site, bucket, entry, now)
        return entry.token
    except Missing as error:
        raise Changed(str(error)) from error


def _tell_kept(site: Site, bucket: Bucket, entry: Entry, meta: ObjectMeta) -> None:
    """The index hears of a version that it lacks; also of one that a scan has just taken out, since others
    had taken the file away. Raises `Changed` where it was removed by its id: whoever does that looks for the
    body again when the row is gone, so one of us sees the other."""
    gone = site.index.gone_at(bucket.name, meta.key, meta.version)
    row = row_of(bucket, msgspec.structs.replace(entry, stamp=max(entry.stamp, gone + 1)), meta)
    site.index.apply([Put(row=row, keep=True)])
    if not gone:
        return
    try:
        site.store.stat(bucket.name, version_name(meta.key, meta.version))
    except NoBucket:
        raise
    except Missing as removed:
        site.index.apply([Remove(bucket=row.bucket, key=row.key, stamp=row.stamp, version=row.version)])
        raise Changed(str(removed)) from removed


def null_beside(site: Site, bucket: Bucket, key: str, current: Row | None) -> Row | None:
    """With versioning suspended a new object replaces the version "null", wherever that is: its row, where
    that is not the current one's."""
    if bucket.versioning is not Versioning.SUSPENDED:
        return None
    if current is not None and current.version == "null" and not current.marker:
        return None
    return site.index.lookup(bucket.name, key, "null")


def null_aside(site: Site, bucket: Bucket, key: str) -> Entry | None:
    """Where files are replaced and versioning is suspended: what has the name of version "null" beside the
    key's own."""
    if bucket.versioning is not Versioning.SUSPENDED or not site.atomic:
        return None
    try:
        return site.store.stat(bucket.name, version_name(key, "null"))
    except NoBucket:
        raise
    except Missing:
        return None


def is_marker(bucket: Bucket, entry: Entry) -> bool:
    """Whether that is a delete marker, as it is stored."""
    meta = meta_of(bucket, entry)
    return meta is not None and meta.marker


def drop_null(
    site: Site, bucket: Bucket, null: Row | None, stamp: int | None = None, aside: Token | None = None
) -> list[Change]:
    """It gives way to a new object of that stamp. Returns what the index has to hear; `discard_null` is to be
    called then. Where storage compares only what was `aside` goes: whatever came to its name since is the
    marker of who deletes the new object."""
    if null is None or (stamp is not None and null.stamp >= stamp):  # a scan has told of the new one already
        return []
    # where files are replaced, its row may still have the name that is the new object's by now
    name = version_name(null.key, "null")
    if site.atomic and site.compares:
        _drop_aside(site, bucket, name, aside)
    elif null.marker or site.atomic:
        site.remove(bucket.name, name)
    return [Remove(bucket=bucket.name, key=null.key, stamp=null.stamp, version="null")]


def _drop_aside(site: Site, bucket: Bucket, name: str, token: Token | None) -> None:
    """What had that token; and what has changed since, if it is a body yet (somebody has set its tags)."""
    while token is not None:
        try:
            site.store.delete(bucket.name, name, token)
            return
        except NoBucket:
            raise
        except Missing:
            return
        except Changed:
            token = None
        with suppress(Missing):
            entry = site.store.stat(bucket.name, name)
            meta = meta_of(bucket, entry)
            token = entry.token if meta is not None and not meta.marker else None


def discard_null(site: Site, bucket: Bucket, null: Row | None) -> None:
    """Its body, where that has a name of its own, which the index counts no more."""
    if null is not None and not null.marker and not site.atomic:
        site.discard(bucket.name, null.name, null.size)


def _place(
    plan: Plan, meta: ObjectMeta, name: str, token: IfToken, absent: Callable[[str], IfToken] | None = None
) -> Entry:
    """Under that name, or, where it is taken, the key's other one. `absent` tells what may be under an odd
    name where nothing is known to be."""
    data = encode_meta(meta)
    other = odd_name(meta.key)

    def place(name: str) -> Entry:
        expected = absent(name) if absent is not None and token is ABSENT and name == other else token
        return plan.place(name, data, expected)

    try:
        return place(name)
    except Taken:
        if name == other:
            raise
        return place(other)


def _in_the_way(site: Site, bucket: Bucket, name: str, *, patient: bool) -> IfToken:
    """What is under a key's odd name though the key was not found there: another process has just put it and
    not yet told the index, or it is a version that two put at once, one under each name. It is kept or
    replaced as if it were current. `patient`: there are conditions to be held against it, so the other gets a
    moment to end. Raises as `keep_version`."""
    try:
        entry = site.store.stat(bucket.name, name)
    except NoBucket:
        raise
    except Missing:
        return ABSENT
    if patient:
        time.sleep(PAUSE_S)
        raise Changed(f"{name!r} is being put")
    meta = meta_of(bucket, entry)
    if meta is None:
        return entry.token
    there = Found(entry, meta)
    row = site.index.lookup(bucket.name, meta.key)
    return keep_version(site, bucket, there, row) if keeps(bucket, there) else entry.token


def _follow(site: Site, put: Put, stays: bool, mark: int) -> None:
    if stays:
        site.index.tell(put)
    else:
        site.index.apply_soon([put])
    if not site.store.remembers(mark):
        site.index.sync()


def _settle(
    site: Site,
    plan: Plan,
    bucket: Bucket,
    meta: ObjectMeta,
    entry: Entry,
    row: Row | None,
    gone: Callable[[], Sequence[Change]] = tuple,
    *,
    mark: int | None = None,
) -> None:
    """`gone` gives what the index has to hear first, and may ask the index for it, again where that is away.
    `mark`: as long as storage remembers what was published since, the index need not have it on disk, nor be
    waited for while the key has the name that it would have anyway."""
    versions = bucket.versioning is not Versioning.OFF  # then only what is removed by its version goes
    put = Put(row=row_of(bucket, entry, meta), keep=versions, reservation=plan.reservation)
    try:
        if mark is None or plan.settle is not None:
            _tell(site, plan, put, gone)
        else:
            stays = entry.name == first_name(meta.key) and (row is None or row.name == entry.name)
            site.told.tell(lambda: _follow(site, put, stays, mark), [put])
    except (NoSuch, StillUsed) as error:  # the bucket went in between; or the upload has, or others claim it
        if isinstance(error, NoSuch) or not site.atomic:
            with suppress(StorageError):
                site.store.delete(bucket.name, entry.name, entry.token)
        raise
    if row is not None and replaces(bucket, row) and row.name not in ("", entry.name):
        if site.atomic:
            site.remove(bucket.name, row.name)
        else:
            site.discard(bucket.name, row.name, row.size)


def _tell(site: Site, plan: Plan, put: Put, gone: Callable[[], Sequence[Change]]) -> None:
    changes: list[Change] = [put]  # as far as they are known when the database stays away

    def call() -> None:
        first = gone()
        changes[:] = [*first, put]
        if plan.settle is None:
            site.index.apply(changes)
            return
        plan.settle(put)  # where it refuses, nothing has given way
        if first:
            site.index.apply(first)

    site.told.tell(call, changes)
