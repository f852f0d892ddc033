"""A million hostile datagrams on every port of a running cluster: no state, no amplification, no outage."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster import Cluster, running, sha256, wait_for, write_random

TOTAL = int(os.environ.get("SECTOR_TEST_HOSTILE", "1000000"))
STATE = ("associations", "connections", "half_open", "sessions", "tasks")
USER = Path(__file__).with_name("quiet_user.py")


def templates(rng: random.Random) -> list[bytes]:
    """Garbage, truncated and forged datagrams of both protocols."""
    packets = [rng.randbytes(rng.randrange(1, 1473)) for _ in range(400)]
    for _ in range(300):
        kind = rng.randrange(0, 9)
        word0 = 0x80000000 | kind << 16
        head = struct.pack(">IIII", word0, rng.getrandbits(32), 0, rng.choice([0, rng.getrandbits(31)]))
        packets.append(head + rng.randbytes(rng.choice([0, 4, 16, 24, 48])))
    for _ in range(300):  # UDT handshakes with made-up cookies
        body = struct.pack(
            ">IIIIIiIIIIII",
            4,
            1,
            rng.getrandbits(31),
            1500,
            8192,
            rng.choice([1, 0, -1, -2]),
            rng.getrandbits(30),
            rng.getrandbits(32),
            0x0100007F,
            0,
            0,
            0,
        )
        packets.append(struct.pack(">IIII", 0x80000000, 0, 0, 0) + body)
    for _ in range(600):  # GMP under unknown keys, forged types, lengths that lie
        header = struct.pack(
            ">BBHIQQQHHI",
            0xC7,
            0x10 | rng.randrange(0, 16),
            rng.getrandbits(6),
            rng.getrandbits(32),
            rng.getrandbits(64),
            rng.choice([0, rng.getrandbits(64)]),
            rng.getrandbits(20),
            0,
            rng.randrange(0, 1200),
            0,
        )
        packets.append(header + rng.randbytes(rng.randrange(0, 1100)))
    packets += [
        packet[: rng.randrange(1, len(packet))] for packet in rng.sample(packets, 300) if len(packet) > 1
    ]
    return packets


class Flood:
    """Sends from many source ports and counts what comes back."""

    def __init__(self, targets: list[tuple[str, int]], seed: int) -> None:
        self.targets = targets
        self.packets = templates(random.Random(seed))
        self.sent = self.bytes_sent = self.bytes_back = 0
        self.sources = []
        for _ in range(32):
            source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            source.bind(("127.0.0.1", 0))
            source.setblocking(False)
            self.sources.append(source)

    def _collect(self) -> None:
        for source in self.sources:
            while True:
                try:
                    self.bytes_back += len(source.recv(65536))
                except OSError:
                    break

    def run(self, total: int) -> None:
        """Send `total` datagrams, spread over targets and sources."""
        for number in range(total):
            packet = self.packets[number % len(self.packets)]
            source = self.sources[number % len(self.sources)]
            try:
                source.sendto(packet, self.targets[number % len(self.targets)])
            except BlockingIOError:
                time.sleep(0.001)
                continue
            self.sent += 1
            self.bytes_sent += len(packet)
            if number % 4096 == 0:
                self._collect()
        time.sleep(0.5)
        self._collect()

    def close(self) -> None:
        """Close the sources."""
        for source in self.sources:
            source.close()


class QuietUser:
    """One process with one connection, whose association is there before and after."""

    def __init__(self, cluster: Cluster) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(USER)],
            env=cluster.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *command: str) -> Any:
        """Its answer to one command."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(command), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def state(self) -> dict[str, dict[str, int]]:
        """The counters of state of the master and of each slave."""
        told = self.ask("status")
        return {node: {name: told[node][name] for name in STATE if name in told[node]} for node in told}

    def at_rest(self) -> dict[str, dict[str, int]]:
        """The same when copies and their connections are over: equal for three seconds."""
        seen: list[dict[str, dict[str, int]]] = []

        def quiet() -> bool:
            seen.append(self.state())
            last = seen[-60:]
            return len(last) == 60 and all(one == last[0] for one in last)

        wait_for("rest", quiet, 60)
        return seen[-1]


@contextlib.contextmanager
def quiet_user(cluster: Cluster) -> Iterator[QuietUser]:
    """One for the time of a block."""
    user = QuietUser(cluster)
    with user.process:
        try:
            yield user
        finally:
            assert user.process.stdin is not None
            user.process.stdin.close()


def test_a_million_hostile_datagrams(tmp_path: Path, seed: int) -> None:
    """State counters exactly as before, bytes out <= bytes in, a put succeeds meanwhile."""
    source, back = tmp_path / "x", tmp_path / "back"
    write_random(source, 20_000_000, 1)
    with running(tmp_path / "c") as cluster, quiet_user(cluster) as user:
        cluster.ok("put", str(source), "/before")
        cluster.ok("replicate", "--wait", "/before")
        user.ask("put", str(source), "/warm")
        user.ask("rm", "/warm")
        before = user.at_rest()
        targets = [master_gmp(cluster)]
        for slave in cluster.info["slaves"]:
            for key in ("gmp", "udt"):
                host, port = slave[key].rsplit(":", 1)
                targets.append((host, int(port)))
        flood = Flood(targets, seed)
        thread = threading.Thread(target=flood.run, args=(TOTAL,))
        thread.start()
        try:
            assert user.ask("put", str(source), "/meanwhile") == 20_000_000
            assert thread.is_alive(), "the put was over after the flood"
        finally:
            thread.join()
            flood.close()
        print(json.dumps({"sent": flood.sent, "bytes_sent": flood.bytes_sent, "back": flood.bytes_back}))
        assert flood.sent >= TOTAL * 0.99
        assert flood.bytes_back <= flood.bytes_sent
        user.ask("rm", "/meanwhile")
        after = user.at_rest()
        print(json.dumps(after))
        assert after == before
        assert {name for node in after.values() for name in node} == set(STATE)
        cluster.ok("get", "/before", str(back))
        assert sha256(back) == sha256(source)


def master_gmp(cluster: Cluster) -> tuple[str, int]:
    """The master's GMP port: the UDP socket of its process."""
    pid = cluster.info["pids"]["master"]
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            name = os.readlink(entry)
        except OSError:
            continue
        if name.startswith("socket:["):
            inodes.add(name[8:-1])
    for line in Path("/proc/net/udp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[9] in inodes:
            return "127.0.0.1", int(fields[1].rsplit(":", 1)[1], 16)
    raise AssertionError("the master has no UDP port")
