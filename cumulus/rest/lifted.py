"""Headers that a signed URL carries in its query: several SDKs put them there, so that whoever follows the
link need not know them. Pure.

Source: behaviour of Amazon S3 with URLs signed by its SDKs; decision 0198.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from cumulus.rest.call import Call, Headers
from cumulus.rest.headers import as_header

_OWN: Final = "x-amz-"
_SUMS: Final = "x-amz-checksum-"
_ABOUT_SUMS: Final = frozenset(_SUMS + word for word in ("algorithm", "mode", "type"))
# what belongs to a signature of version 4, or to a body that was not there when the URL was signed
_APART: Final = frozenset(
    _OWN + word
    for word in (
        "algorithm",
        "content-sha256",
        "credential",
        "date",
        "decoded-content-length",
        "expires",
        "sdk-checksum-algorithm",
        "security-token",
        "signature",
        "signedheaders",
        "trailer",
    )
)
_SIGNED_BY_2: Final = frozenset({"content-md5", "content-type"})


def lifted(call: Call, query: Mapping[str, str]) -> dict[str, str]:
    """Headers, names in lower case, that stand in the query of a signed URL and were not sent as headers.
    They count once the signature is proven, which covers them. Raises `S3Error` InvalidArgument for what no
    header can carry."""
    version4, version2 = "X-Amz-Signature" in query, {"AWSAccessKeyId", "Signature"} <= query.keys()
    if not version4 and not version2:
        return {}
    found: dict[str, str] = {}
    for title, text in query.items():
        name = title.lower()
        if _counts(name) if version4 else name.startswith(_OWN) or name in _SIGNED_BY_2:
            name, value = as_header(name, text)
            if name not in call.headers:
                found.setdefault(name, value)
    return found


def _counts(name: str) -> bool:
    if not name.startswith(_OWN) or name in _APART:
        return False
    return not name.startswith(_SUMS) or name in _ABOUT_SUMS


def with_headers(call: Call, more: Mapping[str, str]) -> Call:
    """The same request with these headers too."""
    if not more:
        return call
    return dataclasses.replace(call, headers=Headers([*call.headers.pairs, *more.items()]))
