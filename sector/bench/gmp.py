"""`sector bench gmp`: round trips of 1 KB messages, sealed, beside UDP and TCP with the same pinning."""

from __future__ import annotations

import json
import os
import subprocess

import click

from sector.bench.common import document, peers_of, program, show
from sector.errors import SectorError

PEERS = ("udp", "tcp")


@click.command(epilog="\b\nExample:\n  sector bench gmp --peer udp,tcp --rounds 10000 --json")
@click.option("--peer", "peer_text", default="", metavar="NAME,…", help="Also measure: udp, tcp.")
@click.option("--runs", type=click.IntRange(1, 100), default=1, show_default=True, help="Runs of each.")
@click.option(
    "--rounds", type=click.IntRange(100, 10**7), default=10000, show_default=True, help="Rounds a run."
)
@click.option(
    "--cpus", default="", metavar="A,B", help="Cores of the two ends; default: both on the last core."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def gmp(peer_text: str, runs: int, rounds: int, cpus: str, as_json: bool) -> None:
    """Round trip of a sealed 1 KB GMP call to a known peer; peers alternate with it round by round.

    "sector" drives its loop from the calling thread, "sector_threads" uses loop threads; "tcp_connect" is
    connect + request + response + close, "tcp" a ping-pong on an open connection, "udp" raw datagrams.
    """
    peers = peers_of(peer_text, PEERS)
    last = (os.cpu_count() or 1) - 1
    pinning = cpus or f"{last},{last}"
    command = [program("bench_gmp"), "--rounds", str(rounds), "--cpus", pinning]
    results = []
    for run in range(1, runs + 1):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            raise SectorError(f"bench_gmp failed: {done.stderr.strip()[-300:]}")
        for row in json.loads(done.stdout)["results"]:
            if row["peer"].split("_")[0] in ("sector", *peers):
                results.append(row | {"run": run})
    show(document("gmp", {"rounds": rounds, "cpus": pinning, "bytes": 1024}, results), as_json)
