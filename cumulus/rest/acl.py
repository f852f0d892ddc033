"""ACLs of buckets and objects: the documents that show and replace them."""

from __future__ import annotations

from typing import Final, get_args

import msgspec

from cumulus.auth import acl as rules
from cumulus.errors import S3Error
from cumulus.model import Acl, Grant, ObjectMeta, Permission
from cumulus.ops import buckets
from cumulus.rest import documents
from cumulus.rest.call import Reply, Sink
from cumulus.rest.headers import version_headers
from cumulus.rest.objects import find_allowed
from cumulus.rest.request import Request
from cumulus.rest.sinks import DocumentSink
from cumulus.rest.tags import change_meta
from cumulus.xml import XSI, Element, Writer, parse

PERMISSIONS: Final[dict[str, Permission]] = {name: name for name in get_args(Permission)}


# documents ---------------------------------------------------------------------------------------------
def _document(request: Request, acl: Acl) -> Writer:
    site = request.site
    document = Writer("AccessControlPolicy")
    known: dict[str, str] = {}
    documents.owner(document, site, acl.owner, cache=known)
    document.begin("AccessControlList")
    for grant in acl.grants:
        document.begin("Grant")
        _grantee(request, document, grant, known)
        document.leaf("Permission", grant.permission)
        document.end()
    document.end()
    return document


def _grantee(request: Request, document: Writer, grant: Grant, known: dict[str, str]) -> None:
    uri = rules.uri_of(grant.grantee, request.site.directory)
    kind = "CanonicalUser" if uri is None else "Group"
    attributes = f'xmlns:xsi="{XSI}" xsi:type="{kind}"'
    if uri is None:
        id = grant.grantee.removeprefix("user:")
        documents.owner(document, request.site, id, "Grantee", known, attributes)
        return
    document.begin("Grantee", attributes)
    document.leaf("URI", uri)
    document.end()


def _parse(request: Request, body: bytes, owner: str) -> Acl:
    """An AccessControlPolicy. The owner cannot be changed by it. Raises `S3Error` MalformedACLError,
    AccessDenied, and what a grantee raises who is not there."""
    try:
        root = parse(body, "AccessControlPolicy")
    except S3Error as error:
        raise S3Error("MalformedACLError", error.message) from error
    given, listed = root.first("Owner"), root.first("AccessControlList")
    if listed is None:
        raise S3Error("MalformedACLError")
    if given is not None and given.value("ID") not in ("", owner):
        raise S3Error("AccessDenied", "The owner in the ACL is not the owner of the resource.")
    asked = list(listed.all("Grant"))
    rules.check_number(len(asked))
    grants = [_grant(request, element) for element in asked]
    return rules.checked(Acl(owner=owner, grants=tuple(grants)))


def _grant(request: Request, element: Element) -> Grant:
    grantee, permission = element.first("Grantee"), PERMISSIONS.get(element.value("Permission"))
    if grantee is None or permission is None:
        raise S3Error("MalformedACLError")
    directory = request.site.directory
    if uri := grantee.value("URI"):
        return Grant(grantee=rules.grantee_of_uri(uri, directory), permission=permission)
    if email := grantee.value("EmailAddress"):
        return Grant(grantee=rules.grantee_of_email(email, directory), permission=permission)
    if id := grantee.value("ID"):
        return Grant(grantee=rules.grantee_of_id(id, directory), permission=permission)
    raise S3Error("MalformedACLError")


def _asked(request: Request, body: bytes, owner: str) -> Acl:
    """The ACL of headers or of the document, not of both."""
    asked = rules.from_headers(request.call.headers, request.site.directory, owner, request.bucket.owner)
    if body.strip():
        if asked is not None:
            raise S3Error("InvalidRequest", "An ACL comes in headers or in a document, not in both.")
        return _parse(request, body, owner)
    if asked is None:
        raise S3Error("MissingSecurityHeader", fields={"MissingHeaderName": "x-amz-acl"})
    return asked


# handlers ----------------------------------------------------------------------------------------------
def get_bucket_acl(request: Request) -> Reply:
    """GetBucketAcl."""
    return documents.reply(_document(request, request.bucket.acl))


def put_bucket_acl(request: Request) -> Sink:
    """PutBucketAcl."""

    def run(body: bytes) -> Reply:
        acl = _asked(request, body, request.bucket.acl.owner)
        buckets.change(request.site, request.bucket, acl=acl)
        return Reply(200)

    return DocumentSink(request, run)


def get_object_acl(request: Request) -> Reply:
    """GetObjectAcl."""
    found = find_allowed(request, "GetObjectAcl")
    return documents.reply(
        _document(request, found.meta.acl), *version_headers(request.bucket, found.meta.version)
    )


def put_object_acl(request: Request) -> Sink:
    """PutObjectAcl."""
    found = find_allowed(request, "PutObjectAcl")

    def run(body: bytes) -> Reply:
        acl = _asked(request, body, found.meta.acl.owner)

        def change(old: ObjectMeta) -> ObjectMeta:
            """Another one that has come meanwhile keeps its own owner."""
            return msgspec.structs.replace(old, acl=Acl(owner=old.acl.owner, grants=acl.grants))

        meta = change_meta(request, "PutObjectAcl", change)
        return Reply(200, version_headers(request.bucket, meta.version))

    return DocumentSink(request, run)
