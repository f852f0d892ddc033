"""The load generator of the S3 benchmarks against a service."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from s3_server import Server, serving

from sector.bench.common import program

SETTINGS = '[server]\nport = 0\n[admin]\nport = 0\n[log]\naccess = "access.log"\n'


def load(server: Server, op: str, *arguments: str) -> dict[str, Any]:
    """A run's outcome."""
    done = subprocess.run(
        [program("s3load"), op, "--url", server.url, "--bucket", "bench", "--keys", "40", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "AWS_ACCESS_KEY_ID": server.key, "AWS_SECRET_ACCESS_KEY": server.secret},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["errors"] == 0 and not found["first_error"], found
    return found


def test_every_operation_against_a_service(tmp_path: Path) -> None:
    """What is counted is what the service has done."""
    with serving(tmp_path / "D", SETTINGS) as server:
        load(server, "bucket")
        assert load(server, "put", "--requests", "40", "--prefix", "a b/")["bytes_out"] == 40 * 4096
        stored = sorted(path.name for path in (tmp_path / "D/data/bench/a b").iterdir())
        assert stored == [f"{i:08}" for i in range(40)]
        found = load(server, "get", "--prefix", "a b/", "--seconds", "1", "--warm", "0.2")
        assert found["done"] > 10 and found["bytes_in"] == found["done"] * 4096
        assert found["connects"] == 16, "connections are kept"
        load(server, "head", "--prefix", "a b/", "--requests", "40")
        found = load(
            server, "list", "--prefix", "a b/", "--page", "15", "--requests", "3", "--connections", "1"
        )
        assert round(found["keys_per_s"] * found["seconds"]) == 40, "three pages by their tokens"
        found = load(server, "get", "--prefix", "a b/", "--rate", "50", "--requests", "25", "--unsigned-body")
        assert found["done"] == 25 and found["unsent"] == 0
        load(server, "delete", "--prefix", "a b/", "--requests", "40")
        found = load(server, "list", "--prefix", "a b/", "--requests", "1")
        assert found["keys_per_s"] == 0
