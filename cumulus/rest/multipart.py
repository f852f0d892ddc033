"""Handlers of multipart uploads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from cumulus.auth import lifecycle
from cumulus.auth.conditions import begun_with
from cumulus.checksums import ALGORITHMS, combines, header, parse_algorithm
from cumulus.errors import S3Error
from cumulus.index.api import Upload
from cumulus.model import ObjectMeta, Part
from cumulus.ops import copies, multipart
from cumulus.ops.incoming import Incoming
from cumulus.ops.multipart import Promise, Type, Wanted
from cumulus.ops.parts import MAX_PARTS, IncomingPart
from cumulus.ops.ranges import copy_range
from cumulus.rest import documents, expect
from cumulus.rest.call import Reply, Sink
from cumulus.rest.copies import open_source
from cumulus.rest.documents import encode
from cumulus.rest.headers import checksum_headers, iso_date, version_headers, write_conditions
from cumulus.rest.objects import algorithms, check_early, copy_document, etag_of, expiry, new_meta
from cumulus.rest.request import Request
from cumulus.rest.sinks import MAX_LONG_DOCUMENT, BodySink, DocumentSink, declared
from cumulus.xml import Element, Writer, parse

KINDS: Final[tuple[Type, ...]] = ("FULL_OBJECT", "COMPOSITE")
PAGE: Final = 1000
_BEHIND: Final = "\U0010ffff"  # behind a prefix: few keys that begin with the prefix sort after this


def _kind(text: str) -> Type:
    for kind in KINDS:
        if kind == text.upper():
            return kind
    if text:
        raise S3Error("InvalidRequest", "Value for x-amz-checksum-type header is invalid.")
    return ""


def create_upload(request: Request) -> Reply:
    """CreateMultipartUpload."""
    meta = new_meta(request)
    asked = request.header("x-amz-checksum-algorithm")
    algorithm = parse_algorithm(asked) if asked else ""
    kind = _kind(request.header("x-amz-checksum-type"))
    if kind and not algorithm:
        raise S3Error("InvalidRequest", "x-amz-checksum-type needs x-amz-checksum-algorithm.")
    if kind == "FULL_OBJECT" and not combines(algorithm):
        raise S3Error(
            "InvalidRequest", f"The FULL_OBJECT checksum type cannot be used with {algorithm.upper()}."
        )
    if kind == "COMPOSITE" and algorithm == "crc64nvme":
        raise S3Error("InvalidRequest", "The COMPOSITE checksum type cannot be used with CRC64NVME.")
    if algorithm and not kind:
        kind = "FULL_OBJECT" if algorithm == "crc64nvme" else "COMPOSITE"
    meta = msgspec.structs.replace(meta, asked=begun_with(request.call))
    upload = multipart.create(request.site, request.bucket, meta, request.owner, algorithm, kind)
    document = Writer("InitiateMultipartUploadResult")
    document.leaves(("Bucket", request.bucket.name), ("Key", request.key), ("UploadId", upload.id))
    extra = _ends(request, upload)
    if algorithm:
        extra += [("x-amz-checksum-algorithm", algorithm.upper()), ("x-amz-checksum-type", kind)]
    return documents.reply(document, *extra)


def _ends(request: Request, upload: Upload) -> list[tuple[str, str]]:
    """When it is aborted, where a lifecycle rule does that."""
    document = request.bucket.lifecycle
    if document is None:
        return []
    due = lifecycle.upload_expiration(lifecycle.parse_lifecycle(document), upload.key, upload.created_ns)
    return [] if due is None else lifecycle.abort_headers(due)


def _upload(request: Request) -> Upload:
    return multipart.get(request.site, request.bucket, request.key, request.query["uploadId"])


def _number(request: Request) -> int:
    text = request.query.get("partNumber", "")
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and 1 <= int(text) <= MAX_PARTS):
        raise S3Error(
            "InvalidArgument",
            f"Part number must be an integer between 1 and {MAX_PARTS}, inclusive",
            fields={"ArgumentName": "partNumber", "ArgumentValue": text[:100]},
        )
    return int(text)


def _incoming(
    request: Request, upload: Upload, number: int, size: int | None, names: list[str]
) -> IncomingPart:
    limit = request.settings.max_part
    with multipart.beside_its_end(request.site, upload):
        return IncomingPart(request.site, upload, number, size=size, limit=limit, algorithms=names)


def upload_part(request: Request) -> Sink:
    """UploadPart."""
    number = _number(request)
    upload = _upload(request)
    expected = expect.read(request.call.headers, upload.algorithm)
    if upload.algorithm and expected.algorithm not in ("", upload.algorithm):
        raise S3Error(
            "InvalidRequest",
            f"Checksum Type mismatch occurred, expected checksum Type: {upload.algorithm}, "
            f"actual checksum Type: {expected.algorithm}",
        )
    size = declared(request)
    part_in = _incoming(request, upload, number, size, algorithms(request, expected))

    def done(incoming: Incoming, checksums: dict[str, str]) -> Reply:
        part = Part(number=number, size=0, etag=etag_of(incoming.hasher), checksums=checksums)
        part = multipart.add_part(request.site, upload, part_in, part)
        sums = [(header(name), value) for name, value in part.checksums.items()]
        return Reply(200, [("ETag", f'"{part.etag}"'), *sums])

    return BodySink(request, part_in, expected, done)


def copy_part(request: Request) -> Reply:
    """UploadPartCopy."""
    number = _number(request)
    upload = _upload(request)
    source_bucket, found, stream = open_source(request)
    try:
        size = found.entry.size
        text = request.header("x-amz-copy-source-range")
        offset, length = copy_range(text, size) if text else (0, size)
        names = [name for name in (upload.algorithm,) if name]
        if not request.settings.opaque_etags:
            names.append("md5")
        incoming = _incoming(request, upload, number, length, names)
        try:
            copies.copy_range(stream, incoming, offset, length)
            sums = {upload.algorithm: incoming.hasher.base64(upload.algorithm)} if upload.algorithm else {}
            part = Part(number=number, size=0, etag=etag_of(incoming.hasher), checksums=sums)
            part = multipart.add_part(request.site, upload, incoming, part)
            incoming.close()
        finally:
            incoming.abort()
    finally:
        stream.close()
    meta = ObjectMeta(
        key=request.key,
        size=part.size,
        etag=part.etag,
        modified_ns=part.modified_ns,
        acl=upload.meta.acl,
        checksums=part.checksums,
    )
    extra = [("x-amz-copy-source-version-id", found.meta.version)] if source_bucket.versioning else []
    return documents.reply(copy_document("CopyPartResult", meta), *extra)


def complete_upload(request: Request) -> Sink:
    """CompleteMultipartUpload."""
    id = request.query["uploadId"]
    wanted = write_conditions(request.call.headers)
    there = request.site.index.upload(request.bucket.name, request.key, id)
    if there is None:
        if multipart.completed(request.site, request.bucket, request.key, id) is None:
            raise multipart.no_such_upload(id)
    elif wanted and multipart.completed(request.site, request.bucket, request.key, id) is None:
        check_early(request, wanted)  # not against what an attempt before this one has put in place
    promise = _promise(request, there)

    def run(body: bytes) -> Reply:
        parts = _wanted(parse(body, "CompleteMultipartUpload"))
        upload = request.site.index.upload(request.bucket.name, request.key, id)
        if upload is None:
            done = multipart.completed(request.site, request.bucket, request.key, id)
            if done is None:
                raise multipart.no_such_upload(id)
        else:
            done = multipart.complete(
                request.site, request.bucket, upload, parts, promise, wanted, request.settings.min_part
            )
        return _completed(request, done)

    return CompletionSink(request, run, limit=MAX_LONG_DOCUMENT)


class CompletionSink(DocumentSink):
    """A completion's checksum headers are of the object, not of the document."""

    promises_object = True


