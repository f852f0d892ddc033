"""One key under several clients of two workers at once, over HTTP: there is an order in which their answers
are those of one object.

SECTOR_TEST_S3_HISTORIES: how many histories.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from linearizable import linearizable
from s3_histories import history
from s3_server import serving
from s3_wire import Wire

SETTINGS = "[server]\nport = 0\nworkers = 2\n[admin]\nport = 0\n"
HISTORIES = int(os.environ.get("SECTOR_TEST_S3_HISTORIES", "25"))
CLIENTS, EACH, CONNECTIONS = 4, 7, 12


def sockets(pid: int) -> int:
    """How many a process has open."""
    found = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found += os.readlink(entry).startswith("socket:")
        except FileNotFoundError:  # closed meanwhile
            continue
    return found


def test_answers_of_one_key_have_an_order_between_workers(tmp_path: Path, seed: int) -> None:
    """In each history the clients' connections are others; both workers have some of them."""
    rng = random.Random(seed)
    with serving(tmp_path / "D", SETTINGS) as server:
        pid = server.process.pid
        workers = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        before = [sockets(worker) for worker in workers]
        wires = [Wire(server.port, (server.key, server.secret)) for _ in range(CONNECTIONS)]
        assert wires[0].ask("PUT", "/bkt").status == 200
        while not all(sockets(worker) > old for worker, old in zip(workers, before, strict=True)):
            wires.append(Wire(server.port, (server.key, server.secret)))
            for wire in wires:
                assert wire.ask("HEAD", "/bkt").status == 200
        everywhere = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
        assert wires[0].ask("PUT", "/versions").status == 200
        for wire in wires:  # both know the bucket as it was
            assert wire.ask("HEAD", "/versions").status == 200
        changed = wires[0].ask("PUT", "/versions", everywhere.encode(), query="versioning")
        assert changed.status == 200, changed.body
        for wire in wires:
            assert "x-amz-version-id" in wire.ask("PUT", "/versions/k", b"x").headers
        for number in range(HISTORIES):
            asks = [wire.ask for wire in rng.sample(wires, CLIENTS)]
            found = history(asks, f"/bkt/k{number}", seed + number, EACH)
            assert linearizable(found), f"history {number} of seed {seed}: {sorted(found)}"
        for wire in wires:
            wire.close()
    assert len(workers) == 2
