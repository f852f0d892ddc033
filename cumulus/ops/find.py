"""From bucket, key and version to what is stored: the file decides, the index says where else to look.

A key that is its own name is looked for in storage first, so that changes from outside are seen at once; the
index is asked for keys with other names, older versions and delete markers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from typing import Final, TypeVar

import msgspec

from cumulus.errors import S3Error
from cumulus.index.api import Change, IndexFailure, NoSuch, Put, Remove, Row
from cumulus.model import Bucket, ObjectMeta, Versioning, encode_meta
from cumulus.ops.digest import digest_stream
from cumulus.ops.names import VERSIONS, body_name, first_name, is_mark, is_plain, version_name
from cumulus.ops.rows import OPAQUE, body_names, is_moved, meta_of, row_of
from cumulus.ops.site import Site
from cumulus.storage.api import (
    BadName,
    Changed,
    Entry,
    Forbidden,
    Missing,
    NoBucket,
    NoSpace,
    ObjectStream,
    ReadOnly,
    StorageError,
    Taken,
    Unavailable,
)

T = TypeVar("T")
TRIES: Final = 4
HASH_AT_ONCE: Final = 4 << 20  # bytes made outside that are hashed when they are first asked for
NOT_THERE: Final[tuple[type[StorageError], ...]] = (Missing, Taken, BadName)


class Lost(Unavailable):
    """The index has an object whose body storage does not find. Where bodies have names of their own nobody
    but us removes them, and the row goes first: so it is an object, whatever a server has failed to list."""


@dataclass(frozen=True, slots=True)
class Found:
    """One version of an object as it is stored."""

    entry: Entry
    meta: ObjectMeta

    @property
    def facts(self) -> tuple[str, int, int]:
        """ETag, time of modification (ns), size: what conditions are about."""
        return self.meta.etag, self.meta.modified_ns, self.meta.size


def no_such_key(key: str, row: Row | None = None) -> S3Error:
    """NoSuchKey; with a delete marker's headers where that is what is there."""
    headers = []
    if row is not None and row.marker:
        headers = [("x-amz-delete-marker", "true"), ("x-amz-version-id", row.version)]
    return S3Error("NoSuchKey", fields={"Key": key}, headers=headers)


def _no_such_version(key: str, version: str) -> S3Error:
    return S3Error("NoSuchVersion", fields={"Key": key, "VersionId": version[:100]})


