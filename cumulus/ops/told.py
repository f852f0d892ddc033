"""What storage has done, the index must hear of.

When the database is away for a moment, a request that has changed storage waits for it, so that its answer
is true. When it stays away, the change is kept until it can be told, the request is answered 503, and no
further upload is begun before that: so what is kept is little more than what was under way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from cumulus.index.api import Away, Change, Index, IndexFailure

log: Final = logging.getLogger(__name__)
PATIENCE_S: Final = 5.0  # for which a request waits
STUCK_S: Final = 5.0  # an attempt that takes so long, in a database that answers, was the only one
PAUSE_S: Final = 0.1
MOST: Final = 10_000  # removals that are kept


class Owed(Away):
    """Storage has done it; the database will be told when it is back."""


class Told:
    """For one index; all threads may use it."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._owed: deque[Sequence[Change]] = deque()
        self._lock = threading.Lock()
        self._settling = threading.Lock()
        self._waiting = 0
        self._closing = threading.Event()

    def __len__(self) -> int:
        return len(self._owed)

    def check(self) -> None:
        """Before something is written. Raises `Away` while the index does not hear of what was."""
        if self._waiting or self._owed:
            raise Away("the database has not heard of earlier changes yet")

    def check_removal(self) -> None:
        """The same before something is removed, which may be what helps. Raises `Away`."""
        if len(self._owed) >= MOST:
            raise Away("the database has not heard of very many changes yet")

    def apply(self, changes: Sequence[Change]) -> None:
        """As `Index.apply`. Raises `Owed` when the database stays away."""
        self.tell(lambda: self._index.apply(changes), changes)

    def tell(self, call: Callable[[], None], changes: Sequence[Change]) -> None:
        """`call`, which makes the index know of `changes`, is done until it succeeds. Raises as `apply`, and
        what it raises else."""
        began = time.monotonic()
        try:
            call()
            return
        except Away as bad:
            if time.monotonic() - began >= STUCK_S:
                self._owe(changes, bad)
            with self._lock:
                self._waiting += 1
        try:
            self._again(call, changes)
        finally:
            with self._lock:
                self._waiting -= 1

    def _owe(self, changes: Sequence[Change], why: Away) -> NoReturn:
        with self._lock:
            self._owed.append(changes)
        raise Owed(str(why)) from why

    def _again(self, call: Callable[[], None], changes: Sequence[Change]) -> None:
        end = time.monotonic() + PATIENCE_S
        while True:
            last = self._closing.wait(PAUSE_S) or time.monotonic() >= end
            try:
                call()
                return
            except Away as bad:
                if last:
                    self._owe(changes, bad)

    def settle(self) -> None:
        """Tell what is owed. Raises `Away`, also when something is just being told again."""
        with self._settling:
            while self._owed:
                try:
                    self._index.apply(self._owed[0])
                except Away:
                    raise
                except IndexFailure as bad:
                    log.error("the database refuses what storage has done; a scan finds it: %s", bad)
                self._owed.popleft()
        if self._waiting:
            raise Away("the database has not heard of some changes yet")

    def close(self) -> None:
        """Wait no more."""
        self._closing.set()
