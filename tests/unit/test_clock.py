"""Reactors that keep time by a clock which nobody sets, and how steps of the other one are told."""

from __future__ import annotations

import time

import pytest
from twisted.internet.epollreactor import EPollReactor

from sector.clock import Steps, steady


def test_timers_of_a_steady_reactor_do_not_see_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """One from before, one from after; the wall clock goes back an hour in between."""
    reactor = EPollReactor()
    ran: list[str] = []
    reactor.callLater(0.05, ran.append, "before")
    assert steady(reactor) is reactor
    monkeypatch.setattr(time, "time", lambda: 0.0)
    reactor.callLater(0.02, ran.append, "after")
    reactor.callLater(0.1, reactor.stop)
    began = time.monotonic()
    reactor.run(installSignalHandlers=False)
    assert ran == ["after", "before"]
    assert 0.09 <= time.monotonic() - began < 5
    assert abs(reactor.seconds() - time.monotonic()) < 1
    for reader in reactor.removeAll():
        reader.connectionLost(None)


def test_steps_of_the_wall_clock_are_told_once() -> None:
    at = {"wall": 1000.0, "steady": 5.0}
    steps = Steps(lambda: at["wall"], lambda: at["steady"])
    assert steps.look() == 0
    at["wall"], at["steady"] = 1100.3, 105.0  # corrected slowly
    assert steps.look() == 0
    at["wall"] += 3600
    assert steps.look() == pytest.approx(3600.3)
    assert steps.look() == 0
    at["wall"] -= 7200
    assert steps.look() == pytest.approx(-7200)
