"""Requests that another server of the site has passed on: who the client is comes from a proven header."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from cumulus.auth import hop
from cumulus.errors import S3Error
from cumulus.rest.call import Call, Headers
from cumulus.secrets import Keyring
from sector.errors import SectorError

_AGAIN_S: Final = 1.0  # between two looks into the file of keys for a key that is not known


class Hops:
    """Checks and makes `cumulus.auth.hop.HEADER` with keys that are derived from `secret.key`. `point`: this
    server serves nothing itself, so that nothing may be passed on to it."""

    def __init__(self, path: Path, *, point: bool = False) -> None:
        """Raises `BadConfig`, `LocalIO` for the file of keys."""
        self._ring = Keyring(path)
        self._point = point
        self._lock = threading.Lock()
        self._looked = time.monotonic()

    def keys(self) -> list[bytes]:
        """For the header, the newest first."""
        return self._ring.derived(hop.PURPOSE)

    def accept(self, call: Call, now_s: int) -> None:
        """Give a call that has the header the id and the client's address of the server that passed it on,
        and take the header away: refusals show a client all that he names as signed. Raises `S3Error`
        AccessDenied for a header that is not proven, ServiceUnavailable at a point."""
        if hop.HEADER not in call.headers:
            return
        found = hop.origin(call, self.keys(), now_s)
        if found is None and self._look_again():
            found = hop.origin(call, self.keys(), now_s)
        if found is None:
            raise S3Error("AccessDenied", f"{hop.HEADER} was not made with a key of this site's secret.key.")
        if self._point:
            message = "This server only passes requests on; it must not be among those to which others do."
            raise S3Error("ServiceUnavailable", message, headers=[("Retry-After", "5")])
        call.id, call.peer, call.secure = found.id, found.peer, found.secure
        call.headers = Headers(pair for pair in call.headers.pairs if pair[0] != hop.HEADER)

    def _look_again(self) -> bool:
        """Read the file again, where a key may have been added; not too often."""
        with self._lock:
            if time.monotonic() - self._looked < _AGAIN_S:
                return False
            self._looked = time.monotonic()
            with suppress(SectorError):  # then the keys stay as they were
                self._ring.load()
            return True
