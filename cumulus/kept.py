"""What documents of buckets say, read once: policies, CORS rules, lifecycles. Their owners write them, so
what is kept is bounded by its size, and whoever must not wait can see whether reading would take long."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

R = TypeVar("R")
MOST: Final = 4 * 1024 * 1024  # characters of the documents of one kind; what was read takes some times that
SHORT: Final = 4096  # characters that are read in about a millisecond


class Kept(Generic[R]):
    """A reader of documents, called with texts: the document, and what else its answer depends on. The last
    answers are kept, as many as come from `most` characters, but one at least. Failures are not. Safe for
    several threads."""

    def __init__(self, read: Callable[..., R], most: int = MOST) -> None:
        self.__wrapped__ = read
        self._most = most
        self._answers: OrderedDict[tuple[str, ...], R] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()
        self.__doc__ = read.__doc__

    def __call__(self, *texts: str) -> R:
        with self._lock:
            if texts in self._answers:
                self._answers.move_to_end(texts)
                return self._answers[texts]
        answer = self.__wrapped__(*texts)
        with self._lock:
            if texts not in self._answers:
                self._answers[texts] = answer
                self._size += _size(texts)
            while self._size > self._most and len(self._answers) > 1:
                self._size -= _size(self._answers.popitem(last=False)[0])
        return answer

    def quick(self, *texts: str) -> bool:
        """Whether the answer is there, or takes no time worth mentioning."""
        return _size(texts) <= SHORT or texts in self._answers


def _size(texts: tuple[str, ...]) -> int:
    return sum(map(len, texts))
