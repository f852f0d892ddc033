"""Threads that hash bodies while these are written and while more comes: each body's pieces in order, one
piece of each body in turn.

One thread at a time makes MD5: of all bodies that wait then (up to eight), which go on side by side in less
time than one after the other (`sector._udt.md5`). With SHA-256 of the same bytes that saves little, so any
thread makes those, and side by side where several wait. What waits already is hashed on without a change of
threads, so that a core may do nothing but hash.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from enum import Enum, auto
from itertools import islice
from typing import Final

from cumulus.checksums import Part
from cumulus.ops.cores import core
from sector._udt.md5 import Md5, update_together

TOGETHER: Final = 8  # as many as go on side by side in the C core
WORTH_IT: Final = 4  # from so many on, those with SHA-256 take less time side by side

Pieces = Sequence[memoryview]


class Kind(Enum):
    """What a line's part is, for who may go on beside whom: MD5, MD5 and SHA-256, or something else."""

    MD5 = auto()
    BOTH = auto()
    OTHER = auto()


class Line:
    """The pieces of one body for one part of its sums. Not for several threads at once."""

    __slots__ = ("_done", "_error", "_given", "_hashing", "_moved", "_queue", "core", "kind", "part")

    def __init__(self, hashing: Hashing, part: Part) -> None:
        self._hashing = hashing
        self.part = part
        self.core = -1  # where its pieces are hashed, while they are the only ones
        self.kind = Kind.OTHER
        if isinstance(part, Md5):
            self.kind = Kind.BOTH if part.with_sha256 else Kind.MD5
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

    def take(self) -> Pieces | None:
        """What is to be hashed next. The lock is held."""
        return self._queue.popleft() if self._queue else None

    def taken(self, error: BaseException | None) -> bool:
        """That was hashed, or it failed; whether more waits. The lock is held."""
        self._done += 1
        self._error = self._error or error
        self._moved.notify_all()
        return bool(self._queue)


def _hash(work: Sequence[tuple[Line, Pieces]]) -> None:
    """One line, or several of MD5. Raises what a sum raises."""
    together: list[tuple[Md5, Pieces]] = []
    for line, pieces in work:
        if isinstance(line.part, Md5):
            together.append((line.part, pieces))
        else:
            for piece in pieces:
                line.part(piece)
    if together:
        update_together(together)


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
        self._md5 = False  # a thread is at it, and takes what waits when it is done
        self.closed = False

    def line(self, part: Part) -> Line:
        """For a body whose pieces go to this, which should not hold the interpreter's lock."""
        return Line(self, part)

    def begin(self, line: Line) -> None:
        """It has a piece to be hashed, and no other. The lock is held."""
        self._ready.append(line)
        if not self._can(line):
            return
        if self._idle:
            self._idle -= 1
            self._wake.notify()
        elif len(self._threads) < self._size:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._run_thd, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _can(self, line: Line) -> bool:
        return not (self._md5 and line.kind is Kind.MD5)

    def _next(self) -> list[Line]:
        """The first of those that can go on, and those that do so beside it. The lock is held."""
        first = next((line for line in self._ready if self._can(line)), None)
        if first is None:
            return []
        lines = [first]
        if first.kind is not Kind.OTHER:
            lines = list(islice((line for line in self._ready if line.kind is first.kind), TOGETHER))
        if first.kind is Kind.BOTH and len(lines) < WORTH_IT:
            lines = [first]
        self._md5 = self._md5 or first.kind is Kind.MD5
        for line in lines:
            self._ready.remove(line)
        return lines

    def _run_thd(self) -> None:
        with self.lock:
            while True:
                while not (lines := self._next()):
                    if self.closed:
                        return
                    self._idle += 1
                    self._wake.wait()
                self._work(lines)

    def _work(self, lines: Sequence[Line]) -> None:
        """Hash the next pieces of these. The lock is held before and after."""
        taken = [(line, line.take()) for line in lines]
        work = [(line, pieces) for line, pieces in taken if pieces is not None]
        error: BaseException | None = None
        here = core() if len(lines) == 1 and not self._ready else -1
        for line in lines:
            line.core = here
        self.lock.release()
        try:
            _hash(work)
        except BaseException as bad:
            error = bad
        finally:
            self.lock.acquire()
        if lines[0].kind is Kind.MD5:
            self._md5 = False
        # those with more go behind the others; this thread takes the first of all
        self._ready += [line for line, _ in work if line.taken(error)]

    def shutdown(self) -> None:
        """Hash what waits, then end the threads."""
        with self.lock:
            self.closed = True
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()
