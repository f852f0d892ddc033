"""Limits of users and addresses: requests a second, bytes a second, connections. Token buckets whose rate is
split among the processes of a server by the connections that each has of that user or address.

`Seat` is a connection as sharing sees it: from which address, whose, with which weight.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cumulus.errors import S3Error
from cumulus.fair.board import Board, Places, places
from cumulus.fair.networks import network
from cumulus.fair.weights import Sharing
from cumulus.model import User

MOST: Final = 20_000  # buckets in a process; the one unused for longest gives way
LEAST_TURN: Final = 4 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one kind of key (users, or addresses), 0 = none. `requests` and `rate` (bytes, both ways together)
    are for one second; what was not used for up to `burst_s` seconds may come at once."""

    requests: float = 0.0
    rate: int = 0
    connections: int = 0
    burst_s: float = 5.0

    def __bool__(self) -> bool:
        return bool(self.requests or self.rate or self.connections)


class Bucket:
    """Tokens of one key; the level may fall below zero, which is then waited for."""

    __slots__ = ("at", "level")

    def __init__(self, level: float, now: float) -> None:
        self.level = level
        self.at = now

    def fill(self, rate: float, burst: float, now: float) -> float:
        """What is there now."""
        self.level = min(burst, self.level + max(0.0, now - self.at) * rate)
        self.at = now
        return self.level


class Buckets:
    """A bucket for each key that is in use; safe for several threads."""

    def __init__(self, burst_s: float) -> None:
        self._burst_s = burst_s
        self._kept: OrderedDict[str, Bucket] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def _bucket(self, key: str, burst: float, now: float) -> Bucket:
        bucket = self._kept.get(key)
        if bucket is None:
            if len(self._kept) >= MOST:
                self._kept.popitem(last=False)
            bucket = self._kept[key] = Bucket(burst, now)
        else:
            self._kept.move_to_end(key)
        return bucket

    def ask(self, key: str, rate: float, now: float) -> float:
        """One token: 0.0 when it was there and is taken, else seconds until it will be."""
        burst = max(1.0, rate * self._burst_s)
        with self._lock:
            bucket = self._bucket(key, burst, now)
            level = bucket.fill(rate, burst, now)
            if level >= 1.0:
                bucket.level -= 1.0
                return 0.0
            return (1.0 - level) / rate

    def took(self, key: str, count: float, rate: float, now: float) -> float:
        """`count` tokens are gone; seconds until the level is no debt any more."""
        burst = rate * self._burst_s
        with self._lock:
            bucket = self._bucket(key, burst, now)
            bucket.level = bucket.fill(rate, burst, now) - count
            return max(0.0, -bucket.level / rate)


