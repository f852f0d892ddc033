"""The table of transport figures: everything in one go, each against its peers in the same run.

    ./dev bench table                     measures what is missing, writes JSON and a table
    ./dev bench table --quick             one short run of each
    ./dev bench table --only loopback,gmp,links,sharing
    ./dev bench table --fresh             forget earlier results

Results are lines of JSON in benchmarks/results/ (git ignores it); a cell that is there is not measured again,
so a run that was stopped goes on. table.md is made of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sector.bench import cells, udt
from sector.bench.common import machine, program
from sector.bench.link import Link
from sector.bench.peers import PEERS, why_missing
from sector.bench.run import json_of
from sector.errors import SectorError

RESULTS = Path(__file__).resolve().parent / "results"
GROUPS = ("loopback", "gmp", "links", "sharing")
LOOPBACK = [
    *("sector", "sector-sealed", "sector-threads", "sector_compatible", "sector-single", "sector-1000"),
    *("sector-to-libudt", "libudt-to-sector", "libudt"),
    *("tcp-cubic", "tcp-cubic-1500", "tcp-bbr", "tcp-bbr-1500", "srt", "zmq", "quinn", "udp", "udp-single"),
]
LINKS = [  # link, peers beside our own
    *[(f"rate=1g,rtt={rtt}ms,loss=0", "tcp-cubic tcp-bbr libudt") for rtt in (20, 100, 200)],
    *[(f"rate=1g,rtt=100ms,loss={p}%", "tcp-bbr tcp-cubic libudt srt") for p in ("0.01", "0.1", "1")],
    *[(f"rate=100m,rtt=100ms,loss={p}%", "tcp-bbr libudt srt") for p in ("0.1", "1")],
    ("rate=1g,rtt=1ms,loss=0,queue=100f", "tcp-cubic tcp-bbr libudt"),
]
SHARED = "rate=100m,rtt=20ms,loss=0,queue=1250kb"  # one BDP of 100 ms for all, whatever each flow's RTT
SHARING = [
    (("sector", "50ms"), ("sector", "50ms")),
    (("sector", "20ms"), ("sector", "200ms")),
    (("sector", "20ms"), ("tcp-cubic", "20ms")),
    (("sector", "100ms"), ("tcp-cubic", "100ms")),
    (("tcp-cubic", "20ms"), ("tcp-cubic", "200ms")),
    (("tcp-bbr", "20ms"), ("tcp-cubic", "20ms")),
]


def say(text: str) -> None:
    """Progress on standard error."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    runs: int
    loopback_s: float
    link_s: float
    sharing_s: float
    rounds: int


FULL = Effort(3, 4, 20, 60, 10_000)
QUICK = Effort(1, 2, 10, 30, 2_000)


# ---- measuring -----------------------------------------------------------------------------------
def stamped(row: dict[str, Any], run: int, where: dict[str, Any]) -> dict[str, Any]:
    """With when, where and of what state of the source."""
    return {"run": run, "at": round(time.time()), "commit": where["commit"], **row}