def _promise(request: Request, upload: Upload | None) -> Promise:
    given = [
        (name, request.header(header(name))) for name in ALGORITHMS if header(name) in request.call.headers
    ]
    if len(given) > 1:
        raise S3Error("InvalidRequest", "Expecting a single x-amz-checksum- header.")
    if given and upload is not None and given[0][0] != upload.algorithm:
        raise S3Error("InvalidRequest", "The checksum's algorithm is not that of the upload.")
    size = request.header("x-amz-mp-object-size")
    if size and (not size.isdecimal() or len(size) > 18):
        raise S3Error("InvalidRequest", "Value for x-amz-mp-object-size header is invalid.")
    return Promise(
        checksum=given[0][1] if given else "",
        kind=_kind(request.header("x-amz-checksum-type")),
        size=int(size) if size else None,
    )


def _wanted(root: Element) -> list[Wanted]:
    wanted: list[Wanted] = []
    for element in root.all("Part"):
        number, etag = element.value("PartNumber"), element.value("ETag").strip('"')
        if not number.isdecimal() or len(number) > 9 or not etag:
            raise S3Error("MalformedXML")
        sums = {name: value for name in ALGORITHMS if (value := element.value(f"Checksum{name.upper()}"))}
        wanted.append(Wanted(int(number), etag, sums))
    if not 0 < len(wanted) <= MAX_PARTS:
        raise S3Error("MalformedXML")
    return wanted


