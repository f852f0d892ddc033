"""The clock and scheduler that services take as an argument; a Twisted reactor or task.Clock fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.defer import Deferred


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
