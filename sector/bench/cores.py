"""Whether the two cores of a small machine share a cache, on which every figure over loopback depends.

The host of a virtual machine moves its cores about. With both below one cache a plain transfer of ours made
52 Gb/s and bare UDP 110, with a cache each 28 and 80, for seconds to minutes at a time: what one run measured
of one peer could not be held against another. So a run begins when the cores are near each other, and is
taken again if they were not at its end. With more cores the scheduler chooses, and nothing is looked at.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from sector.bench.common import program
from sector.bench.run import json_of

NEAR_NS: Final = 150.0  # a round trip through a shared cache takes less than 100
WAITS: Final = 20  # times as long as a run takes
PAUSE_S: Final = 1.0
TRIES: Final = 4


def round_trip_ns() -> float:
    """Of a number from one core to the other and back, in ns. Raises SectorError."""
    return float(json_of([program("peer_cores")], 10)["round_trip_ns"])


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Placement:
    """Runs of a series on this machine. `measure` says how far the cores are, in ns. After a wait in vain
    there is no other until they were near again: on some machines they never are. The first wait is told."""

    def __init__(
        self,
        measure: Callable[[], float] = round_trip_ns,
        *,
        cores: int | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[str], None] = _tell,
        waits: bool = True,
    ) -> None:
        """Without `waits` each run is taken once, wherever the cores are."""
        self._measure, self._sleep, self._clock = measure, sleep, clock
        self._cores = len(os.sched_getaffinity(0)) if cores is None else cores
        self._tell: Callable[[str], None] | None = tell
        self._patient = True
        self._waits = waits

    def near(self, wait_s: float) -> float:
        """Wait so long until the cores are near; how far they are then, in ns (0 where there are not two)."""
        if self._cores != 2:
            return 0.0
        end = self._clock() + wait_s
        while (ns := self._measure()) > NEAR_NS and self._patient:
            if self._clock() >= end:
                self._patient = False
            self._say(ns, wait_s)
            self._sleep(PAUSE_S)
        self._patient = self._patient or ns <= NEAR_NS
        return ns

    def _say(self, ns: float, wait_s: float) -> None:
        tell, self._tell = self._tell, None
        if tell is not None:
            tell(
                f"the two cores of this machine share no cache now ({ns:.0f} ns there and back between "
                f"them); each run waits up to {wait_s:.0f} s until they do, so that runs can be compared"
            )

    def run(self, work: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any]:
        """The row of `work`, which takes so many seconds, and `cores_ns`: how far the cores were before it or
        after it, the larger. Raises what `work` raises, and SectorError."""
        if self._cores != 2:
            return work()
        if not self._waits:
            return work() | {"cores_ns": self._measure()}
        for _ in range(TRIES):
            before = self.near(WAITS * seconds)
            row = work()
            worst = max(before, self._measure())
            if worst <= NEAR_NS or not self._patient:
                break
        return row | {"cores_ns": worst}


HERE: Final = Placement()
