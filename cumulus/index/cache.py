"""Answers that are kept for a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
MOST: Final = 4096
MOST_WEIGHT: Final = 16 * 1024 * 1024
LONGEST: Final = 512  # characters of a question whose answer is kept: clients ask for what they please


def _length(key: object) -> int:
    return sum(map(_length, key)) if isinstance(key, tuple) else len(str(key))


class Fresh(Generic[K, V]):
    """At most 4,096 answers, each at most `seconds` old; None ("there is none") is not kept, so that what is
    new is there at once, unless `keep_none`; nor is the answer to more than `LONGEST` characters. Where
    answers may be long, `weigh` gives the characters of one; they are kept as long as all together are no
    more than 16 MiB. Safe for several threads."""

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        keep_none: bool = False,
        weigh: Callable[[V], int] = lambda _: 0,
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._keep_none = keep_none
        self._weigh = weigh
        self._weight = 0
        self._kept: dict[K, tuple[float, V]] = {}
        self._epoch = 0
        self._lock = threading.Lock()

    def get(self, key: K, ask: Callable[[K], V]) -> V:
        """What is kept, or what `ask` answers now."""
        now = self._clock()
        kept = self._kept.get(key)
        if kept is not None and now - kept[0] < self._seconds:
            return kept[1]
        epoch = self._epoch
        answer = ask(key)
        with self._lock:
            # an answer from before a change is not kept
            if epoch == self._epoch and (answer is not None or self._keep_none):
                self._keep(key, now, answer)
        return answer

    def keep(self, key: K, answer: V) -> None:
        """An answer that was come by otherwise, as it is now."""
        with self._lock:
            self._keep(key, self._clock(), answer)

    def _keep(self, key: K, now: float, answer: V) -> None:
        self._forget(key)
        if _length(key) > LONGEST:
            return
        weight = self._weigh(answer)
        if len(self._kept) >= MOST or self._weight + weight > MOST_WEIGHT:
            self._clear()
        self._kept[key] = (now, answer)
        self._weight += weight

    def _forget(self, key: K) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._weight -= self._weigh(kept[1])

    def _clear(self) -> None:
        self._kept.clear()
        self._weight = 0

    def peek(self, key: K) -> V | None:
        """What is kept; None for what has to be asked."""
        kept = self._kept.get(key)
        return kept[1] if kept is not None and self._clock() - kept[0] < self._seconds else None

    def drop(self, key: K | None = None) -> None:
        """Forget one answer, or all."""
        with self._lock:
            self._epoch += 1
            if key is None:
                self._clear()
            else:
                self._forget(key)
