"""Deleting objects and versions: storage first, then the index.

Without versions the body goes. With versions a delete marker takes its place; deleting a version by its id
removes it for good, and what is then the newest becomes current again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from cumulus.errors import S3Error
from cumulus.index.api import IndexFailure, Put, Remove, Row
from cumulus.model import Acl, Bucket, ObjectMeta, Versioning, encode_meta
from cumulus.ops.conditions import NONE, Conditions
from cumulus.ops.current import show, tell_removal
from cumulus.ops.find import NOT_THERE, Found, Lost, find, find_or_none, name_for, stored_names, was_removed
from cumulus.ops.markers import Store, store_over, take_back, with_room
from cumulus.ops.names import VERSIONS, is_plain, odd_name, other_name, version_name
from cumulus.ops.publish import (
    PATIENCE,
    await_others,
    discard_null,
    keep_version,
    keeps,
    null_aside,
    null_beside,
    remove_other,
    replaces,
)
from cumulus.ops.rows import marker_row, meta_of, row_of
from cumulus.ops.site import Site
from cumulus.storage.api import (
    ABSENT,
    BadName,
    Changed,
    Entry,
    IfToken,
    Missing,
    NoBucket,
    NoSpace,
    ObjectStream,
    StorageError,
    Taken,
    Token,
)

TRIES: Final = 32
Due = Callable[[ObjectMeta], bool]  # whether a rule still takes what has that record


@dataclass(frozen=True, slots=True)
class Deleted:
    """What a deletion did: `version` that it made or removed ("" in a bucket without versions), `marker`
    whether that is a delete marker."""

    version: str = ""
    marker: bool = False


def delete_current(
    site: Site,
    bucket: Bucket,
    key: str,
    owner: str,
    conditions: Conditions = NONE,
    due: Due | None = None,
) -> Deleted:
    """Delete without a version id; no error when there is nothing. `owner` becomes a marker's; `due`: only
    what that says. Raises `S3Error` PreconditionFailed, ConditionalRequestConflict, and storage errors."""
    if bucket.versioning is Versioning.OFF and not conditions and due is None and site.compares:
        with site.lock(bucket.name, key) if site.has_two_names(key) else nullcontext():
            _remove_plain(site, bucket, key, None)
        return Deleted()
    return with_room(site, lambda: _delete_locked(site, bucket, key, owner, conditions, due))


def _delete_locked(
    site: Site, bucket: Bucket, key: str, owner: str, conditions: Conditions, due: Due | None
) -> Deleted:
    site.told.check_removal()
    with site.lock(bucket.name, key):
        for number in range(TRIES):
            try:
                return _delete_checked(site, bucket, key, owner, conditions, due, wait=number < PATIENCE)
            except Changed:
                continue
    raise S3Error("ConditionalRequestConflict")


def _delete_checked(
    site: Site, bucket: Bucket, key: str, owner: str, conditions: Conditions, due: Due | None, *, wait: bool
) -> Deleted:
    try:
        found = find_or_none(site, bucket, key)
    except Lost:
        if conditions or due is not None:
            raise
        found = None  # its row can go
    if wait and conditions:
        await_others(found)
    _check(conditions, found)
    if found is not None:
        _check_due(found.meta, due)
    if bucket.versioning is not Versioning.OFF:
        since = None
        if conditions or due is not None:  # what it is not about stays
            since = 0 if found is None else found.meta.modified_ns
        return _mark(site, bucket, key, owner, found, since)
    if not site.atomic:
        _remove_flipped(site, bucket, key)
    elif found is not None or not conditions:
        _remove_plain(site, bucket, key, found)
    return Deleted()


def _check(conditions: Conditions, found: Found | None) -> None:
    """Size and time ask nothing of what is not there; an ETag that is to match does."""
    if found is not None:
        conditions.check_write(found.facts)
    elif conditions.match:
        raise S3Error("NoSuchKey")


def _check_due(meta: ObjectMeta, due: Due | None) -> None:
    if due is not None and not due(meta):
        raise S3Error("PreconditionFailed", fields={"Condition": "due"})


def _remove_plain(site: Site, bucket: Bucket, key: str, found: Found | None) -> None:
    """The body under its name and the row; `found`: only if it is still that. Raises `Changed` if not, also
    when another process has removed it."""
    site.told.check_removal()
    row = site.index.lookup(bucket.name, key)
    mark = site.marks and (row is None or row.name == key)
    name = name_for(key, row, mark=mark) if found is None else found.entry.name
    try:
        stamp = site.store.delete(bucket.name, name, None if found is None else found.entry.token)
    except NoBucket:
        raise
    except (Missing, Taken, BadName) as error:
        if found is not None:
            raise Changed(str(error)) from error
        if row is None:
            return
        stamp = row.stamp
    # two uploads at once may have left one body under each of its names: only one of them is in the index
    if (other := other_name(key, name)) is not None:
        stamp = max(stamp, remove_other(site, bucket, other))
    if row is not None and not site.compares:  # its stamp may be by another server's clock
        stamp = max(stamp, row.stamp)
    site.told.apply([Remove(bucket=bucket.name, key=key, stamp=stamp)])


def _remove_flipped(site: Site, bucket: Bucket, key: str) -> None:
    """Where each body has its own name: the row, then, later, the body."""
    row = site.index.lookup(bucket.name, key)
    if row is None:
        return
    site.told.apply([Remove(bucket=bucket.name, key=key, stamp=row.stamp)])
    site.discard(bucket.name, row.name, row.size)


def _mark(
    site: Site, bucket: Bucket, key: str, owner: str, found: Found | None, since: int | None
) -> Deleted:
    """A delete marker, in storage and in the index; `since`: what was put after that stays. Raises
    `Changed`."""
    now = site.clock()
    version = site.new_version(bucket)
    row = site.index.lookup(bucket.name, key)
    null = null_beside(site, bucket, key, row)

    def store(if_token: IfToken) -> Entry:
        return _store_marker(site, bucket, key, version, owner, now, if_token)

    stored: Entry | None = None  # which something that was put since may have made needless
    if found is None or not site.atomic:
        stamp = store(None).stamp
    else:
        hidden = _hide(site, bucket, found, row, store)
        if hidden is None:
            return Deleted(version, marker=True)
        stamp, stored = hidden
    own = None  # what has lost its name may have got tags since
    if found is not None and stored is not None:
        own = site.index.lookup(bucket.name, key, found.meta.version)
    for former in (row, null, own):
        if former is not None:
            stamp = max(stamp, former.stamp + 1)
    marker = marker_row(bucket, key, version, stamp, now, owner)
    site.told.apply([*was_removed(site, bucket, row, found), Put(row=marker, keep=True)])
    discard_null(site, bucket, null)
    if row is not None and replaces(bucket, row) and not site.atomic:
        site.discard(bucket.name, row.name, row.size)
    if site.atomic:
        _cover(site, bucket, marker, since, null=null)
    if stored is not None:
        there = site.index.lookup(bucket.name, key, version)
        if there is not None and not there.marker and (null is None or not _is_same(there, null)):
            site.remove_if(bucket.name, stored.name, stored.token)
    return Deleted(version, marker=True)


def _hide(
    site: Site, bucket: Bucket, found: Found, row: Row | None, store: Store
) -> tuple[int, Entry | None] | None:
    """The marker that `store` stores takes the place of what was found, where files are replaced; the later
    of the two stamps. It is stored before the object goes, unless that would destroy the body of a version
    "null", whose name it gets, before the deletion can be refused no more: then as `store_over`. Raises
    `Changed`, and storage errors: all is as it was."""
    keep = keeps(bucket, found)
    token = keep_version(site, bucket, found, row) if keep else found.entry.token
    if found.entry.name.startswith(VERSIONS):
        return store(None if keep else token).stamp, None
    aside = null_aside(site, bucket, found.meta.key)
    null = None if aside is None else meta_of(bucket, aside)
    if aside is not None and null is not None and not null.marker:
        if keep or aside.token == found.entry.token:
            return _hide_after(site, bucket, found, aside, token, store)
        if null.modified_ns == found.meta.modified_ns:
            _check_there(site, bucket, found)
        site.remove_if(bucket.name, aside.name, aside.token)  # what was found has replaced it, or is its copy
        aside = None
    expected: IfToken = None if aside is None else aside.token
    if aside is None and bucket.versioning is Versioning.SUSPENDED:
        expected = ABSENT
    marker = store(expected)
    try:
        return max(marker.stamp, site.store.delete(bucket.name, found.entry.name, token)), None
    except (Missing, Changed) as error:
        take_back(site, bucket, marker, aside)
        raise Changed(str(error)) from error
    except StorageError:  # the object stays, so nothing may say that it is deleted
        with suppress(StorageError, IndexFailure):
            with_room(site, lambda: take_back(site, bucket, marker, aside))
        raise


def _check_there(site: Site, bucket: Bucket, found: Found) -> None:
    """What was found has its name still, so what is its equal is another file, and not all there is of it.
    Raises `Changed`."""
    try:
        if site.store.stat(bucket.name, found.entry.name).token == found.entry.token:
            return
    except NoBucket:
        raise
    except NOT_THERE:
        pass
    raise Changed(f"{found.entry.name!r} was replaced")


def _hide_after(
    site: Site, bucket: Bucket, found: Found, aside: Entry, token: Token, store: Store
) -> tuple[int, Entry] | None:
    """`_hide` of what has a second name as an older version: by that it is served until the marker is stored,
    also after a crash."""
    try:
        gone = site.store.delete(bucket.name, found.entry.name, token)
    except (Missing, Changed) as error:
        raise Changed(str(error)) from error
    except StorageError:
        _put_back(site, bucket, found)
        raise
    try:
        return with_room(site, lambda: store_over(site, bucket, found, aside, gone, store))
    except StorageError:
        _put_back(site, bucket, found)
        raise


def _put_back(site: Site, bucket: Bucket, found: Found) -> None:
    """What could not be deleted gets its name again, unless that has been taken, if it can. Another process
    may have deleted the key meanwhile: it looks for objects when its marker is in the index, and we for the
    marker when the object has its name."""
    key, version, name = found.meta.key, found.meta.version, found.entry.name
    with suppress(StorageError, IndexFailure, S3Error):
        entry = with_room(site, lambda: site.store.link(bucket.name, version_name(key, version), name))
        newest = site.index.lookup(bucket.name, key)
        if newest is None or not newest.marker:
            return
        if is_plain(key) and name == key:
            _cover(site, bucket, newest, version=version)
        else:  # under a name that nobody else knows of
            site.remove_if(bucket.name, name, entry.token)


def _cover(
    site: Site,
    bucket: Bucket,
    marker: Row,
    since: int | None = None,
    version: str | None = None,
    *,
    null: Row | None = None,
) -> None:
    """What another process makes current just now (`_promoted`), under the key's name since the marker was
    stored, becomes an older version again (`version`: only that one). We look for it when the
    marker is in the index, and the other for the marker when the body has its name, so that one of us sees
    the other. What was put after `since` (None: after the marker was made) stays, and is newer. `null`: what
    the marker has replaced. Raises `S3Error` ConditionalRequestConflict, and storage errors."""
    since = marker.modified_ns if since is None else since
    for _ in range(TRIES):
        found = find_or_none(site, bucket, marker.key)
        if found is None or not (is_plain(marker.key) and found.entry.name == marker.key):
            return  # or the index leads there, so it is newer
        if version is not None and found.meta.version != version:
            return
        there = site.index.lookup(bucket.name, marker.key, marker.version)
        if not (_is_same(there, marker) or _is_back(there, found, null)):
            return  # it was removed by its id, and hides nothing
        if found.meta.modified_ns > since:
            if found.entry.meta is not None:
                show(site, bucket, found.entry, found.meta)
            return
        row = site.index.lookup(bucket.name, marker.key)
        try:
            token = keep_version(site, bucket, found, row) if keeps(bucket, found) else found.entry.token
            stamp = site.store.delete(bucket.name, found.entry.name, token)
        except (Missing, Changed):
            continue
        if there is not None:
            stamp = max(stamp, there.stamp + 2)
        # later than what `show` gives
        former, marker = marker, msgspec.structs.replace(marker, stamp=max(stamp, marker.stamp + 2))
        same = found.meta.version == marker.version  # "null", gone for good, which the index may not know yet
        if same or _is_same(site.index.lookup(bucket.name, marker.key, marker.version), marker):
            site.told.apply([Put(row=marker, keep=True)])
            if same or site.index.gone_at(bucket.name, marker.key, marker.version) < former.stamp:
                continue
            tell_removal(site, marker, marker.stamp)
        _promote(site, bucket, marker.key)  # the marker was removed by its id meanwhile
        return
    raise S3Error("ConditionalRequestConflict")


def _is_back(there: Row | None, found: Found, null: Row | None) -> bool:
    """Whether found is what a marker "null" has replaced, and the index has that again: another process had
    opened it to make it current (`_promoted`) before the marker was stored."""
    if there is None or null is None or null.marker or not _is_same(there, null):
        return False
    return (found.meta.version, found.meta.modified_ns) == (null.version, null.modified_ns)


def _store_marker(
    site: Site, bucket: Bucket, key: str, version: str, owner: str, now: int, if_token: IfToken = None
) -> Entry:
    meta = ObjectMeta(
        key=key, size=0, etag="", modified_ns=now, acl=Acl(owner=owner), version=version, marker=True
    )
    stream = site.store.open_write(bucket.name, version_name(key, version), 0)
    try:
        return stream.commit(encode_meta(meta), if_token)
    finally:
        stream.close()


def delete_version(
    site: Site,
    bucket: Bucket,
    key: str,
    version: str,
    conditions: Conditions = NONE,
    *,
    older: bool = False,
    judged: Row | None = None,
    due: Due | None = None,
) -> Deleted:
    """Remove one version for good; no error when there is none. The conditions are about that version;
    `older`: only if it is not the current one, nor what reads find; `judged`: only if it is still that one:
    what is put without versions gets the id of what it replaces; `due`: only if that says so. Raises
    `S3Error` NoSuchKey, PreconditionFailed, and storage errors."""
    site.told.check_removal()
    with site.lock(bucket.name, key):
        if conditions:
            _check(conditions, _version_or_none(site, bucket, key, version))
        row = site.index.lookup(bucket.name, key, version)
        if judged is not None and not _is_same(row, judged):
            raise S3Error("PreconditionFailed", fields={"Condition": "judged"})
        if row is None:
            if version == "null":
                _remove_outside(site, bucket, key)
            return Deleted(version)
        if older and (row.latest or _is_read(site, bucket, row)):
            raise S3Error("PreconditionFailed", fields={"Condition": "older"})
        if site.atomic and not row.marker:
            _remove_kept(site, bucket, row, due, exact=judged is not None and version == "null")
        elif row.marker:
            site.remove(bucket.name, version_name(key, version))
            _remove_row(site, row)
        else:
            if due is not None:
                _check_body(site, bucket, row, due)
            tell_removal(site, row, row.stamp)
            site.discard(bucket.name, row.name, row.size)
        if row.latest or site.atomic:  # what was newer may have gone since then
            _promote(site, bucket, key)
        return Deleted(version, marker=row.marker)


def _remove_row(site: Site, marker: Row) -> None:
    """A delete marker's. Another process may just give it a later place (`_cover`): it looks for the removal
    after that, and we for the row after the removal, so that one of us sees the other."""
    left: Row | None = marker
    for _ in range(TRIES):
        if left is None or not _is_same(left, marker):
            return
        tell_removal(site, left, left.stamp)
        left = site.index.lookup(marker.bucket, marker.key, marker.version)
    raise S3Error("ConditionalRequestConflict")


def _is_same(row: Row | None, judged: Row) -> bool:
    return row is not None and (row.marker, row.modified_ns) == (judged.marker, judged.modified_ns)


def _is_read(site: Site, bucket: Bucket, row: Row) -> bool:
    """Whether reads of the key find this version, though the index has a newer one: others took the file away
    and put it back, and no scan has seen it yet."""
    if not (site.atomic and is_plain(row.key)) or row.marker:
        return False
    try:
        meta = meta_of(bucket, site.store.stat(bucket.name, row.key))
    except NoBucket:
        raise
    except NOT_THERE:
        return False
    return meta is not None and meta.version == row.version


def _version_or_none(site: Site, bucket: Bucket, key: str, version: str) -> Found | None:
    """That version, or None (there is none, or it is a delete marker)."""
    try:
        return find(site, bucket, key, version)
    except S3Error as error:
        if error.code in ("NoSuchVersion", "MethodNotAllowed"):
            return None
        raise


def _check_body(site: Site, bucket: Bucket, row: Row, due: Due) -> None:
    """For a body with a name of its own: its record is another body's once it has changed."""
    try:
        meta = meta_of(bucket, site.store.stat(bucket.name, row.name))
    except NoBucket:
        raise
    except NOT_THERE:
        return
    if meta is not None:
        _check_due(meta, due)


