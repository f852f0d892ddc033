"""The clock and scheduler that services take as an argument; a reactor that is `steady` or a task.Clock fits.

The wall clock says what time it is, and may be set; this one only ever goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import Deferred

R = TypeVar("R")


class Timer(Protocol):
    """A pending call."""

    def active(self) -> bool:
        """Whether it is still to run."""

    def cancel(self) -> None:
        """Do not run it."""

    def reset(self, secondsFromNow: float) -> None:
        """Run it that much later from now instead."""


class Clock(Protocol):
    """Monotonic seconds and delayed calls."""

    def seconds(self) -> float:
        """Seconds since an arbitrary origin."""

    def callLater(self, delay: float, callable: Callable[..., Any], *args: Any, **kwargs: Any) -> Timer:
        """Run `callable` after `delay` seconds."""


def pause(clock: Clock, seconds: float) -> Deferred[None]:
    """Fires after `seconds`; can be cancelled."""
    waiting: Deferred[None] = Deferred(lambda _: timer.cancel() if timer.active() else None)
    timer = clock.callLater(seconds, waiting.callback, None)
    return waiting


def steady(reactor: R) -> R:
    """Let a reactor that does not run yet keep time by CLOCK_MONOTONIC; returns it.

    Twisted's `seconds()` is the wall clock. When that is set an hour ahead every time-out is over at once
    (a master lost all its slaves), and when it is set back nothing times out for an hour. What was scheduled
    before keeps its time left."""
    running: Any = reactor
    waiting = [(call, call.getTime() - running.seconds()) for call in running.getDelayedCalls()]
    running.seconds = time.monotonic
    for call, left in waiting:
        call.seconds = time.monotonic
        call.reset(max(0.0, left))
    return reactor


class Steps:
    """By how much the wall clock was set. `wall` and `steady` give seconds."""

    LEAST_S = 0.5  # less cannot be told from a clock that is corrected slowly

    def __init__(self, wall: Callable[[], float], steady: Callable[[], float]) -> None:
        self._wall, self._steady = wall, steady
        self._ahead = wall() - steady()

    def look(self) -> float:
        """Seconds by which it was set since the last look that found something, negative when back; or 0."""
        ahead = self._wall() - self._steady()
        step = ahead - self._ahead
        if abs(step) < self.LEAST_S:
            return 0.0
        self._ahead = ahead
        return step
