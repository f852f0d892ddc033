"""Floods of each kind at live daemons: counted to the last datagram, one line each in the audit log."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import struct
import time
from pathlib import Path
from typing import Any

from cluster import Cluster, running, wait_for
from test_hostile import master_gmp

FLOOD = 10_000
COUNTERS = ("refused_wrong_key", "refused_replayed", "refused_ticket")


def told(cluster: Cluster) -> dict[str, Any]:
    """`sector status --json`."""
    return dict(json.loads(cluster.ok("status", "--json").out))


def flood(to: tuple[str, int], packet: bytes) -> None:
    """The same datagram 10,000 times, slowly enough for the receiver's buffer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as source:
        for number in range(FLOOD):
            source.sendto(packet, to)
            if number % 200 == 199:
                time.sleep(0.005)


def overheard(port: int) -> bytes:
    """A genuine sealed datagram to this UDP port of the loopback: a slave's heartbeat, for example."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800)) as tap:
        tap.bind(("lo", 0))
        tap.settimeout(10)
        while True:
            frame = tap.recv(65536)
            header = 14 + (frame[14] & 15) * 4
            if frame[23] != 17 or struct.unpack_from(">H", frame, header + 2)[0] != port:
                continue
            payload = frame[header + 8 :]
            if len(payload) > 60 and payload[0] == 0xC7 and payload[1] & 15 == 0:
                return payload


def audit_lines(cluster: Cluster) -> list[tuple[str, str]]:
    """(who, detail) of the lines about refused datagrams in the security server's log."""
    found: list[tuple[str, str]] = []
    for base in Path(cluster.dir).rglob("*.db"):
        with sqlite3.connect(f"file:{base}?mode=ro", uri=True) as database:
            tables = database.execute("select name from sqlite_master where name = 'audit'").fetchall()
            if tables:
                found += database.execute("select who, detail from audit where what = 'refused'").fetchall()
    return found


def test_floods_are_counted_exactly_and_told_once(tmp_path: Path) -> None:
    """Wrong keys, rolled-back packet numbers, tickets that are over; from one source, one line a minute."""
    with running(tmp_path / "c", slaves=1) as cluster:
        slave = cluster.info["slaves"][0]
        gmp, data = ((h, int(p)) for h, p in (slave[k].rsplit(":", 1) for k in ("gmp", "udt")))
        before = told(cluster)
        unknown = struct.pack(">BBHIQQQHHI", 0xC7, 0x10, 0, 77, 1, 2, 3, 0, 40, 0) + os.urandom(56)
        keyed = struct.pack(">IIII", 0x80110000, 0, 1, 0x40000000 | 12345) + bytes(60)
        flood(gmp, unknown)
        flood(data, keyed)
        genuine = overheard(master_gmp(cluster)[1])
        flood(master_gmp(cluster), genuine)

        def grown() -> dict[str, int]:
            now = told(cluster)
            node, was = now["nodes"][slave["id"]], before["nodes"][slave["id"]]
            return {
                "key": node[COUNTERS[0]] - was[COUNTERS[0]],
                "ticket": node[COUNTERS[2]] - was[COUNTERS[2]],
                "replay": now["counters"][COUNTERS[1]] - before["counters"][COUNTERS[1]],
            }

        wait_for("counters", lambda: min(grown().values()) >= FLOOD, 20)
        assert grown() == {"key": FLOOD, "ticket": FLOOD, "replay": FLOOD}
        wait_for("audit", lambda: {who for who, _ in audit_lines(cluster)} >= {f"slave:{slave['id']}"}, 20)
        wait_for("audit", lambda: any(who.startswith("master:") for who, _ in audit_lines(cluster)), 20)
        lines = audit_lines(cluster)
        assert len(lines) <= 4, lines
        assert all("127.0.0.1" in detail for _, detail in lines)
