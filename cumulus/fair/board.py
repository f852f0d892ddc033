"""What the processes of one server tell one another about shares: shared memory with a column for each.

Each process writes only its own column, cell by cell, and reads all; there is no lock. Figures of a lane are
numbers in named cells. Of keys (users, addresses) it is only counted how much each process has of them, in a
sketch of fixed size: three cells a key, the least of which is the count. It is never too low; it is too high
only where all three cells are shared with other keys: with 100,000 of them by one for one key in six, by two
for one in 200, by four for one in two million. Memory that no key falls into is never touched.
"""

from __future__ import annotations

import mmap
import os
import threading
from hashlib import blake2b
from typing import Final

ROWS: Final = 3
WIDTH: Final = 1 << 17
LANES: Final = 2
CELLS: Final = 17  # of a lane, 8 bytes each
BUDGET: Final = 2  # cells of the limit of all bytes
DOOR: Final = 2  # cells of the connections
_FIGURES: Final = (LANES * CELLS + BUDGET + DOOR) * 8
_COLUMN: Final = _FIGURES + ROWS * WIDTH * 4

Places = tuple[int, ...]


def places(key: str) -> Places:
    """Where a key is counted; the same in all processes."""
    digest = blake2b(key.encode("utf-8", "replace"), digest_size=4 * ROWS).digest()
    numbers = (int.from_bytes(digest[at : at + 4]) % WIDTH for at in range(0, 4 * ROWS, 4))
    return tuple(row * WIDTH + number for row, number in enumerate(numbers))


class Board:
    """`columns` processes. `column` is ours; the head of several workers has none of its own and only
    clears those of workers that ended."""

    def __init__(self, memory: memoryview, columns: int, column: int = 0) -> None:
        self.columns = columns
        self.column = column
        self._memory = memory
        self._lock = threading.Lock()
        views = [memory[at : at + _COLUMN] for at in range(0, columns * _COLUMN, _COLUMN)]
        self._figures = [view[:_FIGURES].cast("d") for view in views]
        self._counts = [view[_FIGURES:].cast("I") for view in views]

    def lane(self, number: int) -> list[memoryview[float]]:
        """The cells (float) of a lane, by column."""
        return [figures[number * CELLS : (number + 1) * CELLS] for figures in self._figures]

    def budget(self) -> list[memoryview[float]]:
        """The two cells of the limit of all bytes, by column."""
        return [figures[LANES * CELLS : LANES * CELLS + BUDGET] for figures in self._figures]

    def doors(self) -> list[memoryview[float]]:
        """The two cells of the connections (`cumulus.http.door`), by column."""
        return [figures[LANES * CELLS + BUDGET :] for figures in self._figures]

    def add(self, where: Places, change: int) -> None:
        """So many more (or fewer) of a key here; from any thread."""
        mine = self._counts[self.column]
        with self._lock:
            for place in where:
                mine[place] += change

    def count(self, where: Places) -> int:
        """How many of a key there are in all processes."""
        return int(min([sum([counts[place] for counts in self._counts]) for place in where]))

    def mine(self, where: Places) -> int:
        """How many of a key there are in this process."""
        mine = self._counts[self.column]
        return int(min([mine[place] for place in where]))

    def clear(self, column: int) -> None:
        """The process of that column has ended, or begins."""
        self._memory[column * _COLUMN : (column + 1) * _COLUMN] = bytes(_COLUMN)


def local_board() -> Board:
    """For a server of one process."""
    return Board(memoryview(bytearray(_COLUMN)), 1)


def make_shared(columns: int) -> int:
    """A descriptor of the memory for so many processes, all zero. It is the caller's to close."""
    fd = os.memfd_create("cumulus-shares", os.MFD_CLOEXEC)
    os.ftruncate(fd, columns * _COLUMN)
    return fd


def open_shared(fd: int, columns: int, column: int = 0) -> Board:
    """The memory behind a descriptor of `make_shared`, for the process of that column."""
    return Board(memoryview(mmap.mmap(fd, columns * _COLUMN)), columns, column)
