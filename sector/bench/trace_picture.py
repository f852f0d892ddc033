"""A picture of a trace: rate, window, round trip time and losses of a connection over time, and what limited.

Reads the qlog-like JSON of `sector._udt.trace`; how to read the picture: docs/guide/transport.md, "Traces".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sector.errors import LocalIO, SectorError, UsageError

BINS = 250
SUFFIXES = (".png", ".svg", ".pdf")
COLOURS = {
    "sender": "#d9d9d9",
    "network": "#cfe3f5",
    "cap": "#e5d4f0",
    "receiver": "#f7dcc4",
    "handshake": "#f2f0b8",
    "processor": "#f5c9cd",
}
Points = list[tuple[float, float]]


@dataclass(slots=True)
class Curves:
    """What a trace says of one connection; times in seconds since its first event. `sent`, `again` and
    `arrived` (time, bytes); `pacing` bit/s; `window`, `flight` bytes; `rtt`, `smooth`, `least` ms; `lost`
    (time, packets); `limits` (time, name)."""

    sent: Points = field(default_factory=list)
    again: Points = field(default_factory=list)
    arrived: Points = field(default_factory=list)
    pacing: Points = field(default_factory=list)
    window: Points = field(default_factory=list)
    flight: Points = field(default_factory=list)
    rtt: Points = field(default_factory=list)
    smooth: Points = field(default_factory=list)
    least: Points = field(default_factory=list)
    lost: Points = field(default_factory=list)
    limits: list[tuple[float, str]] = field(default_factory=list)
    end: float = 0.0
    _payload: int = 0

    def take(self, at: float, name: str, data: dict[str, Any]) -> None:
        """One event."""
        self.end = max(self.end, at)
        handler = _EVENTS.get(name)
        if handler is not None:
            handler(self, at, data)

    def sent_packet(self, at: float, data: dict[str, Any]) -> None:
        """A packet left; a repetition counts among both."""
        size = data["raw"]["payload_length"]
        self._payload = max(self._payload, size)
        self.sent.append((at, size))
        if data.get("retransmission"):
            self.again.append((at, size))

    def acked(self, at: float, data: dict[str, Any]) -> None:
        """So many packets arrived, as far as is known of the size of the largest."""
        self.arrived.append((at, data["packets"] * self._payload))

    def received(self, at: float, data: dict[str, Any]) -> None:
        """A packet came."""
        self.arrived.append((at, data["raw"]["payload_length"]))

    def metrics(self, at: float, data: dict[str, Any]) -> None:
        """A sample of the round trip, or window and rate."""
        for points, key in (
            (self.rtt, "latest_rtt"),
            (self.smooth, "smoothed_rtt"),
            (self.least, "min_rtt"),
            (self.window, "congestion_window"),
            (self.flight, "bytes_in_flight"),
        ):
            if key in data:
                points.append((at, data[key]))
        if data.get("pacing_rate"):
            self.pacing.append((at, data["pacing_rate"]))

    def loss(self, at: float, data: dict[str, Any]) -> None:
        """Packets count as lost."""
        self.lost.append((at, data["packets"]))

    def limit(self, at: float, data: dict[str, Any]) -> None:
        """What limits from now on."""
        self.limits.append((at, data["new"]))


_EVENTS: dict[str, Callable[[Curves, float, dict[str, Any]], None]] = {
    "transport:packet_sent": Curves.sent_packet,
    "transport:packet_received": Curves.received,
    "transport:packets_acked": Curves.acked,
    "recovery:metrics_updated": Curves.metrics,
    "recovery:packet_lost": Curves.loss,
    "sector:limit_updated": Curves.limit,
}


def load(path: Path) -> dict[str, Any]:
    """A trace from its file. Raises LocalIO, UsageError."""
    try:
        document = json.loads(path.read_text())
        traces = document["traces"]
        if not all(isinstance(one["events"], list) for one in traces):
            raise TypeError
    except OSError as bad:
        raise LocalIO(f"{path}: {bad.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"{path} is no trace", hint="udtcat, put, get and bench udt write one: --trace"
        ) from None
    found: dict[str, Any] = document
    return found


def curves(trace: dict[str, Any]) -> Curves:
    """What one of the document's traces says. Raises UsageError where events lack what they should have."""
    found = Curves()
    begin = min((event["time"] for event in trace["events"]), default=0.0)
    try:
        for event in trace["events"]:
            found.take((event["time"] - begin) / 1000, event["name"], event["data"])
    except (KeyError, TypeError):
        raise UsageError("an event of the trace lacks what it should have") from None
    return found


def busiest(document: dict[str, Any]) -> int:
    """Place of the connection with most events. Raises UsageError when there is none."""
    sizes = [len(one["events"]) for one in document["traces"]]
    if not sizes or not max(sizes):
        raise UsageError("the trace is empty", hint="it records what goes over UDP; did anything?")
    return sizes.index(max(sizes))


def rates(points: Points, end: float, bins: int = BINS) -> Points:
    """Bytes at times as bit/s over equal steps, at the middle of each."""
    step = max(end / bins, 1e-6)
    sums = [0.0] * bins
    for at, size in points:
        sums[min(int(at / step), bins - 1)] += size
    return [((i + 0.5) * step, 8 * size / step) for i, size in enumerate(sums)]


