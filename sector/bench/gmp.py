"""`sector bench gmp`: round trips of 1 KB messages, sealed, beside UDP and TCP with the same pinning."""

from __future__ import annotations

import os

import click
from click.core import ParameterSource

from sector.bench.common import document, peers_of, program, show
from sector.bench.run import json_of
from sector.errors import UsageError

PEERS = ("udp", "tcp", "zmq", "libudt")
OURS = ("sector", "sector_threads")
PYTHON_SECONDS = 3.0


def pair_of(text: str) -> tuple[int, int]:
    """The cores of --cpus for two processes; default the last two, or the only one. Raises UsageError."""
    usable = sorted(os.sched_getaffinity(0))
    if not text:
        return usable[-2 % len(usable)], usable[-1]
    parts = text.split(",")
    if len(parts) != 2 or not all(part.isdigit() and int(part) in usable for part in parts):
        raise UsageError(f"--cpus {text!r} is not two of the cores {usable}", hint="such as --cpus 0,1")
    return int(parts[0]), int(parts[1])


@click.command(
    epilog="""\b
Examples:
  sector bench gmp --peer udp,tcp --rounds 10000 --json
  sector bench gmp --python --peer grpc --runs 3"""
)
@click.option(
    "--peer",
    "peer_text",
    default="",
    metavar="NAME,…",
    help="Also: udp, tcp, zmq, libudt; with --python: grpc.",
)
@click.option("--runs", type=click.IntRange(1, 100), default=1, show_default=True, help="Runs of each.")
@click.option(
    "--rounds", type=click.IntRange(100, 10**7), default=10000, show_default=True, help="Rounds a run."
)
@click.option(
    "--turn",
    type=click.IntRange(1, 10**6),
    default=50,
    show_default=True,
    help="Rounds in a row before the next peer plays; 1: each ball meets caches that the others emptied.",
)
@click.option(
    "--cpus", default="", metavar="A,B", help="Cores of the two ends; default: both on the last core."
)
@click.option("--python", is_flag=True, help="Calls from Python instead of C, one core a side.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def gmp(peer_text: str, runs: int, rounds: int, turn: int, cpus: str, python: bool, as_json: bool) -> None:
    """Round trip of a sealed 1 KB GMP call to a known peer; peers take turns with it, some rounds each.

    "sector" drives its loop from the calling thread, "sector_threads" uses loop threads; "tcp_connect" is
    connect + request + response + close, "tcp" a ping-pong on an open connection, "udp" raw datagrams, "zmq"
    REQ and REP, "libudt" an open stream.

    With --python: typed requests and Deferreds between two Python processes, and with 64 calls under way how
    many are answered a second; the peer "grpc" (pip install 'sector-cloud[bench]') is gRPC's Python, blocking
    and asyncio, unencrypted.
    """
    if python:
        told = click.get_current_context().get_parameter_source("turn")
        if told is not ParameterSource.DEFAULT:
            raise UsageError(
                "--turn is not for --python", hint="peers are measured one after the other there"
            )
        from sector.bench import rpc

        peers = peers_of(peer_text, rpc.PEERS)
        first, second = pair_of(cpus)
        rows = []
        for run in range(1, runs + 1):
            found = rpc.measure(peers, rounds=rounds, seconds=PYTHON_SECONDS, cpus=(first, second))
            rows += [row | {"run": run} for row in found]
        settings = {
            "rounds": rounds,
            "cpus": f"{first},{second}",
            "bytes": rpc.BYTES,
            "in_flight": rpc.IN_FLIGHT,
        }
        show(document("gmp-python", settings, rows), as_json)
        return
    peers = peers_of(peer_text, PEERS)
    last = max(os.sched_getaffinity(0))
    pinning = ",".join(map(str, pair_of(cpus))) if cpus else f"{last},{last}"
    kinds = [*OURS, *peers, *(["tcp_connect"] if "tcp" in peers else [])]
    words = ["--rounds", str(rounds), "--turn", str(turn), "--cpus", pinning, "--peers", ",".join(kinds)]
    command = [program("bench_gmp"), *words]
    results = []
    for run in range(1, runs + 1):
        for row in json_of(command)["results"]:
            results.append(row | {"run": run})
    for name in sorted(set(kinds) - {row["peer"] for row in results}):
        click.echo(f"sector bench gmp: without {name}: ./dev bench builds what it needs", err=True)
    show(document("gmp", {"rounds": rounds, "turn": turn, "cpus": pinning, "bytes": 1024}, results), as_json)
