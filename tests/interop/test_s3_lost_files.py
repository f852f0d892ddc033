"""`cumulus serve` with a secret.key that does not fit the database."""

from __future__ import annotations

import sqlite3
import subprocess
from pathlib import Path

import pytest
from s3_server import CUMULUS, PORTS, Server, boto, cumulus, make, started, status

from cumulus.secrets import Keyring


def test_a_service_does_not_start_with_the_key_file_of_another_database(tmp_path: Path) -> None:
    """It could let nobody in."""
    cloud = tmp_path / "cloud"
    make(cloud, PORTS)
    (cloud / "secret.key").unlink()
    Keyring.create(cloud / "secret.key")
    done = subprocess.run([CUMULUS, "serve", str(cloud)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "opens none of the secrets in the database" in done.stderr.splitlines()[-1]


def test_a_service_does_not_start_without_the_database_that_init_made(tmp_path: Path) -> None:
    """It would be one without users and buckets."""
    cloud = tmp_path / "cloud"
    make(cloud, PORTS)
    for path in cloud.glob("cumulus.db*"):
        path.unlink()
    done = subprocess.run([CUMULUS, "serve", str(cloud)], capture_output=True, text=True, timeout=60)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "cumulus.db is not there" in last and "--new-database" in last
    assert list(cloud.glob("cumulus.db*")) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_secret_that_cannot_be_read_while_it_serves_is_unavailable(tmp_path: Path, workers: int) -> None:
    """One line each time, and the others are served."""
    cloud = tmp_path / "cloud"
    key, secret = make(cloud, PORTS)
    other = cumulus("--dir", str(cloud), "user", "add", "alice")
    with started(cloud, key, secret, f"--workers={workers}") as server:
        with sqlite3.connect(cloud / "cumulus.db") as connection:
            where = [other["access_key"]]
            connection.execute("UPDATE access_keys SET secret = x'01' WHERE access_key = ?", where)
        alice = Server(cloud, server.process, other["access_key"], other["secret_key"])
        alice.port = server.port
        assert status(boto(alice).list_buckets) == 503
        told = [line for line in server.log().splitlines() if "does not open the secret" in line]
        assert len(told) == 1 and other["access_key"] in told[0]
        assert status(boto(server).list_buckets) == 200
