"""`sector bench udt`: bulk throughput on loopback, over an emulated link or between hosts, with peers."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path as FilePath
from typing import Any

import click

from sector._udt.strings import host_and_port
from sector.bench import cells, cores, pair, picture, wan
from sector.bench.common import document, machine, peers_of, show
from sector.bench.link import Link, grid
from sector.bench.peers import PEERS, Run, why_missing
from sector.errors import LocalIO, SectorError, UsageError
from sector.ports import free_ports

COMPATIBLE = "sector_compatible"
FIRST = ["sector", COMPATIBLE]


def run_one(
    peer: str, seconds: float, trace: str = "", placement: cores.Placement = cores.HERE
) -> dict[str, Any]:
    """One transfer of `seconds` over loopback, while the cores are near each other (`sector.bench.cores`).
    GB = 10^9 payload bytes that arrived."""
    return placement.run(lambda: _transfer(peer, seconds, trace), seconds)


def _transfer(peer: str, seconds: float, trace: str) -> dict[str, Any]:
    one = PEERS[peer]
    drain = peer.split("-")[0] in ("sector", COMPATIBLE, "libudt") and peer != "sector-1000"
    with wan.local(one.local) if one.local else wan.loopback() as path:
        run = Run(path.host, free_ports(1, "0.0.0.0")[0], seconds, drain=drain, trace=trace)
        ((rx, tx),) = pair.transfers(path, [(one, run)])
    row = {"peer": peer, **pair.measures(rx, tx, seconds)}
    return row | ({"ok": rx["bytes"] == tx["bytes"]} if drain else {})


def wanted_peers(text: str, first: list[str]) -> list[str]:
    """The peers of --peer after our own; those that cannot run here are named on standard error. Raises
    UsageError when none is named, SectorError when none can run."""
    named = peers_of(text, PEERS)
    if not named and not first:
        raise UsageError("--only measures what --peer names, and it names nothing", hint="add --peer NAME")
    found = []
    for name in dict.fromkeys([*(p for p in first if p not in named), *named]):
        why = why_missing(name)
        if why:
            click.echo(f"sector bench udt: without {name}: {why}", err=True)
        else:
            found.append(name)
    if not found:
        raise SectorError("nothing can be measured here", hint="the reasons are above")
    return found


@contextmanager
def _traced(path: str | None) -> Iterator[str]:
    """A file for the records of our own sender, which become a trace at `path`; "" without one."""
    if path is None:
        yield ""
        return
    from sector._udt.trace import check_place, write_records

    try:
        check_place(path)
    except OSError as bad:
        raise LocalIO(f"the trace cannot be written to {path}: {bad.strerror}") from None
    with tempfile.NamedTemporaryFile(suffix=".records") as raw:
        yield raw.name
        try:
            write_records(raw.name, path, "sector bench udt", "client")
        except OSError as bad:
            raise LocalIO(f"the trace cannot be written to {path}: {bad.strerror}") from None


def _loopback(
    peers: list[str], runs: int, seconds: float, as_json: bool, trace: str, placement: cores.Placement
) -> None:
    results = []
    for run in range(1, runs + 1):
        for peer in peers:
            results.append({"run": run, **run_one(peer, seconds, trace, placement)})
    show(document("udt", {"seconds": seconds, "runs": runs, "path": "loopback"}, results), as_json)
    short = sorted({row["peer"] for row in results if not row.get("ok", True)})
    if short:
        raise SectorError(f"bytes that were sent did not arrive: {', '.join(short)}")


def _number(_: object, __: object, value: float | None) -> float | None:
    """ "nan" is within every range. Raises BadParameter."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is no number of seconds")
    return value


