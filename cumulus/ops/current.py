"""Which version of a key is current: the newest in the index, and what has the key's own name in storage.

The two are told one after the other, by processes that know nothing of each other. So a row says where its
body is by then, and whoever has put an object into its place looks whether the index agrees.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from cumulus.index.api import Change, Put, Remove, Row
from cumulus.model import Bucket, ObjectMeta
from cumulus.ops.find import NOT_THERE, is_stored
from cumulus.ops.names import is_plain, version_name
from cumulus.ops.rows import meta_of, row_of
from cumulus.ops.site import Site
from cumulus.storage.api import Changed, Entry, Missing, NoBucket

TRIES: Final = 32


def removal(site: Site, row: Row, stamp: int) -> list[Change]:
    """What the index has to hear when a version has gone. What comes next, and may be current by that, has
    its name as an older version until it gets the key's own: so its row says that, or a scan would take it
    for one that others have removed."""
    changes: list[Change] = []
    if site.atomic:
        page = site.index.page_versions(
            row.bucket, prefix=row.key, after=row.key, after_version=row.version, limit=1
        )
        for behind in page.rows:
            name = version_name(row.key, behind.version)
            older = behind.key == row.key and not (behind.marker or behind.latest)
            if older and behind.name != name:
                changes.append(Put(row=msgspec.structs.replace(behind, name=name), keep=True))
    return [*changes, Remove(bucket=row.bucket, key=row.key, stamp=stamp, version=row.version)]


def tell_removal(site: Site, row: Row, stamp: int) -> None:
    """The index hears that a version has gone, and is waited for where it is away, also with its question for
    what comes next: storage has changed already. Raises as `Told.apply`."""
    changes: list[Change] = [Remove(bucket=row.bucket, key=row.key, stamp=stamp, version=row.version)]

    def call() -> None:
        changes[:] = removal(site, row, stamp)
        site.index.apply(changes)

    site.told.tell(call, changes)


def show(site: Site, bucket: Bucket, entry: Entry, meta: ObjectMeta) -> None:
    """In a bucket with versions, when the index has heard of that object: it is the newest there too, if it
    is what reads find. Raises what the index raises, and storage errors."""
    if not (site.atomic and is_plain(meta.key) and entry.name == meta.key):
        return
    for _ in range(TRIES):
        newest = site.index.lookup(bucket.name, meta.key)
        same = newest is not None and newest.version == meta.version
        if newest is not None and same and not newest.marker:
            return
        over = _same_marker(site, bucket, newest) if newest is not None and same else None
        # a marker of the same id may have been in its way, and have been removed; asked before we look what
        # is there, or its own removal would be among what it comes after
        before = site.index.gone_at(bucket.name, meta.key, meta.version)
        if newest is not None:
            before = max(before, newest.stamp)
        if not _is_read(site, bucket, entry, meta):
            return
        late = msgspec.structs.replace(entry, stamp=max(entry.stamp, before + 1))
        site.told.apply([Put(row=row_of(bucket, late, meta), keep=True)])
        now = site.index.lookup(bucket.name, meta.key, meta.version)
        if now is None or now.marker:
            continue
        if late.stamp > entry.stamp and not is_stored(site, bucket, now):
            tell_removal(site, now, now.stamp)  # who has removed it told an earlier stamp
        if over is not None:
            with suppress(Missing, Changed):
                site.store.delete(bucket.name, over.name, over.token)


def _is_read(site: Site, bucket: Bucket, entry: Entry, meta: ObjectMeta) -> bool:
    """Whether that is what has the name. It may have a second one by now (another token)."""
    try:
        there = meta_of(bucket, site.store.stat(bucket.name, entry.name))
    except NoBucket:
        raise
    except NOT_THERE:
        return False
    return there is not None and (there.version, there.modified_ns) == (meta.version, meta.modified_ns)


def _same_marker(site: Site, bucket: Bucket, row: Row) -> Entry | None:
    """A delete marker with the id of what was put, "null": one replaces the other."""
    try:
        entry = site.store.stat(bucket.name, version_name(row.key, row.version))
    except NoBucket:
        raise
    except NOT_THERE:
        return None
    meta = meta_of(bucket, entry)
    return entry if meta is not None and meta.marker else None
