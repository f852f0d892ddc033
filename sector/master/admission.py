"""Who may ask to log in now, and when the others are to come again (pure)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

SHARE = 1 / 8
"""What a source gets in any case."""
LEFT = 1 / 4
"""It gets more as long as so much of the burst is left."""
SOURCES = 4096
TOLD_S = 60.0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float
    told: float = 0.0


class Admission:
    """At most `per_s` logins a second, `burst` at once; the rest hear when to return. A source that asks
    without end always leaves some to the others. Bounded: who was silent longest is forgotten."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._all = _Bucket(burst, 0.0)
        self._sources: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sources)

    def admit(self, now: float, jitter: float, source: str) -> float:
        """0 = go on; else seconds after which to come again, spread by `jitter` (0 to 1). `source` is whoever
        is given a share: an address, or a network of them."""
        everybody, one = self._all, self._source(source, now)
        self._fill(everybody, 1.0, now)
        self._fill(one, SHARE, now)
        if everybody.tokens >= 1 and (one.tokens >= 1 or everybody.tokens > self._burst * LEFT):
            everybody.tokens -= 1
            one.tokens = max(0.0, one.tokens - 1)
            return 0.0
        late = everybody if one.tokens >= 1 else one
        late.told = min(late.told + 1, TOLD_S * self._per_s)
        return (late.told / self._per_s) * (1 + jitter) + 0.1

    def _source(self, source: str, now: float) -> _Bucket:
        found = self._sources.pop(source, None)
        if found is None:
            found = _Bucket(self._most(SHARE), now)
            if len(self._sources) >= SOURCES:
                self._sources.popitem(last=False)
        self._sources[source] = found
        return found

    def _most(self, share: float) -> float:
        return self._burst if share == 1 else max(1.0, self._burst * share)

    def _fill(self, bucket: _Bucket, share: float, now: float) -> None:
        passed, bucket.at = now - bucket.at, now
        bucket.tokens = min(self._most(share), bucket.tokens + passed * self._per_s * share)
        bucket.told = max(0.0, bucket.told - passed * self._per_s)
