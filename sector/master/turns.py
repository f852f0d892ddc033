"""Work that comes round again and again, and goes on when one turn of it fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from sector.clock import Clock

log = Logger()


def every(clock: Clock, period_s: float, function: Callable[[], Any]) -> LoopingCall:
    """Call `function` each `period_s` seconds, first after one period, until the result is stopped. What it
    raises is logged: a master that no longer looks after its slaves is worse than a missed turn."""

    def turn() -> None:
        try:
            function()
        except Exception:
            log.failure("a turn of {what} failed", what=function.__name__)

    loop = LoopingCall(turn)
    loop.clock = clock  # type: ignore[assignment]
    loop.start(period_s, now=False)
    return loop
