"""Jobs that cost less together than one by one: what waits at the same time is one piece of work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from twisted.logger import Logger

from cumulus.http.pool import Done, Failed, Pool

log = Logger()

MOST: Final = 64  # jobs of one batch
AT_WORK: Final = 2  # batches: one waits for the disk, one is made ready meanwhile


class Batches:
    """`work` is given all jobs that wait, at most `MOST`, in a thread of the pool, and gives an outcome for
    each, in their order. `AT_WORK` batches are at work at a time, meanwhile the next one gathers; what comes
    in one turn of the reactor is one batch."""

    def __init__(self, reactor: Any, pool: Pool, work: Callable[[list[Any]], Sequence[Any]]) -> None:
        self._reactor = reactor
        self._pool = pool
        self._work = work
        self._waiting: list[tuple[Any, Done]] = []
        self._due = False
        self._at_work = 0

    def submit(self, job: Any, done: Done) -> bool:
        """Have it done, and `done(outcome)` called in the reactor. False, and nothing happens, when too much
        waits already."""
        if not self._pool.take():
            return False
        self._waiting.append((job, done))
        if not self._due and self._at_work < AT_WORK:
            self._due = True
            self._reactor.callLater(0, self._begin)
        return True

    def _begin(self) -> None:
        self._due = False
        if self._waiting and self._at_work < AT_WORK:
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            self._at_work += 1
            jobs = [job for job, _ in batch]
            self._pool.must(partial(self._work, jobs), partial(self._done, batch))

    def _done(self, batch: list[tuple[Any, Done]], outcome: Any) -> None:
        self._at_work -= 1
        outcomes = [outcome] * len(batch) if isinstance(outcome, Failed) else outcome
        for (_, done), one in zip(batch, outcomes, strict=True):
            self._pool.give_back()
            try:
                done(one)
            except Exception:
                log.failure("a request's next step failed")
        self._begin()