class Limiter:
    """The limits of one kind of key in this process. `kind` is the word for refusals."""

    def __init__(self, kind: str, limits: Limits, board: Board, clock: Callable[[], float]) -> None:
        self.kind = kind
        self.limits = limits
        self._board = board
        self.clock = clock
        self._requests = Buckets(limits.burst_s)
        self._bytes = Buckets(limits.burst_s)
        self._lock = threading.Lock()
        self.refused_requests = 0
        self.refused_connections = 0

    def _share(self, where: Places) -> float:
        """Which part of a limit is this process's: by connections, of which at least one is here."""
        mine, all_of_them = self._board.mine(where), self._board.count(where)
        return 1.0 if mine >= all_of_them else max(1, mine) / max(1, all_of_them)

    def enter(self, where: Places) -> bool:
        """A connection is that key's from now on; False, and nothing happens, when it has enough."""
        with self._lock:
            if self.limits.connections and self._board.count(where) >= self.limits.connections:
                self.refused_connections += 1
                return False
            self._board.add(where, 1)
            return True

    def leave(self, where: Places) -> None:
        """It is not any more."""
        with self._lock:
            self._board.add(where, -1)

    def request(self, key: str, where: Places) -> float:
        """A request comes: 0.0, or seconds after which to come again."""
        if not self.limits.requests:
            return 0.0
        wait_s = self._requests.ask(key, self.limits.requests * self._share(where), self.clock())
        if wait_s:
            with self._lock:
                self.refused_requests += 1
        return wait_s

    def took(self, key: str, where: Places, count: int) -> float:
        """`count` bytes were moved; seconds to rest."""
        if not self.limits.rate:
            return 0.0
        return self._bytes.took(key, count, self.limits.rate * self._share(where), self.clock())

    def turn(self, most: int) -> int:
        """Bytes to move at a time, so that rests are short."""
        return min(most, max(LEAST_TURN, self.limits.rate // 8)) if self.limits.rate else most


def slow_down(wait_s: float, message: str) -> S3Error:
    """503 with the time after which to come again."""
    after = str(max(1, math.ceil(min(wait_s, 3600.0))))
    return S3Error("SlowDown", message, headers=[("retry-after", after)])


class Seat:
    """One connection: its address and, once a request was authenticated, whose it is. `owner` names who is
    charged for it, with `weight`. Bytes are the user's only in requests that were found to be his: others may
    send theirs over the same connection."""

    __slots__ = (
        "_addresses",
        "_due",
        "_gone",
        "_known",
        "_lock",
        "_owed",
        "_sharing",
        "_there",
        "_user",
        "_users",
        "owner",
        "weight",
    )

    def __init__(self, peer: str, addresses: Limiter, users: Limiter, sharing: Sharing) -> None:
        self._addresses = addresses
        self._users = users
        self._sharing = sharing
        where = network(peer)
        self._there: tuple[str, Places] = (where, places(f"address {where}"))
        self._user: tuple[str, Places] | None = None
        self._known = False  # whether the request under way is that user's
        self._owed = 0  # its bytes that are here and no user's yet
        self._due = 0.0  # when they are no debt of his any more
        self._gone = False
        self._lock = threading.Lock()
        self.owner, self.weight = sharing.of(None, where)

    @property
    def who(self) -> str:
        """Whose the request under way is: a user's, else that of somebody at the address."""
        mine = self._user if self._known else None
        return f"address {self._there[0]}" if mine is None else f"user {mine[0]}"

    def take(self) -> bool:
        """The connection is made; False when its address has as many as it may (then do not `leave`)."""
        return self._addresses.enter(self._there[1])

    def leave(self) -> None:
        """It is gone."""
        with self._lock:
            self._gone = True
            user, self._user = self._user, None
        self._addresses.leave(self._there[1])
        if user is not None:
            self._users.leave(user[1])

    def knock(self) -> None:
        """A request's head is there, nobody knows whose. Raises `S3Error` SlowDown."""
        self._known = False
        self._owed, self._due = 0, 0.0
        wait_s = self._addresses.request(*self._there)
        if wait_s:
            raise slow_down(wait_s, "There are too many requests from your address.")

    def admit(self, user: User | None) -> None:
        """A request is `user`'s (None: nobody's), and what `came` of it; called from threads. He is charged
        though the connection may be gone. Raises `S3Error` SlowDown."""
        if user is None:
            self._own(None)
            return
        self._own(user)
        mine, self._known = self._user or (user.id, places(f"user {user.id}")), True
        if self._owed:
            rest, self._owed = self._users.took(*mine, self._owed), 0
            self._due = self._users.clock() + rest if rest else 0.0
        wait_s = self._users.request(*mine)
        if wait_s:
            raise slow_down(wait_s, "You send too many requests.")

    def _own(self, user: User | None) -> None:
        with self._lock:
            self.owner, self.weight = self._sharing.of(user, self._there[0])
            if self._gone:
                return
            before = self._user
            if (before[0] if before else None) == (user.id if user else None):
                return
            if before is not None:
                self._user = None
                self._users.leave(before[1])
            if user is not None:
                where = places(f"user {user.id}")
                if not self._users.enter(where):
                    raise slow_down(1.0, "You have as many connections as you may.")
                self._user = (user.id, where)

    def took(self, count: int) -> float:
        """`count` bytes of bodies were moved; seconds to rest by the limits of the address and the user."""
        mine = self._user if self._known else None
        rest = 0.0 if mine is None else self._users.took(*mine, count)
        return max(rest, self._addresses.took(*self._there, count))

    def came(self, count: int) -> float:
        """`count` bytes are here before it is known whose they are, which `admit` will tell; seconds to rest
        by the limit of the address."""
        self._owed += count
        return self._addresses.took(*self._there, count)

    def rest(self) -> float:
        """Seconds to rest by the limit of the user for what `came`."""
        return max(0.0, self._due - self._users.clock()) if self._due else 0.0

    def turn(self, most: int) -> int:
        """Bytes to move at a time."""
        return min(self._addresses.turn(most), self._users.turn(most))
