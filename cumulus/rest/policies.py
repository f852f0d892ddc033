"""Documents of a bucket that are checked when set and given back as they came: policy, CORS, lifecycle."""

from __future__ import annotations

from cumulus.auth.cors import parse_cors
from cumulus.auth.lifecycle import parse_lifecycle
from cumulus.auth.policy import parse_policy
from cumulus.errors import S3Error
from cumulus.ops import buckets
from cumulus.rest import documents
from cumulus.rest.call import Reply, Sink
from cumulus.rest.request import Request
from cumulus.rest.sinks import DocumentSink
from cumulus.xml import Writer

XML = [("Content-Type", "application/xml")]


def _text(body: bytes, code: str) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise S3Error(code, "The document is not UTF-8.") from error


# policy ------------------------------------------------------------------------------------------------
def get_policy(request: Request) -> Reply:
    """GetBucketPolicy."""
    if request.bucket.policy is None:
        raise S3Error("NoSuchBucketPolicy", fields={"BucketName": request.bucket.name})
    return Reply(200, [("Content-Type", "application/json")], request.bucket.policy.encode())


def put_policy(request: Request) -> Sink:
    """PutBucketPolicy."""

    def run(body: bytes) -> Reply:
        text = _text(body, "MalformedPolicy")
        parse_policy(text, request.bucket.name)
        buckets.change(request.site, request.bucket, policy=text)
        return Reply(204)

    return DocumentSink(request, run)


def delete_policy(request: Request) -> Reply:
    """DeleteBucketPolicy."""
    buckets.change(request.site, request.bucket, policy=None)
    return Reply(204)


def get_policy_status(request: Request) -> Reply:
    """GetBucketPolicyStatus: public means that somebody whom nobody named is let in."""
    bucket = request.bucket
    if bucket.policy is None:
        raise S3Error("NoSuchBucketPolicy", fields={"BucketName": bucket.name})
    document = Writer("PolicyStatus")
    document.leaf("IsPublic", parse_policy(bucket.policy, bucket.name).public)
    return documents.reply(document)


# CORS --------------------------------------------------------------------------------------------------
def get_cors(request: Request) -> Reply:
    """GetBucketCors."""
    if request.bucket.cors is None:
        raise S3Error("NoSuchCORSConfiguration", fields={"BucketName": request.bucket.name})
    return Reply(200, list(XML), request.bucket.cors.encode())


def put_cors(request: Request) -> Sink:
    """PutBucketCors."""

    def run(body: bytes) -> Reply:
        text = _text(body, "MalformedXML")
        parse_cors(text)
        buckets.change(request.site, request.bucket, cors=text)
        return Reply(200)

    return DocumentSink(request, run)


def delete_cors(request: Request) -> Reply:
    """DeleteBucketCors."""
    buckets.change(request.site, request.bucket, cors=None)
    return Reply(204)


# lifecycle ---------------------------------------------------------------------------------------------
def get_lifecycle(request: Request) -> Reply:
    """GetBucketLifecycleConfiguration."""
    if request.bucket.lifecycle is None:
        raise S3Error("NoSuchLifecycleConfiguration", fields={"BucketName": request.bucket.name})
    return Reply(200, list(XML), request.bucket.lifecycle.encode())


def put_lifecycle(request: Request) -> Sink:
    """PutBucketLifecycleConfiguration."""

    def run(body: bytes) -> Reply:
        text = _text(body, "MalformedXML")
        parse_lifecycle(text)
        buckets.change(request.site, request.bucket, lifecycle=text)
        return Reply(200)

    return DocumentSink(request, run)


def delete_lifecycle(request: Request) -> Reply:
    """DeleteBucketLifecycle."""
    buckets.change(request.site, request.bucket, lifecycle=None)
    return Reply(204)
