"""Bodies that nothing names any more, kept until their last readers have had time to finish."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from typing import Final

LEAST_S: Final = 600.0
SLOWEST: Final = 1_000_000  # bytes/s of a reader who gets to the end
MOST_S: Final = 24 * 3600.0
FRESH_S: Final = 20.0  # after which word is left of what came in
MOST: Final = 200_000  # what comes beyond is found by a sweep


def time_to_read(size: int) -> float:
    """Seconds that a body of `size` bytes stays for those who are at it."""
    return min(max(LEAST_S, size / SLOWEST), MOST_S)


class Bin:
    """Names of bodies and when each is to go. Safe for threads.

    `clock` gives seconds and is not the wall clock: one that is set ahead must not cut off readers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._names: set[tuple[str, str]] = set()
        self._due: list[tuple[float, str, str]] = []
        self._fresh: list[tuple[float, str, str]] = []  # when it came in

    def __len__(self) -> int:
        return len(self._due)

    def put(self, bucket: str, name: str, size: int) -> bool:
        """Take in a body of `size` bytes; False if it is here, and keeps its time, or the bin is full."""
        with self._lock:
            if (bucket, name) in self._names or len(self._due) >= MOST:
                return False
            self._names.add((bucket, name))
            now = self._clock()
            heapq.heappush(self._due, (now + time_to_read(size), bucket, name))
            self._fresh.append((now, bucket, name))
            return True

    def fresh(self) -> list[tuple[str, str, float]]:
        """Bucket, name and the seconds that are left of those that have come since this was asked before;
        none before the first of them is FRESH_S old."""
        with self._lock:
            now = self._clock()
            if not self._fresh or now - self._fresh[0][0] < FRESH_S:
                return []
            came, self._fresh = {(bucket, name) for _, bucket, name in self._fresh}, []
            return [(one[1], one[2], max(0.0, one[0] - now)) for one in self._due if one[1:] in came]

    def leave(self) -> list[tuple[str, str, float]]:
        """Bucket, name and the seconds that are left of all of them, which are not here any more then."""
        with self._lock:
            now, due = self._clock(), self._due
            self._due, self._names, self._fresh = [], set(), []
            return [(bucket, name, max(0.0, at - now)) for at, bucket, name in due]

    def take(self, *, all_of_it: bool = False) -> tuple[str, str] | None:
        """Bucket and name of one whose time has come, which is not here any more then."""
        with self._lock:
            if not self._due or not (all_of_it or self._due[0][0] <= self._clock()):
                return None
            _, bucket, name = heapq.heappop(self._due)
            self._names.remove((bucket, name))
            return bucket, name
