"""Headers that a signed URL carries in its query: several SDKs put them there, so that whoever follows the
link need not know them. Pure.

Source: behaviour of Amazon S3 with URLs signed by its SDKs; decisions 0198, 0274.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from cumulus.auth import sigv2
from cumulus.auth.presign import MARK, OF_VERSION_2
from cumulus.errors import S3Error
from cumulus.rest.call import Call, Headers
from cumulus.rest.headers import as_header

_MARK: Final = MARK.decode()
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


def lifted(call: Call, query: Mapping[str, str]) -> dict[str, str]:
    """Headers, names in lower case, that stand in the query of a signed URL and were not sent as headers.
    They count once the signature is proven, which covers them. Raises `S3Error` InvalidArgument for what no
    header can carry, AccessDenied for another type or MD5 than a link of version 2 had that was sent on."""
    version4, version2 = "X-Amz-Signature" in query, {"AWSAccessKeyId", "Signature"} <= query.keys()
    if not version4 and not version2:
        return {}
    sent_on = version4 and query.get(_MARK) == OF_VERSION_2.decode()
    counts = _counts_sent_on if sent_on else _counts if version4 else carried
    found: dict[str, str] = {}
    for title, text in query.items():
        name = title.lower()
        if not counts(name):
            continue
        name, value = as_header(name, text)
        if sent_on and name in sigv2.SIGNED:
            _check_same(call, name, value)
            if not value:
                continue
        if name not in call.headers:
            found.setdefault(name, value)
    return found


def carried(title: str) -> bool:
    """Whether a parameter of a link of version 2 is a header."""
    name = title.lower()
    return name.startswith(_OWN) or name in sigv2.SIGNED


def _counts_sent_on(name: str) -> bool:
    return carried(name) and name not in _APART


def _counts(name: str) -> bool:
    if not name.startswith(_OWN) or name in _APART:
        return False
    return not name.startswith(_SUMS) or name in _ABOUT_SUMS


def _check_same(call: Call, name: str, value: str) -> None:
    if call.headers.get(name, value) != value:
        raise S3Error(
            "AccessDenied",
            "There were headers present in the request which were not signed",
            fields={"HeadersNotSigned": name},
        )


def with_headers(call: Call, more: Mapping[str, str]) -> Call:
    """The same request with these headers too."""
    if not more:
        return call
    return dataclasses.replace(call, headers=Headers([*call.headers.pairs, *more.items()]))
