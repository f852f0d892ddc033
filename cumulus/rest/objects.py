"""Handlers of objects: GetObject, HeadObject, PutObject, DeleteObject, GetObjectAttributes."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeVar

import msgspec

from cumulus.auth import lifecycle
from cumulus.checksums import Hasher
from cumulus.errors import S3Error
from cumulus.model import Acl, Bucket, ObjectMeta
from cumulus.ops.conditions import SECOND_NS, Conditions
from cumulus.ops.deletes import delete_current, delete_version
from cumulus.ops.find import Found, find, find_open, find_or_none
from cumulus.ops.incoming import Incoming
from cumulus.ops.names import first_name
from cumulus.ops.parts import MAX_PARTS
from cumulus.ops.publish import Plan, publish
from cumulus.ops.ranges import part_range, read_range
from cumulus.ops.rows import OPAQUE
from cumulus.ops.told import Owed
from cumulus.rest import documents, expect, grants
from cumulus.rest.call import Download, Reply, Sink
from cumulus.rest.headers import (
    OVERRIDES,
    checksum_headers,
    conditions,
    header_tags,
    http_date,
    iso_date,
    object_headers,
    parse_date,
    refuse_keys,
    refuse_unsupported,
    stored_headers,
    user_metadata,
    version_headers,
    write_conditions,
)
from cumulus.rest.request import Request
from cumulus.rest.sinks import BodySink, declared
from cumulus.xml import Writer

T = TypeVar("T")
_KEPT_304 = ("cache-control", "expires")  # RFC 9110, 15.4.5


# reading -----------------------------------------------------------------------------------------------
def reach(request: Request, get: Callable[[], T]) -> T:
    """What `get` finds. Who may not list the bucket is not told that a key is not there: `S3Error`
    AccessDenied instead of NoSuchKey; nor that a version is a delete marker, unless he might read it."""
    try:
        return get()
    except S3Error as error:
        if error.code in ("NoSuchKey", "NoSuchVersion") and not request.allowed("s3:ListBucket"):
            raise S3Error("AccessDenied") from error
        if error.code == "MethodNotAllowed":
            see_marker(request, (request.bucket, request.key), request.version)
        raise


def see_marker(request: Request, at: tuple[Bucket, str], version: str | None) -> None:
    """Whether it may be told that a version of that key is a delete marker. Raises `S3Error` AccessDenied."""
    bucket, key = at
    if not request.allowed("s3:ListBucket", at=at, version=version):
        as_object = ObjectMeta(key=key, size=0, etag="", modified_ns=0, acl=Acl(owner=bucket.owner))
        request.authorize("s3:GetObjectVersion", as_object, at=at, version=version)


def read_action(request: Request, what: str = "GetObject") -> str:
    """The action's name: reading a given version is one of its own."""
    return f"s3:{what}" if request.version is None else f"s3:{what.replace('Object', 'ObjectVersion')}"


def find_allowed(request: Request, what: str = "GetObject") -> Found:
    """The request's object, once its reading is allowed."""
    found = reach(request, lambda: find(request.site, request.bucket, request.key, request.version))
    request.authorize(read_action(request, what), found.meta)
    return found


def get_object(request: Request) -> Reply:
    """GetObject."""
    overrides = _overrides(request)
    found, stream = reach(
        request, lambda: find_open(request.site, request.bucket, request.key, request.version)
    )
    try:
        request.authorize(read_action(request), found.meta)
        status, headers, offset, length = _describe(request, found.meta, overrides)
        return Reply(status, headers, Download(stream, offset, length))
    except BaseException:
        stream.close()
        raise


def head_object(request: Request) -> Reply:
    """HeadObject: what GetObject would say, without the body."""
    overrides = _overrides(request)
    found = find_allowed(request)
    status, headers, _, length = _describe(request, found.meta, overrides)
    return Reply(status, headers, length=length)


