"""A worker that starts while the files of the certificate cannot be used: they were renewed just now, and the
program that did it has them readable for root alone, or has written only one of the two."""

from __future__ import annotations

import json
import os
import signal
import ssl
import urllib.error
from functools import partial
from pathlib import Path

import pytest
from s3_server import Server, boto, serving, wait_until
from s3_tls import write_certificate

until = partial(wait_until, within_s=40)


def shown(server: Server) -> bytes:
    """The certificate that a client sees."""
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", server.port)))


def workers(server: Server) -> list[int]:
    """Processes of the workers."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    return [int(pid) for pid in children if "cumulus.service" in Path(f"/proc/{pid}/cmdline").read_text()]


def serves(server: Server) -> bool:
    """Whether all workers do."""
    try:
        return bool(json.loads(server.admin("health"))["status"] == "ok")
    except urllib.error.HTTPError:
        return False


@pytest.mark.parametrize("damage", ["away", "half"])
def test_workers_that_start_again_use_what_was_good(tmp_path: Path, damage: str) -> None:
    """The newest that was, not that of the start; and what comes then, by itself."""
    cert, key = write_certificate(tmp_path)
    settings = f'[server]\nport = 0\nworkers = 2\n[admin]\nport = 0\n[tls]\ncert = "{cert}"\nkey = "{key}"\n'
    with serving(tmp_path / "D", settings) as server:
        first = shown(server)
        write_certificate(tmp_path)
        until(lambda: shown(server) != first, "the second certificate is not used")
        until(lambda: "of new workers was read again" in server.log(), "it is not kept")
        second = ssl.PEM_cert_to_DER_cert(cert.read_text())
        if damage == "away":
            key.unlink()
        else:
            write_certificate(tmp_path, "other")
            cert.write_bytes((tmp_path / "other.pem").read_bytes())
        before = workers(server)
        assert len(before) == 2
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not set(before) & set(workers(server)) and serves(server), "no worker comes up")
        assert shown(server) == second
        client = boto(server, url=f"https://127.0.0.1:{server.port}", verify=str(tmp_path / "s3.pem"))
        if damage == "away":
            client.create_bucket(Bucket="bkt")
        until(lambda: "certificate of S3 stays as it was" in server.log(), "nobody is told")
        write_certificate(tmp_path)
        until(lambda: shown(server) not in (first, second), "the third certificate is not used")
