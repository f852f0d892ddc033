"""Adding lines to a file that other processes add to as well, so that each stays whole.

A write may be cut (a full disk), and another process may write before its rest comes. So whoever adds holds
the file's lock (flock(2)) until its last line is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from typing import Final

LOCK_S: Final = 0.5  # a stranger who holds the lock for longer is not waited for


@contextlib.contextmanager
def locked(fd: int) -> Iterator[None]:
    """Holds the lock of an open file. Where there are no locks (some file systems of a network), none is
    held."""
    end = time.monotonic() + LOCK_S
    while time.monotonic() < end:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(0.005)
        except OSError:
            break
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)


class Cut(OSError):
    """Only the first `whole` bytes, which are whole lines, were added."""

    whole = 0


def append(fd: int, lines: bytes) -> None:
    """Add whole lines to a file opened for appending. Raises `OSError`, `Cut` where something was to be
    written; a line that was cut by it is taken away again."""
    with locked(fd):
        before, done = os.fstat(fd), 0
        try:
            while done < len(lines):
                done += os.write(fd, memoryview(lines)[done:])
        except OSError as bad:
            whole = lines.rfind(b"\n", 0, done) + 1
            if stat.S_ISREG(before.st_mode) and os.fstat(fd).st_size == before.st_size + done:
                os.ftruncate(fd, before.st_size + whole)
            cut = Cut(bad.errno, os.strerror(bad.errno or 0))
            cut.whole = whole
            raise cut from bad
