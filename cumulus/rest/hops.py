"""Requests that another server of the site has passed on: who the client is comes from a proven header."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final

from cumulus.auth import hop
from cumulus.errors import S3Error
from cumulus.rest.call import Call, Headers
from cumulus.secrets import Keyring
from sector.errors import SectorError

_AGAIN_S: Final = 1.0  # between two looks at the file of keys, and into it for a key that is not known
# a key that has left the file is good for so long: others sign with it until they have looked (`look`), and
# NFS shows some a file as it was up to a minute ago
KEPT_S: Final = 120.0


class Hops:
    """Checks and makes `cumulus.auth.hop.HEADER` with keys that are derived from `secret.key`. `point`: this
    server serves nothing itself, so that nothing may be passed on to it."""

    def __init__(self, path: Path, *, point: bool = False) -> None:
        """Raises `BadConfig`, `LocalIO` for the file of keys."""
        self._path = path
        self._seen = self._state()
        self._ring = Keyring(path)
        self._left: dict[bytes, float] = {}  # keys that have left the file: until when they are good
        self._point = point
        self._lock = threading.Lock()
        self._looked = self._asked = time.monotonic()  # into the file, and whether it has changed

    def keys(self) -> list[bytes]:
        """For the header, the newest first."""
        return self._ring.derived(hop.PURPOSE)

    def look(self) -> None:
        """Read the file again if it has changed. Who passes requests on does so often, in a thread, and
        `accept`."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            since_s, self._asked = time.monotonic() - self._asked, time.monotonic()
            state = self._state()
            if state != self._seen and self._load(state, since_s):
                self._seen = state
        finally:
            self._lock.release()

    def _accepted(self) -> list[bytes]:
        now = time.monotonic()
        return [*self.keys(), *(key for key, until in self._left.items() if until > now)]

    def accept(self, call: Call, now_s: int) -> None:
        """Give a call that has the header the id and the client's address of the server that passed it on,
        and take the header away: refusals show a client all that he names as signed. Raises `S3Error`
        AccessDenied for a header that is not proven, ServiceUnavailable at a point. In a thread, if there is
        a header."""
        if hop.HEADER not in call.headers:
            return
        if time.monotonic() - self._asked >= _AGAIN_S:
            self.look()  # a key that has left the file would go on to prove headers
        found = hop.origin(call, self._accepted(), now_s)
        if found is None and self._look_again():
            found = hop.origin(call, self._accepted(), now_s)
        if found is None:
            raise S3Error("AccessDenied", f"{hop.HEADER} was not made with a key of this site's secret.key.")
        if self._point:
            message = "This server only passes requests on; it must not be among those to which others do."
            raise S3Error("ServiceUnavailable", message, headers=[("Retry-After", "5")])
        call.id, call.peer, call.secure = found.id, found.peer, found.secure
        call.headers = Headers(pair for pair in call.headers.pairs if pair[0] != hop.HEADER)

    def _look_again(self) -> bool:
        """Read the file again, where a key may have been added; not too often. NFS shows what is new in a
        file that is opened before it shows that it has changed."""
        with self._lock:
            if time.monotonic() - self._looked < _AGAIN_S:
                return False
            self._looked = time.monotonic()
            state = self._state()
            if self._load(state, self._looked - self._asked):
                self._seen = state
            return True

    def _load(self, state: tuple[int, ...], since_s: float) -> bool:
        """With the lock held; `since_s`: seconds since the look before. False when the file cannot be used:
        then the keys stay as they were. What has left the file did so when it was changed, which may be long
        ago where no header has come since."""
        before = self.keys()
        try:
            self._ring.load()
        except SectorError:
            return False
        now, there = time.monotonic(), self.keys()
        age_s = min(since_s, max(0.0, time.time() - max(state[-2:], default=0) / 1e9))
        gone = dict.fromkeys(before, now + KEPT_S - age_s) | self._left
        self._left = {key: until for key, until in gone.items() if until > now and key not in there}
        return True

    def _state(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
