"""One cell of a series: a link, a peer, a run. Results are appended as lines of JSON, so that a series that
was stopped goes on where it was."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path as FilePath
from typing import Any

from sector.bench import pair, series, wan
from sector.bench.common import machine
from sector.bench.link import Link
from sector.bench.peers import PEERS, Run
from sector.errors import LocalIO, SectorError, UsageError


def key(link: Link, peer: str) -> str:
    """`1g-100ms-0.1%-sector`: what --cell takes."""
    return f"{link.name}-{peer}"


def measure(
    link: Link, peer: str, seconds: float, *, seed: int = 1, engine: str = "auto", trace: str = ""
) -> dict[str, Any]:
    """One transfer over the link. Raises SectorError."""
    with wan.emulated(link, seed=seed, engine=engine) as path:
        run = Run(path.host, 9000, seconds, link.buffer_bytes, link.window_bytes, trace=trace)
        ((rx, tx),) = pair.transfers(path, [(PEERS[peer], run)])
    row = {"cell": key(link, peer), "link": link.text, "peer": peer, "seed": seed, "engine": path.engine}
    row |= {"limit_gbps": round(link.limit_bps / 1e9, 4)}
    row |= pair.measures(rx, tx, seconds, link.limit_bps) | pair.carried(path.report)
    return row | {"samples_mbps": [round(n * 8 / 1e6 / (rx["sample_ms"] / 1000), 1) for n in rx["samples"]]}


def share_of(
    link: Link, flows: Sequence[tuple[str, str]], seconds: float, skip_s: float, *, seed: int = 1
) -> dict[str, Any]:
    """Transfers (peer, RTT) at once through one queue of the link; rates are means after `skip_s`."""
    ports = [9000 + i for i in range(len(flows))]
    delays = [(port, rtt) for port, (_, rtt) in zip(ports, flows, strict=True)]
    with wan.emulated(link, flows=delays, seed=seed, engine="user") as path:
        wanted = [
            (PEERS[peer], Run(path.host, port, seconds, link.buffer_bytes, link.window_bytes))
            for port, (peer, _) in zip(ports, flows, strict=True)
        ]
        results = pair.transfers(path, wanted)
    rates = [
        series.mean_bps(rx["samples"], rx["sample_ms"] / 1000, skip_s, min(seconds, rx["seconds"]))
        for rx, _ in results
    ]
    name = "+".join(f"{peer}@{rtt}" for peer, rtt in flows)
    return {
        "cell": f"{link.name}-{name}",
        "link": link.text,
        "peer": name,
        "seed": seed,
        "mbps": [round(rate / 1e6, 2) for rate in rates],
        "jain": round(series.jain(rates), 4),
        "utilisation": round(sum(rates) / link.limit_bps, 4),
        **pair.carried(path.report),
        "samples_mbps": [[round(n * 80 / 1e6, 1) for n in rx["samples"]] for rx, _ in results],
    }


class Results:
    """A file of JSON lines; a line that was cut off by a crash is passed over. None: in memory only."""

    def __init__(self, path: FilePath | None) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        if path and path.exists():
            for line in path.read_bytes().splitlines():
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                if not isinstance(row, dict) or not isinstance(row.get("cell"), str):
                    raise LocalIO(f"{path} has lines of something else", hint="give --results another file")
                self.rows.append(row)

    def count(self, cell: str) -> int:
        """Good runs of a cell."""
        return sum(1 for row in self.rows if row["cell"] == cell and "error" not in row)

    def add(self, row: dict[str, Any]) -> None:
        """Append and write at once."""
        self.rows.append(row)
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            whole = file.tell() == 0 or self.path.read_bytes().endswith(b"\n")
            file.write((("" if whole else "\n") + json.dumps(row) + "\n").encode())


def parse_cell(text: str) -> tuple[str, str]:
    """`1g-100ms-0.1%-sector` as (link text, peer). Raises UsageError."""
    parts = text.split("-", 3)
    if len(parts) != 4:
        raise UsageError(f"{text!r} is no cell", hint="RATE-RTT-LOSS-PEER, as 1g-100ms-0.1%-sector")
    rest = parts[3]
    link = f"rate={parts[0]},rtt={parts[1]},loss={parts[2]}"
    while rest not in PEERS:  # further properties of the link stand before the peer
        head, sign, rest = rest.partition("-")
        for name in ("queue", "jitter", "order", "ge", "burst", "reorder", "dup", "corrupt"):
            if head.startswith(name):
                link += f",{name}={head[len(name) :]}"
                break
        else:
            raise UsageError(f"{text!r} names no known peer", hint="known peers: " + ", ".join(sorted(PEERS)))
        if not sign:
            raise UsageError(f"{text!r} names no peer")
    return link, rest


def run_series(
    links: Iterable[Link],
    peers: Sequence[str],
    seconds: float,
    runs: int,
    results: Results,
    engine: str,
    trace: str = "",
) -> Iterator[dict[str, Any]]:
    """Every cell that has fewer than `runs` good results; yields each new row. Peers alternate, so that one
    disturbance of the machine does not hit one of them alone. `trace`: file for that of our own sender."""
    where = machine()
    todo = list(links)
    for run in range(1, runs + 1):
        for link in todo:
            for peer in peers:
                if results.count(key(link, peer)) >= run:
                    continue
                stamp = {"run": run, "at": round(time.time()), "commit": where["commit"]}
                try:
                    row = stamp | measure(link, peer, seconds, seed=run, engine=engine, trace=trace)
                except SectorError as error:
                    row = stamp | {
                        "cell": key(link, peer),
                        "link": link.text,
                        "peer": peer,
                        "error": str(error),
                    }
                results.add(row)
                yield row
