"""What all forms of a signature have in common: its scope and key, times, regions, the answer to a wrong one.

Source: Amazon S3 API reference, "Authenticating Requests", "Error responses".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cumulus.auth import times
from cumulus.auth.sigv4 import Scope
from cumulus.errors import S3Error
from cumulus.index.api import Directory
from cumulus.model import Credential, Identity

SKEW_NS: Final = 15 * 60 * times.SECOND
HEX64: Final = re.compile(r"[0-9a-fA-F]{64}")
_MAX_SIGNED: Final = 100
_MAX_CREDENTIAL: Final = 512
_MAX_KEPT: Final = 512  # characters of names that are remembered: anybody may send some


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """`region` "" accepts any. `domain` is the one whose sub-domains are buckets, "" for none; only
    signatures of version 2 depend on it."""

    region: str = "us-east-1"
    allow_sigv2: bool = False
    domain: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a Version 4 signature says of itself."""

    access_key: str
    scope: Scope
    signed: tuple[str, ...]
    signature: str
    timestamp: str


def parse_claim(
    credential: str, signed: str, signature: str, timestamp: str, malformed: Callable[[str], S3Error]
) -> Claim:
    """Checked parts of either form. `malformed` makes that form's error."""
    access_key, scope = _credential(credential[: _MAX_CREDENTIAL + 1])
    if scope is None:
        raise malformed(access_key)
    if scope.date != timestamp[:8]:
        raise malformed(
            f'the Credential\'s date "{scope.date[:16]}" is not that of the request, "{timestamp[:8]}".'
        )
    names = _names(signed) if len(signed) <= _MAX_KEPT else _names.__wrapped__(signed)
    if not names:
        raise malformed("SignedHeaders must be names in lower case, each once, separated by semicolons.")
    if not HEX64.fullmatch(signature):
        raise malformed("the Signature must be 64 hex digits.")
    return Claim(access_key, scope, names, signature.lower(), timestamp)


@lru_cache(maxsize=4096)
def _credential(text: str) -> tuple[str, Scope | None]:
    """Key and scope of a Credential, which clients repeat all day; or what is wrong, and None."""
    words = text.rsplit("/", 4)
    if len(words) != 5 or not words[0] or len(text) > _MAX_CREDENTIAL:
        return "the Credential must be KEY/YYYYMMDD/REGION/SERVICE/aws4_request.", None
    access_key, date, region, service, end = words
    if service != "s3" or end != "aws4_request":
        return 'the Credential must end in "/s3/aws4_request".', None
    return access_key, Scope(date, region, service)


@lru_cache(maxsize=1024)
def _names(text: str) -> tuple[str, ...]:
    """Of SignedHeaders; empty when they are none."""
    names = tuple(text.split(";"))
    good = 0 < len(names) <= _MAX_SIGNED and len(set(names)) == len(names) and text == text.lower()
    return names if good else ()


def check_region(scope: Scope, settings: AuthSettings, code: str, problem: str) -> None:
    """Raises `S3Error` of that code, with the right region, unless it is a signature for here."""
    if settings.region and scope.region != settings.region:
        message = f"{problem}the region '{scope.region[:64]}' is wrong; expecting '{settings.region}'"
        headers = [("x-amz-bucket-region", settings.region)]  # an answer to HEAD has nothing else to say it
        raise S3Error(code, message, fields={"Region": settings.region}, headers=headers)


def check_skew(at_ns: int, now_ns: int, said: str) -> None:
    """Raises `S3Error` RequestTimeTooSkewed when the clocks differ too much. `said` is the client's text."""
    if abs(at_ns - now_ns) > SKEW_NS:
        milliseconds = str(SKEW_NS // 1_000_000)
        raise S3Error(
            "RequestTimeTooSkewed",
            fields={
                "RequestTime": said,
                "ServerTime": times.iso(now_ns),
                "MaxAllowedSkewMilliseconds": milliseconds,
            },
        )


def known(directory: Directory, access_key: str) -> Credential:
    """Raises `S3Error` InvalidAccessKeyId."""
    credential = directory.credential(access_key)
    if credential is None:
        raise S3Error("InvalidAccessKeyId", fields={"AWSAccessKeyId": access_key[:128]})
    return credential


def allowed(credential: Credential, peer: str, now_ns: int) -> Identity:
    """The identity behind a key that was proven. Raises `S3Error` when the key or its user may not."""
    if credential.expires_ns and now_ns >= credential.expires_ns:
        raise S3Error("ExpiredToken")
    if credential.user.disabled:
        raise S3Error("AccessDenied", "The user is disabled.")
    return Identity(user=credential.user, access_key=credential.access_key, peer=peer)


def mismatch(access_key: str, signature: str, text: str, canonical: str = "") -> S3Error:
    """SignatureDoesNotMatch, with what was signed here: all of it came from the client, but for the key."""
    fields = {
        "AWSAccessKeyId": access_key,
        "StringToSign": _printable(text),
        "SignatureProvided": _printable(signature),
        "StringToSignBytes": text.encode("latin-1").hex(" "),
    }
    if canonical:
        fields["CanonicalRequest"] = _printable(canonical)
        fields["CanonicalRequestBytes"] = canonical.encode("latin-1").hex(" ")
    return S3Error("SignatureDoesNotMatch", fields=fields)


def _printable(text: str) -> str:
    """Without what XML cannot carry."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
