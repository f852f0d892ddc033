"""What a slave logs of transfers that go over TLS: a line for each reason now and then, not for each file."""

from __future__ import annotations

from twisted.logger import Logger

from sector._udt.paths import Way
from sector.clock import Clock

log = Logger()
_TELL_S = 300.0
"""Seconds between two warnings that transfers with a peer go over TLS."""


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
