"""A limit of bytes per second for all connections of all processes of a server together."""

from __future__ import annotations

from cumulus.fair.board import Board, local_board

_LEAST_TURN = 16 * 1024
_BURST_S = 0.25


class Throttle:
    """A token bucket: `rate` bytes/s (0 = no limit), and a quarter of a second's worth may come at once.
    Whoever moved bytes says so and is told how long to rest.

    It is counted in seconds: the bytes of all processes by the rate, from a base that follows the clock while
    there is less to do. Each process writes its own bytes and its own base; the largest base counts."""

    __slots__ = ("_columns", "_mine", "_rate")

    def __init__(self, rate: int, now: float, board: Board | None = None) -> None:
        board = board or local_board()
        self._rate = rate
        self._columns = board.budget()
        self._mine = self._columns[board.column]
        if rate:
            spent = sum([cells[0] for cells in self._columns]) / rate
            self._mine[1] = now - _BURST_S - spent

    def took(self, count: int, now: float) -> float:
        """`count` bytes were moved; seconds until the next may be."""
        if not self._rate:
            return 0.0
        spent = sum([cells[0] for cells in self._columns]) / self._rate
        base = max([cells[1] for cells in self._columns])
        if base + spent < now - _BURST_S:
            self._mine[1] = base = now - _BURST_S - spent
        self._mine[0] += count
        return max(0.0, base + spent + count / self._rate - now)

    def turn(self, most: int) -> int:
        """Bytes that one connection may move before it says so, `most` without a limit."""
        return min(most, max(_LEAST_TURN, self._rate // 8)) if self._rate else most