def _remove_kept(site: Site, bucket: Bucket, row: Row, due: Due | None, *, exact: bool) -> None:
    """Body and row of a version where storage replaces files. Another process may just make it current
    (`_promote`): it looks for the row after it has copied the body, and we for the body after the row is
    gone, so that one of us sees the other. `exact`: what another process puts meanwhile under the same id
    stays."""
    at, stamp = row.stamp, _remove_body(site, bucket, row, due, exact=exact)
    for _ in range(TRIES):
        if not exact:  # what is put under the same id may have its stamp from before the removal
            at = max(at, stamp)
        tell_removal(site, row, at)
        stamp = _remove_body(site, bucket, row, exact=exact)
        left = site.index.lookup(bucket.name, row.key, row.version)
        if left is not None and _is_same(left, row):  # it was changed, or made the newest (`show`), meanwhile
            at = left.stamp
        elif not stamp:
            return
    raise S3Error("ConditionalRequestConflict")


def _remove_body(site: Site, bucket: Bucket, row: Row, due: Due | None = None, *, exact: bool = False) -> int:
    """The body of just that version; its former name may be another version's by now. Gives the stamp of the
    removal (0: there was nothing), later than a record that the index has not heard of yet. `exact`: what has
    another time stays. Raises `S3Error` PreconditionFailed for what is not `due`."""
    stamp = 0
    for _ in range(TRIES):
        again = False
        for name in stored_names(site, row):
            try:
                entry = site.store.stat(bucket.name, name)
                meta = meta_of(bucket, entry)
                if exact and meta is not None and meta.modified_ns != row.modified_ns:
                    continue
                if meta is not None and meta.version == row.version and not meta.marker:
                    _check_due(meta, due)
                    stamp = max(stamp, site.store.delete(bucket.name, name, entry.token))
            except NoBucket:
                raise
            except Changed:  # it gets a second name just now, or loses one: it may have either afterwards
                again = True
            except (Missing, Taken, BadName):
                continue
        if not again:
            return stamp
    raise S3Error("ConditionalRequestConflict")


