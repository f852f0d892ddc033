"""Multipart uploads: parts as they come, one object at the end.

A part is stored under a name that contains its ETag and recorded in the index, which says what counts.
Completion joins the parts in one step of storage and ends the upload in the same change of the index that
makes the object known; asked again, it answers the same.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from cumulus import checksums
from cumulus.errors import S3Error
from cumulus.index.api import NoSuch, Put, Reservation, StillUsed, Upload
from cumulus.model import Bucket, ObjectMeta, Part, Versioning
from cumulus.ops.buckets import end_upload, remove_parts
from cumulus.ops.completion import Completion, refusal
from cumulus.ops.conditions import Conditions
from cumulus.ops.drafts import drafted, opened
from cumulus.ops.find import Lost, find_or_none
from cumulus.ops.names import first_name, slots_name
from cumulus.ops.parts import MAX_PARTS, IncomingPart, join, own_name
from cumulus.ops.publish import Plan, publish
from cumulus.ops.rows import row_of
from cumulus.ops.site import Site
from cumulus.ops.told import Owed
from cumulus.storage.api import Entry, IfToken, Missing, NoBucket, StorageError

Type = Literal["", "FULL_OBJECT", "COMPOSITE"]
_ID: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A part as a completion names it: its checksums by algorithm, as far as they are given."""

    number: int
    etag: str
    checksums: dict[str, str]


@dataclass(frozen=True, slots=True)
class Promise:
    """What a completion says of the whole: `checksum` in base64, `size` in bytes."""

    checksum: str = ""
    kind: Type = ""
    size: int | None = None


def no_such_upload(id: str) -> S3Error:
    """NoSuchUpload for an id."""
    return S3Error("NoSuchUpload", fields={"UploadId": id[:128]})


def is_id(text: str) -> bool:
    """Whether an upload's id can look like that."""
    return _ID.fullmatch(text) is not None


def create(
    site: Site, bucket: Bucket, meta: ObjectMeta, initiator: str, algorithm: str, kind: Type
) -> Upload:
    """Begin an upload."""
    upload = Upload(
        id=uuid.uuid4().hex,
        bucket=bucket.name,
        key=meta.key,
        owner=meta.acl.owner,
        initiator=initiator,
        created_ns=site.clock(),
        meta=meta,
        algorithm=algorithm,
        checksum_type=kind,
    )
    site.index.add_upload(upload)
    return upload


def get(site: Site, bucket: Bucket, key: str, id: str) -> Upload:
    """Raises `S3Error` NoSuchUpload."""
    upload = site.index.upload(bucket.name, key, id)
    if upload is None:
        raise no_such_upload(id)
    return upload


@contextmanager
def beside_its_end(site: Site, upload: Upload) -> Iterator[None]:
    """While a part is made: the upload may end meanwhile, and storage then misses where its parts lie. Raises
    `S3Error` NoSuchUpload."""
    try:
        yield
    except NoBucket:
        raise
    except Missing as error:
        if site.index.upload(upload.bucket, upload.key, upload.id) is not None:
            raise
        raise no_such_upload(upload.id) from error


def add_part(site: Site, upload: Upload, incoming: IncomingPart, part: Part) -> Part:
    """Record a part that came whole: its ETag and checksums. Raises `S3Error` NoSuchUpload."""
    with beside_its_end(site, upload):
        part = incoming.keep(msgspec.structs.replace(part, modified_ns=site.clock()))
    former = site.index.parts(upload.id, after=part.number - 1, limit=1)
    try:
        site.index.put_part(upload.id, part, incoming.reservation)
    except NoSuch as error:
        _forget(site, upload, part)
        raise no_such_upload(upload.id) from error
    if former and former[0].number == part.number and _place(former[0]) != _place(part):
        _forget(site, upload, former[0])
    return part


def _place(part: Part) -> tuple[int, str]:
    return part.slot, "" if part.slot else part.etag


def _forget(site: Site, upload: Upload, part: Part) -> None:
    """Remove the file of a part that does not count; a slot is free as soon as the index says so. The same
    content sent again may have the same file by now, and count."""
    if part.slot:
        if not site.index.parts(upload.id, limit=1):
            site.remove(upload.bucket, slots_name(upload.id, part.slot))
        return
    now = site.index.parts(upload.id, after=part.number - 1, limit=1)
    if not now or now[0].number != part.number or _place(now[0]) != _place(part):
        site.remove(upload.bucket, own_name(upload, part))