def _overrides(request: Request) -> dict[str, str]:
    """response-… parameters; who is nobody may not send them. One without a value asks for nothing."""
    given = {OVERRIDES[name]: value for name, value in request.query.items() if name in OVERRIDES and value}
    if given and request.identity.user is None:
        raise S3Error(
            "InvalidRequest", "Request specific response headers cannot be used for anonymous GET requests."
        )
    if any(ord(c) < 0x20 or ord(c) > 0xFF for value in given.values() for c in value):
        raise S3Error("InvalidArgument", "A response header's value is not valid.")
    return given


def _describe(
    request: Request, meta: ObjectMeta, overrides: dict[str, str]
) -> tuple[int, list[tuple[str, str]], int, int]:
    """Status, headers, offset and length of what is to be sent. Raises `S3Error` (conditions, range)."""
    refuse_keys(request.call.headers)
    _check_read(conditions(request.call.headers), request, meta)
    number, text = request.query.get("partNumber", ""), request.header("range")
    # a checksum is of the whole object: clients would compare a part with it
    checksums = request.header("x-amz-checksum-mode").upper() == "ENABLED" and not (number or text)
    headers = object_headers(request.bucket, meta, overrides, checksums=checksums)
    headers += expiry(request, meta)
    if number:
        if text:
            raise S3Error("InvalidRequest", "Cannot specify both Range header and partNumber query parameter")
        if (
            not (number.isascii() and number.isdecimal())
            or len(number) > 5
            or not 1 <= int(number) <= MAX_PARTS
        ):
            raise S3Error("InvalidArgument", f"partNumber must be a number from 1 to {MAX_PARTS}.")
        offset, length = part_range(meta, int(number))
        if meta.parts:
            headers.append(("x-amz-mp-parts-count", str(len(meta.parts))))
        if not length:  # of an empty part no Content-Range can be made
            return 200, headers, 0, 0
    else:
        wanted = read_range(text, meta.size) if text and _range_holds(request, meta) else None
        if wanted is None:
            return 200, headers, 0, meta.size
        offset, length = wanted
    headers.append(("Content-Range", f"bytes {offset}-{offset + length - 1}/{meta.size}"))
    return 206, headers, offset, length


def expiry(request: Request, meta: ObjectMeta) -> list[tuple[str, str]]:
    """x-amz-expiration, where a lifecycle rule will remove the object."""
    document = request.bucket.lifecycle
    if document is None or request.version is not None:
        return []
    rules = lifecycle.parse_lifecycle(document)
    due = lifecycle.expiration(rules, meta.key, meta.size, meta.tags, meta.modified_ns)
    return [] if due is None else [("x-amz-expiration", lifecycle.expiration_header(due))]


def _check_read(wanted: Conditions, request: Request, meta: ObjectMeta) -> None:
    try:
        wanted.check_read(meta.etag, meta.modified_ns)
    except S3Error as error:
        if error.code == "NotModified":
            error.headers = [
                ("ETag", f'"{meta.etag}"'),
                ("Last-Modified", http_date(meta.modified_ns)),
                *((name.title(), meta.headers[name]) for name in _KEPT_304 if name in meta.headers),
                *version_headers(request.bucket, meta.version),
            ]
        raise


def _range_holds(request: Request, meta: ObjectMeta) -> bool:
    """If-Range: the range counts only if the object is still the one that the client has."""
    text = request.header("if-range")
    if not text:
        return True
    if text.startswith(('"', "W/")):
        return text == f'"{meta.etag}"'
    return parse_date(text) == meta.modified_ns // SECOND_NS * SECOND_NS