def _reach(
    site: Site,
    bucket: Bucket,
    key: str,
    version: str | None,
    get: Callable[[str], T],
    entry: Callable[[T], Entry],
) -> tuple[T, ObjectMeta]:
    """What `get` gives for the name under which the object is stored. Raises `Lost`."""
    plain = site.atomic and is_plain(key)
    if plain and version is None:
        there = _attempt(bucket, key, get, entry)
        if there is not None:
            return there
    row = None
    for _ in range(TRIES):
        row = site.index.lookup(bucket.name, key, version)
        if row is None or row.marker:
            break
        for name in stored_names(site, row):
            there = _attempt(bucket, name, get, entry)
            if there is not None and (version is None or there[1].version == version):
                return there
    marked = site.marks and version in (None, "null") and is_mark(key)
    if row is None and (marked or (version == "null" and plain)):  # not in the index yet
        there = _attempt(bucket, key, get, entry)
        if there is not None and (version is None or there[1].version == "null"):
            return there
    if row is not None and row.marker and version is not None:
        headers = [("x-amz-delete-marker", "true"), ("x-amz-version-id", row.version), ("Allow", "DELETE")]
        headers.append(("Last-Modified", formatdate(row.modified_ns // 1_000_000_000, usegmt=True)))
        raise S3Error("MethodNotAllowed", "This version is a delete marker.", headers=headers)
    if row is not None and not row.marker and not site.atomic:
        raise Lost(f"bucket {bucket.name}: {key!r} is there, but its body {row.name} is not found")
    gone = row is not None and not row.marker and row.latest and version is None
    if row is not None and gone and not _is_for_scans(site, bucket) and not _is_marked(site, bucket, row):
        # removed by someone else: the index follows
        site.index.apply([Remove(bucket=bucket.name, key=key, stamp=row.stamp, version=row.version)])
    raise no_such_key(key, row) if version is None else _no_such_version(key, version)


def _attempt(
    bucket: Bucket, name: str, get: Callable[[str], T], entry: Callable[[T], Entry]
) -> tuple[T, ObjectMeta] | None:
    try:
        there = get(name)
    except NoBucket:  # nothing is known of the object
        raise
    except NOT_THERE:
        return None
    meta = meta_of(bucket, entry(there))
    # a marker under the name that the index has for a body: a deletion has not told the index yet
    return None if meta is None or meta.marker else (there, meta)


def _is_for_scans(site: Site, bucket: Bucket) -> bool:
    """Whether a scan sees to what others removed: it gets a delete marker. Its row alone must not go, or an
    older version would be current again; and a removal of ours may be under way."""
    return bucket.versioning is Versioning.ENABLED and site.store.capabilities.outside


def was_removed(site: Site, bucket: Bucket, row: Row | None, found: Found | None) -> list[Change]:
    """What the index has to hear besides of the row of a key when something takes its place; `found` is what
    was found to be there. What others removed is no older version."""
    if found is not None or row is None or row.marker or not row.latest or not _is_for_scans(site, bucket):
        return []
    if is_stored(site, bucket, row):
        return []  # it has come since
    return [Remove(bucket=bucket.name, key=row.key, stamp=row.stamp, version=row.version)]


def _is_marked(site: Site, bucket: Bucket, row: Row) -> bool:
    """Whether a delete marker has taken that body's place, of which whoever put it there tells the index, or,
    after a crash, the next scan."""
    if not site.atomic or bucket.versioning is not Versioning.SUSPENDED:
        return False
    try:
        meta = meta_of(bucket, site.store.stat(bucket.name, version_name(row.key, row.version)))
    except NoBucket:
        raise
    except NOT_THERE:
        return False
    return meta is not None and meta.marker


def find(site: Site, bucket: Bucket, key: str, version: str | None = None) -> Found:
    """The object without opening it. Raises `S3Error` NoSuchKey, NoSuchVersion, MethodNotAllowed (the
    version is a delete marker), and storage errors, also `Lost`."""
    entry, meta = _reach(
        site, bucket, key, version, lambda name: site.store.stat(bucket.name, name), lambda entry: entry
    )
    found = Found(entry, meta)
    return found if entry.meta is not None else _known(site, bucket, found)


def find_open(site: Site, bucket: Bucket, key: str, version: str | None = None) -> tuple[Found, ObjectStream]:
    """The object opened for reading; the caller closes the stream. Raises as `find`."""
    stream, meta = _reach(
        site,
        bucket,
        key,
        version,
        lambda name: site.store.open_read(bucket.name, name),
        lambda stream: stream.entry,
    )
    found = Found(stream.entry, meta)
    return found if stream.entry.meta is not None else _known(site, bucket, found), stream


def find_or_none(site: Site, bucket: Bucket, key: str) -> Found | None:
    """The current object, or None (nothing, or a delete marker)."""
    try:
        return find(site, bucket, key)
    except S3Error as error:
        if error.code == "NoSuchKey":
            return None
        raise


def _known(site: Site, bucket: Bucket, found: Found) -> Found:
    """Bytes that were made outside, with their MD5 sum as ETag if the index has it, or it takes no time;
    larger ones are noted for background work and keep an opaque ETag until then."""
    if site.opaque_etags:
        return found
    row = site.index.lookup(bucket.name, found.meta.key)
    scanned = row is not None and not row.marker and row.token == found.entry.token
    if row is not None and scanned and not row.etag.endswith(OPAQUE):
        return Found(found.entry, msgspec.structs.replace(found.meta, etag=row.etag))
    if found.entry.size <= HASH_AT_ONCE:
        return hash_outside(site, bucket, found) or found
    if not (scanned and site.store.capabilities.outside):  # else whoever scans hashes it, and not each worker
        site.hash_later(bucket.name, found.entry.name)
    return found


def hash_outside(site: Site, bucket: Bucket, found: Found) -> Found | None:
    """Read bytes that were made outside, and keep their MD5 sum as their ETag. None: they changed meanwhile,
    or the service ends. Where storage does not let us keep it, the index does."""
    name, token = found.entry.name, found.entry.token
    try:
        stream = site.store.open_read(bucket.name, name, token)
        try:
            hasher = digest_stream(stream, ["md5"], 0, found.entry.size, lambda: site.stopping)
            etag = hasher.hex("md5")
        finally:
            stream.close()
        meta = msgspec.structs.replace(found.meta, etag=etag, version=site.new_version(bucket))
        try:
            return adopt(site, bucket, found, meta)
        except (Forbidden, ReadOnly, NoSpace):
            _note(site, bucket, found, etag)
            return Found(found.entry, msgspec.structs.replace(found.meta, etag=etag))
    except (Changed, Missing):
        return None


def _note(site: Site, bucket: Bucket, found: Found, etag: str) -> None:
    """Keep the sum of bytes that may be read only in their row, so that they are not read again for it. One
    without a row gets one by a scan, and is hashed then."""
    with suppress(IndexFailure):
        row = site.index.lookup(bucket.name, found.meta.key)
        if row is not None and not row.marker and row.token == found.entry.token and row.etag != etag:
            keep = bucket.versioning is not Versioning.OFF
            site.index.apply_soon([Put(row=msgspec.structs.replace(row, etag=etag), keep=keep)])


def stored_names(site: Site, row: Row) -> list[str]:
    """Where a row's body is (`body_names`)."""
    return body_names(row, atomic=site.atomic)


def is_stored(site: Site, bucket: Bucket, row: Row) -> bool:
    """Whether that version, or its delete marker, has a body by one of its names."""
    return any(_has(site, bucket, name, row.version) for name in stored_names(site, row))


def is_foreign(entry: Entry) -> bool:
    """Whether the bytes were made, changed or moved by someone else, and have no record of this name."""
    return entry.meta is None or is_moved(entry)


def adopt(site: Site, bucket: Bucket, found: Found, meta: ObjectMeta | None = None) -> Found:
    """Give bytes that were made or moved outside their record (in a bucket with versions: as a version of its
    own), or replace the record by `meta`. Raises `Changed`, `Missing`, `Owed`."""
    changes: list[Change] = []
    if meta is None:
        meta = msgspec.structs.replace(found.meta, version=site.new_version(bucket))
    if is_foreign(found.entry):
        row = site.index.lookup(bucket.name, meta.key)
        other = row is not None and not row.marker and row.version != meta.version
        if row is not None and other and not _is_beside(site, bucket, row, found.entry.name):
            # overwritten from outside
            changes.append(Remove(bucket=bucket.name, key=meta.key, stamp=row.stamp, version=row.version))
    if not site.atomic:
        return _flip(site, bucket, found, meta)
    entry = site.store.set_meta(bucket.name, found.entry.name, encode_meta(meta), found.entry.token)
    if not changes:
        row = site.index.lookup(bucket.name, meta.key, meta.version)
        if row is not None and not row.latest:
            return Found(entry, meta)  # an older version; the index knows nothing of it that has changed
        if row is not None and not site.compares:  # its stamp may be by another server's clock
            entry = msgspec.structs.replace(entry, stamp=max(entry.stamp, row.stamp + 1))
    former = found.meta.version
    kept = version_name(meta.key, former)
    if is_foreign(found.entry) and former != meta.version and not _has(site, bucket, kept, former):
        # a scan that has seen it before it had this version comes too late with its row
        gone = Remove(bucket=bucket.name, key=meta.key, stamp=entry.stamp - 1, version=former)
        changes.append(gone)
    keep = bucket.versioning is not Versioning.OFF
    site.index.apply([*changes, Put(row=row_of(bucket, entry, meta), keep=keep)])
    return Found(entry, meta)


def _is_beside(site: Site, bucket: Bucket, row: Row, name: str) -> bool:
    """Whether the body of a row is elsewhere than under that name: as an older version, or under the key's
    odd name, since there was a directory of that name."""
    elsewhere = [one for one in (version_name(row.key, row.version), row.name) if one != name]
    return any(_has(site, bucket, one, row.version) for one in elsewhere)


def _has(site: Site, bucket: Bucket, name: str, version: str) -> bool:
    """Whether that version, or its delete marker, is under that name."""
    try:
        meta = meta_of(bucket, site.store.stat(bucket.name, name))
    except NoBucket:
        raise
    except NOT_THERE:
        return False
    return meta is not None and meta.version == version


def adopt_alone(site: Site, bucket: Bucket, found: Found, meta: ObjectMeta) -> Found:
    """`adopt` for those who do not hold the key's lock. Raises as `adopt`."""
    if site.compares or not site.atomic:
        return adopt(site, bucket, found, meta)
    with site.lock(bucket.name, meta.key):
        return adopt(site, bucket, found, meta)


def _flip(site: Site, bucket: Bucket, found: Found, meta: ObjectMeta) -> Found:
    """`adopt` where storage cannot replace in one step: the same bytes with the new record are a body of
    their own, and the index says that it counts. It gets the stamp of the row that it replaces, so that it
    never wins over a later object or a removal, of whatever process. Raises as `adopt`."""
    try:
        source = site.store.open_read(bucket.name, found.entry.name, found.entry.token)
    except NoBucket:
        raise
    except Missing as error:
        raise Changed(str(error)) from error
    try:
        entry = site.store.copy(source, bucket.name, body_name(), encode_meta(meta))
    finally:
        source.close()
    with site.lock(bucket.name, meta.key):
        row = site.index.lookup(bucket.name, meta.key, meta.version)
        if row is not None and row.name == found.entry.name:
            new = row_of(bucket, msgspec.structs.replace(entry, stamp=row.stamp), meta)
            try:
                site.told.apply([Put(row=new, keep=bucket.versioning is not Versioning.OFF)])
            except NoSuch:  # the bucket went
                site.remove(bucket.name, entry.name)
                raise
            row = site.index.lookup(bucket.name, meta.key, meta.version)
            if row is not None and row.name == entry.name:
                site.discard(bucket.name, found.entry.name, found.entry.size)
                return Found(entry, meta)
    site.discard(bucket.name, entry.name, entry.size)
    raise Changed(f"{meta.key!r} was replaced")


def name_for(key: str, row: Row | None, *, mark: bool = False) -> str:
    """The name under which a key is, or will be, published in storage that replaces in one step. `mark`: it
    may be a directory."""
    if mark and is_mark(key):
        return key
    known = row is not None and not row.marker and row.name and not row.name.startswith(VERSIONS)
    if row is not None and known and not is_mark(row.name):
        return row.name
    return first_name(key)
