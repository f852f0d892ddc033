"""Documents of a bucket that are checked when set and given back as they came: policy (with the names that
those have now whom it named), CORS, lifecycle (whose rules get an ID)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal
from uuid import uuid4

from cumulus.auth.cors import parse_cors
from cumulus.auth.lifecycle import parse_lifecycle, with_ids
from cumulus.auth.policy import bind, check_reach, parse_policy, shown
from cumulus.errors import S3Error
from cumulus.model import Bucket
from cumulus.ops import buckets
from cumulus.rest import documents
from cumulus.rest.call import Reply, Sink
from cumulus.rest.request import Request
from cumulus.rest.sinks import DocumentSink
from cumulus.xml import Writer

_LEAST_SIZE: Final = ("x-amz-transition-default-minimum-object-size", "all_storage_classes_128K")

Field = Literal["cors", "lifecycle"]
Get = Callable[[Request], Reply]
Put = Callable[[Request], Sink]


def quick(bucket: Bucket) -> bool:
    """Whether all that the bucket's documents say has been read lately, or is quickly read, and its policy
    is quickly evaluated."""
    return (
        (bucket.policy is None or _quick_policy(bucket.policy, bucket.name))
        and (bucket.cors is None or parse_cors.quick(bucket.cors))
        and (bucket.lifecycle is None or parse_lifecycle.quick(bucket.lifecycle))
    )


def _quick_policy(text: str, bucket: str) -> bool:
    if not parse_policy.quick(text, bucket):
        return False
    try:
        return parse_policy(text, bucket).light
    except S3Error:  # it was valid for another version of this program, and shuts the bucket
        return True


def _decoded(body: bytes, malformed: str) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise S3Error(malformed, "The document is not UTF-8.") from error


def _policy_of(request: Request) -> str:
    if request.bucket.policy is None:
        raise S3Error("NoSuchBucketPolicy", fields={"BucketName": request.bucket.name})
    return request.bucket.policy


def _document(
    field: Field,
    missing: str,
    check: Callable[[str], object],
    keep: Callable[[str], str] = str,
    told: tuple[tuple[str, str], ...] = (),
) -> tuple[Get, Put, Get]:
    """The operations that get, put and delete one XML document of a bucket. `missing` is the error where
    there is none; `check(text)` raises `S3Error`; `keep(text)` is what is kept; `told` are headers of the
    replies to get and put."""

    def get(request: Request) -> Reply:
        text: str | None = getattr(request.bucket, field)
        if text is None:
            raise S3Error(missing, fields={"BucketName": request.bucket.name})
        return Reply(200, [("Content-Type", "application/xml"), *told], text.encode())

    def put(request: Request) -> Sink:
        def run(body: bytes) -> Reply:
            text = _decoded(body, "MalformedXML")
            check(text)
            buckets.change(request.site, request.bucket, **{field: keep(text)})
            return Reply(200, [*told])

        return DocumentSink(request, run)

    def delete(request: Request) -> Reply:
        buckets.change(request.site, request.bucket, **{field: None})
        return Reply(204)

    return get, put, delete


def get_policy(request: Request) -> Reply:
    """GetBucketPolicy."""
    text = shown(_policy_of(request), request.bucket.principals, request.site.directory)
    return Reply(200, [("Content-Type", "application/json")], text.encode())


def put_policy(request: Request) -> Sink:
    """PutBucketPolicy."""

    def run(body: bytes) -> Reply:
        text = _decoded(body, "MalformedPolicy")
        policy = parse_policy(text, request.bucket.name)
        check_reach(policy, request.bucket.name)
        ids = bind(policy, request.site.directory)
        buckets.change(request.site, request.bucket, policy=text, principals=ids)
        return Reply(204)

    return DocumentSink(request, run)


def delete_policy(request: Request) -> Reply:
    """DeleteBucketPolicy."""
    buckets.change(request.site, request.bucket, policy=None, principals={})
    return Reply(204)


get_cors, put_cors, delete_cors = _document("cors", "NoSuchCORSConfiguration", parse_cors)
get_lifecycle, _put_lifecycle, delete_lifecycle = _document(
    "lifecycle",
    "NoSuchLifecycleConfiguration",
    parse_lifecycle,
    lambda text: with_ids(text, lambda: uuid4().hex),
    (_LEAST_SIZE,),
)


def put_lifecycle(request: Request) -> Sink:
    """PutBucketLifecycleConfiguration. What was asked for as the least size of transitions has to come back
    from GET: clients wait for it."""
    name, only = _LEAST_SIZE
    if request.header(name) not in ("", only):
        raise S3Error("NotImplemented", f"There is one storage class here; {name} can be {only} alone.")
    return _put_lifecycle(request)


def get_policy_status(request: Request) -> Reply:
    """GetBucketPolicyStatus: public means that somebody whom nobody named is let in."""
    document = Writer("PolicyStatus")
    document.leaf("IsPublic", parse_policy(_policy_of(request), request.bucket.name).public)
    return documents.reply(document)
