"""Rows of the table of transport figures: what was measured, what it must be, and whether it is."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sector.bench import cells
from sector.bench.common import machine
from sector.bench.cores import NEAR_NS
from sector.bench.link import Link

LINKS = [  # link, peers beside our own, seconds of a run
    *[(f"rate=1g,rtt={rtt}ms,loss=0", "tcp-cubic tcp-bbr libudt", 20) for rtt in (20, 100, 200)],
    *[(f"rate=1g,rtt=100ms,loss={p}%", "tcp-bbr tcp-cubic libudt srt", 16) for p in ("0.01", "0.1", "1")],
    *[(f"rate=100m,rtt=100ms,loss={p}%", "tcp-bbr libudt srt", 16) for p in ("0.1", "1")],
    ("rate=1g,rtt=1ms,loss=0,queue=100f", "tcp-cubic tcp-bbr libudt", 8),
]
LINK_MUST = {  # name: share of the limit (must, aim), mean of the first 20 s in Mb/s (must, aim)
    "1g-20ms-0": (0.98, 0.99, 935.0, 940.0),
    "1g-100ms-0": (0.98, 0.99, 900.0, 910.0),
    "1g-200ms-0": (0.98, 0.99, 850.0, 870.0),
    "1g-100ms-0.01%": (0.95, 0.98, None, None),
    "1g-100ms-0.1%": (0.95, 0.97, None, None),
    "1g-100ms-1%": (0.90, 0.96, None, None),
}
LINK_RATE = {  # name: Mb/s (must, aim)
    "100m-100ms-0.1%": (91.0, 92.0),
    "100m-100ms-1%": (89.0, 91.0),
    "1g-1ms-0-queue100f": (900.0, 910.0),
}
SHARED = "rate=100m,rtt=20ms,loss=0,queue=1250kb"  # one BDP of 100 ms for all, whatever each flow's RTT
SHARING = [  # flows; Jain or what CUBIC keeps (must, aim), utilisation (must, aim); None = for comparison
    ((("sector", "50ms"), ("sector", "50ms")), (0.98, 0.99, 0.95, 0.97)),
    ((("sector", "20ms"), ("sector", "200ms")), (0.92, 0.95, 0.95, 0.97)),
    ((("sector", "20ms"), ("tcp-cubic", "20ms")), (35.0, 40.0, 0.95, 0.97)),
    ((("sector", "100ms"), ("tcp-cubic", "100ms")), (25.0, 30.0, 0.95, 0.97)),
    ((("tcp-cubic", "20ms"), ("tcp-cubic", "200ms")), None),
    ((("tcp-bbr", "20ms"), ("tcp-cubic", "20ms")), None),
]


def sharing_name(flows: Any) -> str:
    """`sector@20ms+tcp-cubic@20ms`."""
    return "+".join(f"{peer}@{rtt}" for peer, rtt in flows)


class Found:
    """Medians over the runs of a cell."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = [row for row in rows if "error" not in row]
        self.failed = [row for row in rows if "error" in row]

    def median(self, cell: str, name: str) -> float | None:
        """Of a figure; None where nothing was measured."""
        values = [row[name] for row in self.rows if row["cell"] == cell and row.get(name) is not None]
        return statistics.median(values) if values else None

    def inner(self, cell: str, peer: str, name: str = "p50_us") -> float | None:
        """Median of a figure of one peer among a cell's `results`."""
        values = [
            entry[name]
            for row in self.rows
            if row["cell"] == cell
            for entry in row["results"]
            if entry["peer"] == peer and entry.get(name) is not None
        ]
        return statistics.median(values) if values else None

    def lists(self, cell: str, name: str) -> list[float] | None:
        """Median of each place of a list."""
        values = [row[name] for row in self.rows if row["cell"] == cell and name in row]
        return [statistics.median(column) for column in zip(*values, strict=True)] if values else None


# ---- figures and lines ---------------------------------------------------------------------------
@dataclass(frozen=True)
class Figure:
    """One number against its bound: at least `must` (at most, if `low`), better `aim`."""

    what: str
    value: float | None
    must: float | None
    aim: float | None = None
    form: str = "{:.3g}"
    low: bool = False

    def reaches(self, bound: float | None) -> bool | None:
        """Whether the value keeps a bound; None if either is unknown."""
        if self.value is None or bound is None:
            return None
        return self.value <= bound if self.low else self.value >= bound

    @property
    def text(self) -> str:
        """`38.2 Gb/s (>= 35)`, with a mark if it misses."""
        if self.value is None:
            return f"{self.what}: not measured"
        bound = "" if self.must is None else f" ({'<=' if self.low else '>='} {self.form.format(self.must)})"
        text = f"{self.form.format(self.value)} {self.what}{bound}"
        return f"**{text}: missed**" if self.reaches(self.must) is False else text


