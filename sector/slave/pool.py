"""Where blocking disk work runs: a named thread pool, or at once for simulated clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

T = TypeVar("T")


class Pool(Protocol):
    """Runs functions whose names end in `_thd`."""

    def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> Deferred[T]:
        """Fires in the reactor thread with the result or the exception."""

    def start(self) -> None:
        """Ready to run."""

    def stop(self) -> None:
        """Wait for what runs; nothing runs afterwards."""


class Threads:
    """A pool of `size` threads of its own. They wait for disks, mostly for fsync, which a file system does
    for all that ask at the same time at little more cost than for one."""

    def __init__(self, reactor: Any, name: str, size: int = 12) -> None:
        self._reactor = reactor
        self._pool = ThreadPool(minthreads=size, maxthreads=size, name=name)

    def start(self) -> None:
        if not self._pool.started:
            self._pool.start()

    def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> Deferred[T]:
        return deferToThreadPool(self._reactor, self._pool, function, *args, **kwargs)

    def stop(self) -> None:
        if self._pool.started:
            self._pool.stop()


class Inline:
    """Runs everything at once in the caller's thread: for simulated time."""

    def start(self) -> None:
        pass

    def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> Deferred[T]:
        return maybeDeferred(function, *args, **kwargs)

    def stop(self) -> None:
        pass