def spans(
    limits: Sequence[tuple[float, str]], end: float, bins: int = BINS
) -> list[tuple[float, float, str]]:
    """(from, to, name) of what limited longest in each of `bins` equal steps; equal neighbours are one."""
    step = max(end / bins, 1e-6)
    shares: list[dict[str, float]] = [{} for _ in range(bins)]
    ends = [at for at, _ in limits[1:]] + [end]
    for (at, name), to in zip(limits, ends, strict=True):
        first, last = min(int(at / step), bins - 1), min(int(to / step), bins - 1)
        for i in range(first, last + 1):
            inside = min(to, (i + 1) * step) - max(at, i * step)
            shares[i][name] = shares[i].get(name, 0.0) + max(inside, 0.0)
    found: list[tuple[float, float, str]] = []
    for i, share in enumerate(shares):
        name = max(share, key=lambda key: share[key], default="")
        if found and found[-1][2] == name:
            found[-1] = (found[-1][0], (i + 1) * step, name)
        else:
            found.append((i * step, (i + 1) * step, name))
    return found


def scale(most: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The largest unit that `most` reaches."""
    return next((unit for unit in units if most >= unit[0]), units[-1])


_BITS = ((1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s"), (1.0, "b/s"))
_BYTES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def draw(found: Curves, path: Path, title: str) -> None:
    """Write the picture. Raises SectorError when matplotlib is not installed, UsageError, LocalIO."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"a picture is a {', '.join(SUFFIXES)}, not {path.name!r}")
    try:
        import matplotlib
    except ImportError:
        raise SectorError("a picture needs matplotlib", hint="pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        4, 1, figsize=(11, 10), sharex=True, layout="constrained", height_ratios=(3, 3, 3, 1.6)
    )
    _rate_panel(axes[0], found)
    _window_panel(axes[1], found)
    _rtt_panel(axes[2], found)
    _loss_panel(axes[3], found)
    seen = _shade(axes, found)
    axes[0].set_title(title, fontsize=11)
    axes[3].set_xlabel("seconds")
    axes[0].set_xlim(0, max(found.end, 1e-3))
    if seen:
        figure.legend(handles=seen, loc="outside lower center", ncols=6, fontsize=8, title="limited by")
    try:
        figure.savefig(path, dpi=120)
    except OSError as bad:
        raise LocalIO(f"{path}: {bad.strerror}") from None
    finally:
        pyplot.close(figure)


def _plot(axis: Any, points: Points, unit: float, **look: Any) -> None:
    if points:
        axis.plot([at for at, _ in points], [value / unit for _, value in points], **look)


def _finish(axis: Any, label: str) -> None:
    axis.set_ylabel(label)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(loc="upper right", fontsize=8)


def _rate_panel(axis: Any, found: Curves) -> None:
    sent, again = rates(found.sent, found.end), rates(found.again, found.end)
    arrived = rates(found.arrived, found.end)
    unit, name = scale(max((value for _, value in [*sent, *arrived]), default=0), _BITS)
    if found.sent:
        _plot(axis, sent, unit, label="sent", color="#1f5fa8", linewidth=1)
    if found.arrived:
        _plot(axis, arrived, unit, label="arrived", color="#1a8a3c", linewidth=1)
    if found.again:
        _plot(axis, again, unit, label="sent again", color="#c22f2f", linewidth=1)
    most = max((value for _, value in [*sent, *arrived]), default=0)
    _plot(axis, found.pacing, unit, label="pacing", color="#888888", linewidth=0.8, linestyle="--")
    axis.set_ylim(top=max(1.3 * most / unit, 1e-3))
    _finish(axis, f"payload, {name}")


def _window_panel(axis: Any, found: Curves) -> None:
    flight = [value for _, value in found.flight]
    unit, name = scale(max(flight, default=0), _BYTES)
    _plot(axis, found.window, unit, label="congestion window", color="#7a3fa0", linewidth=1)
    _plot(axis, found.flight, unit, label="in flight", color="#1f5fa8", linewidth=1)
    if flight:  # a start-up window that nothing fills would hide the rest
        axis.set_ylim(top=max(3 * max(flight) / unit, 1e-3))
    _finish(axis, name)


def _rtt_panel(axis: Any, found: Curves) -> None:
    _plot(axis, found.rtt, 1, label="RTT", color="#e08a1e", linestyle="", marker=".", markersize=2)
    _plot(axis, found.smooth, 1, label="smoothed", color="#8a4a00", linewidth=1)
    _plot(axis, found.least, 1, label="smallest", color="#1a8a3c", linewidth=1, linestyle="--")
    _finish(axis, "ms")


def _loss_panel(axis: Any, found: Curves) -> None:
    sums: dict[int, float] = {}
    step = max(found.end / BINS, 1e-6)
    for at, count in found.lost:
        sums[int(at / step)] = sums.get(int(at / step), 0) + count
    axis.bar([(i + 0.5) * step for i in sums], list(sums.values()), width=step, color="#c22f2f")
    _finish(axis, "packets lost")


def _shade(axes: Any, found: Curves) -> list[Any]:
    """Paint behind all panels what limited; returns the legend's entries."""
    from matplotlib.patches import Patch

    seen: dict[str, Any] = {}
    for begin, end, name in spans(found.limits, found.end):
        colour = COLOURS.get(name)
        if colour is None:
            continue
        seen.setdefault(name, Patch(color=colour, label=name))
        for axis in axes:
            axis.axvspan(begin, end, color=colour, linewidth=0, zorder=0)
    return list(seen.values())
