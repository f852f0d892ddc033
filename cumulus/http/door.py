"""Which process of a server takes the next connection.

All workers wait at one listening socket, and the kernel wakes those that are idle: of sixteen connections
that came at once one of two workers got up to fourteen, while the other's processor had nothing to do. So
whoever has more open than another one that is awake leaves new ones to it, for a moment. Nine and seven are
too unequal already: at 70 % of the greatest rate requests to the nine waited 50 to 150 ms (p99), with eight
and eight mostly 10 to 40 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cumulus.fair.board import Board

YIELD_S: Final = 0.01  # for which a connection is left to others
FRESH_S: Final = 3.0  # who has said nothing for longer is not waited for

_OPEN, _BEAT = range(2)


class Door:
    """The connections of this process beside those of the others. `clock` gives seconds, the same in all
    processes of the server."""

    def __init__(self, board: Board, clock: Callable[[], float]) -> None:
        cells = board.doors()
        self._mine = cells[board.column]
        self._others = [one for one in cells if one is not self._mine]
        self._clock = clock

    def tell(self, count: int) -> None:
        """So many are open here; to be told at each change, and at least once a second."""
        self._mine[_OPEN], self._mine[_BEAT] = count, self._clock()

    def most(self) -> int:
        """How many to take in one turn of the reactor: the more are open, the longer a turn takes, and those
        that wait must not wait for hundreds of turns."""
        return 1 + int(self._mine[_OPEN]) // 4

    def room(self) -> int:
        """How many to take before others that have fewer; 0: they come first."""
        now = self._clock()
        counts = [int(one[_OPEN]) for one in self._others if now - one[_BEAT] < FRESH_S]
        if not counts:
            return self.most()
        least = min(counts)
        return max(0, min(self.most(), least + least // 8 + 1 - int(self._mine[_OPEN])))
