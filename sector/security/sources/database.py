"""Passwords of the built-in user table: Argon2id at a bounded cost (spec/security.md, TLS channels).

At most two checks run at once, a bounded number waits, the rest hear `busy`. An unknown name costs the
same time as a known one with a wrong password.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from sector.errors import Busy
from sector.security.core import UserRecord


class HashPool:
    """Runs costly functions on `threads` threads; `waiting` more may wait. A caller that goes away (its
    Deferred is cancelled) gives up its place. `threads` None: run at once (tests)."""

    def __init__(self, reactor: Any, threads: int, waiting: int) -> None:
        self._reactor = reactor
        self._most = threads
        self._waiting = waiting
        self._running = 0
        self._queue: deque[tuple[Deferred[Any], Callable[..., Any], tuple[Any, ...]]] = deque()
        self._pool = ThreadPool(threads, threads, name="argon2")

    def start(self) -> None:
        """Start the threads."""
        self._pool.start()

    def stop(self) -> None:
        """Refuse what waits, finish what runs."""
        while self._queue:
            self._queue.popleft()[0].errback(Busy("the security server stops"))
        if self._pool.started:
            self._pool.stop()

    def run(self, function_thd: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """The result of `function_thd(*args)`. Errbacks with `Busy` when too many wait."""
        result: Deferred[Any] = Deferred(self._forget)
        if self._running >= self._most and len(self._queue) >= self._waiting:
            result.errback(Busy("too many logins at once", hint="try again in a few seconds"))
            return result
        self._queue.append((result, function_thd, args))
        self._next()
        return result

    def _forget(self, result: Deferred[Any]) -> None:
        self._queue = deque(item for item in self._queue if item[0] is not result)

    def _next(self) -> None:
        while self._queue and self._running < self._most:
            result, function_thd, args = self._queue.popleft()
            self._running += 1
            work = deferToThreadPool(self._reactor, self._pool, function_thd, *args)
            work.addBoth(self._finished, result)

    def _finished(self, outcome: Any, result: Deferred[Any]) -> None:
        self._running -= 1
        if not result.called:
            if isinstance(outcome, Failure):
                result.errback(outcome)
            else:
                result.callback(outcome)
        self._next()


class Passwords:
    """Hashing and checking on a `HashPool`. `mib` memory and `passes` of one check."""

    def __init__(self, pool: HashPool, *, mib: int = 64, passes: int = 3) -> None:
        self._pool = pool
        self._hasher = PasswordHasher(time_cost=passes, memory_cost=mib * 1024, parallelism=1)
        self._dummy = ""

    def hash_thd(self, password: str) -> str:
        """The PHC string of a password; runs a few hundred milliseconds."""
        return self._hasher.hash(password)

    def _check_thd(self, stored: str | None, password: str) -> tuple[bool, str]:
        if not self._dummy:
            self._dummy = self._hasher.hash(os.urandom(16))
        try:
            good = self._hasher.verify(stored if stored is not None else self._dummy, password)
        except (VerificationError, InvalidHashError):
            return False, ""
        if stored is None:
            return False, ""
        renewed = self._hasher.hash(password) if self._hasher.check_needs_rehash(stored) else ""
        return good, renewed

    def prepare_thd(self) -> None:
        """Make the hash that unknown names are checked against."""
        self._dummy = self._hasher.hash(os.urandom(16))

    def hash(self, password: str) -> Deferred[str]:
        """The PHC string of a new password. Errbacks with `Busy`."""
        return self._pool.run(self.hash_thd, password)

    def check(self, user: UserRecord | None, password: str) -> Deferred[tuple[bool, str]]:
        """(right password, new PHC string when the stored one has other costs, else ""). `user` None takes
        the same time and is never right. Errbacks with `Busy`."""
        return self._pool.run(self._check_thd, None if user is None else user.password_hash, password)
