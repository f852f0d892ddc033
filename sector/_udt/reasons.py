"""What Twisted is told when a UDT connection cannot be made, or ends: its own exceptions, our words.

Connecting: `ConnectionRefusedError` (nothing listens there, or the peer said no), `TimeoutError` (no answer),
`UdtAuthError` (another key), `ConnectBindError` (the local port), else `ConnectError`; their first argument
is one line for a person. The end: `ConnectionDone` (the peer closed, or we did and all has arrived),
`ConnectionAborted` (we did, by abortConnection), else `ConnectionLost` with `name`, the core's error.
"""

from __future__ import annotations

from twisted.internet import error
from twisted.python.failure import Failure

from sector._udt.errors import CoreError, error_name, error_text

_VANISHED, _UNCONFIRMED = -109, -110


class UdtAuthError(error.ConnectError):
    """The peer has no key, or another one, or shows none though one is demanded"""


class UdtConnectionLost(error.ConnectionLost):
    """Connection to the other side was lost in a non-clean fashion"""

    def __init__(self, text: str, name: str = "") -> None:
        super().__init__(text)
        self.name = name


class PeerVanished(UdtConnectionLost):
    """A foreign peer (libudt) fell silent without a farewell, and nothing is known to be missing: all that
    came was complete and acknowledged, all of ours was acknowledged. A crash looks like that, and so does a
    normal end whose only shutdown packet was lost. `confirmed`: the peer knew that we have it all."""

    def __init__(self, code: int) -> None:
        super().__init__(error_text(code), error_name(code))
        self.confirmed = code == _VANISHED


def lost(code: int, where: str = "") -> Failure:
    """Why a connection ended, from the core's error code."""
    if code in (_VANISHED, _UNCONFIRMED):
        return Failure(PeerVanished(code))
    return Failure(UdtConnectionLost(str(CoreError(code, where)), error_name(code)))


def not_connected(code: int, host: str, port: int) -> Failure:
    """Why a connection could not be made, from the core's error code (0: closed by this side)."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    match error_name(code):
        case "TIMEOUT" | "BROKEN":
            return Failure(error.TimeoutError(string=f"nobody answers at {where}"))
        case "UNREACHABLE":
            return Failure(error.ConnectionRefusedError(string=f"nothing listens for UDT at {where}"))
        case "REJECTED" | "PEERCLOSED":
            return Failure(error.ConnectionRefusedError(string=f"{where} refuses the connection"))
        case "AUTH":
            no_key = f"{where} has another key, or none"
            return Failure(UdtAuthError(string=no_key))  # type: ignore[no-untyped-call]
        case "OK":
            return Failure(error.ConnectError(string=f"{where}: closed while connecting"))
        case _:
            return Failure(error.ConnectError(string=f"{where}: {error_text(code)}"))
