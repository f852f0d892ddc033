"""CopyObject."""

from __future__ import annotations

import msgspec

from cumulus.checksums import parse_algorithm
from cumulus.errors import S3Error
from cumulus.model import Bucket, ObjectMeta
from cumulus.ops import copies
from cumulus.ops.find import Found, find_open
from cumulus.ops.names import check_version
from cumulus.rest import documents, grants
from cumulus.rest.call import Reply
from cumulus.rest.headers import (
    conditions,
    header_tags,
    refuse_unsupported,
    stored_headers,
    user_metadata,
    version_headers,
    write_conditions,
)
from cumulus.rest.objects import check_early, copy_document, expiry, see_marker
from cumulus.rest.request import Request
from cumulus.rest.target import copy_source
from cumulus.storage.api import ObjectStream


def open_source(request: Request) -> tuple[Bucket, Found, ObjectStream]:
    """The source that x-amz-copy-source names, opened, its reading allowed and its conditions met. The caller
    closes the stream. A request that has bytes of its own besides is refused: which are meant?"""
    name, key, version = copy_source(request.header("x-amz-copy-source"))
    if version is not None:
        check_version(version)
    bucket = request.site.bucket(name)
    expected = request.header("x-amz-source-expected-bucket-owner")
    if expected and expected != bucket.owner:
        raise S3Error("AccessDenied")
    try:
        found, stream = find_open(request.site, bucket, key, version)
    except S3Error as error:
        if error.code in ("NoSuchKey", "NoSuchVersion"):
            request.authorize("s3:ListBucket", at=(bucket, key), version=version)
        if error.code == "MethodNotAllowed":
            see_marker(request, (bucket, key), version)
            raise S3Error("InvalidRequest", "The source of a copy may not be a delete marker.") from error
        raise
    try:
        _check_source(request, bucket, found.meta, version)
        if request.call.length:
            why = "The request included a body. Requests of this type must not include a non-empty body."
            raise S3Error("InvalidRequest", why)
    except BaseException:
        stream.close()
        raise
    return bucket, found, stream


def _check_source(request: Request, bucket: Bucket, source: ObjectMeta, version: str | None) -> None:
    """That it may be read, and fits the conditions."""
    action = "s3:GetObject" if version is None else "s3:GetObjectVersion"
    request.authorize(action, source, at=(bucket, source.key), version=version)
    wanted = conditions(request.call.headers, "x-amz-copy-source-")
    wanted.check_read(source.etag, source.modified_ns, copy=True)


def copy_object(request: Request) -> Reply:
    """CopyObject: bytes stay where they are if storage can share them."""
    refuse_unsupported(request.call.headers)
    directive = _directive(request, "x-amz-metadata-directive")
    tagging = _directive(request, "x-amz-tagging-directive")
    asked = request.header("x-amz-checksum-algorithm")
    algorithm = parse_algorithm(asked) if asked else ""

    def made_of(found: Found, stream: ObjectStream) -> ObjectMeta:
        """What the copy of that object is to be."""
        if found.meta.tags and tagging == "COPY":
            _authorize_tags(request, source_bucket, found.meta)
        meta = _new_meta(request, found.meta, replace=directive == "REPLACE", retag=tagging == "REPLACE")
        return copies.complete_meta(stream, meta, algorithm)

    source_bucket, found, stream = open_source(request)
    try:
        source = copy_source(request.header("x-amz-copy-source"))
        itself = copies.in_place(request.bucket, source, request.key)
        kept = directive == "COPY" and tagging == "COPY" and not request.header("x-amz-storage-class")
        if itself and kept and not _has_acl(request) and not algorithm:
            raise S3Error(
                "InvalidRequest",
                "This copy request is illegal because it is trying to copy an object to itself without "
                "changing the object's metadata, storage class, website redirect location or encryption "
                "attributes.",
            )
        meta = made_of(found, stream)
        wanted = write_conditions(request.call.headers)
        check_early(request, wanted)
        if itself:

            def again() -> tuple[Found, ObjectMeta]:
                _, now, stream = open_source(request)
                try:
                    return now, made_of(now, stream)
                finally:
                    stream.close()

            done = copies.replace_record(request.site, request.bucket, found, meta, wanted, again)
        else:
            done = copies.copy_whole(request.site, stream, request.bucket, meta, wanted)
    finally:
        stream.close()
    headers = [*version_headers(request.bucket, done.version), *expiry(request, done)]
    if source_bucket.versioning:
        headers.append(("x-amz-copy-source-version-id", found.meta.version))
    return documents.reply(copy_document("CopyObjectResult", done), *headers)


def _authorize_tags(request: Request, bucket: Bucket, source: ObjectMeta) -> None:
    """Tags are copied for those who may read them there and set them here."""
    version = copy_source(request.header("x-amz-copy-source"))[2]
    action = "s3:GetObjectTagging" if version is None else "s3:GetObjectVersionTagging"
    request.authorize(action, source, at=(bucket, source.key), version=version)
    request.authorize("s3:PutObjectTagging")


def _has_acl(request: Request) -> bool:
    return any(
        name == "x-amz-acl" or name.startswith("x-amz-grant-") for name, _ in request.call.headers.items()
    )


def _directive(request: Request, name: str) -> str:
    value = request.header(name) or "COPY"
    if value not in ("COPY", "REPLACE"):
        raise S3Error("InvalidArgument", f"Unknown {name.removeprefix('x-amz-').replace('-', ' ')}.")
    return value


def _new_meta(request: Request, source: ObjectMeta, *, replace: bool, retag: bool) -> ObjectMeta:
    headers = request.call.headers
    if retag:
        request.authorize("s3:PutObjectTagging")
    return msgspec.structs.replace(
        source,
        key=request.key,
        acl=grants.new_object_acl(request),
        headers=stored_headers(headers) if replace else source.headers,
        user=user_metadata(headers) if replace else source.user,
        tags=header_tags(request.header("x-amz-tagging")) if retag else source.tags,
        upload="",
        asked={},
    )