def abort(site: Site, upload: Upload) -> None:
    """End an upload and forget its parts. Raises `S3Error` NoSuchUpload, OperationAborted (it is being
    completed)."""
    try:
        ended = end_upload(site, upload)
    except StillUsed:
        raise refusal() from None
    if not ended:
        raise no_such_upload(upload.id)


def completed(site: Site, bucket: Bucket, key: str, id: str) -> ObjectMeta | None:
    """The object that this upload has become, if that is still the current one."""
    found = find_or_none(site, bucket, key)
    return found.meta if found is not None and found.meta.upload == id else None


def asked(site: Site, bucket: Bucket, key: str, id: str) -> Mapping[str, str]:
    """What the beginning of an upload said that policies look at, also when it has just become an object."""
    upload = site.index.upload(bucket.name, key, id)
    meta = completed(site, bucket, key, id) if upload is None else upload.meta
    return {} if meta is None else meta.asked


def complete(
    site: Site,
    bucket: Bucket,
    upload: Upload,
    wanted: Sequence[Wanted],
    promise: Promise,
    conditions: Conditions,
    min_part: int,
) -> ObjectMeta:
    """Make the object. Its bytes have their room as parts, its place among the objects is reserved here.
    Raises `S3Error` InvalidRequest, InvalidPart, InvalidPartOrder, EntityTooSmall, BadDigest, NoSuchUpload,
    PreconditionFailed, QuotaExceeded, OperationAborted; the upload goes on then."""
    try:
        with Completion(site, upload) as completion:
            return _complete(site, bucket, upload, wanted, promise, conditions, min_part, completion)
    except StillUsed as error:  # the claim has ended, and another has it
        raise refusal() from error
    except NoSuch as error:  # another completion or an abort came first
        there = completed(site, bucket, upload.key, upload.id)
        if there is None:
            raise no_such_upload(upload.id) from error
        return there


def _complete(
    site: Site,
    bucket: Bucket,
    upload: Upload,
    wanted: Sequence[Wanted],
    promise: Promise,
    conditions: Conditions,
    min_part: int,
    completion: Completion,
) -> ObjectMeta:
    _need_checksums(upload, wanted)
    parts = _choose(site, upload, wanted, min_part)
    meta = _whole(upload, parts, promise)

    def confirm() -> None:
        completion.confirm()
        site.confirm(held, meta.size)

    def place(name: str, data: bytes, token: IfToken) -> Entry:
        if draft is None:
            return join(site, upload, parts, name, data, token, confirm)
        confirm()
        return draft.commit(data, token, name)

    def settle(put: Put) -> None:
        if site.index.drop_upload(upload.id, put, completion.claimant):
            return
        row = site.index.lookup(bucket.name, put.row.key, put.row.version)
        if not site.atomic and (row is None or row.name != put.row.name):  # ended by others: nothing names it
            raise NoSuch(f"there is no upload {upload.id}")
        site.index.apply([put])  # told before, as it turns out, or storage has it in any case

    def clear() -> None:
        with suppress(StorageError):  # it is done; what stays of the parts is swept
            for part in parts:
                if not part.slot:
                    site.remove(bucket.name, own_name(upload, part))
            remove_parts(site, bucket.name, upload.id)

    def told() -> ObjectMeta | None:
        """What a completion before this one has put in place without coming to its end. The index has not
        heard of it either, and as a version it might be replaced before a scan finds it."""
        try:
            there = find_or_none(site, bucket, upload.key)
        except Lost:  # of which this makes a new one
            return None
        if there is None or (there.meta.upload, there.meta.etag) != (upload.id, meta.etag):
            return None
        put = Put(row=row_of(bucket, there.entry, there.meta), keep=bucket.versioning is not Versioning.OFF)
        site.told.tell(lambda: settle(put), [put])
        clear()
        return there.meta

    if (done := told()) is not None:
        return done
    held = site.reserve(bucket.name, 0)
    reservation: Reservation | None = held
    try:
        sources = opened(site, bucket.name, [own_name(upload, part) for part in parts])
        with drafted(site, bucket.name, first_name(upload.key), sources) as draft:
            done = publish(site, bucket, Plan(meta, place, conditions, reservation, settle))
        reservation = None  # settled; nothing that fails from here on makes the object undone
    except Missing as error:  # its parts are gone
        if (done := told()) is None:
            raise _gone(site, upload, parts) from error
        return done
    except Owed:
        reservation = None  # it ends when the database is told
        raise
    finally:
        if reservation is not None:
            site.index.release(reservation)
    clear()
    return done


