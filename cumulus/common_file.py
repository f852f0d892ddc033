"""Adding lines to a file that other processes add to as well, so that each stays whole.

A write may be cut (a full disk), and another process may write before its rest comes. So whoever adds holds
the file's lock (flock(2)) until its last line is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from typing import Final

import msgspec

# what commands a terminal, ends a line for some programs, or turns the reading direction: strangers choose
# keys and names of clients, and administrators look at logs with tail(1)
_COMMANDS: Final = re.compile("[\x80-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_encoder: Final = msgspec.json.Encoder()
LOCK_S: Final = 0.5  # a stranger who holds the lock for longer is not waited for


def json_line(record: object) -> bytes:
    """A record as a line of JSON without anything that commands a terminal (JSON alone escapes the first 32
    characters)."""
    data = _encoder.encode(record)
    if not data.isascii():
        data = _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", data.decode()).encode()
    return data + b"\n"


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