def get_attributes(request: Request) -> Reply:
    """GetObjectAttributes."""
    wanted = {part.strip() for part in request.header("x-amz-object-attributes").split(",") if part.strip()}
    known = {"ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"}
    if not wanted:
        raise S3Error(
            "InvalidRequest",
            "The x-amz-object-attributes header specifying the attributes to be retrieved is either missing "
            "or empty",
        )
    if not wanted <= known:
        raise S3Error("InvalidArgument", "Invalid attribute name specified.")
    found = find_allowed(request, "GetObjectAttributes")
    request.authorize(read_action(request), found.meta)
    refuse_keys(request.call.headers)
    meta = found.meta
    document = Writer("GetObjectAttributesResponse")
    if "ETag" in wanted:
        document.leaf("ETag", meta.etag)
    if "Checksum" in wanted and meta.checksums:
        document.begin("Checksum")
        documents.checksums(document, meta.checksums)
        document.leaf("ChecksumType", meta.checksum_type)
        document.end()
    if "ObjectParts" in wanted and meta.parts:
        _attribute_parts(request, document, meta)
    if "StorageClass" in wanted:
        document.leaf("StorageClass", "STANDARD")
    if "ObjectSize" in wanted:
        document.leaf("ObjectSize", meta.size)
    return documents.reply(
        document,
        ("Last-Modified", http_date(meta.modified_ns)),
        *version_headers(request.bucket, meta.version),
    )


def _attribute_parts(request: Request, document: Writer, meta: ObjectMeta) -> None:
    """Parts are shown where they have checksums; else, as in S3, there is their number alone."""
    document.begin("ObjectParts")
    document.leaf("PartsCount", len(meta.parts))
    if any(part.checksums for part in meta.parts):
        _page_of_parts(request, document, meta)
    document.end()


def _page_of_parts(request: Request, document: Writer, meta: ObjectMeta) -> None:
    limit = min(_header_number(request, "x-amz-max-parts", 1000), 1000)
    after = _header_number(request, "x-amz-part-number-marker", 0)
    later = [part for part in meta.parts if part.number > after]
    page = later[:limit]
    for part in page:
        document.begin("Part")
        document.leaves(("PartNumber", part.number), ("Size", part.size))
        documents.checksums(document, part.checksums)
        document.end()
    document.leaves(
        ("PartNumberMarker", after),
        ("NextPartNumberMarker", page[-1].number if page else after),
        ("MaxParts", limit),
        ("IsTruncated", len(page) < len(later)),
    )


def _header_number(request: Request, name: str, default: int) -> int:
    text = request.header(name)
    if not text:
        return default
    if not text.isdecimal() or len(text) > 9:
        raise S3Error("InvalidArgument", f"{name} must be a number.")
    return int(text)


# writing -----------------------------------------------------------------------------------------------
def new_meta(request: Request) -> ObjectMeta:
    """What the head of a PUT or of a new upload says about the object to be; size and ETag come later.
    Raises `S3Error`; asks for the rights that ACL and tags need besides."""
    headers = request.call.headers
    refuse_unsupported(headers)
    tags = header_tags(request.header("x-amz-tagging"))
    if tags:
        request.authorize("s3:PutObjectTagging")
    return ObjectMeta(
        key=request.key,
        size=0,
        etag="",
        modified_ns=0,
        acl=grants.new_object_acl(request),
        headers=stored_headers(headers),
        user=user_metadata(headers),
        tags=tags,
    )


def etag_of(hasher: Hasher) -> str:
    """The MD5 sum, or where the server does not make them something as unique."""
    if "md5" in hasher.names:
        return hasher.hex("md5")
    return secrets.token_hex(16) + OPAQUE


def algorithms(request: Request, expected: expect.Expected) -> list[str]:
    """What has to run over a body."""
    etag = () if request.settings.opaque_etags else ("md5",)
    return expected.names(*etag, *request.auth.body.hashes)


def check_early(request: Request, wanted: Conditions) -> None:
    """Refuse a conditional write before its body comes, if it can be seen to fail already, or may not be
    asked."""
    if wanted:
        found = find_or_none(request.site, request.bucket, request.key)
        may_compare(request, wanted, found)
        wanted.check_write(None if found is None else found.facts)


