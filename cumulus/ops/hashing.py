"""Threads that hash bodies while these are written and while more comes: each body's pieces in order, one
piece of each body in turn.

A body whose next piece waits already is hashed on without a change of threads, so that a core may do nothing
but hash.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

Pieces = Sequence[memoryview]


class Line:
    """The pieces of one body. Not for several threads at once."""

    __slots__ = ("_done", "_error", "_given", "_hashing", "_moved", "_queue", "_update")

    def __init__(self, hashing: Hashing, update: Callable[[memoryview], None]) -> None:
        self._hashing = hashing
        self._update = update
        self._queue: deque[Pieces] = deque()
        self._given = self._done = 0
        self._error: BaseException | None = None
        self._moved = threading.Condition(hashing.lock)

    def put(self, pieces: Pieces) -> None:
        """Hash these after what was put before. They must not change until they are waited for. Raises
        `RuntimeError` after the threads have ended."""
        with self._hashing.lock:
            if self._hashing.closed:
                raise RuntimeError("the hashing threads have ended")
            self._queue.append(pieces)
            self._given += 1
            if self._given - self._done == 1:
                self._hashing.begin(self)

    def wait(self, behind: int = 0) -> None:
        """Return when no more than the last `behind` of what was put may still be hashed. Raises what the
        hashing raised."""
        with self._hashing.lock:
            while self._given - self._done > behind and self._error is None:
                self._moved.wait()
            if self._error is not None:
                raise self._error

    def forget(self) -> None:
        """Nobody wants the sum; a piece that is under way is kept until it is done."""
        with self._hashing.lock:
            self._done += len(self._queue)
            self._queue.clear()

    def step_thd(self) -> bool:
        """Hash the next piece; whether another one waits. The lock is held before and after."""
        if not self._queue:
            return False
        pieces = self._queue.popleft()
        self._hashing.lock.release()
        error: BaseException | None = None
        try:
            for piece in pieces:
                self._update(piece)
        except BaseException as bad:
            error = bad
        finally:
            self._hashing.lock.acquire()
        del pieces
        self._done += 1
        self._error = self._error or error
        self._moved.notify_all()
        return bool(self._queue)


class Hashing:
    """So many threads, started when first needed."""

    def __init__(self, threads: int, name: str = "cumulus-hash") -> None:
        self.lock = threading.Lock()
        self._size = threads
        self._name = name
        self._wake = threading.Condition(self.lock)
        self._ready: deque[Line] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self.closed = False

    def line(self, update: Callable[[memoryview], None]) -> Line:
        """For a body whose pieces go to `update`, which should not hold the interpreter's lock."""
        return Line(self, update)

    def begin(self, line: Line) -> None:
        """It has a piece to be hashed, and no other. The lock is held."""
        self._ready.append(line)
        if self._idle:
            self._idle -= 1
            self._wake.notify()
        elif len(self._threads) < self._size:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._run_thd, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run_thd(self) -> None:
        with self.lock:
            while True:
                while not self._ready:
                    if self.closed:
                        return
                    self._idle += 1
                    self._wake.wait()
                line = self._ready.popleft()
                if line.step_thd():
                    self._ready.append(line)  # behind the others; this thread takes the first of them

    def shutdown(self) -> None:
        """Hash what waits, then end the threads."""
        with self.lock:
            self.closed = True
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()