def _say(row: dict[str, Any]) -> None:
    if "error" in row:
        click.echo(f"{row['cell']}: {row['error']}", err=True)
        return
    late = row.get("emulator_late_p99_us", 0)
    limit = ""  # a link without a rate has none
    if "share_of_limit" in row:
        limit = (
            f" ({row['share_of_limit']:6.1%} of {row['limit_gbps'] * 1e3:.1f}), first 20 s"
            f" {row['first20_gbps'] * 1e3:8.1f}, to 90 % {row.get('to_90_s', '-')} s"
        )
    click.echo(
        f"{row['cell']:<34} {row['gbps'] * 1e3:8.1f} Mb/s, steady {row['steady_gbps'] * 1e3:8.1f}{limit},"
        f" queue drops {row.get('queue_drop_share', 0):.3%}, emulator p99 {late} us",
        err=True,
    )


def _links(
    links: list[Link],
    peers: list[str],
    runs: int,
    seconds: float,
    as_json: bool,
    output: str,
    engine: str,
    trace: str = "",
) -> list[dict[str, Any]]:
    results = cells.Results(FilePath(output) if output else None)
    for row in cells.run_series(links, peers, seconds, runs, results, engine, trace):
        _say(row)
    names = {cells.key(link, peer) for link in links for peer in peers}
    rows = [row for row in results.rows if row["cell"] in names]
    if all("error" in row for row in rows):
        raise SectorError("no cell could be measured", hint="the reasons are above")
    if as_json:
        click.echo(json.dumps({"bench": "udt", "machine": machine(), "results": rows}))
    return rows


def _place(text: str) -> tuple[str, int]:
    """Address and port of HOST:PORT. Raises UsageError."""
    try:
        host, port = host_and_port(text)
    except ValueError as bad:
        raise UsageError(f"--to: {bad}", hint="such as --to node7:9000 or --to [2001:db8::1]:9000") from None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as bad:
        why = bad.strerror if isinstance(bad, OSError) else "is no name of a host"
        raise UsageError(f"--to: {host}: {why}", hint="give a host name or an address") from None
    return str(found[0][4][0]), port


def _host(listen: int | None, to: str | None, peers: list[str], seconds: float) -> None:
    """One end on this host, the other elsewhere: the program's own line of JSON."""
    if len(peers) != 1:
        raise UsageError("between hosts one peer is measured at a time", hint="--peer NAME")
    peer = PEERS[peers[0]]
    if peer.loopback_only:
        raise UsageError(f"{peer.name} is measured on loopback only")
    if listen is not None:
        command = peer.receiver(Run("", listen, seconds, drain=True))
    else:
        command = peer.sender(Run(*_place(to or ""), seconds, drain=True))
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SectorError(f"the bench failed with {done.returncode}: {' '.join(command)}")
    click.echo(done.stdout.strip().splitlines()[-1])


