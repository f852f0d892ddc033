"""Whether waiting for newcomers costs the server throughput: one process tries it out for all of them.

A flow that lags may lag because others take what it needs (then they should wait for it), or because its own
client is slow (then they should not). From outside both look the same, so it is tried: the others wait for
the candidates for a moment, and the bytes of all flows together are compared with those of the moment before.
"""

from __future__ import annotations

import enum
from collections import deque
from math import inf
from typing import Final

BEFORE_S: Final = 0.15  # over which the rate without the candidates is measured, twice; the lower one counts
SETTLE_S: Final = 0.04  # clients still read what was sent before; then the trial is measured
SHORTEST_S: Final = 0.08
LONGEST_S: Final = 0.3
KEEP: Final = 0.8  # of the rate before has to remain
LOST: Final = 0.3  # below this share the trial ends early
REST: Final = (10.0, 160.0)  # so many times the time that a failed trial cost, there is none: first, at most
PEAK_S: Final = 5.0  # the highest rate is forgotten by 1/e in so long
STUCK: Final = 0.3  # below this share of it, while somebody is held, all run free again
SLUMP: Final = (0.6, 1.0)  # below this share of it for so many s those who are never held are tried again
STUCK_EVERY_S: Final = (0.5, 8.0)  # then there is no trial for so long: first, at most


class Verdict(enum.IntEnum):
    """What came out. VOID: nobody had to wait, so nothing was learnt. STUCK: no trial, but far less is moved
    than was, so that whatever was learnt is forgotten."""

    BAD = 0
    GOOD = 1
    VOID = 2
    STUCK = 3


class Trials:
    """`number` of the trial that runs (`running`) or ran last, its `verdict`, and the rate `before`."""

    def __init__(self) -> None:
        self.number = 0
        self.running = False
        self.verdict = Verdict.VOID
        self._seen: deque[tuple[float, float]] = deque()  # (time, bytes of all so far)
        self._began = 0.0
        self._holds = 0.0
        self._measured = 0.0
        self._measured_bytes = 0.0
        self.before = 0.0
        self._next = 0.0
        self._settled = False
        self._rest = REST[0]
        self._peak = 0.0
        self._stuck_at = 0.0
        self._stuck_s = STUCK_EVERY_S[0]
        self._floor = 0.0
        self._low_since = inf
        self.slump = False

    def lead_from(self, number: int) -> None:
        """Another process led until now; its last trial had that number."""
        self.number = max(self.number, number)
        self.running = False
        self._seen.clear()

    def step(
        self,
        now: float,
        total: float,
        holds: float,
        candidates: int,
        holding: bool,
        reach: tuple[float, float] = (inf, 0.0),
    ) -> None:
        """So far `total` bytes were moved by all, who were held `holds` times; so many flows wait for a
        trial; whether any is held now; `reach` is the least virtual time, and the weights of all."""
        if self.running:
            self._judge(now, total, holds, reach)
            return
        seen = self._seen
        seen.append((now, total))
        while len(seen) > 2 and seen[1][0] <= now - 2 * BEFORE_S:
            seen.popleft()
        if now - seen[0][0] < 2 * BEFORE_S:
            return
        rate, passed = _rate(seen[0], (now, total)), now - seen[-2][0]
        self._peak = max(rate, self._peak * (1 - min(1.0, passed / PEAK_S)))
        if not holding or rate >= SLUMP[0] * self._peak:
            self._low_since = now
        self.slump = now - self._low_since > SLUMP[1]
        if rate > LOST * self._peak:
            self._stuck_s = STUCK_EVERY_S[0]
        if holding and rate < STUCK * self._peak and now >= self._stuck_at:
            self._next = max(self._next, now + self._stuck_s)
            self._stuck_at = now + self._stuck_s
            self._stuck_s = min(STUCK_EVERY_S[1], 2 * self._stuck_s)
            self._seen.clear()
            self.number += 1
            self.verdict = Verdict.STUCK
        elif candidates and now >= self._next:
            # what comes first may be a burst: into empty buffers, or saved by a limit of rate
            middle = next(one for one in seen if one[0] >= now - BEFORE_S)
            self._begin(now, holds, min(_rate(seen[0], middle), _rate(middle, (now, total))))

    def _begin(self, now: float, holds: float, before: float) -> None:
        self.before = before
        self._began, self._holds = now, holds
        self._settled = False
        self.number += 1
        self.running = True

    def _judge(self, now: float, total: float, holds: float, reach: tuple[float, float]) -> None:
        """What remains is the rate itself, or what it will be when nobody has to make up for anything: all
        then advance as the last does now. Somebody of great weight has the others stand still in a trial."""
        floor, weights = reach
        if not self._settled:
            if now - self._began >= SETTLE_S:
                self._settled = True
                self._measured, self._measured_bytes, self._floor = now, total, floor
            return
        lasted, measured = now - self._began, now - self._measured
        if lasted < SHORTEST_S or measured <= 0:
            return
        rate = (total - self._measured_bytes) / measured
        if max(floor, self._floor) < inf:
            rate = max(rate, min(self.before, weights * (floor - self._floor) / measured))
        if rate < LOST * self.before or lasted >= LONGEST_S:
            self.running = False
            good = rate >= KEEP * self.before
            self._peak = self.before if good else max(self._peak, rate)
            self._low_since, self.slump = now, False
            cost_s = 0.0 if good else lasted * (1 - rate / self.before)
            self._next = now + self._rest * cost_s
            self._rest = max(REST[0], self._rest / 2) if good else min(REST[1], self._rest * 2)
            self._seen.clear()
            self.verdict = Verdict.BAD if not good else Verdict.GOOD if holds > self._holds else Verdict.VOID


def _rate(first: tuple[float, float], last: tuple[float, float]) -> float:
    return (last[1] - first[1]) / max(last[0] - first[0], 1e-9)
