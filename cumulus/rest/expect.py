"""Checksums that a request promises for its body: read from its head, compared when the body is complete."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass

from cumulus.checksums import ALGORITHMS, Hasher, from_header, header, parse_algorithm, parse_value
from cumulus.errors import S3Error
from cumulus.rest.call import Headers

_PREFIX = header("")
_OURS = frozenset({"content-md5", "x-amz-trailer", "x-amz-sdk-checksum-algorithm"})


@dataclass(frozen=True, slots=True)
class Expected:
    """`md5` of Content-MD5; `algorithm` of the checksum that comes in a header (`value`) or in a trailer
    (`value` None); "" when the client promises none. `computed`: algorithm to compute and store anyway."""

    md5: bytes | None = None
    algorithm: str = ""
    value: bytes | None = None
    computed: str = ""

    def names(self, *more: str) -> list[str]:
        """Algorithms that have to run over the body."""
        wanted = [*more, "md5" if self.md5 is not None else "", self.algorithm, self.computed]
        return list(dict.fromkeys(name for name in wanted if name))

    def verify(self, hasher: Hasher, trailers: Mapping[str, str]) -> dict[str, str]:
        """Compare; gives the checksums to store, base64 by algorithm. Raises `S3Error` BadDigest,
        InvalidRequest (a trailer that was announced did not come)."""
        if self.md5 is not None and hasher.digest("md5") != self.md5:
            raise S3Error(
                "BadDigest",
                "The Content-MD5 you specified did not match what we received.",
                fields={"ExpectedDigest": _base64(self.md5), "CalculatedDigest": hasher.base64("md5")},
            )
        if self.algorithm:
            value = self.value
            if value is None:
                text = trailers.get(header(self.algorithm))
                if text is None:
                    raise S3Error("InvalidRequest", f"The trailer {header(self.algorithm)} did not come.")
                value = parse_value(self.algorithm, text)
            if hasher.digest(self.algorithm) != value:
                name = self.algorithm.upper()
                raise S3Error("BadDigest", f"The {name} you specified did not match the calculated checksum.")
        name = self.algorithm or self.computed
        return {name: hasher.base64(name)} if name else {}


def read(headers: Headers, computed: str = "") -> Expected:
    """What a request's head promises. Raises `S3Error` InvalidDigest, InvalidRequest."""
    if not any(name in _OURS or name.startswith(_PREFIX) for name, _ in headers.items()):
        return Expected(computed=computed)
    values = {name: value for title, value in headers.items() if (name := from_header(title))}
    announced = [text.strip() for text in headers.get("x-amz-trailer").split(",") if text.strip()]
    trailers = [name for text in announced if (name := from_header(text))]
    if len(values) + len(trailers) > 1:
        raise S3Error(
            "InvalidRequest",
            "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
        )
    unknown = next((name for name in _claimed(headers) if name not in ALGORITHMS), None)
    if unknown is not None:
        parse_algorithm(unknown)
    if len(trailers) < len(announced):
        raise S3Error("InvalidRequest", "The value specified in the x-amz-trailer header is not supported")
    asked = headers.get("x-amz-sdk-checksum-algorithm")
    algorithm = next(iter(values), "") or next(iter(trailers), "")
    if asked:
        asked = parse_algorithm(asked)
        if not algorithm:
            raise S3Error(
                "InvalidRequest",
                "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or "
                "x-amz-trailer headers were found.",
            )
        if algorithm != asked:
            raise S3Error("InvalidRequest", "Value for x-amz-sdk-checksum-algorithm header is invalid.")
    value = parse_value(algorithm, values[algorithm]) if values else None
    return Expected(_content_md5(headers), algorithm, value, computed)


def _claimed(headers: Headers) -> list[str]:
    """What stands behind x-amz-checksum- in names of headers and in x-amz-trailer."""
    names = [name for name, _ in headers.items()] + headers.get("x-amz-trailer").lower().split(",")
    found = [name.strip().removeprefix(_PREFIX) for name in names if name.strip().startswith(_PREFIX)]
    return [name for name in found if name not in ("algorithm", "mode", "type")]


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _content_md5(headers: Headers) -> bytes | None:
    if "content-md5" not in headers:
        return None
    try:
        digest = base64.b64decode(headers.get("content-md5"), validate=True)
    except (binascii.Error, ValueError):
        digest = b""
    if len(digest) != 16:
        fields = {"Content-MD5": headers.get("content-md5")[:100]}
        raise S3Error("InvalidDigest", "The Content-MD5 you specified is not valid.", fields=fields)
    return digest
