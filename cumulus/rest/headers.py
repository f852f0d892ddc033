"""What headers of requests say about objects, and those that replies carry. Pure.

Source: Amazon S3 API reference (PutObject, GetObject, CopyObject); RFC 9110 for dates.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import formatdate, parsedate_to_datetime
from functools import lru_cache
from typing import Final
from urllib.parse import parse_qsl

from cumulus.checksums import header as checksum_header
from cumulus.errors import S3Error
from cumulus.model import Bucket, ObjectMeta, Versioning
from cumulus.ops.conditions import NONE, Conditions
from cumulus.ops.rows import DEFAULT_TYPE
from cumulus.rest.call import Headers

STORED: Final = (
    "content-type",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "expires",
)
OVERRIDES: Final = {f"response-{name}": name for name in STORED}
MAX_USER: Final = 2048  # bytes of names and values together
MAX_STORED: Final = 8192  # the same of the standard headers; all headers of a request in S3
CLASSES: Final = {  # those of S3 that are read at once
    "STANDARD",
    "REDUCED_REDUNDANCY",
    "STANDARD_IA",
    "ONEZONE_IA",
    "INTELLIGENT_TIERING",
    "GLACIER_IR",
}
_USER: Final = "x-amz-meta-"
_WORD: Final = 45  # bytes of text in one encoded word, which has at most 75 characters
_EXACT_TIME: Final = "x-amz-if-match-last-modified-time"
_CLIENTS_KEY: Final = "x-amz-server-side-encryption-customer-"
_REFUSED: Final = (
    "x-amz-server-side-encryption",
    "x-amz-object-lock-",
    "x-amz-website-redirect-location",
    "x-amz-copy-source-server-side-encryption",
    "x-amz-write-offset-bytes",
)
MAX_TAGS: Final = 10
# letters, digits, blanks of all kinds but no control characters, which no reply in XML could show
_TAG_TEXT: Final = re.compile(r"(?:[\w+\-=.:/@]|[^\S\x00-\x1f\x7f-\x9f])*")
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TITLES: Final = {name: "-".join(word.capitalize() for word in name.split("-")) for name in STORED}


def as_header(name: str, value: str) -> tuple[str, str]:
    """A form's field or a parameter as the header that it stands for; later replies carry both. Raises
    `S3Error` InvalidArgument for what no header can carry: it would begin a line of its own there."""
    if not _NAME.fullmatch(name):
        raise S3Error("InvalidArgument", "A name cannot be that of a header.", fields=_argument(name))
    if any(ord(c) < 0x20 or ord(c) == 0x7F for c in value):
        raise S3Error("InvalidArgument", "A value has control characters.", fields=_argument(name))
    return name, value.encode().decode("latin-1")


def _argument(name: str) -> dict[str, str]:
    return {"ArgumentName": name[:64]}


def http_date(ns: int) -> str:
    """Sun, 06 Nov 1994 08:49:37 GMT."""
    return _http_date(ns // 1_000_000_000)


@lru_cache(maxsize=1024)
def _http_date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)


def iso_date(ns: int) -> str:
    """1994-11-06T08:49:37.000Z, as documents carry it."""
    seconds, rest = divmod(ns, 1_000_000_000)
    return f"{iso_second(seconds)}.{rest // 1_000_000:03d}Z"


@lru_cache(maxsize=4096)
def iso_second(seconds: int) -> str:
    """1994-11-06T08:49:37."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def parse_date(text: str) -> int | None:
    """Nanoseconds of an HTTP date or an ISO 8601 date; None for what is none (then a condition is ignored, as
    HTTP says)."""
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    try:
        return int(when.timestamp()) * 1_000_000_000
    except (OverflowError, ValueError):
        return None


def _etags(headers: Headers, name: str) -> tuple[str, ...]:
    """ETags of a header. One that was sent without any fits nothing: it is not as if it was not sent."""
    if name not in headers:
        return ()
    return tuple(part.strip().removeprefix("W/").strip('"') for part in headers.get(name).split(","))


def conditions(headers: Headers, prefix: str = "") -> Conditions:
    """Conditions of a request; `prefix` "x-amz-copy-source-" gives those on the source of a copy. Raises
    `S3Error` InvalidArgument for a size or an exact time that cannot be read."""
    start = (prefix + "if-",) if prefix else ("if-", "x-amz-if-")
    if not any(name.startswith(start) for name, _ in headers.items()):
        return NONE
    return Conditions(
        match=_etags(headers, prefix + "if-match"),
        none_match=_etags(headers, prefix + "if-none-match"),
        modified_since_ns=parse_date(headers.get(prefix + "if-modified-since")),
        unmodified_since_ns=parse_date(headers.get(prefix + "if-unmodified-since")),
        size=None if prefix else _exact(headers, "x-amz-if-match-size", parse_size),
        exact_modified_ns=None
        if prefix
        else _exact(headers, "x-amz-if-match-last-modified-time", parse_date),
    )


