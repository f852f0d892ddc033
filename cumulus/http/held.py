"""Replies that are whole in memory until their clients have taken them: how much of it there may be.

A list of objects is a megabyte, and who has asked for it need not read it. Bodies that come in pieces wait
for their clients; what is made whole waits here.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final

from twisted.logger import Logger

log = Logger()

MOST: Final = 64 << 20  # bytes of them in a process
SMALL: Final = 64 << 10  # up to here they do not count: each connection has a buffer of that size
SLOW_S: Final = 5.0  # over which it is measured how quickly a client takes its reply
LEAST: Final = 16 << 10  # bytes a second


class _Pace:
    """How quickly one takes it: `rate` in the last SLOW_S, inf when that is not known yet."""

    __slots__ = ("at", "rate", "taken")

    def __init__(self, at: float, taken: int) -> None:
        self.at = at
        self.taken = taken
        self.rate = inf

    def look(self, now: float, taken: int) -> None:
        passed = now - self.at
        if passed >= SLOW_S:
            self.rate = (taken - self.taken) / passed
            self.at, self.taken = now, taken


class Held:
    """What waits for whom. A channel has `taken` (bytes that its client has taken in all) and `abort`; `now`
    gives seconds."""

    def __init__(self, now: Callable[[], float], most: int = MOST) -> None:
        self._now = now
        self._most = most
        self._waiting: dict[Any, int] = {}
        self._paces: dict[Any, _Pace] = {}  # of those whose clients' turn it is
        self.total = 0

    def take(self, channel: Any, count: int) -> bool:
        """A reply of so many bytes is to be kept; False: there is no room for it. If need be those make room
        who take next to nothing of theirs: their connections end, the slowest first."""
        if count <= SMALL:
            return True
        while self.total and self.total + count > self._most:
            slow = self._slowest()
            if slow is None:
                return False
            log.info("the connection of {peer} is ended: others wait for its memory", peer=slow.peer)
            self.free(slow)
            slow.abort()
        self.free(channel)
        self._waiting[channel] = count
        self.total += count
        return True

    def given(self, channel: Any) -> None:
        """It is the client's turn now."""
        if channel in self._waiting:
            self._paces[channel] = _Pace(self._now(), channel.taken)

    def free(self, channel: Any) -> None:
        """It has been taken, or is not wanted any more."""
        self.total -= self._waiting.pop(channel, 0)
        self._paces.pop(channel, None)

    def look(self) -> None:
        """To be called about once a second."""
        now = self._now()
        for channel, pace in self._paces.items():
            pace.look(now, channel.taken)

    def _slowest(self) -> Any:
        self.look()
        found = min(self._paces, key=lambda one: self._paces[one].rate, default=None)
        return None if found is None or self._paces[found].rate >= LEAST else found
