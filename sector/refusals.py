"""What a daemon refused, for the audit log: a line for each source and minute, not one for each datagram.

Pure: the ports count refused datagrams by source (`Core.refused`); `Watch` turns counts into lines. Addresses
of such datagrams are not proved.
"""

from __future__ import annotations

from collections.abc import Iterable

Counts = tuple[int, int, int]
"""Datagrams under a wrong or unknown key; with a packet number that was seen; for a ticket that is over."""

NAMES = ("refused_wrong_key", "refused_replayed", "refused_ticket")
LEAST = (1, 64, 4)
"""Fewer of a kind are not worth a line: networks double datagrams, and the last of a transfer come late."""
_TEXT = ("under a wrong key", "replayed", "for tickets that are over or unknown")
EVERY_S = 60.0
_LINES = 16
_SOURCES = 512


class Watch:
    """Lines about one port or several. `look` is asked about once a second."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[Counts, float]] = {}
        self._window = 0.0
        self._lines = self._left_out = 0

    def look(self, sources: Iterable[tuple[str, Counts]], now: float) -> list[str]:
        """What is to be told now. `sources`: counts so far of each host; `now` in seconds. At most 16 lines a
        minute, the last of which says how many sources were left out."""
        sums: dict[str, Counts] = {}
        for host, counts in sources:
            had = sums.get(host, (0, 0, 0))
            sums[host] = (had[0] + counts[0], had[1] + counts[1], had[2] + counts[2])
        lines = self._turn(now)
        for host, counts in sums.items():
            told, at = self._told.get(host, ((0, 0, 0), -EVERY_S))
            if any(new < old for new, old in zip(counts, told, strict=True)):
                told = (0, 0, 0)  # it was forgotten and came again
            news = [new - old for new, old in zip(counts, told, strict=True)]
            if now - at < EVERY_S or not any(n >= least for n, least in zip(news, LEAST, strict=True)):
                continue
            if len(self._told) >= _SOURCES and host not in self._told:
                del self._told[next(iter(self._told))]
            self._told[host] = (counts, now)
            if self._lines >= _LINES:
                self._left_out += 1
                continue
            self._lines += 1
            said = ", ".join(f"{n} {text}" for n, text in zip(news, _TEXT, strict=True) if n)
            lines.append(f"datagrams from {host}: {said}")
        return lines

    def _turn(self, now: float) -> list[str]:
        if now - self._window < EVERY_S:
            return []
        left, self._left_out, self._lines, self._window = self._left_out, 0, 0, now
        return [f"datagrams from {left} more sources in the last minute"] if left else []
