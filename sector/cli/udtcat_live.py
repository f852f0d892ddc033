"""The line that `sector udtcat --stats` keeps up to date on a terminal: how fast, how far, what limits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from sector._udt.limits import waits

EVERY_S = 1.0


def limit(before: Mapping[str, int], now: Mapping[str, int], *, output_waits: bool) -> str:
    """What kept the connection from being faster between two statistics: "sender" (nothing to send was
    ready), "network" (congestion window and rate), "cap" (the rate that was allowed), "receiver" (its window
    was closed), "processor", "output" (ours does not take what came); "idle" when nothing moved, "peer" when
    only it sends."""
    if output_waits:
        return "output"
    if now["bytes_sent"] == before["bytes_sent"]:
        return "peer" if now["bytes_recv"] > before["bytes_recv"] else "idle"
    earlier = waits(before)
    waited = {word: us - earlier[word] for word, us in waits(now).items()}
    word = max(waited, key=lambda key: waited[key])
    return word if waited[word] > 0 else "sender"


def line(before: Mapping[str, int], now: Mapping[str, int], seconds: float, *, output_waits: bool) -> str:
    """One line about the time between two statistics of a connection."""
    sent = now["bytes_sent"] - before["bytes_sent"]
    received = now["bytes_recv"] - before["bytes_recv"]
    packets = now["pkts_sent"] - before["pkts_sent"]
    again = now["pkts_retrans"] - before["pkts_retrans"]
    parts = [
        f"{name} {8 * size / seconds / 1e6:,.1f} Mb/s"
        for name, size in (("out", sent), ("in", received))
        if size
    ]
    if now["min_rtt_us"]:  # else nothing was measured: who only receives need not know
        parts.append(f"RTT {now['rtt_us'] / 1000:.1f} ms")
    if sent:
        loss = 100 * again / max(1, packets + again)
        window = min(now["cwnd_pkts"], now["flow_wnd_pkts"])
        parts += [f"loss {loss:.2f} %", f"window {window} packets, {now['in_flight_pkts']} under way"]
    parts.append(f"limited by {limit(before, now, output_waits=output_waits)}")
    return " | ".join(parts)


class LiveLine:
    """Writes the line to a terminal every second until `stop`; nothing if standard error is none."""

    def __init__(
        self, reactor: Any, stats: Callable[[], dict[str, int]], output_waits: Callable[[], bool], fd: int = 2
    ) -> None:
        self._reactor, self._stats, self._output_waits, self._fd = reactor, stats, output_waits, fd
        self._timer: Any = None
        self._shown = False
        if os.isatty(fd):
            self._before, self._at = stats(), time.monotonic()
            self._timer = reactor.callLater(EVERY_S, self._turn)

    def _turn(self) -> None:
        now, at = self._stats(), time.monotonic()
        if self._before and now:
            text = line(self._before, now, at - self._at, output_waits=self._output_waits())
            os.write(self._fd, b"\r\x1b[K" + text.encode())
            self._shown = True
        self._before, self._at = now, at
        self._timer = self._reactor.callLater(EVERY_S, self._turn)

    def stop(self) -> None:
        """No more lines."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if self._shown:
            os.write(self._fd, b"\r\x1b[K")
            self._shown = False
