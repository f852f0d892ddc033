"""A client of S3 that does what it is told and nothing else, quick enough for many requests: one connection,
signatures of version 4 over the head alone."""

from __future__ import annotations

import functools
import hashlib
import hmac
import http.client
import time
from dataclasses import dataclass, field
from urllib.parse import quote

UNSIGNED = "UNSIGNED-PAYLOAD"
REGION = "us-east-1"


@dataclass
class Answer:
    """A reply as a client sees it; names of headers in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def code(self) -> str:
        """The code of an error document, "" if it is none."""
        return self.leaf("Code") if b"<Error>" in self.body else ""

    def leaf(self, tag: str) -> str:
        """Text of the first element of that name."""
        _, found, rest = self.body.decode().partition(f"<{tag}>")
        return rest.partition(f"</{tag}>")[0] if found else ""

    def leaves(self, tag: str) -> list[str]:
        """Text of all of them."""
        pieces = self.body.decode().split(f"<{tag}>")[1:]
        return [piece.partition(f"</{tag}>")[0] for piece in pieces]


@functools.lru_cache(64)
def _signing_key(secret: str, day: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, REGION, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def signed(
    credentials: tuple[str, str],
    method: str,
    host: str,
    target: str,
    headers: dict[str, str],
    at_s: float | None = None,
) -> dict[str, str]:
    """`headers` with those that sign the request (Amazon S3, signature version 4). Those of `headers` that
    begin with x-amz- are signed too. The query of `target` must be in order and encoded already."""
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at_s))
    lower = {name.lower(): value for name, value in headers.items()}
    own = {"host": host, "x-amz-date": at, "x-amz-content-sha256": UNSIGNED} | {
        name: value for name, value in lower.items() if name.startswith("x-amz-")
    }
    names = ";".join(sorted(own))
    path, _, query = target.partition("?")
    query = "&".join(part if "=" in part else f"{part}=" for part in sorted(query.split("&")) if part)
    lines = "".join(f"{name}:{own[name].strip()}\n" for name in sorted(own))
    text = "\n".join((method, path, query, lines, names, own["x-amz-content-sha256"]))
    scope = f"{at[:8]}/{REGION}/s3/aws4_request"
    digest = hashlib.sha256(text.encode()).hexdigest()
    to_sign = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{digest}"
    signature = hmac.digest(_signing_key(credentials[1], at[:8]), to_sign.encode(), "sha256").hex()
    credential = f"AWS4-HMAC-SHA256 Credential={credentials[0]}/{scope}"
    return {
        **headers,
        **{name: value for name, value in own.items() if name not in lower},
        "Authorization": f"{credential}, SignedHeaders={names}, Signature={signature}",
    }


class Wire:
    """One kept connection of one user; without credentials it is nobody's."""

    def __init__(self, port: int, credentials: tuple[str, str] | None, timeout_s: float = 60) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
        self._host = f"127.0.0.1:{port}"
        self._credentials = credentials

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        query: str = "",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """One request; `path` is "/BUCKET/KEY" as a person writes it. Raises `OSError`, `HTTPException`."""
        target = quote(path, safe="/~") + (f"?{query}" if query else "")
        sent = dict(headers or {})
        if self._credentials is not None:
            sent = signed(self._credentials, method, self._host, target, sent)
        self._http.request(method, target, body or None, sent)
        answer = self._http.getresponse()
        return Answer(answer.status, {n.lower(): v for n, v in answer.getheaders()}, answer.read())

    def close(self) -> None:
        """End the connection."""
        self._http.close()
