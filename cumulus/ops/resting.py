"""Work in the background that leaves most of the processor to others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

RESTS: Final = 4.0  # times as long as the work: a fifth of a core is used


class Resting:
    """Rests of a thread, each `RESTS` times as long as it has used the processor since the last one. While it
    waits for a disk or another machine it uses none. `pause(seconds)` waits, and returns True at once when
    the process ends."""

    def __init__(self, pause: Callable[[float], bool], used: Callable[[], float] = time.thread_time) -> None:
        self._pause = pause
        self._used = used
        self._before = used()

    def rest(self) -> bool:
        """Take one; whether the process ends."""
        ends = self._pause(RESTS * (self._used() - self._before))
        self._before = self._used()
        return ends
