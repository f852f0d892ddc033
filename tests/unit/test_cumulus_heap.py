"""Memory that requests needed goes back to the system."""

from __future__ import annotations

import subprocess
import sys

from twisted.internet.task import Clock

from cumulus.fair.limits import Seat
from cumulus.http.pace import IN, Pacer, Transfer
from cumulus.http.settings import HttpSettings

FREED_BELOW_WHAT_STAYS = """
import ctypes, sys
from cumulus.heap import few_arenas, give_back

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

few_arenas()
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
taken = [c.malloc(60_000) for _ in range(1_000)]
for one in taken:
    ctypes.memset(one, 1, 60_000)
stays = c.malloc(60_000)
full = resident()
for one in taken:
    c.free(one)
kept = resident()
give_back()
print(full, kept, resident())
"""


def test_what_was_freed_is_given_back() -> None:
    outcome = subprocess.run(
        [sys.executable, "-c", FREED_BELOW_WHAT_STAYS], capture_output=True, text=True, check=True, timeout=60
    )
    full, kept, after = map(int, outcome.stdout.split())
    assert full - kept < 10_000_000, "malloc keeps it by itself no longer: is this module still needed?"
    assert kept - after > 50_000_000


def test_it_is_time_when_no_transfer_has_buffers_any_more() -> None:
    pacer = Pacer(HttpSettings(), Clock())
    seat = pacer.seat("127.0.0.1")
    assert isinstance(seat, Seat) and not pacer.rested()
    one, two = Transfer(pacer, IN, seat, {}), Transfer(pacer, IN, seat, {})
    one.buffer()
    two.buffer()
    one.end()
    assert not pacer.rested(), "another one still has buffers"
    two.end()
    assert pacer.rested()
    assert not pacer.rested(), "said once"
    without = Transfer(pacer, IN, seat, {})
    without.end()
    assert not pacer.rested(), "a transfer without buffers left nothing"
