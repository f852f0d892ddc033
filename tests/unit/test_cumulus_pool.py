"""The pool of threads: what a job held is gone when its end is heard of, and how it ends is told."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

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


class Outcomes(Loop):
    """One that keeps what it is told, as it is told."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.came: list[Any] = []
        self.changed = threading.Condition()

    def callFromThread(self, deliver: Callable[[], None]) -> None:
        """In the thread that tells it, one at a time."""
        with self.changed:
            deliver()
            self.changed.notify_all()

    def wait(self, count: int) -> list[Any]:
        """So many outcomes."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.came) >= count, WAIT_S)
            return list(self.came)


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


def test_jobs_that_block_run_beside_each_other_and_the_rest_waits_for_its_turn() -> None:
    """Each thread that comes for a job has the next one woken, though jobs were given all at once."""
    loop, meet = Outcomes(), threading.Barrier(4)
    pool = Pool(loop, size=4, queue=8)
    try:
        for _ in range(2):  # with threads that are new, and with idle ones
            with loop.changed:  # nobody hears of an end meanwhile
                for number in range(12):
                    assert pool.submit(partial(meet.wait, WAIT_S), loop.came.append), number
                assert not pool.submit(meet.wait, loop.came.append), "twelve are under way"
            assert sorted(loop.wait(12)) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
            loop.came.clear()
    finally:
        pool.stop()


def test_a_job_goes_to_the_thread_that_was_idle_for_the_shortest_time_and_wakes_no_other() -> None:
    """One that is woken for nothing costs those that work."""
    loop, used, meet = Outcomes(), set[int](), threading.Barrier(4)
    pool = Pool(loop, size=4, queue=8)

    def all_idle() -> bool:
        with pool._lock:
            return len(pool._hands) == 4

    def wait_until_idle() -> None:
        for _ in range(int(WAIT_S / 0.001)):
            if all_idle():
                return
            time.sleep(0.001)
        raise AssertionError("a thread is still at work")

    try:
        for _ in range(4):
            pool.must(partial(meet.wait, WAIT_S), loop.came.append)
        loop.wait(4)
        for turn in range(1, 51):
            wait_until_idle()
            pool.must(lambda: used.add(threading.get_ident()), loop.came.append)
            loop.wait(4 + turn)
        assert len(used) == 1
    finally:
        pool.stop()


def test_what_waits_when_the_pool_ends_is_done_first() -> None:
    loop, go = Outcomes(), threading.Event()
    pool = Pool(loop, size=1, queue=4)
    for number in range(3):
        pool.must(lambda number=number: go.wait(WAIT_S) and number, loop.came.append)
    go.set()
    pool.stop(WAIT_S)
    assert loop.came == [0, 1, 2]
    assert not pool.submit(lambda: 3, loop.came.append)


def test_a_system_without_threads_is_told_and_those_there_are_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job fails, as one that raises; afterwards all is as before."""
    loop, meet = Outcomes(), threading.Barrier(2)
    pool = Pool(loop, size=2, queue=8)

    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    try:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", none)
            for give in (pool.submit, pool.must):
                give(lambda: "lost", loop.came.append)
            assert [str(one.error) for one in loop.wait(2)] == ["can't start new thread"] * 2
            assert pool.outstanding == 0
        loop.came.clear()
        go = threading.Event()
        pool.must(partial(go.wait, WAIT_S), loop.came.append)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", none)
            assert pool.submit(lambda: "second", loop.came.append), "the one at work takes it"
        go.set()
        assert loop.wait(2) == [True, "second"]
        loop.came.clear()
        for _ in range(2):
            pool.must(partial(meet.wait, WAIT_S), loop.came.append)
        assert sorted(loop.wait(2)) == [0, 1]
    finally:
        pool.stop()


def test_jobs_that_change_something_never_have_all_threads() -> None:
    """Though all of them stand still; they are done in their order when that is over."""
    loop = Outcomes()
    pool = Pool(loop, size=8, queue=64)
    go = threading.Event()
    try:
        for number in range(20):
            assert pool.submit(
                lambda number=number: go.wait(WAIT_S) and number, loop.came.append, changes=True
            )
        for number in range(100, 110):
            assert pool.submit(lambda number=number: number, loop.came.append)
            assert loop.wait(number - 99)[-1] == number
        go.set()
        assert sorted(loop.wait(30)[10:]) == list(range(20))
    finally:
        go.set()
        pool.stop()


def test_a_pool_of_one_thread_does_everything() -> None:
    loop = Outcomes()
    pool = Pool(loop, size=1, queue=8)
    for number in range(6):
        assert pool.submit(lambda number=number: number, loop.came.append, changes=number % 2 == 0)
    assert sorted(loop.wait(6)) == list(range(6))
    pool.stop()
