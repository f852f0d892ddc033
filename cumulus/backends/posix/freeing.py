"""Blocks of large files that lose their last name are freed by a thread, not by whoever takes the name.

The kernel frees what a file held when its last name goes: 0.2 ms for each MB that is cached, so 0.1 s for a
file of 512 MB and 2 s for one of 10 GB, with the lock of the name held and the client waiting. A descriptor
that stands for the file (O_PATH: it reads nothing) lets rename(2) and unlink(2) return at once; closing it
frees.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Iterator
from typing import Final

LARGE: Final = 1 << 20  # bytes; a smaller file is freed in the time that a change of threads takes
WAITING: Final = 64  # files; beyond that whoever brings one frees it
SPARE: Final = 16  # deferred only where that part of the disk is free, and the file's size so many times over


class Held:
    """The descriptors of one change of names."""

    def __init__(self) -> None:
        self.descriptors: list[int] = []

    def hold(self, directory: int, name: str, status: os.stat_result | None) -> None:
        """`name` in `directory`, which was just looked at (`status`, None: nothing there), is about to lose
        this name. Nothing is held of a small file, or where the disk is nearly full: then somebody waits for
        the blocks."""
        if status is None or status.st_size < LARGE or status.st_nlink > 1:
            return
        with contextlib.suppress(OSError):  # then it is freed at once
            room = os.fstatvfs(directory)
            free = room.f_bavail * room.f_frsize
            if free < SPARE * status.st_size or room.f_bavail < room.f_blocks / SPARE:
                return
            self.descriptors.append(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory))


class Freeing:
    """One thread, started when it is first needed."""

    def __init__(self, waiting: int = WAITING) -> None:
        self._queue: queue.Queue[int | None] = queue.Queue(waiting)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextlib.contextmanager
    def after(self) -> Iterator[Held]:
        """For one change of names: what was held meanwhile is freed after it, however it ends."""
        held = Held()
        try:
            yield held
        finally:
            for fd in held.descriptors:
                self._free(fd)

    def _free(self, fd: int) -> None:
        with self._lock:
            later = not self._closed
            if later and self._thread is None:
                thread = threading.Thread(target=self._run_thd, name="cumulus-free", daemon=True)
                try:
                    thread.start()
                    self._thread = thread
                except RuntimeError:  # there are too many
                    later = False
            if later:
                try:
                    self._queue.put_nowait(fd)
                except queue.Full:
                    later = False
        if not later:
            os.close(fd)

    def _run_thd(self) -> None:
        while (fd := self._queue.get()) is not None:
            os.close(fd)

    def close(self) -> None:
        """Free what waits, then end the thread."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread:
            self._queue.put(None)
            thread.join()
