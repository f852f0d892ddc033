"""Tests as root, without what root may do to files of others."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def by_the_rules() -> Iterator[None]:
    """Rights of files hold for this thread, and for those that it starts, also for root (no CAP_DAC_OVERRIDE,
    CAP_DAC_READ_SEARCH)."""
    system = ctypes.CDLL(None, use_errno=True)
    head = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    assert system.capget(head, sets) == 0
    effective = sets[0]
    sets[0] = effective & ~0b110
    assert system.capset(head, sets) == 0
    try:
        yield
    finally:
        sets[0] = effective
        assert system.capset(head, sets) == 0
