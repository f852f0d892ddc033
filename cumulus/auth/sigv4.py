"""Signature Version 4 as S3 uses it: canonical request, string to sign, keys. Pure, no I/O, no clock.

S3 differs from other services in two points: paths are not normalised and are encoded once only, and the
payload's hash stands in the canonical request as the header x-amz-content-sha256 says it.
Source: Amazon S3 API reference, "Authenticating Requests (AWS Signature Version 4)".
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from cumulus.errors import S3Error

ALGORITHM: Final = "AWS4-HMAC-SHA256"
EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()

Query = list[tuple[bytes, bytes]]


def wire(text: str) -> bytes:
    """The bytes of a text that a request carried. Raises `S3Error` InvalidURI when it cannot have come so."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise S3Error("InvalidURI") from None


def split_query(query: str) -> Query:
    """Names and values, decoded; + is a blank; in the order of the request."""
    pairs = []
    for piece in wire(query).split(b"&"):
        if piece:
            name, _, value = piece.replace(b"+", b" ").partition(b"=")
            pairs.append((unquote_to_bytes(name), unquote_to_bytes(value)))
    return pairs


def canonical_path(path: str) -> str:
    """The path with each byte encoded in the one way S3 wants, slashes kept as they are."""
    return quote_from_bytes(unquote_to_bytes(wire(path)), safe="/")


def canonical_query(pairs: Query) -> str:
    """Encoded and in order. The signature itself is not to be among them."""
    if not pairs:
        return ""
    encoded = [(quote_from_bytes(name, safe=""), quote_from_bytes(value, safe="")) for name, value in pairs]
    return "&".join(f"{name}={value}" for name, value in sorted(encoded))


def canonical_value(value: str) -> str:
    """A header's value without blanks around it, runs of blanks inside as one."""
    if "  " in value or "\t" in value:
        return " ".join(piece for piece in value.replace("\t", " ").split(" ") if piece)
    return value.strip(" ")


def canonical_request(
    method: str, path: str, query: str, headers: Sequence[tuple[str, str]], payload: str
) -> str:
    """`path` and `query` are canonical, `headers` the signed ones in the order of SignedHeaders."""
    lines = "".join(f"{name}:{canonical_value(value)}\n" for name, value in headers)
    names = ";".join(name for name, _ in headers)
    return f"{method}\n{path}\n{query}\n{lines}\n{names}\n{payload}"


@dataclass(frozen=True, slots=True)
class Scope:
    """What a signature is good for: a day (YYYYMMDD), a region, a service."""

    date: str
    region: str
    service: str = "s3"

    def __str__(self) -> str:
        return f"{self.date}/{self.region}/{self.service}/aws4_request"


def string_to_sign(timestamp: str, scope: Scope, request: str) -> str:
    """`timestamp` is YYYYMMDDTHHMMSSZ, `request` the canonical request."""
    digest = hashlib.sha256(request.encode("latin-1")).hexdigest()
    return f"{ALGORITHM}\n{timestamp}\n{scope}\n{digest}"


@lru_cache(maxsize=4096)
def signing_key(secret: str, scope: Scope) -> bytes:
    """The key of one user's secret for a day, region and service; the last few thousand are kept."""
    key = f"AWS4{secret}".encode()
    for word in (scope.date, scope.region, scope.service, "aws4_request"):
        key = hmac.digest(key, word.encode(), "sha256")
    return key


def sign(key: bytes, text: str) -> str:
    """The signature of a string to sign, 64 hex digits."""
    return hmac.digest(key, text.encode("latin-1"), "sha256").hex()


@dataclass(frozen=True, slots=True)
class ChunkSigner:
    """What signatures of chunks depend on: the key, the request's time and scope, its signature (`seed`)."""

    key: bytes = field(repr=False)
    timestamp: str
    scope: Scope
    seed: str

    def chunk(self, previous: str, sha256: str) -> str:
        """The signature of a chunk whose data has that hash, after the one signed with `previous`."""
        return self._sign(f"{ALGORITHM}-PAYLOAD", f"{previous}\n{EMPTY_SHA256}\n{sha256}")

    def trailer(self, previous: str, trailer: bytes) -> str:
        """The signature of the headers after the body, each as name:value and a line feed."""
        return self._sign(f"{ALGORITHM}-TRAILER", f"{previous}\n{hashlib.sha256(trailer).hexdigest()}")

    def _sign(self, kind: str, rest: str) -> str:
        return sign(self.key, f"{kind}\n{self.timestamp}\n{self.scope}\n{rest}")


def same(left: str, right: str) -> bool:
    """Equality of two signatures in a time that does not tell where they differ."""
    return hmac.compare_digest(left.encode("utf-8", "replace"), right.encode("utf-8", "replace"))
