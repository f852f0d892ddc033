"""Steps of one request beside each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from cumulus.ops.hands import Hands


def test_all_is_done_and_one_step_takes_no_thread() -> None:
    hands, done = Hands(3), list[int]()
    before = threading.active_count()
    hands.each([])
    hands.each([partial(done.append, 7)])
    assert (done, threading.active_count()) == ([7], before)
    hands.each([partial(done.append, number) for number in range(100)])
    assert sorted(done) == sorted([7, *range(100)])
    assert threading.active_count() <= before + 3
    hands.close()
    assert threading.active_count() == before


def test_a_request_ends_while_others_keep_all_hands_busy() -> None:
    hands, go, begun = Hands(2), threading.Event(), threading.Barrier(4)

    def busy() -> None:
        begun.wait(20)
        go.wait(20)

    other = threading.Thread(target=hands.each, args=([busy] * 3,))
    other.start()
    begun.wait(20)
    done: list[int] = []
    hands.each([partial(done.append, number) for number in range(5)])
    assert done == [0, 1, 2, 3, 4]
    go.set()
    other.join(20)
    hands.close()
    hands.each([partial(done.append, 5), partial(done.append, 6)])  # the process ends
    assert done[5:] == [5, 6]


def test_all_is_done_where_no_more_threads_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked of a thread before may begin at any later moment, and then finds nothing."""
    hands, done = Hands(3), list[int]()
    real, started = threading.Thread.start, list[threading.Thread]()

    def start(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    for _ in range(50):
        done.clear()
        hands.each([partial(done.append, number) for number in range(20)])
        assert sorted(done) == list(range(20))
    hands.close()


@pytest.mark.parametrize("where", ["caller", "hand"])
def test_what_a_step_raises_ends_the_others(where: str) -> None:
    hands, both, ran = Hands(1), threading.Barrier(2), list[int]()

    def first(mine: bool) -> None:
        both.wait(20)
        if mine is (threading.current_thread().name == caller):
            raise ValueError(where)

    def slow() -> None:
        time.sleep(0.001)
        ran.append(1)

    caller = threading.current_thread().name
    steps: list[Callable[[], None]] = [partial(first, where == "caller")] * 2
    with pytest.raises(ValueError, match=where):
        hands.each([*steps, *[slow] * 20_000])
    assert len(ran) < 20_000
    hands.close()
