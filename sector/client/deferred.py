"""Coroutines as functions that return Deferreds, and the few waits that the client needs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ParamSpec, TypeVar, cast

from twisted.internet.defer import (
    CancelledError,
    Deferred,
    DeferredList,
    DeferredSemaphore,
    FirstError,
    ensureDeferred,
    gatherResults,
)
from twisted.python.failure import Failure

P = ParamSpec("P")
T = TypeVar("T")


def deferred(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Deferred[T]]:
    """The async function as one that returns a Deferred, which can be cancelled."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        return ensureDeferred(function(*args, **kwargs))

    return run


async def uncut(work: Deferred[T], undo: Callable[[T], object] | None = None) -> T:
    """The result of what cannot be cancelled, such as a thread's work: whoever cancels waits for its end too,
    and `undo` then takes back what it gave. Raises CancelledError after that, else what `work` raises."""
    results: list[T] = []
    failures: list[Failure] = []
    work.addCallbacks(results.append, failures.append)
    interrupted: CancelledError | None = None
    while not results and not failures:
        ended: Deferred[Any] = Deferred()
        work.chainDeferred(ended)
        try:
            await ended
        except CancelledError as error:
            interrupted = error
    if interrupted is not None:
        if results and undo is not None:
            undo(results[0])
        raise interrupted
    for failure in failures:
        failure.raiseException()
    return results[0]


Work = Callable[[], Coroutine[Any, Any, T]]


async def bounded(limit: int, works: Iterable[Work[T]]) -> list[T]:
    """Run the works, at most `limit` at once; results in order. The first failure cancels the rest and is
    raised when all have ended; those that had to wait are not begun."""
    bound = DeferredSemaphore(limit)
    return await bounded_by((bound, work) for work in works)


async def bounded_by(works: Iterable[tuple[DeferredSemaphore, Work[T]]]) -> list[T]:
    """The same with a bound for each."""
    stopping = False

    def begin(work: Work[T]) -> Deferred[T]:
        if stopping:  # what has just ended made room; this one waits to be cancelled
            return Deferred()
        return deferred(work)().addErrback(stop)

    def stop(why: Failure) -> Failure:
        nonlocal stopping
        stopping = True
        return why

    running: list[Deferred[T]] = [cast(Any, bound).run(begin, work) for bound, work in works]
    whole = gatherResults(running, consumeErrors=True)
    try:
        return list(await whole)
    except BaseException as error:
        for one in running:
            one.cancel()
        await DeferredList(running)
        if isinstance(error, FirstError):
            raise cast(BaseException, error.subFailure.value) from None
        raise
