"""A few threads that do steps of one request beside each other, where each waits for a disk or a database."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

Step = Callable[[], None]


class _Round:
    """The steps of one request."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self.waiting = deque(steps)
        self._under_way = 0
        self._ended = threading.Condition()
        self._error: BaseException | None = None

    def take(self) -> None:
        """Do steps until none is left to be begun."""
        while (step := self._next()) is not None:
            error: BaseException | None = None
            try:
                step()
            except BaseException as bad:
                error = bad
            with self._ended:
                if error is not None:
                    self.waiting.clear()
                    self._error = self._error or error
                self._under_way -= 1
                self._ended.notify_all()

    def _next(self) -> Step | None:
        with self._ended:
            if not self.waiting:
                return None
            self._under_way += 1
            return self.waiting.popleft()

    def end(self) -> None:
        """Wait for those under way. Raises the first error."""
        with self._ended:
            self._ended.wait_for(lambda: not self._under_way)
        if self._error is not None:
            raise self._error


class Hands:
    """So many threads for all requests of a process, started when first needed."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="cumulus-hand")

    def each(self, steps: Iterable[Step]) -> None:
        """Do all steps, begun in their order. The caller's thread takes part, so that it comes to an end
        though others keep all hands busy. Raises what a step raises, when those that were begun have ended;
        the others are left then."""
        work = _Round(steps)
        with suppress(RuntimeError):  # the process ends, or may have no more threads
            for _ in range(min(self._threads, len(work.waiting) - 1)):
                self._pool.submit(work.take)
        work.take()
        work.end()

    def close(self) -> None:
        """End the threads, after what they are at."""
        self._pool.shutdown()
