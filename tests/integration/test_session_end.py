"""The end of a session, and with it of the key towards the master, at a live cluster."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cluster import Cluster
from running import running

SESSION_S = 8.0
LONG = """
import sys, sector

sector.connect  # what it needs is loaded: from the login on the session counts
print("ready", flush=True)
sys.stdin.readline()
with sector.connect() as cloud:
    for line in sys.stdin:
        try:
            print("names", *cloud.ls("/"), flush=True)
        except sector.SectorError as error:
            print(type(error).__name__, error.hint, flush=True)
"""


def _answers(cluster: Cluster, password: Sequence[str], keep: bool) -> list[str]:
    """What a program under way hears at once and after its session's end; `keep` = its settings name the
    password's file."""
    pipe = subprocess.PIPE
    with running([sys.executable, "-c", LONG], env=cluster.env, stdin=pipe, stdout=pipe, text=True) as user:
        assert user.stdin is not None and user.stdout is not None
        assert user.stdout.readline() == "ready\n"
        config = Path(cluster.env["SECTOR_CONFIG"])
        if not keep:
            lines = config.read_text().splitlines(keepends=True)
            config.write_text("".join(line for line in lines if not line.startswith("password_file")))
        cluster.ok("login", *password)
        print("begin", file=user.stdin, flush=True)
        said = []
        try:
            for wait_s in (0.0, SESSION_S + 1):
                time.sleep(wait_s)
                print("ls", file=user.stdin, flush=True)
                said.append(user.stdout.readline())
        finally:
            user.stdin.close()
    return said


def test_a_session_that_ends_is_renewed_by_password_or_says_so(tmp_path: Path) -> None:
    """A program under way goes on where its settings name the password's file; else it and a new command
    name the remedy, and work again after it."""
    cluster = Cluster(tmp_path / "c", 1)
    cluster.dir.mkdir()
    up = cluster.dir / "up"
    cluster.ok("init", str(up), "--slaves", "1")
    settings = up / "master.toml"
    text = settings.read_text()
    assert text.count("[master]\n") == 1
    settings.write_text(text.replace("[master]\n", f"[master]\nsession_hours = {SESSION_S / 3600}\n"))
    cluster.start()
    password = ("--password-file", str(up / "admin.password"))
    try:
        first, after = _answers(cluster, password, keep=True)
        assert first == after and after.startswith("names"), after
        first, after = _answers(cluster, password, keep=False)
        assert first.startswith("names") and after.startswith("SessionExpired"), (first, after)
        assert "sector login" in after
        assert "sector login" in cluster.refused("ls", "/").err
        cluster.ok("login", *password)
        cluster.ok("ls", "/")
    finally:
        cluster.stop()
