"""What a process keeps of the memory that requests have needed.

glibc's malloc gives each thread an arena of its own and keeps there what was freed; after uploads by many
clients that was 30 to 60 MB a worker. Other C libraries have no such functions, and nothing happens there.
Sources: mallopt(3), malloc_trim(3).
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Final

_ARENA_MAX: Final = -8  # M_ARENA_MAX


def few_arenas() -> None:
    """At most two arenas in this process, to be called before threads are there."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 2)


def give_back() -> None:
    """Give what is free to the system again. 0.1 ms as a rule, tens of them after much was freed: call it
    in a thread, when nobody is in a hurry."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
