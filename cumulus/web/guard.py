"""Who may use the admin page: sessions, and how often somebody may try to log in. Pure: time and chance are
handed in; safe to call from several threads.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from cumulus.fair.networks import network
from cumulus.model import Credential, User

IDLE_S: Final = 15 * 60.0
LONGEST_S: Final = 8 * 3600.0
SESSIONS: Final = 64
SESSIONS_OF_ONE: Final = 8
TOLD: Final = 8  # to one session, of what its pages have not shown
ACCESS_KEY_MOST: Final = 128
SECRET_MOST: Final = 1024

new_token = partial(secrets.token_urlsafe, 32)


@dataclass(slots=True)
class Session:
    """Somebody who is logged in. `csrf` comes with each change; `told` is what `Sessions.tell` was given and
    no page has shown. `key` is a digest of the key and its secret: one of the same name with another secret
    is another key."""

    user_id: str
    access_key: str
    key: bytes = field(repr=False)
    csrf: str = field(repr=False)
    opened_s: float
    used_s: float
    told: list[tuple[str, object]] = field(default_factory=list, repr=False)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


class Sessions:
    """At most SESSIONS, SESSIONS_OF_ONE of one user: those not used for the longest time go first. One ends
    IDLE_S after its last use, LONGEST_S after its start, and with the process. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float], token: Callable[[], str] = new_token) -> None:
        self._clock = clock
        self._token = token
        self._lock = threading.Lock()
        self._open: OrderedDict[bytes, Session] = OrderedDict()  # by digest, the latest used last

    def __len__(self) -> int:
        with self._lock:
            self._drop_over()
            return len(self._open)

    def open(self, found: Credential) -> str:
        """A new session of a key's user; its token, which only the browser keeps."""
        token, now, user_id = self._token(), self._clock(), found.user.id
        with self._lock:
            self._drop_over()
            mine = [key for key, one in self._open.items() if one.user_id == user_id]
            for key in mine[: max(0, len(mine) + 1 - SESSIONS_OF_ONE)]:
                del self._open[key]
            while len(self._open) >= SESSIONS:
                self._open.popitem(last=False)
            self._open[_digest(token)] = Session(
                user_id, found.access_key, _key(found), self._token(), now, now
            )
        return token

    def _drop_over(self) -> None:
        now = self._clock()
        for key, one in list(self._open.items()):
            if now - one.used_s > IDLE_S or now - one.opened_s > LONGEST_S:
                del self._open[key]

    def find(self, token: str) -> Session | None:
        """The session of a token, which counts as used now."""
        key = _digest(token)
        with self._lock:
            self._drop_over()
            found = self._open.get(key)
            if found is not None:
                found.used_s = self._clock()
                self._open.move_to_end(key)
            return found

    def tell(self, session: Session, where: str, what: object) -> None:
        """Keep something for the page at `where`, which alone shows it, once. The oldest goes beyond TOLD."""
        with self._lock:
            session.told.append((where, what))
            del session.told[:-TOLD]

    def hear(self, session: Session, where: str) -> object:
        """The oldest that was told to that page, which is forgotten here; None if there is nothing."""
        with self._lock:
            at = next((number for number, one in enumerate(session.told) if one[0] == where), None)
            return None if at is None else session.told.pop(at)[1]

    def close(self, token: str) -> None:
        """End it; no error when it is over."""
        with self._lock:
            self._open.pop(_digest(token), None)


def _key(found: Credential) -> bytes:
    return _digest(f"{found.access_key} {found.secret}")


def is_of(session: Session, found: Credential | None) -> bool:
    """Whether somebody logged in with that key, of that user."""
    return found is not None and found.user.id == session.user_id and _key(found) == session.key


def fits(session: Session, csrf: str) -> bool:
    """Whether a form came from a page that this session was given. In constant time."""
    return hmac.compare_digest(_digest(session.csrf), _digest(csrf))


class _Bucket:
    """Tries that are left; one more each `every_s`, up to `burst`."""

    __slots__ = ("_at", "_burst", "_every_s", "left")

    def __init__(self, burst: int, every_s: float, now: float) -> None:
        self._burst, self._every_s, self._at = burst, every_s, now
        self.left = float(burst)

    def wait_s(self, now: float) -> float:
        """Seconds until there is one; 0 now."""
        self.left = min(self._burst, self.left + (now - self._at) / self._every_s)
        self._at = now
        return 0.0 if self.left >= 1 else (1 - self.left) * self._every_s


class Attempts:
    """Bounds how often somebody may try to log in: EACH tries from one network (an IPv4 address, the first 64
    bits of an IPv6 one), then one more each EACH_EVERY_S; ALL from everywhere, then one more each
    ALL_EVERY_S. A try that succeeds does not count."""

    EACH: Final = 10
    EACH_EVERY_S: Final = 10.0
    ALL: Final = 60
    ALL_EVERY_S: Final = 1.0
    KNOWN: Final = 1024

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._all = _Bucket(self.ALL, self.ALL_EVERY_S, clock())
        self._each: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, address: str) -> float:
        """Count a try. Seconds to wait if there is none left, else 0."""
        now, name = self._clock(), network(address)
        with self._lock:
            mine = self._each.pop(name, None) or _Bucket(self.EACH, self.EACH_EVERY_S, now)
            self._each[name] = mine
            if len(self._each) > self.KNOWN:
                self._each.popitem(last=False)
            wait = max(mine.wait_s(now), self._all.wait_s(now))
            if not wait:
                mine.left -= 1
                self._all.left -= 1
            return wait

    def give_back(self, address: str) -> None:
        """The try succeeded."""
        with self._lock:
            self._all.left += 1
            if name := self._each.get(network(address)):
                name.left += 1


def may_administer(found: Credential | None, now_ns: int) -> User | None:
    """The user of a key, if the key is good and he is an administrator who is let in."""
    if found is None or found.user.disabled or not found.user.admin:
        return None
    return None if 0 < found.expires_ns <= now_ns else found.user


def check_login(found: Credential | None, secret: str, now_ns: int) -> User | None:
    """The administrator whose key this is. The secret is compared in constant time, also where there is no
    such key."""
    expected = found.secret if found is not None else new_token()
    same = hmac.compare_digest(_digest(secret), _digest(expected))
    return may_administer(found, now_ns) if same else None
