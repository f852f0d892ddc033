"""What cannot be cut short is waited for, also by who no longer wants it; no work begins in vain."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore, ensureDeferred

from sector.client.deferred import bounded, bounded_by, uncut
from sector.errors import LocalIO


def told(outcome: Deferred[int]) -> list[object]:
    said: list[object] = []
    outcome.addCallbacks(said.append, lambda failure: said.append(failure.type))
    return said


def test_the_result_of_work_comes_back() -> None:
    work: Deferred[int] = Deferred()
    undone: list[int] = []
    said = told(ensureDeferred(uncut(work, undone.append)))
    assert said == []
    work.callback(5)
    assert said == [5] and undone == []


def test_its_error_comes_back() -> None:
    work: Deferred[int] = Deferred()
    said = told(ensureDeferred(uncut(work)))
    work.errback(LocalIO("disk"))
    assert said == [LocalIO]


@pytest.mark.parametrize("times", [1, 2])
def test_who_cancels_waits_for_the_end_and_what_was_made_is_undone(times: int) -> None:
    work: Deferred[int] = Deferred()
    undone: list[int] = []
    outcome = ensureDeferred(uncut(work, undone.append))
    said = told(outcome)
    for _ in range(times):
        outcome.cancel()
    assert said == [] and undone == []
    work.callback(5)
    assert said == [CancelledError] and undone == [5]


def test_cancelled_work_that_fails_leaves_nothing_to_undo() -> None:
    work: Deferred[int] = Deferred()
    undone: list[int] = []
    outcome = ensureDeferred(uncut(work, undone.append))
    said = told(outcome)
    outcome.cancel()
    work.errback(LocalIO("disk"))
    assert said == [CancelledError] and undone == []


class Work:
    """Works that end when they are told to; `begun` has the numbers of those that were started."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ends: dict[int, Deferred[int]] = {}

    def number(self, number: int) -> Callable[[], Coroutine[Any, Any, int]]:
        """A work that waits for its end."""

        async def work() -> int:
            self.begun.append(number)
            self.ends[number] = Deferred()
            return await self.ends[number]

        return work


def test_after_a_failure_nothing_is_begun() -> None:
    """Each work that ends makes room for one that waits: it is not to be used any more."""
    works = Work()
    said = told(cast(Any, ensureDeferred(bounded(4, [works.number(i) for i in range(100)]))))
    works.ends[0].callback(0)
    assert works.begun == [0, 1, 2, 3, 4]
    works.ends[2].errback(LocalIO("disk"))
    assert works.begun == [0, 1, 2, 3, 4]
    assert said == [LocalIO]


def test_after_a_cancel_nothing_is_begun() -> None:
    works = Work()
    whole = ensureDeferred(bounded(4, [works.number(i) for i in range(100)]))
    said = told(cast(Any, whole))
    works.ends[0].callback(0)
    whole.cancel()
    assert works.begun == [0, 1, 2, 3, 4]
    assert said == [CancelledError]


def test_the_first_failure_is_raised_when_all_have_ended() -> None:
    """Also where a work cannot be cut short, and where bounds differ."""
    works, slow = Work(), Deferred[int]()
    one, other = DeferredSemaphore(1), DeferredSemaphore(1)
    whole = bounded_by(
        [
            (one, lambda: uncut(slow)),
            (one, works.number(1)),
            (other, works.number(2)),
            (other, works.number(3)),
        ]
    )
    said = told(cast(Any, ensureDeferred(whole)))
    works.ends[2].errback(LocalIO("disk"))
    assert (said, works.begun) == ([], [2])
    slow.callback(0)
    assert (said, works.begun) == ([LocalIO], [2])
