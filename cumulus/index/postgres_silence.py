"""A PostgreSQL that keeps its connections and says nothing: its disk hangs, it is stopped, or a proxy before
it waits for one that is not there. TCP finds nothing wrong, and the server's own time limits do not run. So
who has waited for some seconds asks on a new connection whether anybody is there at all; a statement that
only takes long is waited for.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

import psycopg

T = TypeVar("T")
FIRST_S: Final = 4.0  # without a word, before anybody asks
ANSWER_S: Final = 3.0  # for a new connection, and once more for its answer
_FRESH_S: Final = 2.0  # what was found is true for so long


class Silent(psycopg.OperationalError):
    """Nobody answers."""


def _never(waited_s: float) -> bool:
    return False


class Watched(psycopg.Connection[tuple[Any, ...]]):
    """`is_silent` is asked ten times a second with the seconds for which an answer has been waited; True
    closes the connection and raises `Silent`."""

    is_silent: Callable[[float], bool] = staticmethod(_never)

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """As psycopg's."""
        return super().wait(self._watch(gen), *args, **kwargs)

    def _watch(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        began = time.monotonic()
        try:
            state = next(gen)
            while True:
                ready = yield state
                if not ready and self.is_silent(time.monotonic() - began):
                    self.pgconn.finish()
                    raise Silent("the server keeps the connection and does not answer")
                state = gen.send(ready)
        except StopIteration as end:
            value: T = end.value
            return value


class Silence:
    """Whether the server that `connect` leads to is silent; one thread at a time finds out for all. `connect`
    waits ANSWER_S at most for each address."""

    def __init__(self, connect: Callable[[], Watched]) -> None:
        self._connect = connect
        self._asking = threading.Lock()
        self._until = 0.0  # as long as that counts which was found last
        self._found = False

    def is_silent(self, waited_s: float) -> bool:
        """As `Watched` asks it."""
        if waited_s < FIRST_S:
            return False
        if time.monotonic() >= self._until and self._asking.acquire(blocking=False):
            try:
                self._found = self._ask()
                self._until = time.monotonic() + _FRESH_S
            finally:
                self._asking.release()
        return self._found and time.monotonic() < self._until

    def _ask(self) -> bool:
        try:
            made = self._connect()
            made.is_silent = lambda waited_s: waited_s >= ANSWER_S
            with contextlib.closing(made):
                made.execute("SELECT 1")
        except (Silent, psycopg.errors.ConnectionTimeout):
            return True
        except psycopg.Error:
            return False  # it answers, and be it that it has no room: what is wrong its connections say
        return False
