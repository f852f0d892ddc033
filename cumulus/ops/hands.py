"""A few threads that do steps of one request beside each other, where each waits for a disk or a database."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait


class Hands:
    """So many threads for all requests of a process, started when first needed."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="cumulus-hand")

    def each(self, steps: Iterable[Callable[[], None]]) -> None:
        """Do all steps, begun in their order. The caller's thread takes part, so that it comes to an end
        though others keep all hands busy. Raises what a step raises, when those that were begun have ended;
        the others are left then."""
        waiting = deque(steps)

        def take() -> None:
            while waiting:
                try:
                    step = waiting.popleft()
                except IndexError:  # another was faster
                    return
                try:
                    step()
                except BaseException:
                    waiting.clear()
                    raise

        helping = [future for _ in range(min(self._threads, len(waiting) - 1)) if (future := self._ask(take))]
        try:
            take()
        finally:
            begun = [future for future in helping if not future.cancel()]
            wait(begun)
        for future in begun:
            future.result()

    def _ask(self, work: Callable[[], None]) -> Future[None] | None:
        try:
            return self._pool.submit(work)
        except RuntimeError:  # the process ends, or may have no more threads
            return None

    def close(self) -> None:
        """End the threads, after what they are at."""
        self._pool.shutdown()
