"""From what storage holds to what the index says: the metadata of an entry and the row of an object.

Used when objects are published, by rescans and by `doctor --rebuild`. Pure.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from cumulus.index.api import Row
from cumulus.model import Acl, Bucket, ObjectMeta, Versioning, decode_meta
from cumulus.ops.names import VERSIONS, is_mark, is_plain, own_names, version_name, version_time
from cumulus.storage.api import Entry

OPAQUE: Final = "-0"  # end of an ETag that is no MD5 and of no multipart object
NEAR_NS: Final = 5 * 10**9  # by which clocks differ, and publishing takes
DEFAULT_TYPE: Final = "binary/octet-stream"


def opaque_etag(entry: Entry) -> str:
    """ETag of bytes that nobody has hashed: new with every change, never equal to an MD5."""
    return hashlib.sha256(entry.token).hexdigest()[:32] + OPAQUE


def meta_of(bucket: Bucket, entry: Entry) -> ObjectMeta | None:
    """What belongs to the object stored as `entry`. Bytes made or changed by someone else belong to the
    bucket's owner, and their key is their name; what someone else only moved keeps all else that its record
    says. None: no object (an internal name without a record)."""
    if entry.meta is not None:
        try:
            return _here(bucket, entry, decode_meta(entry.meta))
        except msgspec.MsgspecError:
            pass  # damaged from outside: the bytes count as made outside
    if not is_plain(entry.name):
        return None
    return ObjectMeta(
        key=entry.name,
        size=entry.size,
        etag=opaque_etag(entry),
        modified_ns=entry.mtime_ns,
        acl=Acl(owner=bucket.owner),
    )


def _here(bucket: Bucket, entry: Entry, meta: ObjectMeta) -> ObjectMeta:
    """What a record says, under this name and in this bucket. Whoever may write in storage may have made it:
    how much there is storage says."""
    if meta.size != entry.size:
        meta = msgspec.structs.replace(meta, size=entry.size)
    if meta.key != entry.name and _names_itself(entry.name):
        meta = msgspec.structs.replace(meta, key=entry.name)
    if meta.version != "null" and bucket.versioning is Versioning.OFF:  # from a bucket that has versions
        meta = msgspec.structs.replace(meta, version="null")
    return meta


def _names_itself(name: str) -> bool:
    return is_plain(name) or is_mark(name)


def is_moved(entry: Entry) -> bool:
    """Whether the record of an entry says another key than its name does."""
    if entry.meta is None or not _names_itself(entry.name):
        return False
    try:
        return decode_meta(entry.meta).key != entry.name
    except msgspec.MsgspecError:
        return False


def as_made(bucket: Bucket, entry: Entry, meta: ObjectMeta, *, atomic: bool) -> Entry:
    """An entry with the stamp that it had when it was made, for who has nothing but storage to tell in which
    order the versions of a key came. Each change of a record (tags, ACL, owner) gives a later stamp, and an
    older version would come after what replaced it, or after the delete marker that hides it. What has its
    key's own name is current in any case."""
    if bucket.versioning is Versioning.OFF or (atomic and not entry.name.startswith(VERSIONS)):
        return entry
    made = version_time(meta.version)
    if atomic:  # a file keeps its time; one of others was made when it got its version
        made = max(made, entry.mtime_ns)
    else:  # the record was changed in a body of its own
        made = made or meta.modified_ns
        if entry.stamp - made < NEAR_NS:
            return entry
    return msgspec.structs.replace(entry, stamp=min(entry.stamp, made))


def row_of(bucket: Bucket, entry: Entry, meta: ObjectMeta, latest: bool = True) -> Row:
    """The index's row of an object."""
    return Row(
        bucket=bucket.name,
        key=meta.key,
        version=meta.version,
        stamp=entry.stamp,
        name=entry.name,
        token=entry.token,
        size=meta.size,
        etag=meta.etag,
        modified_ns=meta.modified_ns,
        owner=meta.acl.owner,
        latest=latest,
        marker=meta.marker,
        checksum=",".join(sorted(name.upper() for name in meta.checksums)) if meta.checksums else "",
        checksum_type=meta.checksum_type,
    )


def body_names(row: Row, *, atomic: bool) -> list[str]:
    """Where a row's body is: under its name, or, once another object has taken that (where storage is
    `atomic`), under its version's; also where the row knows that name alone, for it may be the second one of
    what is current, or be given the key's own again. The first comes again at the end: a body that goes from
    one name to the other while they are looked at in this order is not missed."""
    if not atomic:
        return [row.name]
    kept = version_name(row.key, row.version)
    if row.name.startswith(VERSIONS):
        return [row.name, *own_names(row.key), row.name]
    return [row.name, kept, row.name] if row.latest else [kept, row.name, kept]


def outside_row(bucket: Bucket, entry: Entry) -> Row | None:
    """The row of bytes that someone else made: as `row_of` and `meta_of`, the short way for very many."""
    if not is_plain(entry.name):
        return None
    return Row(
        bucket=bucket.name,
        key=entry.name,
        stamp=entry.stamp,
        name=entry.name,
        token=entry.token,
        size=entry.size,
        etag=opaque_etag(entry),
        modified_ns=entry.mtime_ns,
        owner=bucket.owner,
    )


def marker_row(bucket: Bucket, key: str, version: str, stamp: int, at_ns: int, owner: str) -> Row:
    """The row of a delete marker."""
    return Row(
        bucket=bucket.name,
        key=key,
        version=version,
        stamp=stamp,
        name="",
        token=b"",
        size=0,
        etag="",
        modified_ns=at_ns,
        owner=owner,
        marker=True,
    )
