"""What a slave tells now and then, not each time: transfers that go over TLS, datagrams that it refused."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
from twisted.logger import Logger

from sector import errors
from sector._udt.paths import Way
from sector.clock import Clock
from sector.refusals import Counts, Watch
from sector.wire.base import encode
from sector.wire.slave import Heartbeat, Refused

log = Logger()
BEAT_MAX = 256 - 24  # of a CONTROL message, without the head of a call
_TELL_S = 300.0
"""Seconds between two warnings that transfers with a peer go over TLS."""


def fitting(beat: Heartbeat) -> Heartbeat:
    """A heartbeat that a CONTROL message holds: what is only for people is left out where a long name and the
    large numbers of a slave that has moved much leave no room for it."""
    if len(encode(beat)) <= BEAT_MAX:
        return beat
    return msgspec.structs.replace(beat, counters={}, traffic=[])


class TlsTold:
    """Called with the way of each transfer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: dict[str, float] = {}

    def __call__(self, way: Way, line: str) -> None:
        if not way.tls:
            return
        line = line or "a peer came over TLS: its UDP does not get through"
        now = self._clock.seconds()
        fresh = now >= self._told.get(line, now)
        if fresh:  # one a peer and reason, however many files go that way
            self._told = {text: end for text, end in self._told.items() if now < end}
            self._told[line] = now + _TELL_S
        level = log.warn if fresh else log.debug
        level("{line}", line=line, path="tls")


class RefusedTold:
    """The master has the audit log; it hears of counts that changed and of sources worth a line."""

    def __init__(self, slave_id: str, clock: Clock) -> None:
        self._slave_id = slave_id
        self._clock = clock
        self._watch = Watch()
        self._told: Counts = (0, 0, 0)

    async def tell(
        self, found: Sequence[tuple[str, Counts]], master_call: Callable[..., Coroutine[Any, Any, Any]]
    ) -> None:
        """`found`: (source, counts) of all ports; the sums have the source ""."""
        sums = [counts for host, counts in found if not host]
        counts: Counts = (sum(c[0] for c in sums), sum(c[1] for c in sums), sum(c[2] for c in sums))
        lines = self._watch.look(((host, c) for host, c in found if host), self._clock.seconds())
        for line in lines:
            log.warn("refused: {line}", line=line)
        if counts == self._told and not lines:
            return
        try:
            await master_call(Refused(self._slave_id, counts, lines))
            self._told = counts
        except errors.SectorError as error:
            log.debug("the master was not told of refused datagrams: {why}", why=error.message)
