"""Listings: ListObjects, ListObjectsV2, ListObjectVersions; a page holds at most 1,000 keys."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from cumulus.errors import S3Error
from cumulus.index.api import Line, Lines, Page, Row
from cumulus.ops.conditions import SECOND_NS
from cumulus.ops.names import check_version_marker
from cumulus.rest import documents
from cumulus.rest.call import Reply
from cumulus.rest.documents import encode
from cumulus.rest.headers import iso_date, iso_second
from cumulus.rest.request import Request
from cumulus.xml import Writer, element, escape

MAX_KEYS: Final = 1000
_AS_IS: Final = re.compile(r"[A-Za-z0-9_.*~/-]*")  # keys that neither encoding nor XML changes


def _lines(request: Request, after: str, limit: int) -> Lines:
    request.site.store.check_bucket(request.bucket.name)
    if limit == 0:
        return Lines(lines=[], prefixes=[], truncated=False)
    query = request.query
    return request.site.index.lines(
        request.bucket.name,
        prefix=query.get("prefix", ""),
        after=after,
        delimiter=query.get("delimiter", ""),
        limit=limit,
    )


def _prefixes(document: Writer, prefixes: list[str], kind: str) -> None:
    """Elements CommonPrefixes."""
    for prefix in prefixes:
        document.raw(f"<CommonPrefixes><Prefix>{escape(encode(prefix, kind))}</Prefix></CommonPrefixes>")


def _contents(request: Request, lines: list[Line], kind: str, *, owners: bool) -> str:
    """Elements Contents: one text a line, and what many of them share is written once."""
    as_is = _AS_IS.fullmatch("".join([line[0] for line in lines])) is not None
    ends: dict[tuple[str, str, str], str] = {}
    found = []
    for key, etag, size, modified_ns, owner, checksum, checksum_type in lines:
        end = ends.get((owner, checksum, checksum_type))
        if end is None:
            end = _checksum(checksum, checksum_type)
            if owners:
                end += f"<Owner>{documents.identity(request.site, owner)}</Owner>"
            ends[owner, checksum, checksum_type] = end
        seconds, rest = divmod(modified_ns, SECOND_NS)
        found.append(
            f"<Contents><Key>{key if as_is else escape(encode(key, kind))}</Key>"
            f"<LastModified>{iso_second(seconds)}.{rest // 1_000_000:03d}Z</LastModified>"
            f"<ETag>&quot;{etag}&quot;</ETag><Size>{size}</Size>"
            f"<StorageClass>STANDARD</StorageClass>{end}</Contents>"
        )
    return "".join(found)


def _checksum(algorithms: str, kind: str) -> str:
    text = "".join(
        element("ChecksumAlgorithm", name) for name in (algorithms.split(",") if algorithms else ())
    )
    return text + (element("ChecksumType", kind) if kind else "")


class _Versions:
    """Writes rows of a listing of versions."""

    def __init__(self, request: Request, document: Writer, kind: str) -> None:
        self.request, self.document, self.kind = request, document, kind
        self.known: dict[str, str] = {}

    def add(self, row: Row) -> None:
        """One element Version or DeleteMarker."""
        tag = "DeleteMarker" if row.marker else "Version"
        document = self.document
        document.raw(f"<{tag}><Key>{escape(encode(row.key, self.kind))}</Key>")
        document.leaves(("VersionId", row.version), ("IsLatest", row.latest))
        document.leaf("LastModified", iso_date(row.modified_ns))
        if not row.marker:
            document.raw(
                f"<ETag>&quot;{row.etag}&quot;</ETag><Size>{row.size}</Size>"
                f"<StorageClass>STANDARD</StorageClass>{_checksum(row.checksum, row.checksum_type)}"
            )
        documents.owner(document, self.request.site, row.owner, cache=self.known)
        document.raw(f"</{tag}>")


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
    page = _lines(request, marker, limit)
    document = Writer("ListBucketResult")
    _head(request, document, kind, limit)
    document.leaf("Marker", encode(marker, kind))
    document.leaf("IsTruncated", page.truncated)
    if page.truncated and request.query.get("delimiter"):
        document.leaf("NextMarker", encode(page.next, kind))
    document.raw(_contents(request, page.lines, kind, owners=True))
    _prefixes(document, page.prefixes, kind)
    return documents.reply(document)


def _list_v2(request: Request) -> Reply:
    query = request.query
    kind = documents.encoder(request)
    limit = request.integer("max-keys", MAX_KEYS, 0, MAX_KEYS)
    after = query.get("start-after", "")
    token = query.get("continuation-token")
    page = _lines(request, after if token is None else _open_token(token), limit)
    document = Writer("ListBucketResult")
    _head(request, document, kind, limit)
    document.leaves(("KeyCount", len(page.lines) + len(page.prefixes)), ("IsTruncated", page.truncated))
    if after:
        document.leaf("StartAfter", encode(after, kind))
    if token is not None:
        document.leaf("ContinuationToken", token)
    if page.truncated:
        document.leaf("NextContinuationToken", make_token(page.next))
    document.raw(_contents(request, page.lines, kind, owners=query.get("fetch-owner") == "true"))
    _prefixes(document, page.prefixes, kind)
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
    if version:
        check_version_marker(version)
    request.site.store.check_bucket(request.bucket.name)
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
    versions = _Versions(request, document, kind)
    for row in page.rows:
        versions.add(row)
    _prefixes(document, page.prefixes, kind)
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
        for bucket in request.site.index.brief_buckets(user.id)
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
