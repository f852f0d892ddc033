"""A server that is shared, in virtual time: its processes, their transfers, and clients of every kind."""

from __future__ import annotations

from dataclasses import dataclass, field

from cumulus.fair.board import Board, local_board, make_shared, open_shared
from cumulus.fair.lane import Flow, Lane

STEP_S = 0.002
TURN = 2 * 1024 * 1024  # the most that is asked for
LEAST = 64 * 1024  # what a connection takes before it is looked at again


@dataclass(eq=False)
class Client:
    """`strength` is what part it gets when nobody is held back, `most` what it can take alone (bytes/s);
    it comes and goes at the times given. It asks for objects of `size` bytes, one `gap_s` after another."""

    flow: Flow
    process: int = 0
    strength: float = 1.0
    most: float = 1e12
    comes: float = 0.0
    goes: float = 1e12
    moved: float = 0.0
    pending: float = 0.0
    waits: bool = False
    size: float = 1e18
    gap_s: float = 0.004
    asked: float = 0.0  # bytes of all objects so far
    asks_at: float = 0.0
    marks: list[float] = field(default_factory=list)


def boards(processes: int) -> list[Board]:
    """One for each process, over the same memory."""
    if processes == 1:
        return [local_board()]
    fd = make_shared(processes)
    return [open_shared(fd, processes, column) for column in range(processes)]


class Shared:
    """`capacity` bytes/s are split by strength among the clients that are not held."""

    def __init__(self, clients: list[Client], processes: int = 1, capacity: float = 1e9) -> None:
        self.clients = clients
        self.capacity = capacity
        self.lanes = [Lane(board, 0) for board in boards(processes)]
        self._ticks = [0.0] * processes
        self.now = 100.0
        self.began = self.now

    def run(self, seconds: float) -> None:
        """Let it pass."""
        end = self.now + seconds
        while self.now < end:
            self._step()
            self.now += STEP_S

    def _step(self) -> None:
        at = self.now - self.began
        for client in self.clients:
            if client.moved >= client.asked + client.size:
                client.asked, client.asks_at = client.moved, at + client.gap_s
            here = client.comes <= at < client.goes and at >= client.asks_at
            lane = self.lanes[client.process]
            if here and not client.flow.joined:
                lane.join(client.flow, self.now)
                client.waits = False
            elif not here and client.flow.joined:
                lane.leave(client.flow, self.now)
        for number, lane in enumerate(self.lanes):
            due = self.now >= self._ticks[number] or lane.pause() == 0.0
            if len(lane) and due:
                for flow in lane.tick(self.now):
                    next(one for one in self.clients if one.flow is flow).waits = False
                self._ticks[number] = self.now + lane.pause()
        self._share_out()

    def _share_out(self) -> None:
        open_ = [one for one in self.clients if one.flow.joined and not one.waits]
        left = self.capacity * STEP_S
        while open_ and left > 1:
            unit = left / sum(one.strength for one in open_)
            capped = [one for one in open_ if one.most * STEP_S <= unit * one.strength]
            for one in capped or open_:
                part = one.most * STEP_S if capped else unit * one.strength
                left -= part
                self._move(one, part)
            if not capped:
                return
            open_ = [one for one in open_ if one not in capped]

    def _move(self, client: Client, count: float) -> None:
        client.moved += count
        client.pending += count
        lane = self.lanes[client.process]
        while client.pending >= LEAST and not client.waits:
            turn = min(int(client.pending), lane.turn(client.flow, TURN))
            client.pending -= turn
            client.waits = not lane.took(client.flow, turn, self.now)
        if client.waits:
            client.moved -= client.pending
            client.pending = 0.0

    def rates(self, seconds: float) -> list[float]:
        """What each moves in the next `seconds`, bytes/s."""
        before = [client.moved for client in self.clients]
        self.run(seconds)
        return [(client.moved - was) / seconds for client, was in zip(self.clients, before, strict=True)]
