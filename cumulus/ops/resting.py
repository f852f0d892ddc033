"""Work in the background that gives the processor away as often as it takes it."""

from __future__ import annotations

import time
from collections.abc import Callable


class Resting:
    """Rests of a thread, each as long as the processor time that it has used since the last one. Waiting for
    a disk or another machine is a rest already. `pause(seconds)` waits, and returns True at once when the
    process ends."""

    def __init__(self, pause: Callable[[float], bool], used: Callable[[], float] = time.thread_time) -> None:
        self._pause = pause
        self._used = used
        self._before = used()

    def rest(self) -> bool:
        """Take one; whether the process ends."""
        ends = self._pause(self._used() - self._before)
        self._before = self._used()
        return ends