def parse_size(text: str) -> int | None:
    """A number of bytes; None for what is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None


def _exact(headers: Headers, name: str, parse: Callable[[str], int | None]) -> int | None:
    if name not in headers:
        return None
    value = parse(headers.get(name))
    if value is None:
        raise S3Error("InvalidArgument", f"{name} cannot be read.", fields={"ArgumentName": name})
    return value


def write_conditions(headers: Headers) -> Conditions:
    """Conditions on what an upload or a copy replaces: If-Match, or `If-None-Match: *`. Raises `S3Error`
    NotImplemented for another If-None-Match and for both together, as S3 does."""
    wanted = conditions(headers)
    if wanted.none_match and (wanted.none_match != ("*",) or wanted.match):
        told = "A header you provided implies functionality that is not implemented."
        raise S3Error("NotImplemented", told, fields={"Header": "If-None-Match"})
    return wanted


def refuse_unsupported(headers: Headers) -> None:
    """Raises `S3Error` NotImplemented for what would change the object in a way that we do not keep."""
    for name, _ in headers.items():
        if name.startswith(_REFUSED):
            raise S3Error("NotImplemented", f"{name} is not implemented.", fields={"Header": name})
    storage_class = headers.get("x-amz-storage-class")
    if storage_class and storage_class not in CLASSES:
        raise S3Error("InvalidStorageClass")


def refuse_keys(headers: Headers) -> None:
    """Raises `S3Error` InvalidRequest for a key of the client's with which an object is to be read: none was
    encrypted with one."""
    if any(name.startswith(_CLIENTS_KEY) for name, _ in headers.items()):
        raise S3Error("InvalidRequest", "The encryption parameters are not applicable to this object.")


def stored_headers(headers: Headers) -> dict[str, str]:
    """The standard headers that belong to an object. No quota counts them, and a page of uploads has a
    thousand times as much. Raises `S3Error` RequestHeaderSectionTooLarge."""
    kept = {name: headers.get(name) for name in STORED if headers.get(name)}
    if sum(len(name) + len(value) for name, value in kept.items()) > MAX_STORED:
        what = f"The headers that belong to an object are longer than {MAX_STORED} bytes."
        fields = {"MaxSizeAllowed": str(MAX_STORED)}
        raise S3Error("RequestHeaderSectionTooLarge", what, fields=fields)
    coding = ",".join(
        part.strip()
        for part in kept.pop("content-encoding", "").split(",")
        if part.strip() and part.strip().lower() != "aws-chunked"
    )
    return {**kept, "content-encoding": coding} if coding else kept


def user_metadata(headers: Headers) -> dict[str, str]:
    """x-amz-meta-… without the prefix. Raises `S3Error` MetadataTooLarge."""
    pairs = {name[len(_USER) :]: value for name, value in headers.items() if name.startswith(_USER)}
    size = sum(len(name) + len(value) for name, value in pairs.items())
    if size > MAX_USER:
        raise S3Error("MetadataTooLarge", fields={"Size": str(size), "MaxSizeAllowed": str(MAX_USER)})
    return pairs


def mail_safe(value: str) -> str:
    """Metadata as replies carry it: what is not ASCII in encoded words (RFC 2047), as S3 does. `value` is as
    it came, its bytes as latin-1."""
    if value.isascii():
        return value
    try:
        text = value.encode("latin-1").decode()
    except UnicodeError:
        text = value
    words = [""]
    for character in text:
        if len((words[-1] + character).encode()) > _WORD:
            words.append("")
        words[-1] += character
    return " ".join(f"=?UTF-8?B?{base64.b64encode(word.encode()).decode()}?=" for word in words)


def check_tags(pairs: list[tuple[str, str]], limit: int = MAX_TAGS) -> dict[str, str]:
    """Tags by key. Raises `S3Error` InvalidTag, BadRequest for too many."""
    if len(pairs) > limit:
        what = "Object tags" if limit == MAX_TAGS else "Bucket tag count"
        raise S3Error("BadRequest", f"{what} cannot be greater than {limit}")
    tags: dict[str, str] = {}
    for key, value in pairs:
        if not key or len(key) > 128 or not _TAG_TEXT.fullmatch(key) or key.lower().startswith("aws:"):
            raise S3Error("InvalidTag", "The TagKey you have provided is invalid.")
        if len(value) > 256 or not _TAG_TEXT.fullmatch(value):
            raise S3Error("InvalidTag", "The TagValue you have provided is invalid.")
        if key in tags:
            raise S3Error("InvalidTag", "Cannot provide multiple Tags with the same key.")
        tags[key] = value
    return tags


def header_tags(text: str) -> dict[str, str]:
    """Tags of x-amz-tagging (as in a query). Raises `S3Error` InvalidTag, InvalidArgument, BadRequest."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError as error:
        raise S3Error("InvalidArgument", "x-amz-tagging cannot be read.") from error
    return check_tags(pairs)


def version_headers(bucket: Bucket, version: str) -> list[tuple[str, str]]:
    """x-amz-version-id, in a bucket that has had versions."""
    return [] if bucket.versioning is Versioning.OFF else [("x-amz-version-id", version)]


def checksum_headers(meta: ObjectMeta) -> list[tuple[str, str]]:
    """x-amz-checksum-… and their type."""
    pairs = [(checksum_header(name), value) for name, value in meta.checksums.items()]
    return [*pairs, ("x-amz-checksum-type", meta.checksum_type)] if pairs else []


def object_headers(
    bucket: Bucket, meta: ObjectMeta, overrides: Mapping[str, str], *, checksums: bool
) -> list[tuple[str, str]]:
    """What GET and HEAD say of an object, without the range."""
    stored = {"content-type": DEFAULT_TYPE, **meta.headers, **overrides}
    pairs = [
        ("ETag", f'"{meta.etag}"'),
        ("Last-Modified", http_date(meta.modified_ns)),
        ("Accept-Ranges", "bytes"),
        *((_TITLES[name], value) for name, value in stored.items() if name in _TITLES),
        *((_USER + name, mail_safe(value)) for name, value in meta.user.items()),
        *version_headers(bucket, meta.version),
    ]
    if meta.tags:
        pairs.append(("x-amz-tagging-count", str(len(meta.tags))))
    return pairs + checksum_headers(meta) if checksums else pairs
