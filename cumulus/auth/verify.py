"""Who sends a request: Signature Version 4 (header and presigned), Version 2 if it is allowed, or nobody.

`authenticate` reads a request's head, asks the directory for the key and compares. It gives the identity and
the rule for the body. Refusals say what AWS says, with the string to sign where it helps; never a secret.
Source: Amazon S3 API reference, "Authenticating Requests", "Error responses".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from cumulus.auth import sigv2, sigv4, times
from cumulus.auth.body import BodyRule
from cumulus.auth.claims import (
    HEX64,
    SKEW_NS,
    AuthSettings,
    Claim,
    allowed,
    check_region,
    check_skew,
    known,
    mismatch,
    parse_claim,
)
from cumulus.auth.presign import MARK, REPEATED, chunk_signer
from cumulus.auth.sigv4 import ChunkSigner, Query
from cumulus.errors import S3Error
from cumulus.index.api import Directory
from cumulus.model import Identity

if TYPE_CHECKING:
    from cumulus.rest.call import Call, Headers

WEEK_S: Final = 7 * 24 * 3600
UNSIGNED: Final = "UNSIGNED-PAYLOAD"
_SIGNED_CHUNKS: Final = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
_SIGNED_TRAILER: Final = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
_UNSIGNED_TRAILER: Final = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)

Scheme = Literal["", "v4", "v4-query", "v2", "v2-query", "form"]

__all__ = ["AuthSettings", "Authenticated", "Scheme", "authenticate"]


@dataclass(frozen=True, slots=True)
class Authenticated:
    """Who asks, what the body has to be, and how the request was signed ("" = not at all; "form": by the
    policy of a POST form). `bound`: headers but host and x-amz-* that a link was signed with, to which it
    holds whoever has it."""

    identity: Identity
    body: BodyRule
    scheme: Scheme = ""
    bound: tuple[str, ...] = ()


def authenticate(call: Call, directory: Directory, settings: AuthSettings, now_ns: int) -> Authenticated:
    """Raises `S3Error`. `now_ns` is compared with the request's time."""
    path, _, text = call.target.partition("?")
    query = sigv4.split_query(text) if text else []
    names = {name for name, _ in query}
    by_query = not names.isdisjoint((b"X-Amz-Algorithm", b"X-Amz-Credential", b"X-Amz-Signature"))
    by_query2 = not by_query and {b"AWSAccessKeyId", b"Signature"} <= names
    # a client that was sent here may repeat the header with which it signed for another server
    sent_on = by_query and MARK in names
    authorization = "" if sent_on else call.headers.get("authorization")
    if authorization and (by_query or by_query2):
        raise _argument(
            "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query "
            "string parameter or the Authorization header should be specified"
        )
    if by_query:
        return _presigned(call, path, query, directory, settings, now_ns)
    if authorization.startswith(sigv4.ALGORITHM):
        return _header(call, path, query, directory, settings, now_ns)
    if by_query2 or authorization.startswith("AWS "):
        return _version2(call, path, query, directory, settings, now_ns)
    if authorization:
        raise _argument("Unsupported Authorization Type")
    return Authenticated(Identity(peer=call.peer), _body_rule(call.headers, None, _payload(call.headers)))


def _argument(message: str) -> S3Error:
    return S3Error("InvalidArgument", message, fields={"ArgumentName": "Authorization"})


# Version 4: what the request says


