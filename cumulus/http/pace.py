"""When a connection may move more bytes: limits of rate and fair shares, asked after each turn.

Whoever moves a body says how much after each turn and is told how long to rest: 0.0, seconds, or `inf`: until
he is called, because others come first. `Transfer.after` does the waiting in all cases.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Final

from twisted.logger import Logger

from cumulus.fair.board import Board, local_board
from cumulus.fair.lane import Flow, Lane
from cumulus.fair.limits import Limiter, Seat
from cumulus.fair.weights import Sharing
from cumulus.http.limits import Throttle
from cumulus.http.settings import BUFFER, BUFFERS, FIRST_BUFFER, HttpSettings

log = Logger()

OUT: Final = 0  # lanes: downloads
IN: Final = 1  # and uploads

GoOn = Callable[[], Any]


class Pacer:
    """What all connections of a process share: the limit of all bytes, the lanes, the limits of users and
    addresses. `board` is shared with the other processes of the server."""

    def __init__(self, settings: HttpSettings, reactor: Any, board: Board | None = None) -> None:
        self._reactor = reactor
        board = board or local_board()
        self._throttle = Throttle(settings.total_rate, reactor.seconds(), board)
        fair = settings.sharing.by != "none"
        self.lanes = [Lane(board, OUT), Lane(board, IN)] if fair else []
        self._timers: list[Any] = [None] * len(self.lanes)
        self._waiting: dict[Flow, GoOn] = {}
        self.buffered = 0  # transfers that have buffers
        self._had_buffers = False
        self._sharing: Sharing = settings.sharing
        self.users = Limiter("user", settings.user_limits, board, reactor.seconds)
        self.addresses = Limiter("address", settings.address_limits, board, reactor.seconds)

    def seat(self, peer: str) -> Seat:
        """Of a new connection; `Seat.take` it."""
        return Seat(peer, self.addresses, self.users, self._sharing)

    def took(self, seat: Seat | None, count: int) -> float:
        """A body that is no transfer, `count` bytes, was moved: seconds to rest."""
        if not count:
            return 0.0
        rest = self._throttle.took(count, self._reactor.seconds())
        return rest if seat is None else max(rest, seat.took(count))

    def came(self, seat: Seat | None, count: int) -> float:
        """The same of a body that nobody has looked at yet: its user is charged by `Seat.admit`."""
        if not count:
            return 0.0
        rest = self._throttle.took(count, self._reactor.seconds())
        return rest if seat is None else max(rest, seat.came(count))

    def turn(self, seat: Seat | None, most: int) -> int:
        """Bytes that a connection may move before it says so."""
        most = self._throttle.turn(most)
        return most if seat is None else seat.turn(most)

    def buffer(self) -> int:
        """The most bytes of a buffer of a transfer, of which each has up to three."""
        share = BUFFERS // (3 * max(1, self.buffered))
        return max(FIRST_BUFFER, min(BUFFER, 1 << share.bit_length() - 1))

    def rested(self) -> bool:
        """Whether transfers have had buffers since this was last said, and none has now."""
        said = self._had_buffers and not self.buffered
        self._had_buffers = self._had_buffers and not said
        return said

    def figures(self) -> dict[str, int]:
        """For the metrics."""
        limiters = (self.users, self.addresses)
        return {
            "limited_requests_total": sum(one.refused_requests for one in limiters),
            "limited_connections_total": sum(one.refused_connections for one in limiters),
            "transfers": sum(len(lane) for lane in self.lanes),
            "transfers_held": sum(lane.holding for lane in self.lanes),
            "transfers_held_total": sum(lane.holds for lane in self.lanes),
            "transfers_held_seconds_total": round(sum(lane.held_s for lane in self.lanes)),
        }

    # lanes ------------------------------------------------------------------------------------------------
    def join(self, direction: int, flow: Flow) -> None:
        """It takes part."""
        self.lanes[direction].join(flow, self._reactor.seconds())
        self._watch(direction)

    def leave(self, direction: int, flow: Flow) -> None:
        """Not any more; what it waited for does not happen."""
        self._waiting.pop(flow, None)
        lane = self.lanes[direction]
        lane.leave(flow, self._reactor.seconds())
        timer = self._timers[direction]
        if not len(lane) and timer is not None:
            timer.cancel()
            self._timers[direction] = None

    def moved(self, direction: int, flow: Flow, count: int) -> bool:
        """Whether it may go on."""
        lane = self.lanes[direction]
        free = lane.took(flow, count, self._reactor.seconds())
        if not free and lane.pause() == 0.0:
            self._watch(direction, at_once=True)
        return free

    def wait(self, flow: Flow, go_on: GoOn) -> None:
        """Call it when the flow may go on."""
        if flow.held:
            self._waiting[flow] = go_on
        else:
            self._reactor.callLater(0, go_on)

    def _watch(self, direction: int, *, at_once: bool = False) -> None:
        timer = self._timers[direction]
        pause = 0.0 if at_once else self.lanes[direction].pause()
        if timer is None:
            self._timers[direction] = self._reactor.callLater(pause, self._tick, direction)
        elif at_once:
            timer.reset(0)

    def _tick(self, direction: int) -> None:
        self._timers[direction] = None
        lane = self.lanes[direction]
        for flow in lane.tick(self._reactor.seconds()):
            go_on = self._waiting.pop(flow, None)
            if go_on is not None:
                try:
                    go_on()
                except Exception:
                    log.failure("a transfer cannot go on")
        if len(lane):
            self._watch(direction)


class Transfer:
    """One body on its way. `flows` are the connection's, by direction, kept from request to request."""

    __slots__ = ("_buffered", "_direction", "_ended", "_flow", "_pacer", "_seat", "resting")

    def __init__(self, pacer: Pacer, direction: int, seat: Seat | None, flows: dict[int, Flow]) -> None:
        self._pacer = pacer
        self._direction = direction
        self._seat = seat
        self.resting = False
        self._ended = self._buffered = False
        self._flow: Flow | None = None
        if pacer.lanes and seat is not None:
            flow = flows.get(direction)
            if flow is None:
                flow = flows[direction] = Flow(seat.owner, seat.weight)
            self._flow = flow
            self._share(flow, seat)

    def _share(self, flow: Flow, seat: Seat) -> None:
        """It takes part, as the one's whose the request is: of a form that is known only after its start."""
        owner, weight = seat.owner, seat.weight
        if flow.key != owner or flow.weight != weight:
            if flow.joined:  # or a transfer that was cut has not ended yet
                self._pacer.leave(self._direction, flow)
            flow.charge(owner, weight)
        if not flow.joined:
            self._pacer.join(self._direction, flow)

    def took(self, count: int) -> float:
        """`count` bytes were moved (0: it begins). Seconds to rest; inf: until others have caught up."""
        rest = self._pacer.took(self._seat, count)
        if self._flow is not None and self._seat is not None:
            self._share(self._flow, self._seat)
            if not self._pacer.moved(self._direction, self._flow, count):
                return inf
        return rest

    def turn(self, most: int) -> int:
        """Bytes to move before the next `took`."""
        pacer, flow = self._pacer, self._flow
        most = pacer.turn(self._seat, most)
        return most if flow is None else pacer.lanes[self._direction].turn(flow, most)

    def stretch(self, most: int) -> int:
        """The same where one goes on without a look at others as long as these are its owner's."""
        pacer, flow = self._pacer, self._flow
        if flow is not None and pacer.lanes[self._direction].alone(flow, pacer._reactor.seconds()):
            return pacer.turn(self._seat, most)
        return self.turn(most)

    def buffer(self) -> int:
        """The most bytes that a buffer of it should have now; the transfer is one of those with buffers
        from then on."""
        if not self._buffered and not self._ended:
            self._buffered = True
            self._pacer.buffered += 1
            self._pacer._had_buffers = True
        return self._pacer.buffer()

    def after(self, pause_s: float, go_on: GoOn) -> None:
        """Call `go_on` after the rest that `took` gave; not when the transfer has ended meanwhile."""
        self.resting = True
        again = partial(self._go_on, go_on)
        if pause_s < inf:
            self._pacer._reactor.callLater(pause_s, again)
        elif self._flow is not None:
            self._pacer.wait(self._flow, again)

    def _go_on(self, go_on: GoOn) -> None:
        self.resting = False
        go_on()

    def end(self) -> None:
        """It is over, in whatever way; twice is once."""
        self._ended = True
        if self._buffered:
            self._buffered = False
            self._pacer.buffered -= 1
        flow, self._flow = self._flow, None
        if flow is not None:
            self._pacer.leave(self._direction, flow)
