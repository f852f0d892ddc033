"""Copying objects: within storage where it can, and with a hash where bytes have none yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from cumulus.errors import S3Error
from cumulus.index.api import Reservation
from cumulus.model import Bucket, ObjectMeta, Versioning
from cumulus.ops.conditions import Conditions
from cumulus.ops.digest import CHUNK, digest_stream
from cumulus.ops.drafts import asks, drafted
from cumulus.ops.find import Found, adopt_alone
from cumulus.ops.incoming import Incoming
from cumulus.ops.names import first_name
from cumulus.ops.publish import Plan, publish
from cumulus.ops.rows import OPAQUE
from cumulus.ops.site import Site
from cumulus.ops.told import Owed
from cumulus.storage.api import Changed, Entry, IfToken, Missing, ObjectStream

TRIES: Final = 32


def complete_meta(stream: ObjectStream, meta: ObjectMeta, algorithm: str) -> ObjectMeta:
    """`meta` with a true ETag, if its bytes were never hashed, and with the checksum asked for ("" = those
    it has)."""
    wanted = [algorithm] if algorithm and (algorithm not in meta.checksums or meta.parts) else []
    unhashed = meta.etag.endswith(OPAQUE)
    if not wanted and not unhashed:
        return meta
    hasher = digest_stream(stream, [*wanted, "md5"] if unhashed else wanted, 0, stream.entry.size)
    if unhashed:
        meta = msgspec.structs.replace(meta, etag=hasher.hex("md5"))
    if wanted:
        sums = {algorithm: hasher.base64(algorithm)}
        meta = msgspec.structs.replace(meta, checksums=sums, checksum_type="FULL_OBJECT")
    return meta


def copy_whole(
    site: Site, stream: ObjectStream, bucket: Bucket, meta: ObjectMeta, conditions: Conditions
) -> ObjectMeta:
    """Publish the bytes of an open object as another one. Raises as `publish`, and QuotaExceeded."""
    held = site.reserve(bucket.name, stream.entry.size)
    reservation: Reservation | None = held

    def check() -> None:
        site.confirm(held, stream.entry.size)

    def place(name: str, data: bytes, token: IfToken) -> Entry:
        if draft is not None:
            check()
            return draft.commit(data, token, name)
        if asks(type(site.store), "copy"):
            return site.store.copy(stream, bucket.name, name, data, token, check=check)
        check()
        return site.store.copy(stream, bucket.name, name, data, token)

    try:
        with drafted(site, bucket.name, first_name(meta.key), [stream]) as draft:
            published = publish(site, bucket, Plan(meta, place, conditions, held))
        reservation = None
        return published
    except Owed:
        reservation = None  # it ends when the database is told
        raise
    finally:
        if reservation is not None:
            site.index.release(reservation)


def copy_range(stream: ObjectStream, incoming: Incoming, offset: int, length: int) -> None:
    """Feed a part from a range of an open object. Raises `Changed`."""
    end = offset + length
    while offset < end:
        data = stream.read_at(offset, min(CHUNK, end - offset))
        if not data:
            raise Changed("the object became shorter while it was read")
        incoming.write(memoryview(data))
        offset += len(data)
    if not stream.unchanged():
        raise Changed("the object was changed while it was read")


def replace_record(
    site: Site,
    bucket: Bucket,
    found: Found,
    meta: ObjectMeta,
    conditions: Conditions,
    again: Callable[[], tuple[Found, ObjectMeta]],
) -> ObjectMeta:
    """A copy of an object onto itself: other metadata for the same bytes, in one step. Where another object
    has come in its place, or it has gone, `again` looks: it gives what is there now and what the copy of that
    is to be, and raises `S3Error` if there is nothing, or what the copier must not read."""
    for _ in range(TRIES):
        conditions.check_write(found.facts)
        fresh = msgspec.structs.replace(
            meta, modified_ns=site.clock(), size=found.meta.size, version=found.meta.version
        )
        try:
            return adopt_alone(site, bucket, found, fresh).meta
        except (Changed, Missing):
            found, meta = again()
    raise S3Error("ConditionalRequestConflict")


def in_place(bucket: Bucket, source: tuple[str, str, str | None], key: str) -> bool:
    """Whether a copy is one onto itself that can be done by its record alone."""
    return source == (bucket.name, key, None) and bucket.versioning is Versioning.OFF