def _header(
    call: Call, path: str, query: Query, directory: Directory, settings: AuthSettings, now_ns: int
) -> Authenticated:
    timestamp = _timestamp(call.headers)
    claim = _parse_authorization(call.headers.get("authorization"), timestamp)
    check_region(
        claim.scope, settings, "AuthorizationHeaderMalformed", "The authorization header is malformed; "
    )
    check_skew(times.parse_basic(timestamp), now_ns, timestamp)
    payload = _payload(call.headers)
    if not payload:
        # curl before 8 signs the hash of nothing and does not say so: safe where there is no body
        if call.length or call.chunked:
            raise S3Error("InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
        payload = sigv4.EMPTY_SHA256
    return _verified(call, path, query, claim, payload, directory, now_ns, "v4")


def _presigned(
    call: Call, path: str, query: Query, directory: Directory, settings: AuthSettings, now_ns: int
) -> Authenticated:
    values = _query_values(query)
    claim = _parse_query(values)
    problem = "Error parsing the X-Amz-Credential parameter; "
    check_region(claim.scope, settings, "AuthorizationQueryParametersError", problem)
    lasts_s = _expires(values.get("X-Amz-Expires", ""))
    begins = times.parse_basic(claim.timestamp)
    if begins > now_ns + SKEW_NS:
        raise S3Error("AccessDenied", "Request is not yet valid", fields={"ServerTime": times.iso(now_ns)})
    ends = begins + lasts_s * times.SECOND
    if now_ns > ends:
        fields = {"X-Amz-Expires": str(lasts_s), "Expires": times.iso(ends), "ServerTime": times.iso(now_ns)}
        raise S3Error("AccessDenied", "Request has expired", fields=fields)
    payload = _payload(call.headers) or values.get("X-Amz-Content-Sha256", "") or UNSIGNED
    rest = [pair for pair in query if pair[0] != b"X-Amz-Signature"]
    return _verified(call, path, rest, claim, payload, directory, now_ns, "v4-query")


def _parse_authorization(text: str, timestamp: str) -> Claim:
    """The header Authorization after its algorithm."""
    words: dict[str, str] = {}
    for piece in text[len(sigv4.ALGORITHM) :].split(","):
        name, equals, value = piece.strip(" \t").partition("=")
        if not equals or name in words:
            raise S3Error("AuthorizationHeaderMalformed")
        words[name] = value
    if not text.startswith(sigv4.ALGORITHM + " ") or words.keys() != {
        "Credential",
        "SignedHeaders",
        "Signature",
    }:
        raise S3Error(
            "AuthorizationHeaderMalformed",
            "The authorization header is malformed; it needs Credential, SignedHeaders and Signature.",
        )
    return parse_claim(
        words["Credential"], words["SignedHeaders"], words["Signature"], timestamp, _malformed_header
    )


def _malformed_header(what: str) -> S3Error:
    return S3Error("AuthorizationHeaderMalformed", f"The authorization header is malformed; {what}")


def _malformed_query(what: str) -> S3Error:
    return S3Error("AuthorizationQueryParametersError", f"Query-string authentication: {what}")


def _query_values(query: Query) -> dict[str, str]:
    """Parameters of the signature by name. Raises `S3Error` when one is there twice."""
    values: dict[str, str] = {}
    for raw, value in query:
        if raw.startswith(b"X-Amz-"):
            name = raw.decode("latin-1")
            if name in values:
                raise _malformed_query(f"{name} is there twice.")
            values[name] = value.decode("latin-1")
    return values


def _parse_query(values: dict[str, str]) -> Claim:
    wanted = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")
    if any(f"X-Amz-{name}" not in values for name in wanted):
        raise _malformed_query(
            "it needs X-Amz-Algorithm, -Credential, -Date, -Expires, -SignedHeaders, -Signature."
        )
    if values["X-Amz-Algorithm"] != sigv4.ALGORITHM:
        raise _malformed_query(f'X-Amz-Algorithm only supports "{sigv4.ALGORITHM}".')
    if "X-Amz-Security-Token" in values:
        raise S3Error("InvalidToken")
    timestamp = values["X-Amz-Date"]
    try:
        times.parse_basic(timestamp)
    except ValueError:
        raise _malformed_query('X-Amz-Date must be in the ISO8601 long format "yyyyMMddTHHmmssZ".') from None
    credential, signed = values["X-Amz-Credential"], values["X-Amz-SignedHeaders"]
    return parse_claim(credential, signed, values["X-Amz-Signature"], timestamp, _malformed_query)


def _timestamp(headers: Headers) -> str:
    """The request's time, YYYYMMDDTHHMMSSZ, from x-amz-date or Date."""
    text = headers.get("x-amz-date") or headers.get("date")
    try:
        times.parse_basic(text)
        return text
    except ValueError:
        pass
    try:
        return times.basic(times.parse_http(text))
    except ValueError:
        message = "AWS authentication requires a valid Date or x-amz-date header"
        raise S3Error("AccessDenied", message) from None


def _expires(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise _malformed_query("X-Amz-Expires must be a non-negative number.")
    if int(text) > WEEK_S:
        raise _malformed_query(f"X-Amz-Expires must be less than a week (in seconds) that is {WEEK_S}")
    return int(text)


# Version 4: is it true


def _verified(
    call: Call,
    path: str,
    query: Query,
    claim: Claim,
    payload: str,
    directory: Directory,
    now_ns: int,
    scheme: Scheme,
) -> Authenticated:
    """Compare the signature; then what only the key's owner may learn."""
    sent_on = scheme == "v4-query" and any(name == MARK for name, _ in query)
    headers = _signed_headers(call.headers, claim, REPEATED if sent_on else ())
    if "x-amz-security-token" in call.headers:
        raise S3Error("InvalidToken")
    credential = known(directory, claim.access_key)
    canonical_query = sigv4.canonical_query(query)
    key = sigv4.signing_key(credential.secret, claim.scope)
    canonical = sigv4.canonical_path(path)
    first = ""
    # some clients sign the path as they send it, though they encode it in a way of their own
    for form in (canonical, path) if path != canonical and _one_line(path) else (canonical,):
        request = sigv4.canonical_request(call.method, form, canonical_query, headers, payload)
        text = sigv4.string_to_sign(claim.timestamp, claim.scope, request)
        if sigv4.same(sigv4.sign(key, text), claim.signature):
            break
        first = first or request
    else:
        text = sigv4.string_to_sign(claim.timestamp, claim.scope, first)
        raise mismatch(claim.access_key, claim.signature, text, first)
    identity = allowed(credential, call.peer, now_ns)
    signer = ChunkSigner(key, claim.timestamp, claim.scope, claim.signature)
    if sent_on:
        signer = chunk_signer(query, credential.secret, signer)
    rule = _body_rule(call.headers, signer, payload)
    bound: tuple[str, ...] = ()
    if scheme == "v4-query":
        bound = tuple(name for name in claim.signed if name != "host" and not name.startswith("x-amz-"))
    return Authenticated(identity, rule, scheme, bound)


def _one_line(path: str) -> bool:
    """Nothing in it can be taken for another line of the canonical request."""
    return path.isascii() and path.isprintable()


def _signed_headers(headers: Headers, claim: Claim, free: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """The signed headers with their values. Host and all x-amz-* not in `free` have to be among them."""
    missing = [name for name in claim.signed if name not in headers]
    if missing:
        raise S3Error(
            "SignatureDoesNotMatch", f"Signed headers are not in the request: {', '.join(missing)}."
        )
    signed = {*claim.signed, *free}
    own = [name for name, _ in headers.items() if name.startswith("x-amz-") and name not in signed]
    if own or "host" not in claim.signed:
        raise S3Error(
            "AccessDenied",
            "There were headers present in the request which were not signed",
            fields={"HeadersNotSigned": ", ".join(["host"] * ("host" not in claim.signed) + own)},
        )
    return [(name, headers.get(name)) for name in claim.signed]


# the body


def _payload(headers: Headers) -> str:
    return headers.get("x-amz-content-sha256")


def _body_rule(headers: Headers, signer: ChunkSigner | None, payload: str) -> BodyRule:
    """What the body has to be. `signer` is None without a Version 4 signature, `payload` may be ""."""
    if payload in (_SIGNED_CHUNKS, _SIGNED_TRAILER):
        if signer is None:
            raise S3Error(
                "InvalidRequest", "Signed chunks need a request that is signed with AWS4-HMAC-SHA256."
            )
        trailers = _announced(headers) if payload == _SIGNED_TRAILER else ()
        return BodyRule(True, signer, None, trailers, _decoded_length(headers))
    if payload == _UNSIGNED_TRAILER or (payload in ("", UNSIGNED) and _framed(headers)):
        return BodyRule(True, None, None, _announced(headers), _decoded_length(headers))
    if payload in ("", UNSIGNED):
        return BodyRule()
    if payload.startswith("STREAMING-"):
        raise S3Error("NotImplemented", f"x-amz-content-sha256 {payload[:80]} is not implemented.")
    if not HEX64.fullmatch(payload):
        raise S3Error(
            "InvalidArgument",
            f"x-amz-content-sha256 must be {UNSIGNED}, {_UNSIGNED_TRAILER}, {_SIGNED_CHUNKS}, "
            f"{_SIGNED_TRAILER}, or a valid sha256 value.",
            fields={"ArgumentName": "x-amz-content-sha256", "ArgumentValue": payload[:128]},
        )
    return BodyRule(sha256=bytes.fromhex(payload))


def _framed(headers: Headers) -> bool:
    """Chunks without any signature, as clients without a key send them."""
    words = [word.strip().lower() for word in headers.get("content-encoding").split(",")]
    return "aws-chunked" in words and (
        "x-amz-trailer" in headers or "x-amz-decoded-content-length" in headers
    )


def _announced(headers: Headers) -> tuple[str, ...]:
    """Names in x-amz-trailer."""
    names = [name.strip().lower() for name in headers.get("x-amz-trailer").split(",")]
    return tuple(name for name in names if name)


def _decoded_length(headers: Headers) -> int | None:
    text = headers.get("x-amz-decoded-content-length")
    if not text:
        return None
    if not _NUMBER.fullmatch(text):
        raise S3Error(
            "InvalidArgument",
            "x-amz-decoded-content-length is not a number.",
            fields={"ArgumentName": "x-amz-decoded-content-length", "ArgumentValue": text[:64]},
        )
    return int(text)


# Version 2


def _version2(
    call: Call, path: str, query: Query, directory: Directory, settings: AuthSettings, now_ns: int
) -> Authenticated:
    if not settings.allow_sigv2:
        raise S3Error(
            "InvalidRequest",
            "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
        )
    authorization = call.headers.get("authorization")
    if authorization:
        access_key, _, signature = authorization.removeprefix("AWS ").strip(" ").partition(":")
        own_date = call.headers.get("x-amz-date")
        date = "" if own_date else call.headers.get("date")
        _check_date2(own_date or date, now_ns)
    else:
        values = {name: value.decode("latin-1") for name, value in query}
        access_key, signature = values[b"AWSAccessKeyId"], values[b"Signature"]
        date = values.get(b"Expires", "")
        _check_expires2(date, now_ns)
    credential = known(directory, access_key)
    host = call.headers.get("host")
    texts = [
        sigv2.string_to_sign(
            call.method, call.headers, date, sigv2.resource(form, query, host, settings.domain)
        )
        for form in sigv2.forms(path, host, settings.domain)
    ]
    if not any(sigv4.same(sigv2.sign(credential.secret, text), signature) for text in texts):
        raise mismatch(access_key, signature, texts[0])
    identity = allowed(credential, call.peer, now_ns)
    rule = _body_rule(call.headers, None, _payload(call.headers))
    if authorization:
        return Authenticated(identity, rule, "v2")
    bound = tuple(name for name in sigv2.SIGNED if name in call.headers)
    return Authenticated(identity, rule, "v2-query", bound)


def _check_date2(text: str, now_ns: int) -> None:
    try:
        at = times.parse_http(text)
    except ValueError:
        try:
            at = times.parse_basic(text)
        except ValueError:
            message = "AWS authentication requires a valid Date or x-amz-date header"
            raise S3Error("AccessDenied", message) from None
    check_skew(at, now_ns, text)


def _check_expires2(text: str, now_ns: int) -> None:
    if not _NUMBER.fullmatch(text):
        raise S3Error("AccessDenied", "Invalid date (should be seconds since epoch)")
    if now_ns > int(text) * times.SECOND:
        fields = {"Expires": times.iso(min(int(text), now_ns // times.SECOND) * times.SECOND)}
        fields["ServerTime"] = times.iso(now_ns)
        raise S3Error("AccessDenied", "Request has expired", fields=fields)
