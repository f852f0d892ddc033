"""Calls that are made at the same time share one piece of work: a batch, a transaction, a round trip.

The first caller leads: it does the work for all that wait, then the next one that waits leads. There is no
thread of its own and no timer: while one batch is at work, the next one gathers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

A = TypeVar("A")
R = TypeVar("R")


class _Call(Generic[A, R]):
    __slots__ = ("error", "finished", "given", "result", "wake")

    def __init__(self, given: A) -> None:
        self.given = given
        self.finished = False
        self.result: R | None = None
        self.error: BaseException | None = None
        self.wake = threading.Lock()
        self.wake.acquire()


class Combiner(Generic[A, R]):
    """`work` gets at most `most` arguments and gives as many results, or errors as values, in order; what it
    raises is raised to each caller. It runs in one thread at a time."""

    def __init__(self, work: Callable[[list[A]], Sequence[R | BaseException]], most: int = 512) -> None:
        self._work = work
        self._most = most
        self._lock = threading.Lock()
        self._queue: deque[_Call[A, R]] = deque()
        self._busy = False
        self.batches = 0  # so far

    def do(self, given: A) -> R:
        """One call. Raises what the work raises or gives as an error."""
        call: _Call[A, R] = _Call(given)
        with self._lock:
            self._queue.append(call)
            lead, self._busy = not self._busy, True
        if not lead:
            call.wake.acquire()
        while not call.finished:
            self._batch()
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]

    def _batch(self) -> None:
        """Work for those who wait, then wake them, and one who has to lead."""
        with self._lock:
            calls = [self._queue.popleft() for _ in range(min(self._most, len(self._queue)))]
        try:
            results = self._work([call.given for call in calls])
            for call, result in zip(calls, results, strict=True):
                if isinstance(result, BaseException):
                    call.error = result
                else:
                    call.result = result
        except BaseException as bad:
            for call in calls:
                call.error = bad
        self.batches += 1
        with self._lock:
            heir = self._queue[0] if self._queue else None
            self._busy = heir is not None
        for call in calls:
            call.finished = True
            call.wake.release()
        if heir is not None:
            heir.wake.release()
