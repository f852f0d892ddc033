"""How far the index is behind what it was told: counters in memory that the head shares with its workers.

A worker tells the head of an object without waiting for an answer, and counts it before it answers its
client; the head counts what it has committed. So whoever reads the index sees without asking anybody whether
something that a client was answered is still missing, and only then waits (decision 0132).

Numbers of 64 bits in the machine's order, each written by one process: first how many slots are in use and
whether the head cannot commit; then for each slot how many changes were told and how many of them were taken
in. They grow; a slot that nobody has any more is never behind.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final

SLOTS: Final = 1024
_COUNT, _AILING, _HEAD = 0, 1, 2  # cells before the slots
_SIZE: Final = 8 * (_HEAD + 2 * SLOTS)
_NEVER: Final = 1 << 62  # taken in by a slot without an owner
_REST_S: Final = 60.0  # before a slot has another owner: who had it may still write once


class Tide:
    """The counters. `join`, `leave`, `take` and `ail` are the head's, `tell` is the owner's of a slot."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._cells = memoryview(memory).cast("q")
        self._lock = threading.Lock()
        self._left: deque[tuple[float, int]] = deque()

    def join(self) -> int | None:
        """A slot; None when all are in use."""
        with self._lock:
            if self._left and time.monotonic() - self._left[0][0] >= _REST_S:
                slot = self._left.popleft()[1]
            elif (slot := self._cells[_COUNT]) == SLOTS:
                return None
            self._cells[_HEAD + 2 * slot] = 0
            self._cells[_HEAD + 2 * slot + 1] = 0
            self._cells[_COUNT] = max(self._cells[_COUNT], slot + 1)
            return slot

    def leave(self, slot: int) -> None:
        """Its owner has gone, and all that came from it was taken in."""
        with self._lock:
            self._cells[_HEAD + 2 * slot + 1] = _NEVER
            self._left.append((time.monotonic(), slot))

    def tell(self, slot: int, number: int) -> None:
        """The owner has told the head the first `number` changes; not from two threads at once."""
        at = _HEAD + 2 * slot
        self._cells[at] = max(self._cells[at], number)

    def take(self, slot: int, number: int) -> None:
        """The first `number` changes are committed."""
        self._cells[_HEAD + 2 * slot + 1] = number

    def behind(self) -> list[tuple[int, int]]:
        """(slot, number) of all that were told more than was taken in."""
        cells = self._cells
        found = []
        for slot in range(cells[_COUNT]):
            told = cells[_HEAD + 2 * slot]
            if told > cells[_HEAD + 2 * slot + 1]:
                found.append((slot, told))
        return found

    def reached(self, wanted: list[tuple[int, int]]) -> bool:
        """Whether so much was taken in."""
        return all(self._cells[_HEAD + 2 * slot + 1] >= number for slot, number in wanted)

    @property
    def ailing(self) -> bool:
        """Whether the head cannot commit at present."""
        return bool(self._cells[_AILING])

    def ail(self, ailing: bool) -> None:
        """Say whether it can."""
        self._cells[_AILING] = ailing


def private_tide() -> Tide:
    """For one process."""
    return Tide(mmap.mmap(-1, _SIZE))


def make_tide(path: Path) -> Tide:
    """The head's, in a file that is made anew and that only its owner may open. Raises `OSError`."""
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, _SIZE)
        return Tide(mmap.mmap(fd, _SIZE))
    finally:
        os.close(fd)


def open_tide(path: Path) -> Tide:
    """A worker's. Raises `OSError`."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return Tide(mmap.mmap(fd, _SIZE))
    finally:
        os.close(fd)
