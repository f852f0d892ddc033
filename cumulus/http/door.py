"""Which process of a server takes the next connection.

All workers wait at one listening socket, and the kernel wakes those that are idle: of sixteen connections
that came at once one of two workers got up to fourteen, while the other's processor had nothing to do. So
whoever has more open than another one that is awake leaves new ones to it, for a moment. Nine and seven are
too unequal already: at 70 % of the greatest rate requests to the nine waited 50 to 150 ms (p99), with eight
and eight mostly 10 to 40 ms. The moment ends when the other has caught up or one of the own is over: where
each request has a connection of its own, all would wait for it most of the time (decision 0216).

A process that has as many open as it may leaves new ones to the others as long as one of them has room, so
that nobody is refused before all are full.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cumulus.fair.board import Board

YIELD_S: Final = 0.01  # for which a connection is left to others that have fewer
LOOK_S: Final = 0.001  # after which it is looked whether they still have
FRESH_S: Final = 3.0  # who has said nothing for longer is not waited for

_OPEN, _BEAT = range(2)


class Door:
    """The connections of this process beside those of the others. `clock` gives seconds, the same in all
    processes of the server; each of them has at most `limit` connections."""

    def __init__(self, board: Board, clock: Callable[[], float], limit: int) -> None:
        cells = board.doors()
        self._mine = cells[board.column]
        self._others = [one for one in cells if one is not self._mine]
        self._clock = clock
        self._limit = limit
        self._left = False
        self._come: Callable[[], object] | None = None

    def tell(self, count: int) -> None:
        """So many are open here; to be told at each change, and at least once a second."""
        if self._left:
            return
        self._mine[_OPEN], self._mine[_BEAT] = count, self._clock()
        come = self._come
        if come is not None and self.room():
            come()

    def wait(self, come: Callable[[], object] | None) -> None:
        """Call it when there is room because of what is told here; None: no more."""
        self._come = come

    def leave(self) -> None:
        """None are taken here any more: let nobody wait for it."""
        self._left = True
        self._come = None
        self._mine[_BEAT] = -FRESH_S

    def most(self) -> int:
        """How many to take in one turn of the reactor: the more are open, the longer a turn takes, and those
        that wait must not wait for hundreds of turns. No more than may be open, until that many are."""
        count = int(self._mine[_OPEN])
        turn = 1 + count // 4
        return min(turn, self._limit - count) if count < self._limit else turn

    def room(self, insists: bool = False) -> int:
        """How many to take before others that have fewer; 0: they come first. One that `insists` has left
        them to others long enough, unless it is full and another is not."""
        now, count = self._clock(), int(self._mine[_OPEN])
        counts = [int(one[_OPEN]) for one in self._others if now - one[_BEAT] < FRESH_S]
        least = min(counts, default=self._limit)
        if count >= self._limit > least:
            return 0
        if insists or not counts:
            return self.most()
        return max(0, min(self.most(), least + least // 8 + 1 - count))