def _gone(site: Site, upload: Upload, parts: Sequence[Part]) -> Exception:
    """Why parts are not there any more: others were sent in their place, or the upload has ended. Where it
    does that in the index first, storage has them, and does not find them."""
    now = {part.number: part for part in site.index.parts(upload.id, limit=MAX_PARTS)}
    for part in parts:
        if now.get(part.number, part) != part:
            fields = {"UploadId": upload.id, "PartNumber": str(part.number), "ETag": part.etag}
            return S3Error("InvalidPart", fields=fields)
    if not site.atomic and site.index.upload(upload.bucket, upload.key, upload.id) is not None:
        return Lost(
            f"bucket {upload.bucket}: a part of the upload {upload.id} to {upload.key!r} is not found"
        )
    return no_such_upload(upload.id)


def _need_checksums(upload: Upload, wanted: Sequence[Wanted]) -> None:
    """What the checksum of the whole is made of must be named again. Raises `S3Error` InvalidRequest."""
    name = upload.algorithm
    if not name or _kind(upload) != "COMPOSITE":
        return
    for one in wanted:
        if name not in one.checksums:
            raise S3Error(
                "InvalidRequest",
                f"The upload was created using a {name} checksum. The complete request must include the "
                f"checksum for each part. It was missing for part {one.number} in the request.",
            )


def _choose(site: Site, upload: Upload, wanted: Sequence[Wanted], min_part: int) -> list[Part]:
    numbers = [one.number for one in wanted]
    if any(a >= b for a, b in itertools.pairwise(numbers)):
        raise S3Error("InvalidPartOrder", fields={"UploadId": upload.id})
    there = {part.number: part for part in site.index.parts(upload.id, limit=MAX_PARTS)}
    chosen: list[Part] = []
    for one in wanted:
        part = there.get(one.number)
        if part is None or part.etag != one.etag or _differs(part, one):
            raise S3Error(
                "InvalidPart",
                fields={"UploadId": upload.id, "PartNumber": str(one.number), "ETag": one.etag[:64]},
            )
        chosen.append(part)
    for part in chosen[:-1]:
        if part.size < min_part:
            raise S3Error(
                "EntityTooSmall",
                fields={
                    "ProposedSize": str(part.size),
                    "MinSizeAllowed": str(min_part),
                    "PartNumber": str(part.number),
                    "ETag": part.etag,
                },
            )
    return chosen


def _differs(part: Part, wanted: Wanted) -> bool:
    return any(part.checksums.get(name, value) != value for name, value in wanted.checksums.items())


def _whole(upload: Upload, parts: Sequence[Part], promise: Promise) -> ObjectMeta:
    size = sum(part.size for part in parts)
    if promise.size is not None and promise.size != size:
        raise S3Error("InvalidRequest", f"The parts have {size} bytes, not {promise.size}.")
    if promise.kind and upload.checksum_type and promise.kind != upload.checksum_type:
        raise S3Error("InvalidRequest", "The checksum type is not that of the upload.")
    digests = b"".join(bytes.fromhex(part.etag[:32]) for part in parts)
    value = _checksum(upload, parts)
    # some clients (all with minio-go) promise a sum of sums without the number of parts behind it
    if promise.checksum and promise.checksum not in (value, value.partition("-")[0]):
        raise S3Error("BadDigest", "The checksum of the whole does not fit its parts.")
    return msgspec.structs.replace(
        upload.meta,
        size=size,
        etag=f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(parts)}",
        checksums={upload.algorithm: value} if value else {},
        checksum_type=_kind(upload) if value else "",
        parts=tuple(msgspec.structs.replace(part, slot=0) if part.slot else part for part in parts),
        upload=upload.id,
    )


def _kind(upload: Upload) -> Type:
    return "FULL_OBJECT" if upload.checksum_type == "FULL_OBJECT" else "COMPOSITE"


def _checksum(upload: Upload, parts: Sequence[Part]) -> str:
    """The checksum of the object, from those of its parts; "" if the upload has no algorithm."""
    name = upload.algorithm
    if not name:
        return ""
    values = [checksums.parse_value(name, part.checksums[name]) for part in parts]
    if _kind(upload) == "COMPOSITE":
        return checksums.composite(name, values)
    sizes = [part.size for part in parts]
    return base64.b64encode(checksums.combine(name, list(zip(values, sizes, strict=True)))).decode()
