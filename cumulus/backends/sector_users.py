"""Connections to a Sector cloud by user, a bounded number: those least used are ended when others come.

Used in the reactor only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable
from typing import Any, Final, Protocol

from twisted.internet.defer import Deferred, DeferredLock, ensureDeferred, gatherResults

from sector import errors
from sector.clock import Clock

REFUSED_S: Final = 10.0  # a refusal is believed for so long
_REFUSALS: Final = 10_000


class Opener(Protocol):
    """How connections begin and end."""

    def open_as(self, user: str) -> Awaitable[Any]:
        """A connection of that user. Raises `SectorError`; `Denied` when it may not be."""

    def end(self, client: Any) -> Awaitable[None]:
        """Close it, and forget its session. Never raises `SectorError`."""


class _Seat:
    """The connection of one user. `busy` = calls that use it, or wait for it."""

    __slots__ = ("busy", "client", "opening")

    def __init__(self) -> None:
        self.busy = 0
        self.client: Any = None
        self.opening = DeferredLock()


class Refusals:
    """Who was refused a moment ago, so that asking again and again costs the cloud nothing. Bounded: the
    oldest is forgotten. `now` in seconds, monotonic."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, tuple[float, errors.SectorError]] = OrderedDict()

    def check(self, user: str, now: float) -> None:
        """Raises what was said of that user within `REFUSED_S`."""
        at, error = self._held.get(user, (float("-inf"), None))
        if error is not None and now - at < REFUSED_S:
            raise type(error)(error.message, hint=error.hint)

    def note(self, user: str, error: errors.SectorError, now: float) -> None:
        """The user was refused."""
        self._held.pop(user, None)
        self._held[user] = (now, error)
        if len(self._held) > _REFUSALS:
            self._held.popitem(last=False)


class Users:
    """At most `most` connections, those that are being closed among them."""

    def __init__(self, most: int, opener: Opener, clock: Clock) -> None:
        self._most = most
        self._opener = opener
        self._clock = clock
        self._seats: OrderedDict[str, _Seat] = OrderedDict()
        self._ending: set[Deferred[None]] = set()
        self._waiting: list[Deferred[None]] = []
        self.refusals = Refusals()

    def __len__(self) -> int:
        return len(self._seats) + len(self._ending)

    async def take(self, user: str) -> Any:
        """The user's connection, until `give`. Waits while all are in use: the caller's deadline cancels it.
        Raises `SectorError`."""
        self.refusals.check(user, self._clock.seconds())
        while user not in self._seats and len(self) >= self._most:
            self._check_open()
            self._make_room()
            if len(self) >= self._most:
                await self._turn()
        self._check_open()
        seat = self._seats.setdefault(user, _Seat())
        self._seats.move_to_end(user)
        seat.busy += 1
        try:
            await self._open(user, seat)
        except BaseException:
            self.give(user)
            raise
        return seat.client

    async def _open(self, user: str, seat: _Seat) -> None:
        await seat.opening.acquire()
        try:
            if seat.client is None:
                self.refusals.check(user, self._clock.seconds())  # by the one we waited for
                client = await self._opener.open_as(user)
                if not self._most:
                    await self._opener.end(client)
                self._check_open()
                seat.client = client
        finally:
            seat.opening.release()

    def give(self, user: str) -> None:
        """The call is over."""
        seat = self._seats.get(user)
        if seat is None:  # closed
            return
        seat.busy -= 1
        if seat.busy == 0:
            if seat.client is None:
                del self._seats[user]
            self._wake()

    def _check_open(self) -> None:
        if not self._most:
            raise errors.Cancelled("the store is closed")

    def _make_room(self) -> None:
        """End the connection that was not used for longest, if each one that waits has none ending yet."""
        if len(self._ending) > len(self._waiting):
            return
        for user, seat in self._seats.items():
            if seat.busy == 0:
                del self._seats[user]
                self._end(seat.client)
                return

    def _end(self, client: Any) -> Deferred[None]:
        ending: Deferred[None] = ensureDeferred(_awaited(self._opener.end(client)))

        def ended(outcome: Any) -> Any:
            self._ending.discard(ending)
            self._wake()
            return outcome

        self._ending.add(ending)
        return ending.addBoth(ended)

    async def _turn(self) -> None:
        turn: Deferred[None] = Deferred()
        self._waiting.append(turn)
        try:
            await turn
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if not turn.called:
                turn.callback(None)

    async def close(self) -> None:
        """End all connections; no more are taken afterwards."""
        seats, self._seats = list(self._seats.values()), OrderedDict()
        self._most = 0
        for seat in seats:
            if seat.client is not None:
                self._end(seat.client)
        self._wake()
        await gatherResults(list(self._ending), consumeErrors=True)


async def _awaited(work: Awaitable[None]) -> None:
    await work
