"""What a process keeps of the memory that requests have needed, and how many files it may have open.

glibc's malloc gives each thread an arena of its own and keeps there what was freed; after uploads by many
clients that was 30 to 60 MB a worker. Other C libraries have no such functions, and nothing happens there.
Sources: mallopt(3), malloc_trim(3).
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
from typing import Final

_ARENA_MAX: Final = -8  # M_ARENA_MAX
_OWN_FILES: Final = 64  # of a process itself: database, journal, log, sockets of workers


def few_arenas() -> None:
    """At most two arenas in this process, to be called before threads are there."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 2)


def connections_at_most(wanted: int) -> int:
    """`wanted` connections, or as many as leave a quarter of the files that this process may have open to
    requests, beside those for clients that are being refused."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, (files - _OWN_FILES - min(256, files // 8)) * 3 // 4))


def give_back() -> None:
    """Give what is free to the system again. 0.1 ms as a rule, tens of them after much was freed: call it
    in a thread, when nobody is in a hurry."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
