"""From the request target to bucket, key and query: path style and virtual-host style. Pure.

Percent-decoding happens once; a "+" is itself in a path and a space in a query and in the name of a copy's
source, as S3 has it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from cumulus.auth.host import host_bucket
from cumulus.errors import S3Error
from cumulus.ops.names import check_key

_BROKEN: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
MAX_PARAMETERS: Final = 100
SERVER: Final = "*"  # of OPTIONS: the server as such (RFC 9110, section 9.3.7)


@dataclass(frozen=True, slots=True)
class Target:
    """`bucket` and `key` are "" where the request names none; of a parameter given twice the first counts."""

    bucket: str
    key: str
    query: dict[str, str]


def decode(text: str, *, plus: bool = False) -> str:
    """Percent-decode text from the wire, once. Raises `S3Error` InvalidURI unless it is UTF-8."""
    if _BROKEN.search(text):
        raise S3Error("InvalidURI", fields={"URI": text[:200]})
    if plus:
        text = text.replace("+", " ")
    try:
        return unquote_to_bytes(text.encode("latin-1")).decode()
    except UnicodeError as error:
        raise S3Error("InvalidURI", "The URI is not UTF-8.") from error


def parse_query(text: str) -> dict[str, str]:
    """Parameters by name. Raises `S3Error` InvalidURI, InvalidRequest (too many)."""
    query: dict[str, str] = {}
    pairs = [pair for pair in text.split("&") if pair]
    if len(pairs) > MAX_PARAMETERS:
        raise S3Error("InvalidRequest", "The query has too many parameters.")
    for pair in pairs:
        name, _, value = pair.partition("=")
        query.setdefault(decode(name, plus=True), decode(value, plus=True))
    return query


def parse(target: str, host: str, domain: str, method: str = "GET") -> Target:
    """`host` is the Host header, `domain` the name below which buckets are host names ("" = path style
    only). Raises `S3Error` InvalidURI, KeyTooLongError."""
    if target == SERVER and method == "OPTIONS":
        return Target("", "", {})
    if target.startswith(("http://", "https://")):
        target = "/" + target.split("/", 3)[3] if target.count("/") > 2 else "/"
    path, _, query = target.partition("?")
    if not path.startswith("/"):
        raise S3Error("InvalidURI", fields={"URI": path[:200]})
    bucket = host_bucket(host, domain)
    if bucket:
        key = decode(path[1:])
    else:
        first, _, rest = path[1:].partition("/")
        bucket, key = decode(first), decode(rest)
        if not bucket and key:
            raise S3Error("InvalidURI", "The path names no bucket.")
    check_key(key)
    return Target(bucket, key, parse_query(query))


def copy_source(text: str) -> tuple[str, str, str | None]:
    """(bucket, key, version) of x-amz-copy-source. Raises `S3Error` InvalidArgument, InvalidURI."""
    path, mark, version = text.partition("?versionId=")
    bucket, slash, key = decode(path, plus=True).lstrip("/").partition("/")
    if not bucket or not slash or not key:
        raise S3Error("InvalidArgument", "Copy Source must mention the source bucket and key.")
    check_key(key)
    return bucket, key, decode(version) if mark else None
