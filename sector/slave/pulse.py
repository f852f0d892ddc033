"""The room on a slave's disk, for its heartbeats: a disk that is slow for a while is no slave that is lost.

It is measured in the disk pool, behind whatever waits there. A heartbeat waits for it a second, then says
what was measured last; when the pool has given no answer for long, the disk hangs, and the heartbeat too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from sector.clock import Clock, pause
from sector.errors import SectorError
from sector.slave.disk import Disk
from sector.slave.pool import Pool

log = Logger()
WAIT_S = 1.0
HUNG_S = 30.0


class Pulse:
    """Of one slave, which asks one at a time."""

    def __init__(self, disk: Disk, pool: Pool, clock: Clock) -> None:
        self._disk = disk
        self._pool = pool
        self._clock = clock
        self._known: tuple[int, int] | None = None
        self._since = 0.0
        self._asking = False
        self._turn: Deferred[None] = Deferred()

    async def space(self) -> tuple[int, int]:
        """(free, used) bytes. Raises what the first measuring does."""
        turn = self._turn = Deferred()
        if not self._asking:
            self._asking, self._since = True, self._clock.seconds()
            self._pool.run(self._disk.space_thd).addCallbacks(self._told, self._failed)
        hung = self._clock.seconds() - self._since >= HUNG_S
        if self._known is None or hung:
            await turn
        elif not turn.called:
            timer = self._clock.callLater(WAIT_S, self._go_on, turn)
            try:
                await turn
            finally:
                if timer.active():
                    timer.cancel()
        assert self._known is not None
        return self._known

    def _told(self, found: tuple[int, int]) -> None:
        self._known, self._asking = found, False
        self._go_on(self._turn)

    def _failed(self, failure: Failure) -> None:
        self._asking = False
        if self._known is None and not self._turn.called:
            self._turn.errback(failure)
        else:
            self._go_on(self._turn)

    @staticmethod
    def _go_on(turn: Deferred[None]) -> None:
        if not turn.called:
            turn.callback(None)


async def beating(
    clock: Clock, every_s: float, beat: Callable[[], Awaitable[Any]], work: Awaitable[None]
) -> None:
    """Do `work`, with heartbeats meanwhile: a report of a million files takes minutes, and a slave that is
    silent for ten seconds is taken for lost, with all that it holds. A heartbeat without an answer is no
    matter: what `work` asks gets none either. Raises what `work` does."""

    async def beats() -> None:
        while True:
            await pause(clock, every_s)
            try:
                await beat()
            except SectorError as error:
                log.debug("a heartbeat was lost: {why}", why=error.message)

    going = ensureDeferred(beats())
    going.addErrback(lambda failure: failure.trap(CancelledError))
    try:
        await work
    finally:
        going.cancel()
