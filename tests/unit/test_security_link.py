"""The master's connections to the security server."""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.defer import ensureDeferred
from twisted.internet.task import Clock

from sector.master.security_link import FRESH_S, _Lane
from sector.wire.admin import Status


class Caller:
    """A connection that answers at once."""

    def __init__(self) -> None:
        self.connected = True

    async def call(self, request: Any) -> Any:
        return request

    def close(self) -> None:
        self.connected = False


def test_a_connection_that_nobody_needs_is_closed_though_no_request_comes() -> None:
    """It stayed until the next request of its kind, or until the server gave it up."""
    clock, made = Clock(), list[Caller]()

    async def opened() -> Any:
        made.append(Caller())
        return made[-1]

    lane = _Lane(clock, opened, 2, 2)
    done: list[Any] = []
    for _ in range(2):
        ensureDeferred(lane.call(cast(Any, Status()))).addCallback(done.append)
        clock.advance(FRESH_S / 2)
    assert len(done) == 2 and len(made) == 1
    clock.advance(FRESH_S / 2 - 1)
    assert made[0].connected
    clock.advance(1.5)
    assert not made[0].connected
    assert not clock.getDelayedCalls()


def test_a_lane_that_stops_waits_for_nothing() -> None:
    clock, made = Clock(), list[Caller]()

    async def opened() -> Any:
        made.append(Caller())
        return made[-1]

    lane = _Lane(clock, opened, 1, 1)
    ensureDeferred(lane.call(cast(Any, Status())))
    lane.stop()
    assert not made[0].connected
    assert not clock.getDelayedCalls()