@click.command(
    epilog="\b\nExamples:\n"
    "  sector bench udt --peer libudt,tcp-cubic --runs 3 --json\n"
    "  sector bench udt --link rate=1g,rtt=100ms,loss=0.1% --peer tcp-bbr,tcp-cubic\n"
    "  sector bench udt --grid 'rate=500m;rtt=20ms,100ms;loss=0,0.1%' --picture grid.html\n"
    "  sector bench udt --cell 1g-100ms-0.1%-sector --trace cell.qlog\n"
    "  sector bench udt --listen 9000\n"
    "  sector bench udt --to 192.0.2.7:9000"
)
@click.option(
    "--peer",
    "peer_text",
    default="",
    metavar="NAME,…",
    help="Measure also: " + ", ".join(sorted(PEERS)) + ".",
)
@click.option("--only", is_flag=True, help="Only what --peer names, not also our own.")
@click.option("--runs", type=click.IntRange(1, 100), default=None, help="Runs of each (3; over a link 1).")
@click.option(
    "--seconds",
    type=click.FloatRange(0.2, 3600),
    callback=_number,
    default=None,
    help="Of a run (5; over a link 20).",
)
@click.option("--no-wait", is_flag=True, help="Measure also while two cores share no cache (loopback).")
@click.option("--link", "link_text", metavar="SPEC", help="An emulated link: rate=1g,rtt=100ms,loss=0.1%,….")
@click.option("--grid", "grid_text", metavar="LISTS", help="All links of rate=…;rtt=…,…;loss=…,….")
@click.option("--cell", metavar="RATE-RTT-LOSS-PEER", help="One cell of a grid alone.")
@click.option(
    "--engine", type=click.Choice(wan.ENGINES), default="auto", show_default=True, help="Who emulates."
)
@click.option(
    "--results",
    type=click.Path(dir_okay=False),
    default="",
    help="Append lines of JSON; cells there are skipped.",
)
@click.option(
    "--picture", "picture_file", type=click.Path(dir_okay=False), help="Write a .png, .svg or .html."
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write a trace of our own sender (the last run) as qlog-like JSON; sector trace draws it.",
)
@click.option("--listen", type=click.IntRange(1, 65535), metavar="PORT", help="Receive from another host.")
@click.option("--to", metavar="HOST:PORT", help="Send to a host that listens.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def udt(
    peer_text: str,
    only: bool,
    runs: int | None,
    seconds: float | None,
    no_wait: bool,
    link_text: str | None,
    grid_text: str | None,
    cell: str | None,
    engine: str,
    results: str,
    picture_file: str | None,
    trace: str | None,
    listen: int | None,
    to: str | None,
    as_json: bool,
) -> None:
    """UDT throughput of one unencrypted stream, MTU-1500 packets, one process a side, with peers.

    On loopback both ends of "sector" know each other as ours and drive their ports themselves, with GSO and
    GRO where the kernel has them; those of "sector_compatible" keep the rules and burst sizes for a foreign
    peer. Over an emulated link (two namespaces; best as root) figures are payload, "steady" is the second
    half of a run; docs/guide/benchmarks.md says which buffers the peers get.
    """
    if sum(x is not None for x in (link_text, grid_text, cell, listen, to)) > 1:
        raise UsageError("--link, --grid, --cell, --listen and --to exclude one another")
    if cell and (peer_text or only):
        raise UsageError("--cell names its peer", hint="leave --peer and --only out, or give --link")
    if no_wait and (link_text or grid_text or cell or listen is not None or to is not None):
        raise UsageError("--no-wait is for loopback", hint="nothing else waits for the cores")
    if listen is not None or to is not None:
        if trace is not None:
            raise UsageError("--trace is for loopback and links", hint="udtcat --trace works between hosts")
        if picture_file or results or runs is not None or only or engine != "auto":
            raise UsageError(
                "--picture, --results, --runs, --only and --engine are not for --listen and --to",
                hint="between hosts one run of one peer is measured: --peer NAME, --seconds N",
            )
        _host(listen, to, peers_of(peer_text, PEERS) or ["sector"], seconds or 10)
        return
    if link_text or grid_text or cell:
        links = [Link.parse(link_text)] if link_text else list(grid(grid_text)) if grid_text else []
        first = [] if only or cell else ["sector"]
        if cell:
            text, peer_text = cells.parse_cell(cell)
            links = [Link.parse(text)]
        peers = wanted_peers(peer_text, first)
        for name in peers:
            if PEERS[name].loopback_only:
                raise UsageError(f"{name} is measured on loopback only")
        if picture_file:
            picture.check(FilePath(picture_file))
        with _traced(trace) as raw:
            rows = _links(links, peers, runs or 1, seconds or 20, as_json, results, engine, raw)
        if picture_file:
            picture.draw(rows, FilePath(picture_file))
        return
    if picture_file or results:
        raise UsageError("--picture and --results belong to --grid, --link or --cell")
    if engine != "auto":
        raise UsageError("--engine belongs to --grid, --link or --cell", hint="loopback is not emulated")
    placement = cores.Placement(waits=False) if no_wait else cores.HERE
    peers = wanted_peers(peer_text, [] if only else FIRST)
    with _traced(trace) as raw:
        _loopback(peers, runs or 3, seconds or 5.0, as_json, raw, placement)