def may_compare(
    request: Request,
    wanted: Conditions,
    found: Found | None,
    *,
    key: str | None = None,
    version: str | None = None,
) -> None:
    """Conditions on ETag, size or time of what is to be replaced or deleted, `found`, are for those who may
    read it, as in S3: others would learn by them what it is. Raises `S3Error` AccessDenied."""
    if found is not None and wanted.compares:
        action = "s3:GetObject" if version is None else "s3:GetObjectVersion"
        at = (request.bucket, request.key if key is None else key)
        request.authorize(action, found.meta, at=at, version=version)


def put_object(request: Request) -> Sink:
    """PutObject: checked, reserved, then taken in as it comes."""
    meta = new_meta(request)
    wanted = write_conditions(request.call.headers)
    expected = expect.read(request.call.headers)
    size = declared(request)
    check_early(request, wanted)
    incoming = Incoming(
        request.site,
        request.bucket.name,
        first_name(request.key),
        size=size,
        limit=request.settings.max_object,
        algorithms=algorithms(request, expected),
    )

    def done(incoming: Incoming, checksums: dict[str, str]) -> Reply:
        published = publish_body(request, incoming, meta, checksums, wanted)
        return Reply(200, put_headers(request, published))

    return BodySink(request, incoming, expected, done)


def publish_body(
    request: Request, incoming: Incoming, meta: ObjectMeta, checksums: dict[str, str], wanted: Conditions
) -> ObjectMeta:
    """Publish what came whole and was verified."""
    whole = msgspec.structs.replace(
        meta,
        size=incoming.size,
        etag=etag_of(incoming.hasher),
        checksums=checksums,
        checksum_type="FULL_OBJECT" if checksums else "",
    )
    plan = Plan(whole, incoming.place, wanted, incoming.reservation)
    try:
        return publish(request.site, request.bucket, plan)
    except Owed:
        incoming.reservation = None  # it ends when the database is told
        raise


def put_headers(request: Request, meta: ObjectMeta) -> list[tuple[str, str]]:
    """Headers of a reply to what made an object."""
    return [
        ("ETag", f'"{meta.etag}"'),
        *version_headers(request.bucket, meta.version),
        *checksum_headers(meta),
        *expiry(request, meta),
    ]


def delete_object(request: Request) -> Reply:
    """DeleteObject, of the current object or of one version."""
    version, wanted = request.version, conditions(request.call.headers)
    if version is not None:
        request.authorize("s3:DeleteObjectVersion")
        check_delete(request, request.key, version, wanted)
        done = delete_version(request.site, request.bucket, request.key, version, wanted)
    else:
        request.authorize("s3:DeleteObject")
        check_delete(request, request.key, None, wanted)
        done = delete_current(request.site, request.bucket, request.key, request.owner, wanted)
    headers = [("x-amz-version-id", done.version)] if done.version else []
    return Reply(204, [*headers, ("x-amz-delete-marker", "true")] if done.marker else headers)


def check_delete(request: Request, key: str, version: str | None, wanted: Conditions) -> None:
    """Whether the conditions of a deletion may be asked. Raises `S3Error` AccessDenied."""
    if not wanted.compares:
        return
    try:
        found = find(request.site, request.bucket, key, version)
    except S3Error as error:
        if error.code not in ("NoSuchKey", "NoSuchVersion", "MethodNotAllowed"):
            raise
        return  # there is nothing, or a delete marker: the deletion says so
    may_compare(request, wanted, found, key=key, version=version)


def copy_document(root: str, meta: ObjectMeta) -> Writer:
    """CopyObjectResult and CopyPartResult."""
    document = Writer(root)
    document.leaves(("LastModified", iso_date(meta.modified_ns)), ("ETag", f'"{meta.etag}"'))
    documents.checksums(document, meta.checksums)
    if meta.checksums and meta.checksum_type:
        document.leaf("ChecksumType", meta.checksum_type)
    return document
