"""When messages leave UDP and when they return, on a simulated clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import Clock

from sector import errors
from sector.detour import OWN_S, RETURN_S, Detour


class Network:
    """A master that listens for TLS, with UDP open or blocked, and what was done."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self.tls = True
        self.fresh = self.own = False
        self.open = 0
        self.log: list[str] = []
        self.lost: Callable[[], None] = lambda: None
        self.detour = Detour(
            self.clock,
            self.way,
            lambda wait_s: self.probe("own", wait_s),
            lambda wait_s: self.probe("fresh", wait_s),
            on_begin=lambda: self.log.append("begin"),
            on_end=lambda: self.log.append("end"),
            **options,
        )

    async def probe(self, port: str, wait_s: float) -> bool:
        if not getattr(self, port):
            pause: Deferred[None] = Deferred()
            self.clock.callLater(wait_s, pause.callback, None)
            await pause
        self.log.append(f"{port} {wait_s:g}")
        return bool(getattr(self, port))

    async def way(self, blocked: Callable[[], Awaitable[bool]], lost: Callable[[], None]) -> Any:
        if not self.tls:
            raise errors.Unreachable("connection refused")
        if not await blocked():
            return None
        self.open += 1
        self.lost = lost
        return self

    def close(self) -> None:
        self.open -= 1

    def consider(self, within_s: float = 60.0) -> bool:
        outcome: list[bool] = []
        ensureDeferred(self.detour.consider()).addCallback(outcome.append)
        until = self.clock.seconds() + within_s
        while not outcome and self.clock.seconds() < until:
            self.clock.advance(0.05)
        return outcome[0]

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.5)):
            self.clock.advance(0.5)


def test_silence_from_the_start_opens_a_tunnel() -> None:
    """TLS is answered, UDP is not."""
    net = Network()
    assert net.consider()
    assert net.log == ["fresh 0.6", "begin"]
    assert net.detour.used


def test_a_master_that_was_heard_has_to_fall_silent_first() -> None:
    """A slow answer alone is no reason; an endpoint that acknowledges nothing is."""
    net = Network()
    net.detour.ready()
    assert not net.consider()
    assert net.log == []
    net.detour.suspect()
    assert net.consider()
    assert net.open == 1


def test_a_master_that_was_stopped_and_is_back_is_spoken_to_over_udp() -> None:
    """When its TLS answers again so does its UDP: our own port is heard with its next repeat."""
    net = Network()
    net.fresh = net.own = True
    net.detour.ready()
    net.detour.suspect()
    assert not net.consider()
    assert net.log == ["fresh 0.6", f"own {OWN_S:g}"]
    assert net.open == 0
    assert not net.detour.silent


def test_a_filter_on_our_own_port_is_found() -> None:
    """Fresh ports pass; ours is silent for longer than any pause between repeats."""
    net = Network()
    net.fresh = True
    net.detour.ready()
    net.detour.suspect()
    assert net.consider()
    assert net.open == 1


def test_no_master_no_tunnel() -> None:
    """What does not answer over TLS either is away, not blocked."""
    net = Network()
    net.tls = False
    assert not net.consider()
    assert net.log == []
    net.tls = True
    assert net.consider()


def test_udp_is_tried_again_and_taken_when_it_answers() -> None:
    """After 30 s, then at growing distances; the tunnel ends then."""
    net = Network()
    assert net.consider()
    net.log.clear()
    net.pass_time(RETURN_S + 65)
    assert net.log == ["fresh 1.2"] * 2
    net.fresh = True
    net.pass_time(130)
    assert net.log == ["fresh 1.2"] * 3 + ["end"]
    assert (net.open, net.detour.used) == (0, False)
    net.pass_time(1000)
    assert len(net.log) == 4


def test_returns_in_vain_become_rare() -> None:
    """Only our port is filtered: each attempt to return costs some seconds of silence."""
    net = Network()
    net.fresh = True
    begun: list[float] = []
    for _ in range(6):
        net.detour.suspect()
        assert net.consider()
        begun.append(net.clock.seconds())
        while net.detour.used:
            net.pass_time(1)
    gaps = [later - earlier for earlier, later in pairwise(begun)]
    assert gaps == sorted(gaps)
    assert gaps[0] < 45
    assert gaps[-1] > 290


def test_a_command_after_one_that_found_udp_blocked_goes_around_at_once() -> None:
    """And looks at the same time whether that is still so."""
    net = Network(doubt=True)
    assert net.consider()
    assert net.log == ["begin"]
    net.fresh = True
    net.pass_time(2)
    assert net.log[-1] == "end"
    again = Network(doubt=True)
    again.detour.ready()
    assert again.log == ["end"]
    assert not again.detour.doubt


def test_a_tunnel_that_breaks_is_opened_again_when_needed() -> None:
    """Nothing is believed of UDP then."""
    net = Network()
    assert net.consider()
    net.open -= 1
    net.lost()
    assert not net.detour.used
    assert net.consider()
    assert net.open == 1


def test_nothing_is_left_after_the_end() -> None:
    """No timer, no connection; also of an attempt under way."""
    net = Network()
    assert net.consider()
    net.detour.close()
    assert net.open == 0
    assert not [call for call in net.clock.getDelayedCalls() if call.active()]
    assert not net.consider()
    late = Network()
    outcome: list[bool] = []
    ensureDeferred(late.detour.consider()).addCallback(outcome.append)
    late.detour.close()
    late.pass_time(5)
    assert outcome == [False]
    assert late.open == 0