def _completed(request: Request, meta: ObjectMeta) -> Reply:
    document = Writer("CompleteMultipartUploadResult")
    document.leaves(
        ("Location", documents.location(request, request.key)),
        ("Bucket", request.bucket.name),
        ("Key", request.key),
        ("ETag", f'"{meta.etag}"'),
    )
    documents.checksums(document, meta.checksums)
    if meta.checksums:
        document.leaf("ChecksumType", meta.checksum_type)
    extra = [pair for pair in checksum_headers(meta) if pair[0] == "x-amz-checksum-type"]
    return documents.reply(
        document, *version_headers(request.bucket, meta.version), *expiry(request, meta), *extra
    )


def abort_upload(request: Request) -> Reply:
    """AbortMultipartUpload."""
    upload = _upload(request)
    request.authorize("s3:AbortMultipartUpload", upload.meta)
    multipart.abort(request.site, upload)
    return Reply(204)


def list_parts(request: Request) -> Reply:
    """ListParts."""
    upload = _upload(request)
    request.authorize("s3:ListMultipartUploadParts", upload.meta)
    limit = request.integer("max-parts", PAGE, 0, PAGE)
    after = request.integer("part-number-marker", 0, 0, MAX_PARTS)
    found = request.site.index.parts(upload.id, after=after, limit=limit + 1) if limit else []
    page = found[:limit]
    kind = documents.encoder(request)
    document = Writer("ListPartsResult")
    document.leaves(
        ("Bucket", request.bucket.name), ("Key", encode(request.key, kind)), ("UploadId", upload.id)
    )
    known: dict[str, str] = {}
    documents.owner(document, request.site, upload.initiator, "Initiator", known)
    documents.owner(document, request.site, upload.owner, "Owner", known)
    document.leaves(("StorageClass", "STANDARD"), ("PartNumberMarker", after))
    if kind:
        document.leaf("EncodingType", kind)
    if page:
        document.leaf("NextPartNumberMarker", page[-1].number)
    document.leaves(("MaxParts", limit), ("IsTruncated", len(found) > len(page)))
    if upload.algorithm:
        document.leaves(
            ("ChecksumAlgorithm", upload.algorithm.upper()), ("ChecksumType", upload.checksum_type)
        )
    for part in page:
        document.begin("Part")
        document.leaves(("PartNumber", part.number), ("LastModified", iso_date(part.modified_ns)))
        document.leaves(("ETag", f'"{part.etag}"'), ("Size", part.size))
        documents.checksums(document, part.checksums)
        document.end()
    return documents.reply(document, *_ends(request, upload))


