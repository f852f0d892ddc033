"""A service under many clients for a while: busy ones, ones that dribble, ones that only hold a connection.

SECTOR_TEST_LOAD_SECONDS: how long; memory is compared between the beginning and the end.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from s3_server import Server, serving

from sector.bench.common import program

SECONDS = float(os.environ.get("SECTOR_TEST_LOAD_SECONDS", "8"))
CLIENTS, DRIBBLING, IDLE = 500, 50, 10_000
SIZE, KEYS = 65536, 50
WARM_S = max(3.0, min(30.0, SECONDS / 5))  # threads, their connections and buffers come with load
READERS = 100  # descriptors of the database: its threads open theirs when they are first needed
TRIES = 3  # what else runs on the machine may spoil one
SETTINGS = (
    "[server]\nport = 0\nmax_connections = 12000\nheader_timeout_s = {timeout}\n"
    "idle_timeout_s = {timeout}\n[admin]\nport = 0\n"
    '[log]\naccess = "access.log"\n'
)


def load(server: Server, op: str, *arguments: str) -> dict[str, Any]:
    """A run of the load generator; nothing failed in it."""
    done = subprocess.run(
        [program("s3load"), op, "--url", server.url, "--bucket", "held", "--keys", str(KEYS), *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS + 120,
        env={**os.environ, "AWS_ACCESS_KEY_ID": server.key, "AWS_SECRET_ACCESS_KEY": server.secret},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["errors"] == 0, found["first_error"]
    return found


@contextmanager
def descriptors(wanted: int) -> Iterator[int]:
    """As many as there may be in this process and its children, `wanted` at most; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    given = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, given), hard))
    yield max(soft, given)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def memory_kb(pid: int) -> int:
    """Resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def held_open(pid: int) -> int:
    """Descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


@contextmanager
def dribbling(port: int) -> Iterator[None]:
    """Clients whose heads come a byte every half second and never end."""
    connections = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(DRIBBLING)]
    over = threading.Event()

    def send() -> None:
        text = b"GET /held/k00000000 HTTP/1.1\r\nHost: s3\r\nX-Slow: "
        for place in range(10_000):
            for connection in connections:
                connection.sendall(text[place : place + 1] or b"x")
            if over.wait(0.5):
                return

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for connection in connections:
            connection.close()


@pytest.mark.alone
def test_memory_stays_level_and_nobody_waits_for_the_others(tmp_path: Path) -> None:
    settings = SETTINGS.format(timeout=WARM_S + TRIES * SECONDS + 120)
    with descriptors(2 * IDLE) as most, serving(tmp_path / "D", settings) as server:
        pid = server.process.pid
        load(server, "bucket")
        load(server, "put", "--requests", str(KEYS), "--size", str(SIZE))
        before = held_open(pid)
        idle = [
            socket.create_connection(("127.0.0.1", server.port), 30)
            for _ in range(min(IDLE, most - CLIENTS - DRIBBLING - 500))
        ]
        with dribbling(server.port):
            many = ("get", "--connections", str(CLIENTS), "--size", str(SIZE), "--warm", "1")
            load(server, *many, "--seconds", str(WARM_S))
            for _ in range(TRIES):
                began = memory_kb(pid)
                found = load(server, *many, "--seconds", str(SECONDS))
                ended = memory_kb(pid)
                print(
                    f"{CLIENTS} clients, {len(idle)} idle, {DRIBBLING} slow, {SECONDS:g} s: "
                    f"{found['done']} GET, p50 {found['p50_ms']:.0f} ms, p99 {found['p99_ms']:.0f} ms, "
                    f"memory {began} to {ended} kB"
                )
                assert found["bytes_in"] == found["done"] * SIZE
                level = abs(ended - began) <= 0.05 * began
                if level and found["p99_ms"] <= 10 * found["p50_ms"]:
                    break
            else:
                raise AssertionError(f"{began} to {ended} kB, {found}")
        for connection in idle[:: len(idle) // 20]:  # they are served still
            connection.sendall(b"GET /held/k00000000 HTTP/1.1\r\nHost: s3\r\nConnection: close\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 403 ")
        for connection in idle:
            connection.close()
        load(server, "get", "--requests", "10", "--size", str(SIZE))
        end = time.monotonic() + 20
        while held_open(pid) > before + READERS and time.monotonic() < end:
            time.sleep(0.1)
        assert held_open(pid) <= before + READERS