def guarded(cell: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The row, or why there is none."""
    try:
        return {"cell": cell, **work()}
    except SectorError as error:
        say(f"  {cell}: {error}")
        return {"cell": cell, "error": str(error)}


def loopback(results: cells.Results, effort: Effort) -> None:
    """Bulk throughput on this machine."""
    names = []
    for name in LOOPBACK:
        why = why_missing(name)
        if why:
            say(f"  without {name}: {why}")
        else:
            names.append(name)
    for run in range(1, effort.runs + 1):
        for name in names:
            if results.count(name) < run:
                row = guarded(name, lambda name=name: udt.run_one(name, effort.loopback_s))  # type: ignore[misc]
                results.add(stamped(row, run, machine()))
                say(f"  {name}: {row.get('gbps', '-')} Gb/s")


def gmp(results: cells.Results, effort: Effort) -> None:
    """Small messages: C, both ends on the last core, round by round; then new peers."""
    cpu = str((os.cpu_count() or 1) - 1)
    peers = "sector,sector_threads,udp,tcp,tcp_connect,zmq,libudt"
    wanted = [
        ("gmp", ["bench_gmp", "--rounds", str(effort.rounds), "--cpus", f"{cpu},{cpu}", "--peers", peers]),
        ("gmp-new", ["bench_gmp_intro", "--rounds", str(min(effort.rounds, 2000)), "--cpus", f"{cpu},{cpu}"]),
    ]
    for run in range(1, effort.runs + 1):
        for cell, (tool, *rest) in wanted:
            if results.count(cell) < run:

                def work(tool: str = tool, rest: list[str] = rest) -> dict[str, Any]:
                    return {"pinning": f"{cpu},{cpu}", "results": json_of([program(tool), *rest])["results"]}

                results.add(stamped(guarded(cell, work), run, machine()))
                say(f"  {cell}")


def links(results: cells.Results, effort: Effort) -> None:
    """One flow over an emulated link."""
    for text, peers in LINKS:
        names = ["sector", *(name for name in peers.split() if not why_missing(name))]
        for row in cells.run_series([Link.parse(text)], names, effort.link_s, effort.runs, results, "user"):
            share = (
                f"{row['share_of_limit']:.1%} of the limit"
                if "share_of_limit" in row
                else row.get("error", "")
            )
            say(f"  {row['cell']}: {share}, queue drops {row.get('queue_drop_share', 0):.3%}")


def sharing(results: cells.Results, effort: Effort) -> None:
    """Two flows through one queue."""
    link = Link.parse(SHARED)
    for run in range(1, effort.runs + 1):
        for flows in SHARING:
            cell = f"{link.name}-" + "+".join(f"{peer}@{rtt}" for peer, rtt in flows)
            if results.count(cell) >= run or any(why_missing(peer) for peer, _ in flows):
                continue

            def work(flows: Any = flows, run: int = run) -> dict[str, Any]:
                return cells.share_of(link, flows, effort.sharing_s, effort.sharing_s / 4, seed=run)

            row = stamped(guarded(cell, work), run, machine())
            results.add(row)
            say(f"  {cell}: {row.get('mbps')} Mb/s, Jain {row.get('jain')}")


# ---- the table -----------------------------------------------------------------------------------
class Found:
    """Medians over the runs of a cell."""

    def __init__(self, groups: dict[str, cells.Results]) -> None:
        self.rows = [row for results in groups.values() for row in results.rows if "error" not in row]

    def median(self, cell: str, name: str) -> float | None:
        """Of a figure; None where nothing was measured."""
        values = [row[name] for row in self.rows if row["cell"] == cell and row.get(name) is not None]
        return statistics.median(values) if values else None

    def latency(self, cell: str, peer: str) -> float | None:
        """Median p50 of a kind of message, us."""
        values = [
            entry["p50_us"]
            for row in self.rows
            if row["cell"] == cell
            for entry in row["results"]
            if entry["peer"] == peer
        ]
        return statistics.median(values) if values else None

    def lists(self, cell: str, name: str) -> list[float] | None:
        """Median of each place of a list."""
        values = [row[name] for row in self.rows if row["cell"] == cell and name in row]
        return [statistics.median(column) for column in zip(*values, strict=True)] if values else None


@dataclass(frozen=True)
class Line:
    """A line of the table; `good` is None where something was not measured."""

    what: str
    measured: str
    must: str
    good: bool | None


def number(value: float | None, form: str = "{:.3g}") -> str:
    """Text of a figure."""
    return "-" if value is None else form.format(value)


def ratio(a: float | None, b: float | None) -> float | None:
    """a / b where both are known."""
    return None if a is None or not b else a / b


def at_least(value: float | None, *bounds: float | None) -> bool | None:
    """Whether value reaches all bounds; None if something is unknown."""
    if value is None or any(bound is None for bound in bounds):
        return None
    return all(value >= bound for bound in bounds if bound is not None)


def at_most(value: float | None, bound: float) -> bool | None:
    """Whether value stays within the bound."""
    return None if value is None else value <= bound


def both(*verdicts: bool | None) -> bool | None:
    """False if one is, None if one is unknown."""
    return False if False in verdicts else None if None in verdicts else True


def loopback_lines(found: Found) -> Iterator[Line]:
    """Bulk on one machine."""

    def gbps(name: str) -> float | None:
        return found.median(name, "gbps")

    def cpu(name: str, side: str) -> float | None:
        return found.median(name, f"{side}_cpu_s_per_gb")

    ours, libudt, cubic, bbr = gbps("sector"), gbps("libudt"), gbps("tcp-cubic-1500"), gbps("tcp-bbr-1500")
    times, over = ratio(ours, libudt), ratio(ours, cubic)
    yield Line(
        "own peers, loopback, MTU 1500, plain",
        f"{number(ours)} Gb/s; {number(times)} x libudt ({number(libudt)}), {number(over)} x CUBIC without"
        f" offload ({number(cubic)}), BBR without offload {number(bbr)}; BBR {number(gbps('tcp-bbr'))}, CUBIC"
        f" {number(gbps('tcp-cubic'))}; CPU-s/GB {number(cpu('sector', 'tx'))} /"
        f" {number(cpu('sector', 'rx'))}",
        ">= 35 Gb/s, >= 8 x libudt, >= TCP BBR, >= 2.5 x CUBIC without offload, <= 0.22 CPU-s/GB a side",
        both(
            at_least(ours, 35.0, gbps("tcp-bbr")),
            at_least(times, 8.0),
            at_least(over, 2.5),
            at_most(cpu("sector", "tx"), 0.22),
            at_most(cpu("sector", "rx"), 0.22),
        ),
    )
    sealed, quinn = gbps("sector-sealed"), gbps("quinn")
    yield Line(
        "own peers, every packet sealed (AES-GCM)",
        f"{number(sealed)} Gb/s; {number(ratio(sealed, quinn))} x quinn ({number(quinn)}); CPU-s/GB"
        f" {number(cpu('sector-sealed', 'tx'))} / {number(cpu('sector-sealed', 'rx'))}",
        ">= 12 Gb/s, >= 1.8 x quinn",
        both(at_least(sealed, 12.0), at_least(ratio(sealed, quinn), 1.8)),
    )
    there, back = gbps("sector-to-libudt"), gbps("libudt-to-sector")
    yield Line(
        "ours to libudt, libudt to ours",
        f"{number(there)} and {number(back)} Gb/s (libudt alone {number(libudt)}); our CPU-s/GB"
        f" {number(cpu('sector-to-libudt', 'tx'))} and {number(cpu('libudt-to-sector', 'rx'))}",
        ">= libudt to libudt, our side <= 0.5 CPU-s/GB",
        both(
            at_least(there, libudt),
            at_least(back, libudt),
            at_most(cpu("sector-to-libudt", "tx"), 0.5),
            at_most(cpu("libudt-to-sector", "rx"), 0.5),
        ),
    )
    single = gbps("sector-single")
    yield Line(
        "without GSO and GRO",
        f"{number(single)} Gb/s (bare UDP one datagram a call {number(gbps('udp-single'))}, with both"
        f" {number(gbps('udp'))})",
        ">= 4.5 Gb/s",
        at_least(single, 4.5),
    )
    one, all_of_them = found.median("sector", "steady_gbps"), found.median("sector-1000", "steady_gbps")
    many, fair = ratio(all_of_them, one), found.median("sector-1000", "jain")
    yield Line(
        "1,000 connections on one port",
        f"{number(many, '{:.0%}')} of one flow, Jain {number(fair)}, peak memory"
        f" {number(found.median('sector-1000', 'max_rss_mb'), '{:.0f}')} MB",
        ">= 80 %, Jain >= 0.95",
        both(at_least(many, 0.8), at_least(fair, 0.95)),
    )


def gmp_lines(found: Found) -> Iterator[Line]:
    """Small messages."""
    udp = found.latency("gmp", "udp")
    for peer, what, bound in (
        ("sector", "caller drives the loop", 2.4),
        ("sector_threads", "loop thread", 5.0),
    ):
        mine = found.latency("gmp", peer)
        yield Line(
            f"1 KB GMP ping-pong, sealed, {what}, one core",
            f"{number(mine)} us = {number(ratio(mine, udp))} x bare UDP ({number(udp)}); TCP"
            f" {number(found.latency('gmp', 'tcp'))}, ZeroMQ {number(found.latency('gmp', 'zmq'))}, libudt"
            f" {number(found.latency('gmp', 'libudt'))}",
            f"<= {bound} x",
            None if ratio(mine, udp) is None else at_most(ratio(mine, udp), bound),
        )
    new, tcp = found.latency("gmp-new", "gmp_new"), found.latency("gmp-new", "tcp_connect")
    yield Line(
        "new peer (introduced): request and response",
        f"{number(new)} us = {number(ratio(new, tcp))} x TCP connect to close ({number(tcp)})",
        "<= 1 x",
        at_most(ratio(new, tcp), 1.0),
    )


def link_lines(found: Found) -> Iterator[Line]:
    """One flow over a link."""
    must = {
        "1g-20ms-0": (0.98, 935.0),
        "1g-100ms-0": (0.98, 900.0),
        "1g-200ms-0": (0.98, 850.0),
        "1g-100ms-0.01%": (0.95, 0.0),
        "1g-100ms-0.1%": (0.95, 0.0),
        "1g-100ms-1%": (0.90, 0.0),
        "100m-100ms-0.1%": (91 / 94.67, 0.0),
        "100m-100ms-1%": (89 / 94.67, 0.0),
        "1g-1ms-0-queue100f": (900 / 946.7, 0.0),
    }
    for text, peers in LINKS:
        link = Link.parse(text)
        share, first = must[link.name]

        def figure(peer: str, name: str, link: Link = link) -> float | None:
            return found.median(cells.key(link, peer), name)

        mine, others = figure("sector", "share_of_limit"), []
        for peer in peers.split():
            others.append(f"{peer} {number(figure(peer, 'steady_gbps'), '{:.4g}')}")
        steady, first20 = figure("sector", "steady_gbps"), figure("sector", "first20_gbps")
        verdicts = [at_least(mine, share)]
        needs = f"steady >= {share:.1%} of the limit"
        if first:
            verdicts.append(at_least(None if first20 is None else first20 * 1e3, first))
            needs += f", first 20 s >= {first:.0f}"
        if link.loss and link.rate_bps == 1e9:
            verdicts.append(at_least(steady, figure("tcp-bbr", "steady_gbps")))
            needs += ", >= BBR"
        yield Line(
            link.name,
            f"{number(steady, '{:.4g}')} Gb/s steady ({number(mine, '{:.1%}')}),"
            f" first 20 s {number(first20, '{:.4g}')}, to 90 %"
            f" {number(figure('sector', 'to_90_s'))} s, queue drops"
            f" {number(figure('sector', 'queue_drop_share'), '{:.3%}')}; steady of {', '.join(others)}",
            needs,
            both(*verdicts),
        )


def sharing_lines(found: Found) -> Iterator[Line]:
    """Two flows through one queue."""
    must = [(0.98, 0.95), (0.92, 0.95), (35.0, 0.95), (25.0, 0.95), (None, None), (None, None)]
    link = Link.parse(SHARED)
    for flows, (bound, used) in zip(SHARING, must, strict=True):
        name = "+".join(f"{peer}@{rtt}" for peer, rtt in flows)
        cell = f"{link.name}-{name}"
        rates = found.lists(cell, "mbps")
        fair, full = found.median(cell, "jain"), found.median(cell, "utilisation")
        beside = flows[1][0] == "tcp-cubic"
        value = (rates[1] if rates else None) if beside else fair
        yield Line(
            name,
            f"{' and '.join(f'{r:.1f}' for r in rates or []) or '-'} Mb/s, Jain {number(fair)}, together"
            f" {number(full, '{:.1%}')} of the limit",
            "for comparison"
            if bound is None
            else f"{'CUBIC keeps' if beside else 'Jain'} >= {bound:g}, together >= {used:.0%}",
            None if bound is None else both(at_least(value, bound), at_least(full, used)),
        )


def markdown(found: Found) -> str:
    """The table."""
    out = ["| what | measured (medians) | must | |", "| --- | --- | --- | --- |"]
    mark = {True: "ok", False: "**missed**", None: ""}
    for lines in (loopback_lines, gmp_lines, link_lines, sharing_lines):
        for line in lines(found):
            out.append(f"| {line.what} | {line.measured} | {line.must} | {mark[line.good]} |")
    where = machine()
    runs: dict[str, int] = {}
    for row in found.rows:
        runs[row["cell"]] = runs.get(row["cell"], 0) + 1
    counts = f"{min(runs.values())} to {max(runs.values())}" if runs else "no"
    commits = ", ".join(sorted({str(row.get("commit", "")) for row in found.rows}))
    head = (
        f"{where['cpu']}, {where['cores']} cores, kernel {where['kernel']}; {counts} runs of each; commits"
        f" {commits}. Payload limit of a link: rate x 1456 / 1538.\n\n"
    )
    return head + "\n".join(out) + "\n"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(GROUPS), help="groups: " + ", ".join(GROUPS))
    parser.add_argument("--quick", action="store_true", help="one short run of each")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results of these groups")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--show", action="store_true", help="measure nothing, print what is there")
    options = parser.parse_args()
    wanted = [name for name in options.only.split(",") if name]
    for name in wanted:
        if name not in GROUPS:
            parser.error(f"no group {name!r}; there are {', '.join(GROUPS)}")
    effort = QUICK if options.quick else FULL
    options.results.mkdir(parents=True, exist_ok=True)
    groups = {}
    for name in GROUPS:
        path = options.results / f"{name}{'-quick' if options.quick else ''}.jsonl"
        if options.fresh and name in wanted:
            path.unlink(missing_ok=True)
        groups[name] = cells.Results(path)
    work = {"loopback": loopback, "gmp": gmp, "links": links, "sharing": sharing}
    for name in wanted:
        if options.show:
            continue
        say(name)
        work[name](groups[name], effort)
    found = Found(groups)
    text = markdown(found)
    name = "table-quick" if options.quick else "table"
    (options.results / f"{name}.md").write_text(text)
    whole = {"machine": machine(), "peers": {k: v.says for k, v in PEERS.items()}, "results": found.rows}
    (options.results / f"{name}.json").write_text(json.dumps(whole) + "\n")
    print(text, end="")


if __name__ == "__main__":
    main()
