"""Handlers of buckets: make, remove, look; location, versioning, tags, and the documents of what is fixed."""

from __future__ import annotations

import time
from collections.abc import Callable

from cumulus.errors import S3Error
from cumulus.model import Versioning
from cumulus.ops import buckets
from cumulus.ops.names import check_bucket_name
from cumulus.rest import documents, grants
from cumulus.rest.call import Reply, Sink
from cumulus.rest.request import Request
from cumulus.rest.sinks import DocumentSink
from cumulus.rest.tags import MAX_BUCKET_TAGS, tags_of
from cumulus.xml import Writer, parse

DEFAULT_REGION = "us-east-1"


def create_bucket(request: Request) -> Sink:
    """CreateBucket."""
    user = request.identity.user
    if user is None:
        raise S3Error("AccessDenied")
    name = request.target.bucket
    check_bucket_name(name)
    if request.header("x-amz-bucket-object-lock-enabled").lower() == "true":
        raise S3Error("NotImplemented", "Object lock is not implemented.")
    ownership = request.header("x-amz-object-ownership")
    if ownership in ("BucketOwnerPreferred", "BucketOwnerEnforced"):
        raise S3Error("NotImplemented", "Objects belong to who wrote them: only ObjectWriter.")
    if ownership not in ("", "ObjectWriter"):
        raise S3Error("InvalidArgument", "Invalid x-amz-object-ownership.")
    wanted = grants.new_bucket_acl(request, user.id)

    def run(body: bytes) -> Reply:
        region, tags = _configuration(request, body)
        buckets.create(request.site, name, wanted, region, tags)
        return Reply(200, [("Location", f"/{name}")])

    return DocumentSink(request, run)


def _configuration(request: Request, body: bytes) -> tuple[str, dict[str, str]]:
    """The region asked for, which must be this server's, and the tags."""
    own = request.settings.region
    if not body.strip():
        return own, {}
    root = parse(body, "CreateBucketConfiguration")
    asked = root.value("LocationConstraint")
    if asked and asked != own:
        message = f"The location constraint {asked[:64]} is not this server's region, {own}."
        raise S3Error("IllegalLocationConstraintException", message)
    tags = root.first("Tags")
    return own, {} if tags is None else tags_of(tags, MAX_BUCKET_TAGS)


def delete_bucket(request: Request) -> Reply:
    """DeleteBucket."""
    buckets.remove(request.site, request.bucket)
    return Reply(204)


def head_bucket(request: Request) -> Reply:
    """HeadBucket."""
    request.site.store.check_bucket(request.bucket.name)
    region = request.bucket.region or request.settings.region
    return Reply(200, [("x-amz-bucket-region", region), ("x-amz-access-point-alias", "false")])


def get_location(request: Request) -> Reply:
    """GetBucketLocation: empty for us-east-1, as S3 has it."""
    region = request.bucket.region or request.settings.region
    document = Writer("LocationConstraint")
    if region != DEFAULT_REGION:
        document.text(region)
    return documents.reply(document)


def get_versioning(request: Request) -> Reply:
    """GetBucketVersioning."""
    document = Writer("VersioningConfiguration")
    if request.bucket.versioning is not Versioning.OFF:
        document.leaf("Status", request.bucket.versioning.value)
    return documents.reply(document)


def put_versioning(request: Request) -> Sink:
    """PutBucketVersioning."""

    def run(body: bytes) -> Reply:
        root = parse(body, "VersioningConfiguration")
        if root.value("MfaDelete", "Disabled") != "Disabled":
            raise S3Error("NotImplemented", "MFA delete is not implemented.")
        status = root.value("Status")
        if status not in ("Enabled", "Suspended"):
            raise S3Error("IllegalVersioningConfigurationException")
        begins = status == "Enabled" or request.bucket.versioning is Versioning.OFF
        if begins and not request.site.can_version(request.bucket):
            raise S3Error(
                "NotImplemented",
                "This storage has no hard links, which older versions need (cumulus doctor says more).",
            )
        buckets.change(request.site, request.bucket, versioning=Versioning(status))
        time.sleep(request.site.index.lag_s)  # what is put from now on, anywhere, is a version
        return Reply(200)

    return DocumentSink(request, run)


def fixed(root: str, *pairs: tuple[str, str]) -> Callable[[Request], Reply]:
    """A handler that answers with a document that is the same for all buckets."""

    def handler(_request: Request) -> Reply:
        document = Writer(root)
        document.leaves(*pairs)
        return documents.reply(document)

    return handler


def absent(code: str) -> Callable[[Request], Reply]:
    """A handler that says that there is no such configuration."""

    def handler(_request: Request) -> Reply:
        raise S3Error(code)

    return handler


def get_ownership(_request: Request) -> Reply:
    """GetBucketOwnershipControls: ACLs count, and objects belong to who wrote them."""
    document = Writer("OwnershipControls")
    document.begin("Rule")
    document.leaf("ObjectOwnership", "ObjectWriter")
    return documents.reply(document)


def put_ownership(request: Request) -> Sink:
    """PutBucketOwnershipControls: only what is so anyway."""

    def run(body: bytes) -> Reply:
        rule = parse(body, "OwnershipControls").first("Rule")
        if rule is None or rule.value("ObjectOwnership") != "ObjectWriter":
            raise S3Error("NotImplemented", "Objects belong to who wrote them: only ObjectWriter.")
        return Reply(200)

    return DocumentSink(request, run)


def put_payment(request: Request) -> Sink:
    """PutBucketRequestPayment: only what is so anyway."""

    def run(body: bytes) -> Reply:
        if parse(body, "RequestPaymentConfiguration").value("Payer") != "BucketOwner":
            raise S3Error("NotImplemented", "Only the bucket's owner can pay.")
        return Reply(200)

    return DocumentSink(request, run)
