"""What a data port has moved and is moving: sums over ended and running transfers, what limits now (pure).

Names of the counters: docs/guide/operations.md, "Who moves what".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sector._udt.limits import waits

LIMITS = ("", "sender", "network", "cap", "receiver", "handshake", "processor")
"""Texts of the counter `limit`, by number; "" = nothing is being sent."""
_SUMS = {
    "bytes_out": "bytes_sent",
    "bytes_in": "bytes_recv",
    "pkts_out": "pkts_sent",
    "pkts_in": "pkts_recv",
    "pkts_again": "pkts_retrans",
    "pkts_lost": "pkts_lost",
}

NAMES = (
    *_SUMS,
    *("transfers_done", "transfers_failed", "transfers_tls", "transfers_now"),
    *("out_Bps", "in_Bps", "rtt_us", "limit"),
)
"""All counters of a port."""

Stats = Mapping[str, int]


def packed(counters: Stats) -> list[int]:
    """Counters without their names, in the order of NAMES."""
    return [max(0, counters.get(name, 0)) for name in NAMES]


def unpacked(values: Sequence[int]) -> dict[str, int]:
    """Counters from their values; those that this version does not know are left out."""
    return dict(zip(NAMES, values, strict=False))


def shown(counters: Stats) -> dict[str, int | str]:
    """Counters for people and for JSON: `limit` as text."""
    limit = counters.get("limit", 0)
    text = LIMITS[limit] if 0 <= limit < len(LIMITS) else ""
    return {**counters, **({"limit": text} if "limit" in counters else {})}


class Traffic:
    """Counters of one port. `ended` is told the last statistics of each transfer."""

    def __init__(self) -> None:
        self._past = dict.fromkeys(_SUMS, 0)
        self._outcomes = {"transfers_done": 0, "transfers_failed": 0, "transfers_tls": 0}
        self._before: dict[int, dict[str, int]] = {}

    def ended(self, stats: Stats, *, good: bool, tls: bool) -> None:
        """A transfer is over."""
        for name, field in _SUMS.items():
            self._past[name] += stats.get(field, 0)
        self._outcomes["transfers_done" if good else "transfers_failed"] += 1
        self._outcomes["transfers_tls"] += tls

    def counters(self, running: Mapping[int, Stats]) -> dict[str, int]:
        """All of them; `limit` counts from the last call to this one."""
        now = {handle: waits(stats) for handle, stats in running.items()}
        found = {
            name: self._past[name] + sum(stats.get(field, 0) for stats in running.values())
            for name, field in _SUMS.items()
        }
        found |= self._outcomes
        found["transfers_now"] = len(running)
        found["out_Bps"] = sum(stats.get("send_Bps", 0) for stats in running.values())
        found["in_Bps"] = sum(stats.get("recv_Bps", 0) for stats in running.values())
        measured = [stats.get("rtt_us", 0) for stats in running.values() if stats.get("min_rtt_us", 0)]
        found["rtt_us"] = max(measured, default=0)  # who only receives may know none
        found["limit"] = LIMITS.index(self._limit(now))
        self._before = now
        return found

    def _limit(self, now: Mapping[int, Stats]) -> str:
        waited = dict.fromkeys(LIMITS[1:], 0)
        for handle, us in now.items():
            before = self._before.get(handle, {})
            for name, value in us.items():
                waited[name] += value - before.get(name, 0)
        name = max(waited, key=lambda key: waited[key])
        return name if waited[name] > 0 else ""
