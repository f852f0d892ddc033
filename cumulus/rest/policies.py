"""Documents of a bucket that are checked when set and given back as they came: policy, CORS, lifecycle (whose
rules get an ID)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal
from uuid import uuid4

from cumulus.auth.cors import parse_cors
from cumulus.auth.lifecycle import parse_lifecycle, with_ids
from cumulus.auth.policy import parse_policy
from cumulus.errors import S3Error
from cumulus.ops import buckets
from cumulus.rest import documents
from cumulus.rest.call import Reply, Sink
from cumulus.rest.request import Request
from cumulus.rest.sinks import DocumentSink
from cumulus.xml import Writer

_LEAST_SIZE: Final = ("x-amz-transition-default-minimum-object-size", "all_storage_classes_128K")

Field = Literal["policy", "cors", "lifecycle"]
Get = Callable[[Request], Reply]
Put = Callable[[Request], Sink]


def _document(
    field: Field,
    kind: str,
    done: int,
    missing: str,
    malformed: str,
    check: Callable[[str, str], object],
    keep: Callable[[str], str] = str,
    told: tuple[tuple[str, str], ...] = (),
) -> tuple[Get, Put, Get]:
    """The operations that get, put and delete one field of a bucket. `kind` is the content type, `done` the
    status of a put, `missing` and `malformed` are error codes; `check(text, name of the bucket)` raises
    `S3Error`; `keep(text)` is what is kept; `told` are headers of the replies to get and put."""

    def get(request: Request) -> Reply:
        text: str | None = getattr(request.bucket, field)
        if text is None:
            raise S3Error(missing, fields={"BucketName": request.bucket.name})
        return Reply(200, [("Content-Type", kind), *told], text.encode())

    def put(request: Request) -> Sink:
        def run(body: bytes) -> Reply:
            try:
                text = body.decode()
            except UnicodeDecodeError as error:
                raise S3Error(malformed, "The document is not UTF-8.") from error
            check(text, request.bucket.name)
            buckets.change(request.site, request.bucket, **{field: keep(text)})
            return Reply(done, [*told])

        return DocumentSink(request, run)

    def delete(request: Request) -> Reply:
        buckets.change(request.site, request.bucket, **{field: None})
        return Reply(204)

    return get, put, delete


get_policy, put_policy, delete_policy = _document(
    "policy", "application/json", 204, "NoSuchBucketPolicy", "MalformedPolicy", parse_policy
)
get_cors, put_cors, delete_cors = _document(
    "cors",
    "application/xml",
    200,
    "NoSuchCORSConfiguration",
    "MalformedXML",
    lambda text, _bucket: parse_cors(text),
)
get_lifecycle, _put_lifecycle, delete_lifecycle = _document(
    "lifecycle",
    "application/xml",
    200,
    "NoSuchLifecycleConfiguration",
    "MalformedXML",
    lambda text, _bucket: parse_lifecycle(text),
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
    bucket = request.bucket
    if bucket.policy is None:
        raise S3Error("NoSuchBucketPolicy", fields={"BucketName": bucket.name})
    document = Writer("PolicyStatus")
    document.leaf("IsPublic", parse_policy(bucket.policy, bucket.name).public)
    return documents.reply(document)
