"""A limit of bytes per second for all connections of a process together."""

from __future__ import annotations

_LEAST_TURN = 16 * 1024


class Throttle:
    """A token bucket: `rate` bytes/s (0 = no limit), and a quarter of a second's worth may come at once.
    Whoever moved bytes says so and is told how long to rest."""

    __slots__ = ("_at", "_level", "_rate")

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._level = rate / 4
        self._at = now

    def took(self, count: int, now: float) -> float:
        """`count` bytes were moved; seconds until the next may be."""
        if not self._rate:
            return 0.0
        self._level = min(self._rate / 4, self._level + (now - self._at) * self._rate) - count
        self._at = now
        return max(0.0, -self._level / self._rate)

    def turn(self, most: int) -> int:
        """Bytes that one connection may move before it says so, `most` without a limit."""
        return min(most, max(_LEAST_TURN, self._rate // 8)) if self._rate else most
