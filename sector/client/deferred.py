"""Coroutines as functions that return Deferreds, and the few waits that the client needs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ParamSpec, TypeVar, cast

from twisted.internet.defer import (
    Deferred,
    DeferredList,
    DeferredSemaphore,
    FirstError,
    ensureDeferred,
    gatherResults,
)

P = ParamSpec("P")
T = TypeVar("T")


def deferred(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Deferred[T]]:
    """The async function as one that returns a Deferred, which can be cancelled."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        return ensureDeferred(function(*args, **kwargs))

    return run


Work = Callable[[], Coroutine[Any, Any, T]]


async def bounded(limit: int, works: Iterable[Work[T]]) -> list[T]:
    """Run the works, at most `limit` at once; results in order. The first failure cancels the rest and is
    raised when all have ended."""
    bound = DeferredSemaphore(limit)
    return await bounded_by((bound, work) for work in works)


async def bounded_by(works: Iterable[tuple[DeferredSemaphore, Work[T]]]) -> list[T]:
    """The same with a bound for each."""
    running: list[Deferred[T]] = [cast(Any, bound).run(deferred(work)) for bound, work in works]
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
