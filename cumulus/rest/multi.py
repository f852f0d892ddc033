"""DeleteObjects: up to 1,000 keys, each with its own right, condition and outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from cumulus.checksums import from_header
from cumulus.errors import S3Error
from cumulus.ops.conditions import Conditions
from cumulus.ops.deletes import Deleted, delete_current, delete_version
from cumulus.ops.names import check_key, is_version
from cumulus.rest import documents
from cumulus.rest.call import Reply, Sink
from cumulus.rest.headers import parse_date, parse_size
from cumulus.rest.objects import check_delete
from cumulus.rest.refusals import to_s3
from cumulus.rest.request import Request
from cumulus.rest.sinks import MAX_LONG_DOCUMENT, DocumentSink
from cumulus.xml import Element, Writer
from cumulus.xml import parse as parse_xml

MAX_DELETES: Final = 1000
STUCK_S: Final = 2.0  # a key that takes so long and then finds storage or database away was the last one


@dataclass(frozen=True, slots=True)
class _Wanted:
    key: str
    version: str | None
    conditions: Conditions


def delete_objects(request: Request) -> Sink:
    """DeleteObjects. Rights are asked for key by key; a client needs one of the two that digest the body."""
    if request.identity.user is None and not request.bucket.policy:
        request.authorize("s3:DeleteObject", at=(request.bucket, "any"))  # before its document is taken in
    headers = request.call.headers
    sums = any(from_header(name) for name, _ in headers.items())
    if "content-md5" not in headers and not sums and "x-amz-trailer" not in headers:
        raise S3Error("InvalidRequest", "Missing required header for this request: Content-MD5")
    return DocumentSink(request, lambda body: _run(request, body), limit=MAX_LONG_DOCUMENT)


def _run(request: Request, body: bytes) -> Reply:
    root = parse_xml(body, "Delete")
    wanted = [_wanted(element) for element in root.all("Object")]
    if not 0 < len(wanted) <= MAX_DELETES:
        raise S3Error("MalformedXML", f"A deletion names 1 to {MAX_DELETES} objects.")
    quiet = root.value("Quiet").lower() == "true"
    document = Writer("DeleteResult")
    for one, outcome in zip(wanted, _outcomes(request, wanted), strict=True):
        if isinstance(outcome, S3Error):
            _failed(document, one, outcome)
        elif not quiet:
            _deleted(document, one, outcome)
    return documents.reply(document)


def _outcomes(request: Request, wanted: list[_Wanted]) -> list[Deleted | S3Error]:
    """What became of each. Different keys are deleted beside each other, since most of the time goes into
    waiting for a disk; what is to be done to one key is done in its order."""
    found: dict[int, Deleted | S3Error] = {}
    places: dict[str, list[int]] = {}
    for at, one in enumerate(wanted):
        places.setdefault(one.key, []).append(at)
    away = threading.Event()

    def of_key(ats: list[int]) -> None:
        for at in ats:
            found[at] = _outcome(request, wanted[at], away)

    request.site.hands.each([partial(of_key, ats) for ats in places.values()])
    return [found[at] for at in range(len(wanted))]


def _outcome(request: Request, wanted: _Wanted, away: threading.Event) -> Deleted | S3Error:
    """`away`: what is needed does not answer; each key would wait for it anew, a thousand for hours."""
    if away.is_set():
        return S3Error("ServiceUnavailable")
    began = time.monotonic()
    try:
        return _delete(request, wanted)
    except Exception as error:
        refused = to_s3(error, request.call.id)
        if refused.code == "ServiceUnavailable" and time.monotonic() - began >= STUCK_S:
            away.set()
        return refused


def _wanted(element: Element) -> _Wanted:
    key = element.raw("Key")
    if not key:
        raise S3Error("MalformedXML")
    return _Wanted(
        key,
        element.value("VersionId") or None,
        Conditions(
            match=() if element.first("ETag") is None else (element.value("ETag").strip('"'),),
            size=_exact(element, "Size", parse_size),
            exact_modified_ns=_exact(element, "LastModifiedTime", parse_date),
        ),
    )


def _exact(element: Element, tag: str, parse: Callable[[str], int | None]) -> int | None:
    """A condition of a key, None where it has none. Raises `S3Error` MalformedXML for one that cannot be
    read: to delete without it is not what was meant."""
    if element.first(tag) is None:
        return None
    value = parse(element.value(tag))
    if value is None:
        raise S3Error("MalformedXML", f"The {tag} of a key cannot be read.")
    return value


def _delete(request: Request, wanted: _Wanted) -> Deleted:
    check_key(wanted.key)
    at = (request.bucket, wanted.key)
    if wanted.version is not None:
        if not is_version(wanted.version):
            raise S3Error("NoSuchVersion")
        request.authorize("s3:DeleteObjectVersion", at=at, version=wanted.version)
        check_delete(request, wanted.key, wanted.version, wanted.conditions)
        return delete_version(request.site, request.bucket, wanted.key, wanted.version, wanted.conditions)
    request.authorize("s3:DeleteObject", at=at)
    check_delete(request, wanted.key, None, wanted.conditions)
    return delete_current(request.site, request.bucket, wanted.key, request.owner, wanted.conditions)


def _deleted(document: Writer, wanted: _Wanted, done: Deleted) -> None:
    document.begin("Deleted")
    document.leaf("Key", wanted.key)
    if wanted.version is not None:
        document.leaf("VersionId", wanted.version)
    if done.marker:
        document.leaves(("DeleteMarker", True), ("DeleteMarkerVersionId", done.version))
    document.end()


def _failed(document: Writer, wanted: _Wanted, error: S3Error) -> None:
    document.begin("Error")
    document.leaf("Key", wanted.key)
    if wanted.version is not None:
        document.leaf("VersionId", wanted.version)
    document.leaves(("Code", error.code), ("Message", error.message))
    document.end()
