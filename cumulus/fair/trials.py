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
SHORTEST_S: Final = 0.12
LONGEST_S: Final = 0.3
FREE_S: Final = 0.2  # nobody is held for so long after a trial that seems to have failed, to compare
KEEP: Final = 0.8  # of the rate before has to remain
LOST: Final = 0.3  # below this share the trial ends early, and once is enough
DOUBT_S: Final = 5.0  # less was lost: the verdict waits for a second trial, within so long
REST: Final = (10.0, 160.0)  # so many times the time that a failed trial cost, there is none: first, at most
PEAK_S: Final = 5.0  # the highest rate is forgotten by 1/e in so long
STUCK: Final = 0.3  # below this share of it, while somebody is held, all run free again
SLUMP: Final = (0.6, 1.0)  # below this share of it for so many s those who are never held are tried again
STUCK_EVERY_S: Final = (0.5, 8.0)  # then there is no trial for so long: first, at most


class Verdict(enum.IntEnum):
    """What came out. VOID: nobody had to wait, or it went badly once, so nothing was learnt. STUCK: no trial,
    but far less is moved while some wait than when none does, so that whatever was learnt is forgotten."""

    BAD = 0
    GOOD = 1
    VOID = 2
    STUCK = 3


class Phase(enum.IntEnum):
    """What all are to know. SLUMP: for long far less has been moved than was. FREE: nobody is held, to see
    whether that is the reason why less is moved; a machine that is busy otherwise looks the same."""

    NORMAL = 0
    SLUMP = 1
    FREE = 2


class Trials:
    """`number` of the trial that runs (`running`) or ran last, its `verdict`, and the rate `before`; `phase`
    of what is done now."""

    def __init__(self) -> None:
        self.number = 0
        self.running = False
        self.verdict = Verdict.VOID
        self._seen: deque[tuple[float, float]] = deque()  # (time, bytes of all so far)
        self._began = 0.0
        self._holds = 0.0
        self._measured = 0.0
        self._measured_bytes = 0.0
        self._half = (0.0, 0.0)  # of the time in which nobody waits: when it was over, and the bytes by then
        self.before = 0.0
        self._next = 0.0
        self._settled = False
        self._rest = REST[0]
        self._peak = 0.0
        self._stuck_at = 0.0
        self._stuck_s = STUCK_EVERY_S[0]
        self._floor = 0.0
        self._tried_s = 0.0
        self._doubt = (-inf, 0.0)  # when a trial went badly whose verdict waits for a second one, its cost
        self._known = True  # all who are here were in the rate before
        self._low_since = inf
        self._free: tuple[float, float, float] | None = None  # since when, bytes by then, the rate before
        self.phase = Phase.NORMAL

    def lead_from(self, number: int) -> None:
        """Another process led until now; its last trial had that number."""
        self.number = max(self.number, number)
        self.running = False
        self._free = None
        self.phase = Phase.NORMAL
        self._seen.clear()

    def step(
        self,
        now: float,
        total: float,
        holds: float,
        candidates: int,
        holding: bool,
        reach: tuple[float, float] = (inf, 0.0),
        newest: float = -inf,
    ) -> None:
        """So far `total` bytes were moved by all, who were held `holds` times; so many flows wait for a
        trial; whether any is held now; `reach` is the least virtual time, and the weights of all; when the
        `newest` flow came."""
        if self._free is not None:
            self._compare(now, total, self._free)
            return
        if self.running:
            self._judge(now, total, holds, reach, newest)
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
        self.phase = Phase.SLUMP if now - self._low_since > SLUMP[1] else Phase.NORMAL
        if rate > LOST * self._peak:
            self._stuck_s = STUCK_EVERY_S[0]
        if holding and rate < STUCK * self._peak and now >= self._stuck_at:
            self._let_go(now, total, rate)
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

    def _judge(
        self, now: float, total: float, holds: float, reach: tuple[float, float], newest: float
    ) -> None:
        """What remains is the rate itself, or what it will be when nobody has to make up for anything: all
        then advance as the last does now. Somebody of great weight has the others stand still in a trial.
        Who came since the time before says nothing about it: with him it is compared with none held."""
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
        good = rate >= KEEP * self.before
        known = newest <= self._began - 2 * BEFORE_S
        if good and known and lasted >= LONGEST_S:
            self._peak = self.before
            self._end(now, Verdict.GOOD if holds > self._holds else Verdict.VOID)
        elif rate < LOST * self.before or lasted >= LONGEST_S:
            self._tried_s, self._known = lasted, known
            self._let_go(now, total, rate)

    def _let_go(self, now: float, total: float, rate: float) -> None:
        self._free = (now, total, rate)
        self._measured = 0.0
        self._half = (0.0, 0.0)
        self.phase = Phase.FREE

    def _compare(self, now: float, total: float, free: tuple[float, float, float]) -> None:
        """What is moved while nobody waits, beside what was moved while some did. Those who waited are first
        given what fills their empty buffers, faster than anybody takes it: the lower of two halves counts."""
        began, _, rate = free
        if not self._measured:
            if now - began >= SETTLE_S:
                self._measured, self._measured_bytes = now, total
            return
        middle = (self._measured + began + FREE_S) / 2
        start, end = (self._measured, self._measured_bytes), (now, total)
        if not self._half[0]:
            if now > self._measured and now >= middle:
                self._half = end
            return
        if now - began < FREE_S or now <= self._half[0]:
            return
        now_rate = min(_rate(start, self._half), _rate(self._half, end))
        self._free = None
        self._peak = max(rate, now_rate)
        if self.running:
            could = max(1e-9, min(self.before, now_rate) if self._known else now_rate)
            self.before = could
            self._tell(now, rate / could)
            return
        self.phase = Phase.NORMAL
        self._seen.clear()
        self._low_since = now
        self._stuck_at = now + self._stuck_s
        if rate < STUCK * now_rate:
            self._next = max(self._next, self._stuck_at)
            self._stuck_s = min(STUCK_EVERY_S[1], 2 * self._stuck_s)
            self.number += 1
            self.verdict = Verdict.STUCK

    def _tell(self, now: float, kept: float) -> None:
        """What a trial was like in which that part of the rate was kept. A machine that is busy otherwise for
        the time of a trial makes it look bad; twice it seldom does."""
        cost_s = self._tried_s * (1 - kept)
        doubted, before_s = self._doubt
        again = now - doubted <= DOUBT_S
        if kept >= KEEP:
            self._end(now, Verdict.GOOD)
        elif kept >= LOST and not again:
            self._doubt = (now, cost_s)
            self._over(now, Verdict.VOID)
        else:
            self._doubt = (-inf, 0.0)
            self._next = now + self._rest * (cost_s + before_s * again)
            self._rest = min(REST[1], self._rest * 2)
            self._over(now, Verdict.BAD)

    def _end(self, now: float, verdict: Verdict) -> None:
        """It did not go badly."""
        self._doubt = (-inf, 0.0)
        self._rest = max(REST[0], self._rest / 2)
        self._over(now, verdict)

    def _over(self, now: float, verdict: Verdict) -> None:
        self.running = False
        self.phase = Phase.NORMAL
        self._low_since = now
        self._seen.clear()
        self.verdict = verdict


def _rate(first: tuple[float, float], last: tuple[float, float]) -> float:
    return (last[1] - first[1]) / max(last[0] - first[0], 1e-9)
