"""Buffers of bodies, which go from one request to the next: a new one of a megabyte costs as much time as to
receive into it, since the system clears its pages one by one and Python clears it once more."""

from __future__ import annotations

from typing import Final

from cumulus.http.settings import BUFFER

KEPT: Final = 4  # that wait for the next body


class Buffers:
    """Those of a process; for all threads. Only the largest, of `BUFFER` bytes, are kept."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []
        self._used = False

    def take(self, size: int) -> bytearray:
        """One of at least `size` bytes; what is in it is of no meaning."""
        self._used = True
        if size == BUFFER:
            try:
                return self._free.pop()
            except IndexError:
                pass
        return bytearray(size)

    @property
    def kept(self) -> int:
        """How many wait."""
        return len(self._free)

    def give(self, buffer: bytearray | None) -> None:
        """Nobody reads or writes it any more."""
        self._used = True
        if buffer is not None and len(buffer) == BUFFER and len(self._free) < KEPT:
            self._free.append(buffer)

    def rest(self) -> bool:
        """To be called now and then: keep none where nothing was taken or given since the last call; whether
        there were some."""
        used, self._used = self._used, False
        if used or not self._free:
            return False
        self._free.clear()
        return True
