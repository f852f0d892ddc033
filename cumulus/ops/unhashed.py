"""Files that others made and that are still to be hashed: read by a thread of their own, since one may take
hours, and other work in the background must not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

MOST: Final = 10_000  # that wait; what comes beyond is found by the next scan
Name = tuple[str, str]


class Unhashed:
    """Names (bucket, name), each once, the oldest first. `stop` says that the process ends. `add` is for all
    threads, `work` for one."""

    def __init__(self, stop: Callable[[], bool] = lambda: False) -> None:
        self._stop = stop
        self._lock = threading.Lock()
        self._names: dict[Name, None] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cumulus-outside")
        self._batch: Future[int] | None = None

    def __len__(self) -> int:
        return len(self._names)

    def add(self, bucket: str, name: str) -> None:
        """Have it wait, if not too many do."""
        with self._lock:
            if len(self._names) < MOST:
                self._names[bucket, name] = None

    def clear(self) -> None:
        """Forget all that wait."""
        with self._lock:
            self._names.clear()

    def _take(self) -> Name | None:
        with self._lock:
            name = next(iter(self._names), None)
            if name is not None:
                del self._names[name]
            return name

    def work(self, hash_one: Callable[[str, str], bool], most: int, patience_s: float) -> int:
        """Let the thread begin with some, at most `most`, unless it is still at those before; it is waited
        for this long, when it begins. How many of those that have ended now were hashed (`hash_one` says it
        of each). Raises what that raises."""
        patience_s = patience_s if self._batch is None else 0.0
        if self._batch is None:
            if not self._names:
                return 0
            self._batch = self._thread.submit(self._run, hash_one, most)
        wait([self._batch], patience_s)
        if not self._batch.done():
            return 0
        batch, self._batch = self._batch, None
        return batch.result()

    def _run(self, hash_one: Callable[[str, str], bool], most: int) -> int:
        count = 0
        while count < most and not self._stop() and (name := self._take()) is not None:
            count += hash_one(*name)
            with self._lock:
                self._names.pop(name, None)  # not at once again what could not be hashed
        return count

    def close(self) -> None:
        """Wait for the thread, which ends when `stop` says so."""
        self._thread.shutdown(cancel_futures=True)
