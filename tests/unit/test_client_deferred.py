"""What cannot be cut short is waited for, also by who no longer wants it."""

from __future__ import annotations

import pytest
from twisted.internet.defer import CancelledError, Deferred, ensureDeferred

from sector.client.deferred import uncut
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
