"""A connection to a Sector cloud for threads: coroutines of its client run in a reactor, each with a
deadline, and its errors become storage errors.

Within `cumulus serve` the service's own reactor is used; elsewhere the one of `sector.connect`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from twisted.internet.defer import CancelledError, Deferred, DeferredLock, ensureDeferred
from twisted.python.failure import Failure

from cumulus.storage.api import (
    BadName,
    Changed,
    Forbidden,
    Missing,
    NoSpace,
    StorageError,
    Taken,
    Unavailable,
)
from sector import errors
from sector.client.blocking import ReactorThread
from sector.client.cloud import CloudClient
from sector.client.connect import open_client
from sector.config import Config

T = TypeVar("T")
Work = Callable[[CloudClient], Awaitable[T]]

CALL_S: Final = 20.0  # a master that is away is told to the user after this
_CLOSE_S: Final = 5.0
_KINDS: Final[tuple[tuple[type[errors.SectorError], type[StorageError]], ...]] = (
    (errors.NotFound, Missing),
    (errors.Denied, Forbidden),
    (errors.NoSpace, NoSpace),
    (errors.IsDirectory, Taken),
    (errors.NotDirectory, Taken),
    (errors.Exists, Taken),
    (errors.NotEmpty, Taken),
    (errors.Conflict, Changed),
    (errors.BadPath, BadName),
)


def storage_error(error: errors.SectorError, what: str) -> StorageError:
    """The storage error for one of Sector's; what may pass (a master or slaves away, a rebuild, a session
    that has ended) is `Unavailable`."""
    for raised, known in _KINDS:
        if isinstance(error, raised):
            return known(f"{what}: {error.message}")
    return Unavailable(f"{what}: {error.message}")


def _reactor() -> Any:
    """The reactor that runs in this process; started in a thread where there is none."""
    known = sys.modules.get("twisted.internet.reactor")
    if known is not None and getattr(known, "running", False):
        return known
    return ReactorThread.get().reactor


class Link:
    """One client, opened at the first call and again after a failure to open it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._client: CloudClient | None = None
        self._opening = DeferredLock()
        self._reactor: Any = None
        self._start = threading.Lock()
        self._closed = False

    def call(self, work: Work[T], what: str, deadline_s: float = CALL_S) -> T:
        """What `work(client)` gives, run in the reactor. Raises `StorageError`; `Unavailable` when it takes
        longer than `deadline_s`: it is cancelled then."""
        if self._closed:
            raise StorageError("the store is closed")
        with self._start:
            if self._reactor is None:
                self._reactor = _reactor()
        outcome: Future[T] = Future()
        running: list[Deferred[T]] = []

        def failed(failure: Failure) -> None:
            outcome.set_exception(failure.value or StorageError(what))

        def begin() -> None:
            doing: Deferred[T] = ensureDeferred(self._run(work))
            running.append(doing)
            doing.addCallbacks(outcome.set_result, failed)

        self._reactor.callFromThread(begin)
        try:
            return outcome.result(deadline_s)
        except errors.SectorError as error:
            raise storage_error(error, what) from error
        except (TimeoutError, CancelledError) as error:
            self._reactor.callFromThread(_cancel, running)
            raise Unavailable(f"{what}: no answer within {deadline_s:g} s") from error

    async def _run(self, work: Work[T]) -> T:
        await self._opening.acquire()
        try:
            if self._client is None:
                self._client = await open_client(self._reactor, self._config)
        finally:
            self._opening.release()
        return await work(self._client)

    def close(self) -> None:
        """Close the connection; the session stays valid. Called twice, or when the reactor has ended, it does
        nothing."""
        if self._closed or self._client is None or not self._reactor.running:
            self._closed = True
            return
        self._closed = True
        done = threading.Event()

        def end() -> None:
            if self._client is None:
                done.set()
                return
            self._client.close().addErrback(lambda _: None).addCallback(lambda _: done.set())

        self._reactor.callFromThread(end)
        if not _in_reactor():
            done.wait(_CLOSE_S)


def _in_reactor() -> bool:
    """Whether we are in the reactor's thread, which must not wait."""
    from twisted.python.threadable import isInIOThread

    return bool(isInIOThread())


def _cancel(running: list[Deferred[T]]) -> None:
    for doing in running:
        doing.cancel()
