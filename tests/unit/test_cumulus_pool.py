"""The pool of threads: what a job held is gone when its end is heard of, and how it ends is told."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from cumulus.http.pool import Failed, Pool

WAIT_S = 10.0


class Buffer(bytearray):
    """One that can be watched."""


class Loop:
    """A reactor that only hears of threads; `look` is called in the thread that tells it."""

    def __init__(self, look: Callable[[], Any]) -> None:
        self.seen: list[Any] = []
        self.told = threading.Event()
        self.deliver: Callable[[], None] = lambda: None
        self._look = look

    def callFromThread(self, deliver: Callable[[], None]) -> None:
        """Keeps it for the test to call."""
        self.seen.append(self._look())
        self.deliver = deliver
        self.told.set()


def take(data: Buffer, fault: BaseException | None) -> int:
    """A job with a buffer."""
    if fault is not None:
        raise fault
    return len(data)


def test_what_a_job_held_is_gone_when_its_end_is_heard_of() -> None:
    """A thread kept the buffer for a moment longer than the answer took to the client."""
    data = Buffer(1000)
    watched = weakref.ref(data)
    loop = Loop(lambda: watched() is None)
    pool = Pool(loop, size=1, queue=1)
    outcomes: list[Any] = []
    try:
        assert pool.submit(partial(take, data, None), outcomes.append)
        del data
        assert loop.told.wait(WAIT_S)
        assert loop.seen == [True]
        loop.deliver()
        assert (outcomes, pool.outstanding) == ([1000], 0)
    finally:
        pool.stop()


def test_a_job_that_fails_is_told_and_the_thread_goes_on() -> None:
    fault = OSError("the disk is gone")
    loop = Loop(lambda: None)
    pool = Pool(loop, size=1, queue=1)
    outcomes: list[Any] = []
    try:
        for wrong in (fault, None):
            loop.told.clear()
            assert pool.submit(partial(take, Buffer(7), wrong), outcomes.append)
            assert loop.told.wait(WAIT_S)
            loop.deliver()
        assert isinstance(outcomes[0], Failed)
        assert outcomes[0].error is fault
        assert outcomes[1:] == [7]
    finally:
        pool.stop()
