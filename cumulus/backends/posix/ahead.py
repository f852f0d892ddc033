"""Large bodies go to disk while they arrive, so that the sync at their end has little left to wait for.

Asking the kernel to write is not enough: what it has handed to a disk with a cache of its own, or to the host
of a virtual machine, waits there for the flush that a sync ends with (decision 0214).
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from cumulus.backends.posix.files import Files

PIECE: Final = 4 << 20  # bytes written after which the disk is set to work; near the end at once
LARGE: Final = 4 << 20  # bytes of a body that is synced before its end
LARGE_PART: Final = 16 << 20  # of a part of an upload: others keep the disk at work, and the client the cores
STEP: Final = 1 << 20  # bytes between two syncs of a file, or a part of what is still to come if that is more
PART: Final = 64
THREADS: Final = 4  # syncs under way; of more bodies the rest go without


class Ahead:
    """The syncs under way in one store."""

    def __init__(self, files: Files, sync: bool) -> None:
        self._files = files
        self._free = threading.Semaphore(THREADS if sync else 0)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="cumulus-ahead")

    def body(self, fd: int, at: int, end: int, large: int = LARGE) -> Body:
        """A body that is written into a file from byte `at`; `end`: where it will end, 0 if nobody knows.
        It is synced before that if it has `large` bytes."""
        return Body(self, self._files, fd, at, end, large)

    def begin(self, fd: int) -> Future[None] | None:
        """Sync what the file has now, in a thread; None where that is not to be had.

        By a descriptor of its own: an error is told once to each, so the sync at the end still hears of it.
        """
        if not self._free.acquire(blocking=False):
            return None
        own = -1
        try:
            own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
            job = self._pool.submit(self._files.sync_ahead, own)
        except (OSError, RuntimeError):  # no /proc; closed
            if own >= 0:
                os.close(own)
            self._free.release()
            return None
        job.add_done_callback(lambda _: self._ended(own))
        return job

    def _ended(self, own: int) -> None:
        os.close(own)
        self._free.release()

    def close(self) -> None:
        """Wait for those that run."""
        self._pool.shutdown(cancel_futures=True)


class Body:
    """What the disk has been asked to do with one body."""

    __slots__ = ("_ahead", "_asked", "_end", "_fd", "_files", "_job", "_large", "_synced")

    def __init__(self, ahead: Ahead, files: Files, fd: int, at: int, end: int, large: int) -> None:
        self._ahead = ahead
        self._files = files
        self._fd = fd
        self._asked = self._synced = at
        self._end = end
        self._large = end - at >= large
        self._job: Future[None] | None = None

    def wrote(self, at: int) -> None:
        """It has been written up to byte `at`. Raises the `OSError` of a sync that failed."""
        left = self._end - at
        if at - self._asked >= PIECE or 0 <= left < PIECE:
            self._files.start_writing(self._fd, self._asked, at - self._asked)
            self._asked = at
        if self._large and left > 0 and at - self._synced >= max(STEP, left // PART) and self.settled():
            self._job = self._ahead.begin(self._fd)
            self._synced = at

    def settled(self) -> bool:
        """Whether no sync is under way. Raises the `OSError` of one that failed."""
        if self._job is None:
            return True
        if self._job.done():
            if not self._job.cancelled():  # the store was closed
                self._job.result()
            self._job = None
        return self._job is None
