"""Listings: ListObjects, ListObjectsV2, ListObjectVersions; a page holds at most 1,000 keys."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from cumulus.errors import S3Error
from cumulus.index.api import Page, Row
from cumulus.rest import documents
from cumulus.rest.call import Reply
from cumulus.rest.documents import encode
from cumulus.rest.headers import iso_date
from cumulus.rest.request import Request
from cumulus.xml import Writer, escape

MAX_KEYS: Final = 1000


def _page(request: Request, after: str, limit: int) -> Page:
    if limit == 0:
        return Page(rows=[], prefixes=[], truncated=False)
    query = request.query
    return request.site.index.page(
        request.bucket.name,
        prefix=query.get("prefix", ""),
        after=after,
        delimiter=query.get("delimiter", ""),
        limit=limit,
    )


class _Rows:
    """Writes rows of a listing in order of their names, with the common prefixes among them at the end."""

    def __init__(self, request: Request, document: Writer, kind: str, owners: bool) -> None:
        self.request, self.document, self.kind, self.owners = request, document, kind, owners
        self.known: dict[str, str] = {}

    def facts(self, row: Row) -> None:
        document = self.document
        document.raw(
            f"<LastModified>{iso_date(row.modified_ns)}</LastModified><ETag>&quot;{row.etag}&quot;</ETag>"
            f"<Size>{row.size}</Size><StorageClass>STANDARD</StorageClass>"
        )
        for name in row.checksum.split(",") if row.checksum else ():
            document.leaf("ChecksumAlgorithm", name)
        if row.checksum_type:
            document.leaf("ChecksumType", row.checksum_type)

    def contents(self, row: Row) -> None:
        """One element Contents."""
        self.document.raw(f"<Contents><Key>{escape(encode(row.key, self.kind))}</Key>")
        self.facts(row)
        if self.owners:
            documents.owner(self.document, self.request.site, row.owner, cache=self.known)
        self.document.raw("</Contents>")

    def version(self, row: Row) -> None:
        """One element Version or DeleteMarker."""
        tag = "DeleteMarker" if row.marker else "Version"
        document = self.document
        document.raw(f"<{tag}><Key>{escape(encode(row.key, self.kind))}</Key>")
        document.leaves(("VersionId", row.version), ("IsLatest", row.latest))
        if row.marker:
            document.leaf("LastModified", iso_date(row.modified_ns))
        else:
            self.facts(row)
        documents.owner(document, self.request.site, row.owner, cache=self.known)
        document.raw(f"</{tag}>")

    def prefixes(self, prefixes: list[str]) -> None:
        """Elements CommonPrefixes."""
        for prefix in prefixes:
            self.document.raw(
                f"<CommonPrefixes><Prefix>{escape(encode(prefix, self.kind))}</Prefix></CommonPrefixes>"
            )


def _head(request: Request, document: Writer, kind: str, limit: int) -> None:
    query = request.query
    document.leaves(("Name", request.bucket.name), ("Prefix", encode(query.get("prefix", ""), kind)))
    document.leaf("MaxKeys", limit)
    if query.get("delimiter"):
        document.leaf("Delimiter", encode(query["delimiter"], kind))
    if kind:
        document.leaf("EncodingType", kind)


def list_objects(request: Request) -> Reply:
    """ListObjects (version 1) and ListObjectsV2."""
    kind = request.query.get("list-type", "1")
    if kind not in ("1", "2"):
        raise S3Error("InvalidArgument", "list-type must be 2.")
    return _list_v2(request) if kind == "2" else _list_v1(request)


def _list_v1(request: Request) -> Reply:
    kind = documents.encoder(request)
    limit = request.integer("max-keys", MAX_KEYS, 0, MAX_KEYS)
    marker = request.query.get("marker", "")
    page = _page(request, marker, limit)
    document = Writer("ListBucketResult")
    _head(request, document, kind, limit)
    document.leaf("Marker", encode(marker, kind))
    document.leaf("IsTruncated", page.truncated)
    if page.truncated and request.query.get("delimiter"):
        document.leaf("NextMarker", encode(page.next, kind))
    rows = _Rows(request, document, kind, owners=True)
    for row in page.rows:
        rows.contents(row)
    rows.prefixes(page.prefixes)
    return documents.reply(document)


def _list_v2(request: Request) -> Reply:
    query = request.query
    kind = documents.encoder(request)
    limit = request.integer("max-keys", MAX_KEYS, 0, MAX_KEYS)
    after = query.get("start-after", "")
    token = query.get("continuation-token")
    page = _page(request, after if token is None else _open_token(token), limit)
    document = Writer("ListBucketResult")
    _head(request, document, kind, limit)
    document.leaves(("KeyCount", len(page.rows) + len(page.prefixes)), ("IsTruncated", page.truncated))
    if after:
        document.leaf("StartAfter", encode(after, kind))
    if token is not None:
        document.leaf("ContinuationToken", token)
    if page.truncated:
        document.leaf("NextContinuationToken", make_token(page.next))
    rows = _Rows(request, document, kind, owners=query.get("fetch-owner") == "true")
    for row in page.rows:
        rows.contents(row)
    rows.prefixes(page.prefixes)
    return documents.reply(document)


def make_token(after: str) -> str:
    """A continuation token: where the next page begins, in a form that needs no encoding."""
    return base64.urlsafe_b64encode(b"1" + after.encode()).decode()


def _open_token(token: str) -> str:
    try:
        data = base64.b64decode(token, altchars=b"-_", validate=True)
        if data[:1] != b"1":
            raise ValueError
        return data[1:].decode()
    except (binascii.Error, ValueError) as error:
        raise S3Error("InvalidArgument", "The continuation token provided is incorrect.") from error


def list_versions(request: Request) -> Reply:
    """ListObjectVersions."""
    query = request.query
    kind = documents.encoder(request)
    limit = request.integer("max-keys", MAX_KEYS, 0, MAX_KEYS)
    after, version = query.get("key-marker", ""), query.get("version-id-marker", "")
    if version and not after:
        raise S3Error("InvalidArgument", "A version-id marker cannot be specified without a key marker.")
    page = Page(rows=[], prefixes=[], truncated=False)
    if limit:
        page = request.site.index.page_versions(
            request.bucket.name,
            prefix=query.get("prefix", ""),
            after=after,
            after_version=version,
            delimiter=query.get("delimiter", ""),
            limit=limit,
        )
    document = Writer("ListVersionsResult")
    _head(request, document, kind, limit)
    document.leaves(("KeyMarker", encode(after, kind)), ("VersionIdMarker", version))
    document.leaf("IsTruncated", page.truncated)
    if page.truncated:
        document.leaf("NextKeyMarker", encode(page.next, kind))
        if page.next_version:
            document.leaf("NextVersionIdMarker", page.next_version)
    rows = _Rows(request, document, kind, owners=True)
    for row in page.rows:
        rows.version(row)
    rows.prefixes(page.prefixes)
    return documents.reply(document)


def list_buckets(request: Request) -> Reply:
    """ListBuckets: those that belong to who asks."""
    user = request.identity.user
    if user is None:
        raise S3Error("AccessDenied")
    limit = request.integer("max-buckets", 10_000, 1, 10_000)
    prefix, token = request.query.get("prefix", ""), request.query.get("continuation-token")
    after = _open_token(token) if token else ""
    region = request.query.get("bucket-region", "")
    mine = [
        bucket
        for bucket in request.site.index.buckets(user.id)
        if bucket.name > after and bucket.name.startswith(prefix) and region in ("", request.settings.region)
    ]
    document = Writer("ListAllMyBucketsResult")
    documents.owner(document, request.site, user.id)
    document.begin("Buckets")
    for bucket in mine[:limit]:
        document.begin("Bucket")
        document.leaves(("Name", bucket.name), ("CreationDate", iso_date(bucket.created_ns)))
        document.leaf("BucketRegion", bucket.region or request.settings.region)
        document.end()
    document.end()
    if len(mine) > limit:
        document.leaf("ContinuationToken", make_token(mine[limit - 1].name))
    if prefix:
        document.leaf("Prefix", prefix)
    return documents.reply(document)
