"""The header with which one server of a site passes a request on to another: who the client is, proven by a
key that only the site's servers have. Pure.

The request is otherwise what the client sent, with the Host that it signed. `x-cumulus-forwarded` is
VERSION;ID;PEER;SCHEME;SECONDS;MAC: the id that the first server gave the request, the client's address, http
or https, when it was passed on, and an HMAC-SHA256 over these with the method, the target and Host.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cumulus.errors import S3Error

if TYPE_CHECKING:
    from cumulus.rest.call import Call

HEADER: Final = "x-cumulus-forwarded"
PURPOSE: Final = b"cumulus forwarded requests"  # for which the key is derived
SKEW_S: Final = 300
_FORM: Final = re.compile(r"1;([0-9A-F]{1,32});([0-9A-Za-z.:%-]{0,64});(https?);([0-9]{1,12});([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request that was passed on came from: its id there, the client's address, whether by TLS."""

    id: str
    peer: str
    secure: bool


def _mac(key: bytes, call: Call, said: str) -> str:
    text = "\n".join((said, call.method, call.target, call.headers.get("host")))
    return hmac.new(key, text.encode("latin-1", "replace"), hashlib.sha256).hexdigest()


def header(call: Call, key: bytes, now_s: int) -> str:
    """The header's value for a request that is passed on now."""
    scheme = "https" if call.secure else "http"
    said = f"1;{call.id};{call.peer};{scheme};{now_s}"
    return f"{said};{_mac(key, call, said)}"


def origin(call: Call, keys: Iterable[bytes], now_s: int) -> Origin | None:
    """Where the request came from; None when no key made the header. Raises `S3Error` AccessDenied for a
    header that cannot be one, RequestTimeTooSkewed for one that is proven and too old or too new."""
    match = _FORM.fullmatch(call.headers.get(HEADER))
    if match is None:
        raise S3Error("AccessDenied", f"{HEADER} is for servers of this site.")
    said = match[0].rpartition(";")[0]
    if not any(hmac.compare_digest(_mac(key, call, said), match[5]) for key in keys):
        return None
    if abs(int(match[4]) - now_s) > SKEW_S:
        raise S3Error("RequestTimeTooSkewed", "The clocks of the servers differ too much.")
    return Origin(match[1], match[2], match[3] == "https")
