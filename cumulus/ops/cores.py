"""Which core a thread runs on, and how it keeps off one that another thread needs.

A kernel wakes a thread where an idle core is, but in a virtual machine it takes an idle core for one that the
host has lent to others (Linux: `vcpu_is_preempted`), and two threads that work hand in hand stay on one core
beside an idle one.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# PyDLL: a call of nanoseconds is not worth giving the interpreter's lock away
_getcpu = getattr(ctypes.PyDLL(None), "sched_getcpu", None)


def core() -> int:
    """The number of the core that this thread is on, -1 where the system does not say."""
    return int(_getcpu()) if _getcpu else -1


@contextmanager
def elsewhere(taken: int) -> Iterator[None]:
    """This thread runs on other cores than `taken` (-1: none) meanwhile, if it may run on any other."""
    allowed = os.sched_getaffinity(0) if taken >= 0 else set()
    others = allowed - {taken}
    if taken not in allowed or not others:
        yield
        return
    with suppress(OSError):  # a core was just taken from the process
        os.sched_setaffinity(0, others)
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, allowed)