@dataclass(frozen=True)
class Line:
    """A row: figures with bounds, and what was measured beside them in the same run."""

    what: str
    figures: list[Figure]
    beside: str = ""

    @property
    def verdict(self) -> str:
        """`missed` if one figure is, `` if one is unknown, `aim` if all reach their aims, else `ok`."""
        judged = [figure.reaches(figure.must) for figure in self.figures]
        if False in judged:
            return "**missed**"
        if not judged or None in judged:
            return "-"
        aims = [figure.reaches(figure.aim) for figure in self.figures if figure.aim is not None]
        return "aim" if aims and all(aims) else "ok"


def number(value: float | None, form: str = "{:.3g}") -> str:
    """Text of a figure."""
    return "-" if value is None else form.format(value)


def ratio(a: float | None, b: float | None) -> float | None:
    """a / b where both are known."""
    return None if a is None or not b else a / b


def times(value: float | None, factor: float) -> float | None:
    """A figure in another unit."""
    return None if value is None else value * factor


# ---- the rows ------------------------------------------------------------------------------------
def loopback_lines(found: Found) -> Iterator[Line]:
    """Bulk on one machine."""

    def gbps(name: str) -> float | None:
        return found.median(name, "gbps")

    def cpu(name: str, side: str) -> float | None:
        return found.median(name, f"{side}_cpu_s_per_gb")

    ours, libudt = gbps("sector"), gbps("libudt")
    yield Line(
        "own peers, loopback, MTU 1500, plain",
        [
            Figure("Gb/s", ours, 35.0, 50.0),
            Figure("x libudt", ratio(ours, libudt), 8.0, 11.0),
            Figure("x TCP BBR", ratio(ours, gbps("tcp-bbr")), 1.0),
            Figure("x CUBIC without offload", ratio(ours, gbps("tcp-cubic-1500")), 2.5),
            Figure("CPU-s/GB sending", cpu("sector", "tx"), 0.22, 0.15, low=True),
            Figure("CPU-s/GB receiving", cpu("sector", "rx"), 0.22, 0.15, low=True),
        ],
        f"libudt {number(libudt)}, TCP BBR {number(gbps('tcp-bbr'))}, CUBIC {number(gbps('tcp-cubic'))};"
        f" without offload BBR {number(gbps('tcp-bbr-1500'))}, CUBIC {number(gbps('tcp-cubic-1500'))}; UDP"
        f" {number(gbps('udp'))}",
    )
    sealed, quinn = gbps("sector-sealed"), gbps("quinn")
    yield Line(
        "own peers, encrypted and authenticated (AES-GCM)",
        [Figure("Gb/s", sealed, 12.0, 20.0), Figure("x quinn", ratio(sealed, quinn), 1.8, 3.0)],
        f"quinn {number(quinn)}; our CPU-s/GB {number(cpu('sector-sealed', 'tx'))} /"
        f" {number(cpu('sector-sealed', 'rx'))}, quinn's {number(cpu('quinn', 'tx'))} /"
        f" {number(cpu('quinn', 'rx'))}",
    )
    for name, what, side, bare in (
        ("sector-to-libudt", "ours to libudt", "tx", "udp-cut"),
        ("libudt-to-sector", "libudt to ours", "rx", "udp-batch"),
    ):
        yield Line(
            what,
            [
                Figure("x libudt to libudt", ratio(gbps(name), libudt), 1.0),
                Figure("CPU-s/GB of ours", cpu(name, side), 0.5, low=True),
            ],
            f"{number(gbps(name))} Gb/s; libudt to libudt {number(libudt)}; bare UDP as fast as it goes"
            f" {number(cpu(bare, side))} CPU-s/GB at {number(gbps(bare))} Gb/s",
        )
    yield Line(
        "without GSO and GRO",
        [Figure("Gb/s", gbps("sector-single"), 4.5, 5.0)],
        f"bare UDP, one datagram a call {number(gbps('udp-single'))}",
    )
    one, all_of_them = found.median("sector", "steady_gbps"), found.median("sector-1000", "steady_gbps")
    yield Line(
        "1,000 connections on one port",
        [
            Figure("of one flow", ratio(all_of_them, one), 0.8, form="{:.0%}"),
            Figure("Jain", found.median("sector-1000", "jain"), 0.95),
        ],
        f"peak memory {number(found.median('sector-1000', 'max_rss_mb'), '{:.0f}')} MB",
    )


