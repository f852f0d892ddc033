"""Tags of buckets and of objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from cumulus.errors import S3Error
from cumulus.model import ObjectMeta
from cumulus.ops import buckets
from cumulus.ops.find import Found, adopt_alone
from cumulus.rest import documents
from cumulus.rest.call import Reply, Sink
from cumulus.rest.headers import check_tags, version_headers
from cumulus.rest.objects import find_allowed
from cumulus.rest.request import Request
from cumulus.rest.sinks import DocumentSink
from cumulus.storage.api import Changed, Missing
from cumulus.xml import Element, Writer, parse

MAX_BUCKET_TAGS = 50
TRIES = 32


def _document(tags: Mapping[str, str]) -> Writer:
    document = Writer("Tagging")
    document.begin("TagSet")
    for key, value in tags.items():
        document.begin("Tag")
        document.leaves(("Key", key), ("Value", value))
        document.end()
    return document


def read_tags(body: bytes, limit: int) -> dict[str, str]:
    """Tags of a document Tagging. Raises `S3Error` MalformedXML, InvalidTag, BadRequest."""
    tag_set = parse(body, "Tagging").first("TagSet")
    if tag_set is None:
        raise S3Error("MalformedXML")
    return tags_of(tag_set, limit)


def tags_of(tag_set: Element, limit: int) -> dict[str, str]:
    """The elements Tag in it. Raises `S3Error` MalformedXML, InvalidTag, BadRequest."""
    pairs = []
    for tag in tag_set.all("Tag"):
        key, value = tag.raw("Key"), tag.raw("Value")
        if key is None or value is None:
            raise S3Error("MalformedXML", "A Tag has a Key and a Value.")
        pairs.append((key, value))
    return check_tags(pairs, limit)


def get_bucket_tags(request: Request) -> Reply:
    """GetBucketTagging."""
    if not request.bucket.tags:
        raise S3Error("NoSuchTagSet", fields={"BucketName": request.bucket.name})
    return documents.reply(_document(request.bucket.tags))


def put_bucket_tags(request: Request) -> Sink:
    """PutBucketTagging."""

    def run(body: bytes) -> Reply:
        buckets.change(request.site, request.bucket, tags=read_tags(body, MAX_BUCKET_TAGS))
        return Reply(204)

    return DocumentSink(request, run)


def delete_bucket_tags(request: Request) -> Reply:
    """DeleteBucketTagging."""
    buckets.change(request.site, request.bucket, tags={})
    return Reply(204)


def change_meta(request: Request, what: str, change: Callable[[ObjectMeta], ObjectMeta]) -> ObjectMeta:
    """Change what belongs to an object, leaving its bytes and its time as they are. Raises `S3Error`
    OperationAborted when others change it all the time."""
    for _ in range(TRIES):
        found: Found = find_allowed(request, what)
        try:
            return adopt_alone(request.site, request.bucket, found, change(found.meta)).meta
        except (Changed, Missing):  # what is there now, or that there is nothing, the next look tells
            continue
    raise S3Error("OperationAborted")


def get_object_tags(request: Request) -> Reply:
    """GetObjectTagging."""
    meta = find_allowed(request, "GetObjectTagging").meta
    return documents.reply(_document(meta.tags), *version_headers(request.bucket, meta.version))


def put_object_tags(request: Request) -> Sink:
    """PutObjectTagging."""
    find_allowed(request, "PutObjectTagging")

    def run(body: bytes) -> Reply:
        tags = read_tags(body, 10)
        meta = change_meta(request, "PutObjectTagging", lambda old: msgspec.structs.replace(old, tags=tags))
        return Reply(200, version_headers(request.bucket, meta.version))

    return DocumentSink(request, run)


def delete_object_tags(request: Request) -> Reply:
    """DeleteObjectTagging."""
    meta = change_meta(request, "DeleteObjectTagging", lambda old: msgspec.structs.replace(old, tags={}))
    return Reply(204, version_headers(request.bucket, meta.version))
