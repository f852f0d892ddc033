"""Tells a listener what functions printed, in a thread of its own: it may take its time (a pager on standard
error that waits for a key), and the job's driver does not wait for it."""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable

from sector.threads import start_deaf

WAITING_MAX = 10_000


class Talk:
    """Calls `listener(segment, text)` for each `put`, in order. What it raises is printed. Of more than
    `WAITING_MAX` that wait the oldest are left out."""

    def __init__(self, listener: Callable[[int, str], None]) -> None:
        self._listener = listener
        self._waiting: deque[tuple[int, str]] = deque(maxlen=WAITING_MAX)
        self._change = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="sphere-talk", daemon=True)
        start_deaf(self._thread)

    def put(self, segment: int, text: str) -> None:
        """Never waits."""
        with self._change:
            self._waiting.append((segment, text))
            self._change.notify()

    def close(self) -> None:
        """Nothing follows; the thread ends when all is told."""
        with self._change:
            self._closed = True
            self._change.notify()

    def finish(self) -> None:
        """Close, and wait until all is told."""
        self.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                segment, text = self._waiting.popleft()
            try:
                self._listener(segment, text)
            except Exception:
                traceback.print_exc()
