"""`sector bench udt`: bulk throughput over loopback, one process a side, peers in the same run."""

from __future__ import annotations

import json
import socket
import subprocess
from typing import Any

import click

from sector.bench.common import document, peers_of, program, show
from sector.errors import SectorError

PEERS = ("libudt",)
COMPATIBLE = "sector_compatible"


def free_port() -> int:
    """A UDP port that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _last_json(text: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return value


def _pair(receiver: list[str], sender: list[str], limit_s: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run both ends; the sender tries for three seconds to connect, so the order does not matter."""
    with subprocess.Popen(receiver, stdout=subprocess.PIPE, text=True) as rx:
        try:
            tx = subprocess.run(sender, stdout=subprocess.PIPE, text=True, timeout=limit_s, check=False)
            out, _ = rx.communicate(timeout=limit_s if tx.returncode == 0 else 1)
        except subprocess.TimeoutExpired:
            raise SectorError(f"the bench did not end in {limit_s:.0f} s: {sender[0]}") from None
        finally:
            rx.kill()
    if tx.returncode or rx.returncode:
        raise SectorError(f"the bench failed: {sender[0]} {tx.returncode}, {receiver[0]} {rx.returncode}")
    return _last_json(out), _last_json(tx.stdout)


def run_one(peer: str, seconds: float) -> dict[str, Any]:
    """One transfer of `seconds` over loopback. GB = 10^9 payload bytes that arrived."""
    port = str(free_port())
    if peer == "libudt":
        tool = program("libudt_peer")
        receiver = [tool, "listen", port, "--bench-recv"]
        sender = [tool, "connect", "127.0.0.1", port, "--bench-send", str(seconds)]
    else:
        tool = program("bench_udt")
        receiver = [tool, "recv", port]
        sender = [tool, "send", "127.0.0.1", port, f"{seconds:g}s"]
        if peer == COMPATIBLE:
            receiver.append("--plain")
            sender.append("--plain")
    rx, tx = _pair(receiver, sender, seconds + 60)
    gigabytes = rx["bytes"] / 1e9
    return {
        "peer": peer,
        "gbps": round(rx["bytes"] * 8 / rx["seconds"] / 1e9, 3),
        "tx_cpu_s_per_gb": round(_cpu_per_gb(tx, gigabytes), 4),
        "rx_cpu_s_per_gb": round(_cpu_per_gb(rx, gigabytes), 4),
        "bytes": rx["bytes"],
        "seconds": round(rx["seconds"], 3),
        "ok": rx["bytes"] == tx["bytes"],
    }


def _cpu_per_gb(side: dict[str, Any], gigabytes: float) -> float:
    return float(side["cpu_s_per_gb"]) if "cpu_s_per_gb" in side else side["cpu_s"] / gigabytes


@click.command(epilog="\b\nExample:\n  sector bench udt --peer libudt --runs 3 --json")
@click.option("--peer", "peer_text", default="", metavar="NAME,…", help="Also measure: libudt.")
@click.option("--runs", type=click.IntRange(1, 100), default=3, show_default=True, help="Runs of each.")
@click.option("--seconds", type=click.FloatRange(0.2, 3600), default=5.0, show_default=True, help="A run.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def udt(peer_text: str, runs: int, seconds: float, as_json: bool) -> None:
    """UDT throughput on loopback: one unencrypted stream, MTU-1500 packets, one process a side.

    Both ends of "sector" know each other as ours and drive their ports themselves, with GSO and GRO where
    the kernel has them; those of "sector_compatible" keep the rules and burst sizes for a foreign peer. The
    program bench_udt measures the rest: --threads, --no-gso, --no-gro.
    """
    peers = ["sector", COMPATIBLE, *peers_of(peer_text, PEERS)]
    results = []
    for run in range(1, runs + 1):
        for peer in peers:
            results.append({"run": run, **run_one(peer, seconds)})
    show(document("udt", {"seconds": seconds, "runs": runs, "path": "loopback"}, results), as_json)
