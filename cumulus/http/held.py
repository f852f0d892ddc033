"""Replies that are whole in memory until their clients have taken them: how much of it there may be, and who
makes room.

A list of objects is a megabyte, and who has asked for it need not read it. Bodies that come in pieces wait
for their clients; what is made whole waits here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any, Final

from twisted.logger import Logger

log = Logger()

MOST: Final = 64 << 20  # bytes of them in a process
SMALL: Final = 64 << 10  # up to here they do not count: each connection has a buffer of that size
SLOW_S: Final = 5.0  # over which it is measured how quickly a client takes its reply
LEAST: Final = 16 << 10  # bytes a second


class _Reply:
    """One of them, and how quickly it is taken: `rate` in the last SLOW_S, inf when that is not known yet."""

    __slots__ = ("at", "channel", "count", "owner", "rate", "taken")

    def __init__(self, channel: Any, owner: str, count: int) -> None:
        self.channel = channel
        self.owner = owner
        self.count = count
        self.at = inf  # until it is the client's turn
        self.taken = 0
        self.rate = inf

    def given(self, now: float) -> None:
        self.at, self.taken, self.rate = now, self.channel.taken, inf

    def look(self, now: float) -> None:
        passed = now - self.at
        if passed >= SLOW_S:
            taken = self.channel.taken
            self.rate = (taken - self.taken) / passed
            self.at, self.taken = now, taken


class _Share:
    """What one owner has, the oldest first."""

    __slots__ = ("replies", "total")

    def __init__(self) -> None:
        self.replies: dict[_Reply, None] = {}
        self.total = 0


class Held:
    """What waits for whom. A channel has an `owner` (the user, or the address, whose request it answers),
    `taken` (bytes that its client has taken in all) and `abort`; `now` gives seconds."""

    def __init__(self, now: Callable[[], float], most: int = MOST) -> None:
        self._now = now
        self._most = most
        self._waiting: dict[Any, _Reply] = {}  # at most `most` / SMALL, and so few shares
        self._shares: dict[str, _Share] = {}
        self.total = 0

    def take(self, channel: Any, count: int) -> bool:
        """A reply of so many bytes is to be kept; False: there is no room for it. If need be those make room
        who have more (decision 0297): their connections end."""
        if count <= SMALL:
            return True
        self.free(channel)
        owner = channel.owner
        if self.total + count > self._most:
            leaving = self._who_leaves(owner, count)
            if leaving is None:
                return False
            for one in leaving:
                log.info("the connection of {peer} is ended: others wait for its memory", peer=one.peer)
                self.free(one)
                one.abort()
        reply = self._waiting[channel] = _Reply(channel, owner, count)
        share = self._shares.setdefault(owner, _Share())
        share.replies[reply] = None
        share.total += count
        self.total += count
        return True

    def given(self, channel: Any) -> None:
        """It is the client's turn now."""
        reply = self._waiting.get(channel)
        if reply is not None:
            reply.given(self._now())

    def free(self, channel: Any) -> None:
        """It has been taken, or is not wanted any more."""
        reply = self._waiting.pop(channel, None)
        if reply is None:
            return
        share = self._shares[reply.owner]
        del share.replies[reply]
        share.total -= reply.count
        if not share.replies:
            del self._shares[reply.owner]
        self.total -= reply.count

    def look(self) -> None:
        """To be called about once a second."""
        now = self._now()
        for reply in self._waiting.values():
            reply.look(now)

    def _who_leaves(self, owner: str, count: int) -> list[Any] | None:
        """Whose connections end for it; None: they would not be enough. First the owner's own that are slow;
        then, where somebody has more than the owner would, the greediest's, the slow ones and then the
        largest. Else the slow ones of those who have as much; for an owner's first reply, all slow ones."""
        need = min(self.total, self.total + count - self._most)  # one alone always has room
        if need <= 0:
            return []
        own = self._shares.get(owner)
        his = count if own is None else own.total + count
        greediest = max(self._shares.values(), key=lambda one: one.total)
        asked = [] if own is None else self._slow([own])
        if greediest.total > his:
            asked += self._sorted([greediest])
        else:
            asked += self._slow(
                one for one in self._shares.values() if own is None or (one is not own and one.total >= his)
            )
        leaving: list[Any] = []
        for reply in asked:
            if need <= 0:
                break
            leaving.append(reply.channel)
            need -= reply.count
        return leaving if need <= 0 else None

    def _slow(self, shares: Iterable[_Share]) -> list[_Reply]:
        return [reply for reply in self._sorted(shares) if reply.rate < LEAST]

    def _sorted(self, shares: Iterable[_Share]) -> list[_Reply]:
        now = self._now()
        found = [reply for share in shares for reply in share.replies]
        for reply in found:
            reply.look(now)
        return sorted(found, key=lambda one: (one.rate, -one.count))
