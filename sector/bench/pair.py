"""Both ends of a transfer as processes, and what their lines of JSON say."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TextIO

from sector.bench import series
from sector.bench.common import alone
from sector.bench.peers import Peer, Run
from sector.bench.wan import Path
from sector.errors import SectorError

_LATE_S = 25.0  # beyond its time a transfer may need this long to end: connecting, draining, closing


@dataclass
class _End:
    command: list[str]
    process: subprocess.Popen[str]
    said: TextIO

    def result(self, deadline: float) -> dict[str, Any]:
        """The last line of JSON. Raises SectorError."""
        name = " ".join(self.command[-6:])
        try:
            self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise SectorError(f"the bench did not end in time: {name}") from None
        self.said.seek(0)
        lines = self.said.read().strip().splitlines()
        if self.process.returncode or not lines:
            raise SectorError(f"the bench failed with {self.process.returncode}: {name}")
        value: dict[str, Any] = json.loads(lines[-1])
        return value


def transfers(
    path: Path, wanted: Sequence[tuple[Peer, Run]], pins: tuple[str, str] | None = None
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Run transfers at once; (receiver, sender) of each. `pins` = cores of senders and receivers."""
    with alone(), ExitStack() as stack:

        def start(prefix: list[str], command: list[str], cpu: str | None) -> _End:
            whole = prefix + (["taskset", "-c", cpu] if cpu else []) + command
            said = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = stack.enter_context(
                subprocess.Popen(whole, stdout=said, stdin=subprocess.DEVNULL, text=True)
            )
            stack.callback(process.kill)
            return _End(whole, process, said)

        receivers = [start(path.receiver, p.receiver(run), pins[1] if pins else None) for p, run in wanted]
        time.sleep(0.3)  # every sender tries again for seconds; this spares it the first refusal
        senders = [start(path.sender, p.sender(run), pins[0] if pins else None) for p, run in wanted]
        deadline = time.monotonic() + max(run.seconds for _, run in wanted) + _LATE_S
        sent = [end.result(deadline) for end in senders]
        return [(end.result(deadline), tx) for end, tx in zip(receivers, sent, strict=True)]


def measures(rx: dict[str, Any], tx: dict[str, Any], seconds: float, limit_bps: float = 0) -> dict[str, Any]:
    """The figures of one transfer. GB = 10^9 payload bytes that arrived; `limit_bps`: the link's, or 0."""
    step = rx["sample_ms"] / 1000
    samples = rx["samples"]
    gigabytes = max(rx["bytes"], 1) / 1e9
    row: dict[str, Any] = {
        "gbps": round(rx["bytes"] * 8 / max(rx["seconds"], 1e-9) / 1e9, 4),
        "steady_gbps": round(series.steady_bps(samples, step, seconds) / 1e9, 4),
        "tx_cpu_s_per_gb": round(tx["cpu_s"] / gigabytes, 4),
        "rx_cpu_s_per_gb": round(rx["cpu_s"] / gigabytes, 4),
        "bytes": rx["bytes"],
        "seconds": round(rx["seconds"], 3),
    }
    if "pkts_retrans" in tx:
        row["retrans_pkts"] = tx["pkts_retrans"]
    elif "retrans" in tx:
        row["retrans_pkts"] = sum(tx["retrans"])
    if "jain" in rx:
        row["jain"] = rx["jain"]
        row["max_rss_mb"] = round(max(rx["max_rss_bytes"], tx["max_rss_bytes"]) / 1e6, 1)
    if "lim_app_us" in tx:  # what our own sender waited for
        ours = ["rtt_us", "min_rtt_us", "naks_recv", "acks_recv", *(x for x in tx if x.startswith("lim_"))]
        row["sender"] = {name: tx[name] for name in ours}
    if limit_bps:
        row["share_of_limit"] = round(row["steady_gbps"] * 1e9 / limit_bps, 4)
        row["first20_gbps"] = round(series.first_bps(samples, step, seconds) / 1e9, 4)
        reached = series.time_to_bps(samples, step, 0.9 * limit_bps)
        if reached is not None:
            row["to_90_s"] = reached
    return row


def carried(report: dict[str, Any]) -> dict[str, Any]:
    """What the emulator says: drops of the queue, its own lateness."""
    there = report.get("ab")
    if not there:
        return {}
    frames = max(there["in_frames"], 1)
    return {
        "queue_drops": there["drop_queue"],
        "queue_drop_share": round(there["drop_queue"] / frames, 6),
        "chance_drops": there["drop_loss"] + there["drop_burst"],
        "own_drops": there["drop_memory"] + there["drop_device"] + there["drop_before"],
        "mean_queue_ms": round(there["mean_queue_us"] / 1e3, 3),
        "emulator_late_p99_us": max(there["late_us"]["p99"], report["ba"]["late_us"]["p99"]),
        "emulator_cpu_share": round(report["cpu_s"] / max(report["seconds"], 0.001), 3),
    }
