"""Pictures of the figures of Cumulus, as PNG by matplotlib: throughput by size, small objects, many clients,
more servers, fair shares. They show what the Cumulus paper's figures 2 to 10 show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from judge import Found

INCHES = (7.0, 4.5)
SERVERS = ("cumulus", "versitygw", "minio", "sink")
COLOURS = {
    "cumulus": "#1764ab",
    "versitygw": "#e08214",
    "minio": "#b2182b",
    "sink": "#999999",
    "scp": "#5aae61",
    "gridftp": "#762a83",
    "nginx": "#35978f",
}
Drawer = Callable[[Any, Found], bool]


def throughput(way: str, sizes: Mapping[str, int]) -> Drawer:
    """MB/s by size: curl to each S3 server, beside scp, GridFTP and nginx."""

    def draw(axes: Any, found: Found) -> bool:
        pairs = [("curl", server) for server in SERVERS] + [(one, one) for one in ("scp", "gridftp", "nginx")]
        some = False
        for client, server in pairs:
            points = [
                (mb, rate)
                for name, mb in sizes.items()
                if (rate := found.median(f"{name}-{client}-{server}", f"{way}_mb_per_s")) is not None
            ]
            if points:
                axes.plot(*zip(*points, strict=True), "o-", label=server, color=COLOURS[server])
                some = True
        axes.set(xscale="log" if some else "linear", xlabel="size of the file, MB", ylabel=f"MB/s {way}")
        return some

    return draw


def clients(way: str, size: str) -> Drawer:
    """Bars: each client with each server, one size."""
    names = ("curl", "s3cmd", "boto3", "awscli", "rclone")

    def draw(axes: Any, found: Found) -> bool:
        some = False
        for place, server in enumerate(SERVERS):
            rates = [found.median(f"{size}-{name}-{server}", f"{way}_mb_per_s") for name in names]
            some = some or any(rate is not None for rate in rates)
            at = [i + 0.2 * place for i in range(len(names))]
            axes.bar(at, [rate or 0 for rate in rates], 0.2, label=server, color=COLOURS[server])
        axes.set_xticks([i + 0.3 for i in range(len(names))], names)
        axes.set_ylabel(f"MB/s {way}, {size}")
        return some

    return draw


def small(axes: Any, found: Found) -> bool:
    """Requests a second of 4 KB objects."""
    ops, some = ("get", "put", "list"), False
    for place, server in enumerate(SERVERS[:3]):
        rates = [found.median(f"small-{server}", f"{op}_per_s") for op in ops]
        some = some or any(rate is not None for rate in rates)
        at = [i + 0.25 * place for i in range(len(ops))]
        axes.bar(at, [rate or 0 for rate in rates], 0.25, label=server, color=COLOURS[server])
    axes.set_xticks([i + 0.25 for i in range(len(ops))], ["GET", "PUT", "LIST (pages)"])
    axes.set(yscale="log" if some else "linear", ylabel="requests/s, 4 KB, 16 connections")
    return some


def latency(axes: Any, found: Found) -> bool:
    """The 99th percentile at 70 % of what each server can do."""
    ops, some = ("get", "put"), False
    for place, server in enumerate(SERVERS[:3]):
        times = [found.median(f"open-{server}", f"{op}_p99_ms") for op in ops]
        some = some or any(time is not None for time in times)
        at = [i + 0.25 * place for i in range(len(ops))]
        axes.bar(at, [time or 0 for time in times], 0.25, label=server, color=COLOURS[server])
    axes.set_xticks([i + 0.25 for i in range(len(ops))], ["GET", "PUT"])
    axes.set(yscale="log" if some else "linear", ylabel="ms p99 at 70 % of each one's maximum, 4 KB")
    return some


def load(op: str) -> Drawer:
    """MB/s by clients: each storage, with and without a redirection."""

    def draw(axes: Any, found: Found) -> bool:
        some = False
        for storage, colour in (("posix", "#1764ab"), ("memory", "#5aae61"), ("fsspec", "#e08214")):
            for way, line in (("direct", "o-"), ("redirected", "o--")):
                rates = found.lists(f"load-{storage}-{way}", f"{op}_mbps")
                if rates:
                    counts = found.lists(f"load-{storage}-{way}", "clients")
                    axes.plot(counts, rates, line, label=f"{storage}, {way}", color=colour)
                    some = True
        axes.set(
            xscale="log" if some else "linear",
            xlabel="clients",
            ylabel=f"MB/s together, {op.upper()} of 1 MB",
            ylim=(0, None),
        )
        if some:
            axes.set_xticks([1, 4, 16, 64], ["1", "4", "16", "64"])
        return some

    return draw


def replication(axes: Any, found: Found) -> bool:
    """MB/s by servers, beside what their links carry."""
    counts = (1, 2, 4, 8)
    points = [(n, rate) for n in counts if (rate := found.median(f"replication-{n}", "mb_per_s")) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), "o-", label="80 clients, round-robin", color="#1764ab")
        axes.plot(counts, [12.5 * n for n in counts], ":", label="links, 100 Mb/s each", color="#999999")
    axes.set(xlabel="servers", ylabel="MB/s together", ylim=(0, None))
    return bool(points)


def fairness(mode: str) -> Drawer:
    """Each client's rate as a share of the mean, from the slowest to the fastest."""

    def draw(axes: Any, found: Found) -> bool:
        some = False
        for server in SERVERS[:3]:
            rates = found.lists(f"fairness-{server}", f"{mode}_rates")
            if rates:
                mean = sum(rates) / len(rates)
                shares = [rate / mean for rate in rates]
                axes.plot(range(1, len(shares) + 1), shares, "o-", label=server, color=COLOURS[server])
                some = True
        axes.set(xlabel="client", ylabel=f"rate / mean of all, {mode}")
        return some

    return draw


def drawers(sizes: Sequence[str], megabytes: Mapping[str, int]) -> Iterator[tuple[str, Drawer]]:
    """Name of the file and what draws it."""
    wanted = {name: megabytes[name] for name in sizes}
    size = "512M" if "512M" in sizes else sizes[0]
    for way in ("up", "down"):
        yield f"s3-throughput-{way}", throughput(way, wanted)
        yield f"s3-clients-{way}", clients(way, size)
    yield "s3-small", small
    yield "s3-open", latency
    for op in ("get", "put"):
        yield f"s3-load-{op}", load(op)
    yield "s3-replication", replication
    for mode in ("down-same", "down-own", "up"):
        yield f"s3-fairness-{mode}", fairness(mode)


def draw(found: Found, folder: Path, sizes: Sequence[str], megabytes: Mapping[str, int]) -> list[str]:
    """Write a PNG for each that has something to show; a line for each, or why there is none."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return ["no pictures: matplotlib is not installed"]
    lines = []
    for name, drawer in drawers(sizes, megabytes):
        figure = Figure(figsize=INCHES, layout="constrained")
        axes = figure.add_subplot()
        if drawer(axes, found):
            axes.grid(alpha=0.3)
            axes.legend(fontsize="small")
            path = folder / f"{name}.png"
            figure.savefig(path, dpi=110)
            lines.append(f"wrote {path}")
    return lines