def gmp_lines(found: Found) -> Iterator[Line]:
    """Small messages."""
    udp = found.inner("gmp", "udp")
    others = ", ".join(
        f"{what} {number(found.inner('gmp', peer))}"
        for peer, what in (("udp", "bare UDP"), ("tcp", "TCP"), ("zmq", "ZeroMQ"), ("libudt", "libudt"))
    )
    for peer, what, must, aim in (
        ("sector", "caller drives the loop", 2.4, 1.6),
        ("sector_threads", "loop thread", 5.0, 3.5),
    ):
        mine = found.inner("gmp", peer)
        yield Line(
            f"1 KB GMP ping-pong, C, sealed, {what}, both ends on one core",
            [Figure("x bare UDP", ratio(mine, udp), must, aim, low=True)],
            f"{number(mine)} us; {others}",
        )
    new, tcp = found.inner("gmp-new", "gmp_new"), found.inner("gmp-new", "tcp_connect")
    yield Line(
        "new peer (introduced): request and response, C",
        [Figure("x TCP connect to close", ratio(new, tcp), 1.0, 0.7, low=True)],
        f"{number(new)} us; TCP {number(tcp)}",
    )


def rpc_lines(found: Found) -> Iterator[Line]:
    """Calls from Python."""
    mine, grpc = found.inner("rpc", "python_sector"), found.inner("rpc", "python_grpc")
    yield Line(
        "Python RPC over GMP (Deferreds, sealed), one core a side",
        [
            Figure("x gRPC Python, p50", ratio(mine, grpc), 0.6, 0.3, low=True),
            Figure(
                "calls/s, 64 in flight",
                found.inner("rpc", "python_sector", "calls_per_s"),
                15_000,
                25_000,
                "{:.0f}",
            ),
        ],
        f"{number(mine)} us; gRPC {number(grpc)}, its aio {number(found.inner('rpc', 'python_grpc_aio'))} us,"
        f" {number(found.inner('rpc', 'python_grpc', 'calls_per_s'), '{:.0f}')} and"
        f" {number(found.inner('rpc', 'python_grpc_aio', 'calls_per_s'), '{:.0f}')} calls/s",
    )


def link_lines(found: Found) -> Iterator[Line]:
    """One flow over a link."""
    for text, peers, _ in LINKS:
        link = Link.parse(text)

        def figure(peer: str, name: str, link: Link = link) -> float | None:
            return found.median(cells.key(link, peer), name)

        steady, share = times(figure("sector", "steady_gbps"), 1e3), figure("sector", "share_of_limit")
        figures = []
        if link.name in LINK_MUST:
            must, aim, first, first_aim = LINK_MUST[link.name]
            figures.append(Figure("of the limit, steady", share, must, aim, "{:.1%}"))
            if first is not None:
                mean = times(figure("sector", "first20_gbps"), 1e3)
                figures.append(Figure("Mb/s in the first 20 s", mean, first, first_aim, "{:.0f}"))
            else:
                bbr = figure("tcp-bbr", "steady_gbps")
                figures.append(Figure("x TCP BBR", ratio(figure("sector", "steady_gbps"), bbr), 1.0))
        else:
            must, aim = LINK_RATE[link.name]
            figures.append(Figure("Mb/s steady", steady, must, aim, "{:.4g}"))
        others = ", ".join(
            f"{peer} {number(times(figure(peer, 'steady_gbps'), 1e3), '{:.4g}')}" for peer in peers.split()
        )
        yield Line(
            link.name,
            figures,
            f"limit {link.limit_bps / 1e6:.1f} Mb/s, steady {number(steady, '{:.4g}')}, to 90 % in"
            f" {number(figure('sector', 'to_90_s'))} s, queue drops"
            f" {number(figure('sector', 'queue_drop_share'), '{:.3%}')}; {others}",
        )


def sharing_lines(found: Found) -> Iterator[Line]:
    """Two flows through one queue."""
    link = Link.parse(SHARED)
    for flows, bounds in SHARING:
        cell = f"{link.name}-{sharing_name(flows)}"
        rates = found.lists(cell, "mbps")
        fair, full = found.median(cell, "jain"), found.median(cell, "utilisation")
        figures = []
        if bounds is not None:
            must, aim, used, used_aim = bounds
            if flows[1][0] == "tcp-cubic":
                figures.append(Figure("Mb/s for CUBIC", rates[1] if rates else None, must, aim))
            else:
                figures.append(Figure("Jain", fair, must, aim, "{:.3f}"))
            figures.append(Figure("of the limit together", full, used, used_aim, "{:.1%}"))
        split = " and ".join(f"{rate:.1f}" for rate in rates or []) or "-"
        more = "" if bounds else f", Jain {number(fair)}; for comparison"
        yield Line(sharing_name(flows), figures, f"{split} Mb/s of {link.limit_bps / 1e6:.1f}{more}")