def _uploads(request: Request, after: str, after_id: str) -> Iterator[Upload]:
    """Uploads from there on, in order, page by page."""
    prefix = request.query.get("prefix", "")
    while True:
        page = request.site.index.uploads(
            request.bucket.name, prefix=prefix, after=after, after_id=after_id, limit=PAGE
        )
        yield from page
        if len(page) < PAGE:
            return
        after, after_id = page[-1].key, page[-1].id


def _upload_marker(text: str) -> str:
    """An upload that has ended since the last page is a marker too. Raises `S3Error` InvalidArgument for what
    can be none."""
    if text and not multipart.is_id(text):
        fields = {"ArgumentName": "upload-id-marker", "ArgumentValue": text[:100]}
        raise S3Error("InvalidArgument", "Invalid uploadId marker", fields=fields)
    return text


def list_uploads(request: Request) -> Reply:
    """ListMultipartUploads."""
    query = request.query
    kind = documents.encoder(request)
    limit = request.integer("max-uploads", PAGE, 0, PAGE)
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = query.get("key-marker", "")
    after_id = _upload_marker(query.get("upload-id-marker", "")) if after else ""
    page, prefixes, last, truncated = _group(request, limit, after, after_id)
    document = Writer("ListMultipartUploadsResult")
    document.leaves(("Bucket", request.bucket.name), ("KeyMarker", encode(after, kind)))
    document.leaf("UploadIdMarker", after_id)
    if truncated:
        document.leaves(("NextKeyMarker", encode(last[0], kind)), ("NextUploadIdMarker", last[1]))
    document.leaf("Prefix", encode(prefix, kind))
    if delimiter:
        document.leaf("Delimiter", encode(delimiter, kind))
    if kind:
        document.leaf("EncodingType", kind)
    document.leaves(("MaxUploads", limit), ("IsTruncated", truncated))
    known: dict[str, str] = {}
    for upload in page:
        document.begin("Upload")
        document.leaves(("Key", encode(upload.key, kind)), ("UploadId", upload.id))
        documents.owner(document, request.site, upload.initiator, "Initiator", known)
        documents.owner(document, request.site, upload.owner, "Owner", known)
        document.leaves(("StorageClass", "STANDARD"), ("Initiated", iso_date(upload.created_ns)))
        if upload.algorithm:
            document.leaves(
                ("ChecksumAlgorithm", upload.algorithm.upper()), ("ChecksumType", upload.checksum_type)
            )
        document.end()
    for common in prefixes:
        document.begin("CommonPrefixes")
        document.leaf("Prefix", encode(common, kind))
        document.end()
    return documents.reply(document)


def _group(
    request: Request, limit: int, after: str, after_id: str
) -> tuple[list[Upload], list[str], tuple[str, str], bool]:
    """Uploads and common prefixes of one page, the last of them (an upload's key and id, or a prefix and ""),
    and whether there is more. One that is the marker is not shown again; one that it lies in is."""
    prefix, delimiter = request.query.get("prefix", ""), request.query.get("delimiter", "")
    page: list[Upload] = []
    prefixes: list[str] = []
    last = ("", "")
    passed = 0
    uploads = _uploads(request, after, after_id)
    while limit and (upload := next(uploads, None)) is not None:
        at = upload.key.find(delimiter, len(prefix)) if delimiter else -1
        common = upload.key[: at + len(delimiter)] if at >= 0 else ""
        if common and (common in prefixes[-1:] or common == after):
            passed += 1
            if passed % PAGE == 0:  # there may be very many
                uploads = _uploads(request, common + _BEHIND, "")
            continue
        if len(page) + len(prefixes) == limit:
            return page, prefixes, last, True
        if common:
            prefixes.append(common)
        else:
            page.append(upload)
        last = (common, "") if common else (upload.key, upload.id)
    return page, prefixes, last, False
