"""URLs that carry a signature for one other server: what a redirection hands to the client. Pure.

The query has `MARK`, so that the server that gets it serves it and does not send it on. In a URL that is
signed with it, headers that belonged to the first signature (Authorization, x-amz-date,
x-amz-content-sha256) may come along or not, since some clients repeat them and some do not; the hash of the
body is in the query. Signed chunks continue the first signature, which is the value of `MARK` then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cumulus.auth import sigv4, times
from cumulus.auth.sigv4 import ChunkSigner, Query, Scope

if TYPE_CHECKING:
    from cumulus.rest.call import Headers

MARK: Final = b"x-cumulus-redirected"
OF_VERSION_2: Final = b"2"  # its value in what became of a link of version 2
REPEATED: Final = ("x-amz-date", "x-amz-content-sha256")
_V4: Final = frozenset(
    b"X-Amz-" + name
    for name in (b"Algorithm", b"Credential", b"Date", b"Expires", b"SignedHeaders", b"Signature")
) | {b"X-Amz-Content-Sha256"}
_V2: Final = frozenset((b"AWSAccessKeyId", b"Expires", b"Signature"))
_SEED: Final = re.compile(rb"(\d{8}T\d{6}Z)-([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Presigner:
    """For whom and how long: the user's key, the region, from when, for how many seconds."""

    access_key: str
    secret: str = field(repr=False)
    region: str
    now_ns: int
    lasts_s: int


def unsigned_query(query: Query, *, version2: bool = False) -> Query:
    """Without what belongs to a signature."""
    drop = _V4 | _V2 if version2 else _V4
    return [pair for pair in query if pair[0] not in drop and pair[0] != MARK]


def marked(query: Query, seed: ChunkSigner | None = None, *, version2: bool = False) -> Query:
    """With the mark; `seed` is the signature that signed chunks continue. `version2`: of such a link, whose
    parameters carry all that version 2 signs as headers."""
    if version2:
        return [*query, (MARK, OF_VERSION_2)]
    value = b"1" if seed is None else f"{seed.timestamp}-{seed.seed}".encode()
    return [*query, (MARK, value)]


def presign(
    who: Presigner,
    method: str,
    netloc: str,
    path: str,
    query: Query,
    headers: Headers,
    payload: str,
    bound: Iterable[str] = (),
) -> str:
    """The query, encoded and signed. `path` is canonical, `query` free of signatures, `headers` the client's
    (its x-amz-* and those in `bound` are signed), `payload` what x-amz-content-sha256 said, or ""."""
    timestamp = times.basic(who.now_ns)
    scope = Scope(timestamp[:8], who.region)
    own = [(name, value) for name, value in headers.items() if name.startswith("x-amz-")]
    held = [(name, headers.get(name)) for name in bound]
    signed = sorted([("host", netloc), *(pair for pair in own if pair[0] not in REPEATED), *held])
    values = {
        "Algorithm": sigv4.ALGORITHM,
        "Credential": f"{who.access_key}/{scope}",
        "Date": timestamp,
        "Expires": str(who.lasts_s),
        "SignedHeaders": ";".join(name for name, _ in signed),
    }
    if payload:
        values["Content-Sha256"] = payload
    pairs = query + [(f"X-Amz-{name}".encode(), value.encode("latin-1")) for name, value in values.items()]
    text = sigv4.canonical_query(pairs)
    request = sigv4.canonical_request(method, path, text, signed, payload or "UNSIGNED-PAYLOAD")
    key = sigv4.signing_key(who.secret, scope)
    return f"{text}&X-Amz-Signature={sigv4.sign(key, sigv4.string_to_sign(timestamp, scope, request))}"


def chunk_signer(query: Query, secret: str, signer: ChunkSigner) -> ChunkSigner:
    """The one that signed chunks continue: `signer`, or the one before the redirection if the query, which is
    proven, names it."""
    match = next((_SEED.fullmatch(value) for name, value in query if name == MARK), None)
    if match is None:
        return signer
    timestamp, seed = match[1].decode(), match[2].decode()
    scope = Scope(timestamp[:8], signer.scope.region, signer.scope.service)
    return ChunkSigner(sigv4.signing_key(secret, scope), timestamp, scope, seed)