def life_lines(found: Found) -> Iterator[Line]:
    """What happens when little happens, or goes wrong."""
    lost = found.median("mass-loss", "lost_pkts")
    yield Line(
        "mass loss, 200 Mb/s, 50 ms (virtual time)",
        [Figure("of the rate in the next 10 RTT", found.median("mass-loss", "share"), 0.5, form="{:.0%}")],
        f"worst of bbr and udt; {number(lost, '{:.0f}')} packets lost at once",
    )
    yield Line(
        "first packet lost after connect (virtual time)",
        [Figure("ms and a round trip later", found.median("first-loss", "beyond_rtt_ms"), 25.0, low=True)],
        f"worst of {number(found.median('first-loss', 'cases'), '{:.0f}')} cases, RTT 1 to 49 ms",
    )
    packets = found.median("idle", "packets_per_5s")
    yield Line(
        "idle connections",
        [
            Figure(
                "packets in 5 s, both ends", None if packets is None else round(packets, 1), 1.0, low=True
            ),
            Figure("threads for all", found.median("idle", "threads"), 0.0, form="{:.0f}", low=True),
        ],
        f"{number(found.median('idle', 'connections'), '{:.0f}')} connections of one listener",
    )
    yield Line(
        "dead peer, noticed after",
        [
            Figure("s, idle", found.median("dead", "idle_s"), 10.0, low=True),
            Figure("s, sending", found.median("dead", "sending_s"), 10.0, low=True),
            Figure("s where 3 was asked", found.median("dead", "configured_s"), 3.5, low=True),
        ],
    )


ALL = {
    "loopback": loopback_lines,
    "gmp": gmp_lines,
    "rpc": rpc_lines,
    "links": link_lines,
    "sharing": sharing_lines,
    "life": life_lines,
}
HEADS = {
    "loopback": "On one machine",
    "gmp": "Small messages",
    "rpc": "Calls from Python",
    "links": "Over a link",
    "sharing": "Two flows on 100 Mb/s",
    "life": "Quiet, lost, dead",
}


def near(found: Found) -> Iterator[str]:
    """What is to be said of how far the cores were from each other."""
    trips = [row["cores_ns"] for row in found.rows if "cores_ns" in row]
    if trips:
        far = sum(ns > NEAR_NS for ns in trips)
        yield (
            f"Over loopback the cores shared a cache in {len(trips) - far} of {len(trips)} runs (a round trip"
            f" between them took {min(trips):.0f} to {max(trips):.0f} ns)."
        )


def failures(found: Found) -> list[str]:
    """A chapter on the runs that failed, of which no figure tells; nothing where there are none."""
    if not found.failed:
        return []
    whole = len(found.failed) + len(found.rows)
    rows = [f"| {row['cell']} | {str(row['error']).replace('|', '/')} |" for row in found.failed]
    head = ["", "## Runs that failed", "", f"**{len(found.failed)} of {whole} runs**", ""]
    return [*head, "| run | why |", "| --- | --- |", *rows]


def markdown(found: Found, settings: str) -> str:
    """The whole document."""
    where = machine()
    runs: dict[str, int] = {}
    for row in found.rows:
        runs[row["cell"]] = runs.get(row["cell"], 0) + 1
    counts = f"{min(runs.values())} to {max(runs.values())}" if runs else "no"
    commits = sorted({str(row.get("commit", "")) for row in found.rows})
    mixed = f" **Measured with {len(commits)} commits; `--fresh` begins anew.**" if len(commits) > 1 else ""
    lines = {name: list(rows(found)) for name, rows in ALL.items()}
    tally: dict[str, int] = {}
    for line in (line for group in lines.values() for line in group if line.figures):
        tally[line.verdict] = tally.get(line.verdict, 0) + 1
    words = {"aim": "reach the aim", "ok": "reach what they must", "**missed**": "miss", "-": "not measured"}
    out = [
        "# Transport figures",
        "",
        f"{where['cpu']}, {where['cores']} cores, kernel {where['kernel']}; {settings}; medians of {counts}"
        f" runs, peers in the same run; commits {', '.join(commits)}.{mixed}",
        "",
        "Rows: " + ", ".join(f"{tally[mark]} {text}" for mark, text in words.items() if mark in tally) + ".",
        "Payload limit of a link: rate x 1456 / 1538, which holds all headers of ours too.",
        *near(found),
    ]
    for name, group in lines.items():
        out += [
            "",
            f"## {HEADS[name]}",
            "",
            "| what | figures (must) | beside | |",
            "| --- | --- | --- | --- |",
        ]
        for line in group:
            figures = "<br>".join(figure.text for figure in line.figures) or "-"
            out.append(
                f"| {line.what} | {figures} | {line.beside} | {line.verdict if line.figures else ''} |"
            )
    out += failures(found)
    return "\n".join(out) + "\n"
