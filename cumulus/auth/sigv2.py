"""Signature Version 2, for old clients: the string to sign. Pure. HMAC-SHA1 over the method, a few headers
and the resource; nothing of it protects the body, nor the query parameters of listings.

Source: Amazon S3 developer guide, "Signing and authenticating REST requests" (AWS signature version 2).
"""

from __future__ import annotations

import base64
import hmac
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from cumulus.auth.host import host_bucket
from cumulus.auth.sigv4 import Query

if TYPE_CHECKING:
    from cumulus.rest.call import Headers

# query parameters that belong to the resource: all that choose an operation or change an answer's headers
RESOURCE: Final = frozenset(
    b"accelerate acl analytics attributes cors defaultObjectAcl delete encryption intelligent-tiering"
    b" inventory legal-hold lifecycle location logging metrics notification object-lock"
    b" ownershipControls partNumber policy policyStatus publicAccessBlock replication requestPayment"
    b" response-cache-control response-content-disposition response-content-encoding"
    b" response-content-language response-content-type response-expires restore retention select select-type"
    b" session storageClass tagging torrent uploadId uploads versionId versioning versions website".split()
)

# headers besides x-amz-* that are signed, as "" where they are not sent
SIGNED: Final = ("content-md5", "content-type")


def forms(path: str, host: str, domain: str) -> list[str]:
    """The path as it stood on the wire, and of a bucket alone with the slash that boto3 signs and does not
    send. Of a bucket in the `host` it is a key: k/ is another one than k."""
    alone = path.count("/") == 1 and path != "/" and not host_bucket(host, domain)
    return [path, path + "/"] if alone else [path]


def resource(path: str, query: Query, host: str, domain: str) -> str:
    """Bucket, path and the query parameters that count. `path` is as it stood on the wire; a bucket in the
    `host` is put before it when the host lies below `domain`."""
    bucket = host_bucket(host, domain)
    chosen = sorted((pair for pair in query if pair[0] in RESOURCE), key=itemgetter(0))
    words = [name if not value else name + b"=" + value for name, value in chosen]
    return (
        (f"/{bucket}" if bucket else "") + path + ("?" + b"&".join(words).decode("latin-1") if words else "")
    )


def string_to_sign(method: str, headers: Headers, date: str, resource: str) -> str:
    """`date` is the header Date, "" beside an x-amz-date, or the query parameter Expires."""
    own = sorted((name, value) for name, value in headers.items() if name.startswith("x-amz-"))
    lines = "".join(f"{name}:{value.strip()}\n" for name, value in own)
    signed = "\n".join(headers.get(name) for name in SIGNED)
    return f"{method}\n{signed}\n{date}\n{lines}{resource}"


def sign(secret: str, text: str) -> str:
    """Base64 of the HMAC-SHA1."""
    return base64.b64encode(hmac.digest(secret.encode(), text.encode("latin-1"), "sha1")).decode()
