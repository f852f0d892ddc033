"""From exceptions to S3's error documents: one table for what storage and database say."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from cumulus.errors import S3Error
from cumulus.index import api as index
from cumulus.ops.quota import quota_error
from cumulus.rest.call import Call, Reply
from cumulus.storage import api as storage
from cumulus.xml import Writer

log = logging.getLogger("cumulus.rest")
RETRY_AFTER: Final = [("Retry-After", "5")]

_TABLE: Final[list[tuple[type[Exception], Callable[[], S3Error]]]] = [
    (storage.NoSpace, lambda: S3Error("StorageFull")),
    (storage.Unavailable, lambda: S3Error("ServiceUnavailable", headers=RETRY_AFTER)),
    (storage.ReadOnly, lambda: S3Error("ReadOnlyStorage")),
    (storage.Forbidden, lambda: S3Error("AccessDenied", "The storage below denies it.")),
    (storage.BadName, lambda: S3Error("InvalidURI", "The storage below cannot hold this key.")),
    (storage.Changed, lambda: S3Error("ConditionalRequestConflict")),
    (storage.Taken, lambda: S3Error("OperationAborted")),
    (storage.NotEmptyStore, lambda: S3Error("BucketNotEmpty")),
    (storage.Missing, lambda: S3Error("NoSuchBucket", "The bucket, or what the request is about, has gone.")),
    (index.Away, lambda: S3Error("ServiceUnavailable", headers=RETRY_AFTER)),
    (index.NoSuch, lambda: S3Error("NoSuchBucket")),
    (index.NameTaken, lambda: S3Error("BucketAlreadyExists")),
    (index.StillUsed, lambda: S3Error("BucketNotEmpty")),
]


def to_s3(error: BaseException, request_id: str) -> S3Error:
    """The S3 error for anything that was raised; what nobody expected goes to the log with its traceback."""
    if isinstance(error, S3Error):
        return error
    if isinstance(error, index.OverQuota):
        return quota_error(error, 0)
    for kind, make in _TABLE:
        if isinstance(error, kind):
            told = {"id": request_id, "kind": type(error).__name__, "why": str(error)}
            log.warning("request %(id)s: %(kind)s: %(why)s", told)
            return make()
    log.error("request %(id)s failed", {"id": request_id}, exc_info=error)
    return S3Error("InternalError")


def _reason(error: S3Error) -> list[tuple[str, str]]:
    """What the document would say, which an answer to HEAD has not: programs with minio-go look for it
    there, and without call every 403 "Access Denied". A message may repeat what the client sent: of it only
    what is harmless in a header is left."""
    message = "".join(c if " " <= c <= "~" and c != '"' else "?" for c in error.message)
    return [("x-minio-error-code", error.code), ("x-minio-error-desc", f'"{message}"')]


def reply(error: S3Error, call: Call, resource: str) -> Reply:
    """The reply that refuses; HEAD and 304 have no document. Notes the code for the access log."""
    call.notes["error"] = error.code
    headers = list(error.headers)
    if error.status == 304:
        return Reply(error.status, headers)
    if call.method == "HEAD":
        return Reply(error.status, [*headers, *_reason(error)])
    document = Writer("Error", namespace="")
    document.leaves(("Code", error.code), ("Message", error.message))
    for name, value in error.fields.items():
        document.leaf(name, value)
    document.leaves(("Resource", resource), ("RequestId", call.id), ("HostId", "cumulus"))
    headers.append(("Content-Type", "application/xml"))
    return Reply(error.status, headers, document.bytes())
