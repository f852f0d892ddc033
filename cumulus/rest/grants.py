"""ACLs of what a request makes."""

from __future__ import annotations

from cumulus.auth import acl as rules
from cumulus.model import Acl, ObjectMeta
from cumulus.rest.request import Request


def new_object_acl(request: Request) -> Acl:
    """The ACL of an object that this request makes. Raises `S3Error` (headers, or a policy denies it)."""
    owner = request.owner
    asked = rules.from_headers(request.call.headers, request.site.directory, owner, request.bucket.owner)
    if asked is None:
        return rules.canned("private", owner, request.bucket.owner)
    if request.identity.user is not None or asked != rules.canned("private", owner, request.bucket.owner):
        mine = ObjectMeta(key=request.key, size=0, etag="", modified_ns=0, acl=Acl(owner=owner))
        request.authorize("s3:PutObjectAcl", mine)
    return asked


def new_bucket_acl(request: Request, owner: str) -> Acl:
    """The ACL of a bucket that this request makes."""
    asked = rules.from_headers(request.call.headers, request.site.directory, owner)
    return rules.canned("private", owner) if asked is None else asked
