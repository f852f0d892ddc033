"""The line that `put --stats` and `get --stats` keep up to date on a terminal while files move."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from sector._udt.limits import path_words, waits
from sector.client.progress import Progress, size_text

EVERY_S = 1.0
_SUMS = ("pkts_sent", "pkts_retrans", "pkts_lost", "in_flight_bytes", "queue_bytes")
Stats = Mapping[int, Mapping[str, int]]


def limit(before: Stats, now: Stats) -> str:
    """What the transfers of both moments waited for longest in between; "" if nothing is known."""
    waited: dict[str, int] = {}
    for handle, stats in now.items():
        if handle not in before:
            continue
        earlier = waits(before[handle])
        for name, us in waits(stats).items():
            waited[name] = waited.get(name, 0) + us - earlier[name]
    if not waited or max(waited.values()) <= 0:
        return ""
    return max(waited, key=lambda name: waited[name])


def line(progress: Progress, before: Stats, now: Stats, *, sending: bool) -> str:
    """One line: how far, how fast, the path, and for what is sent also what limits."""
    rate = "send_Bps" if sending else "recv_Bps"
    total = {name: sum(stats[name] for stats in now.values()) for name in (*_SUMS, rate)}
    rtts = [(stats["rtt_us"], stats["min_rtt_us"]) for stats in now.values()]
    share = 100 * progress.bytes_done // max(1, progress.bytes_total)
    files = f" {progress.files_done}/{progress.files_total}" if progress.files_total > 1 else ""
    parts = [f"{os.path.basename(progress.name)[:40]}{files} {share} %", f"{size_text(total[rate])}/s"]
    rtt, least = max(rtts, default=(0, 0))
    sent = total["pkts_sent"] + total["pkts_retrans"] if sending else 0
    path = {**total, "rtt_us": rtt, "min_rtt_us": least, "pkts_sent": sent}
    path["loss_ppm"] = 1_000_000 * total["pkts_lost"] // max(1, sent)
    parts.append(path_words(path))
    if sending and (name := limit(before, now)):
        parts.append(f"limited by {name}")
    return " | ".join(part for part in parts if part)


class Live:
    """A listener of `Progress` that writes the line to a terminal, at most once a second."""

    def __init__(self, stats: Callable[[], Stats], *, sending: bool, fd: int = 2) -> None:
        self._stats, self._sending, self._fd = stats, sending, fd
        self._before: Stats = {}
        self._at = 0.0
        self._shown = False

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() - self._at < EVERY_S:
            return
        self._at = time.monotonic()
        now = self._stats()
        if now:
            text = line(progress, self._before, now, sending=self._sending)
            shown = "".join(c if c.isprintable() else "?" for c in text)
            os.write(self._fd, b"\r\x1b[K" + shown.encode(errors="replace"))
            self._shown = True
        self._before = now

    def stop(self) -> None:
        """No more lines."""
        if self._shown:
            os.write(self._fd, b"\r\x1b[K")