def _remove_outside(site: Site, bucket: Bucket, key: str) -> None:
    """A file that is not in the index yet. Who has just put it may tell the index later, and too late."""
    for _ in range(TRIES):
        found = find_or_none(site, bucket, key)
        if found is None or found.meta.version != "null":
            return
        try:
            stamp = site.store.delete(bucket.name, found.entry.name, found.entry.token)
        except NoBucket:
            raise
        except (Missing, Changed):
            continue
        tell_removal(site, row_of(bucket, found.entry, found.meta), stamp)
        if site.atomic and bucket.versioning is not Versioning.OFF:
            _promote(site, bucket, key)
        return
    raise S3Error("ConditionalRequestConflict")


def _promote(site: Site, bucket: Bucket, key: str) -> None:
    """The newest version that is left becomes current: its body gets the key's own name again."""
    for _ in range(TRIES):
        if _promoted(site, bucket, key):
            return


def _promoted(site: Site, bucket: Bucket, key: str) -> bool:
    """One attempt; False when that version is removed meanwhile, and the next one is to follow."""
    rows = site.index.page_versions(bucket.name, prefix=key, limit=1).rows
    if not rows or rows[0].key != key or rows[0].marker or not site.atomic:
        return True
    row = rows[0]
    kept = version_name(key, row.version)
    try:
        stream = site.store.open_read(bucket.name, kept)
    except Missing:
        return True
    try:
        meta = meta_of(bucket, stream.entry)
        if meta is None or meta.version != row.version:  # removed, and a PUT just finds out that it is
            return True
        if meta.marker:  # another process deletes it just now, with versioning suspended
            return True
        name = name_for(key, None, mark=site.marks and not meta.size and not meta.parts)
        try:
            entry = _bring_back(site, bucket, name, key, stream, encode_meta(meta))
        except Changed:  # a new file came from outside meanwhile: that is current
            return True
    finally:
        stream.close()
    if site.index.lookup(bucket.name, key, row.version) is None:
        _remove_body(site, bucket, row)
        return False
    latest = site.index.lookup(bucket.name, key)
    plain = is_plain(key) and entry.name == key
    if latest is not None and latest.marker:  # another process has deleted the key meanwhile
        if plain:
            _cover(site, bucket, latest, version=row.version)
        else:  # under a name that nobody else knows of
            with suppress(Missing, Changed):
                site.store.delete(bucket.name, entry.name, entry.token)
        return True
    if not plain:  # the index alone leads there; it may have a marker by now, which is newer
        entry = msgspec.structs.replace(entry, stamp=row.stamp)
    elif entry.stamp <= row.stamp:
        entry = msgspec.structs.replace(entry, stamp=row.stamp + 1)
    site.told.apply([Put(row=row_of(bucket, entry, meta), keep=True)])
    with suppress(Missing, Changed):  # another process may have given what is current now that name
        site.store.delete(bucket.name, kept, stream.entry.token)
    return True


def _bring_back(site: Site, bucket: Bucket, name: str, key: str, stream: ObjectStream, data: bytes) -> Entry:
    """An older version under the key's own name. On a full disk it gets that as a second name. Raises
    `Changed` when the name has been taken, and storage errors."""
    try:
        try:
            return site.store.copy(stream, bucket.name, name, data, ABSENT)
        except Taken:
            return site.store.copy(stream, bucket.name, odd_name(key), data, ABSENT)
    except NoSpace:
        kept = stream.entry.name
    try:
        return with_room(site, lambda: site.store.link(bucket.name, kept, name))
    except Taken as error:
        raise Changed(str(error)) from error
