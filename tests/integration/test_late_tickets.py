"""A ticket that is really past its end: the slave has forgotten it before its client comes."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster import Cluster, running, sha256, wait_for, write_random
from test_hostile_counts import audit_lines, told

USER = Path(__file__).with_name("late_user.py")
TICKET_S = 0.5


@contextlib.contextmanager
def late_user(cluster: Cluster) -> Iterator[subprocess.Popen[str]]:
    """One for the time of a block."""
    pipe = subprocess.PIPE
    user = subprocess.Popen(
        [sys.executable, str(USER)], env=cluster.env, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    with user:
        try:
            yield user
        finally:
            user.send_signal(signal.SIGCONT)
            assert user.stdin is not None
            user.stdin.close()


def stands_still(pid: int) -> bool:
    """Whether all threads of a process are stopped."""
    tasks = Path(f"/proc/{pid}/task").glob("*/stat")
    return {path.read_text().rsplit(")", 1)[1].split()[0] for path in tasks} == {"T"}


def come_late(cluster: Cluster, user: subprocess.Popen[str], *command: str) -> dict[str, Any]:
    """Does a command, but stands still with its ticket until the slave waits for nobody any more."""
    assert user.stdin is not None and user.stdout is not None
    before = told(cluster)["nodes"]["slave1"]
    print(json.dumps(command), file=user.stdin, flush=True)
    wait_for("the client to stand still", lambda: stands_still(user.pid))

    def over() -> bool:
        now = told(cluster)["nodes"]["slave1"]
        assert now["refused_ticket"] == before["refused_ticket"]
        return bool(now["transfers"] == 0 and now["transfers_failed"] == before["transfers_failed"] + 1)

    wait_for("the end of the ticket", over)
    user.send_signal(signal.SIGCONT)
    return dict(json.loads(user.stdout.readline()))


def told_of_the_end(cluster: Cluster, transfers_done: int) -> dict[str, Any]:
    """The slave's numbers once it has told of so many transfers, a moment after the client is done."""
    last: dict[str, Any] = {}

    def heard() -> bool:
        last.update(told(cluster)["nodes"]["slave1"])
        return bool(last["transfers_done"] >= transfers_done)

    wait_for("the count of the transfer", heard)
    return last


def test_a_ticket_past_its_end_is_refused_and_renewed(tmp_path: Path) -> None:
    """get and put: the slave counts what came for the dead ticket and the log has one line about it; the
    client asks for another ticket by itself and says so in one line."""
    source, back = tmp_path / "x", tmp_path / "back"
    write_random(source, 3_000_000, 1)
    with running(tmp_path / "c", slaves=1) as cluster:
        cluster.kill(cluster.slave("slave1")["pid"])
        settings = cluster.dir / "up" / "slave1.toml"
        text = settings.read_text()
        assert text.count("[slave]\n") == 1
        settings.write_text(text.replace("[slave]\n", f"[slave]\nticket_s = {TICKET_S}\n"))
        cluster.start_missing()
        cluster.ok("put", str(source), "/x")
        told_of_the_end(cluster, 1)
        with late_user(cluster) as user:
            for command in (("get", "/x", str(back)), ("put", str(source), "/y")):
                before = told(cluster)["nodes"]["slave1"]
                done = come_late(cluster, user, *command)
                assert done["bytes"] == 3_000_000
                assert len(done["told"]) == 1, done
                assert done["told"][0].startswith("slave slave1 does not know the ticket any more"), done
                after = told_of_the_end(cluster, before["transfers_done"] + 1)
                assert after["refused_ticket"] >= before["refused_ticket"] + 4
                assert after["transfers_done"] == before["transfers_done"] + 1
                if command[0] == "get":
                    wait_for("audit", lambda: audit_lines(cluster), 20)
                    ((who, detail),) = audit_lines(cluster)
                    assert who == "slave:slave1" and "127.0.0.1" in detail, detail
                    assert "for tickets that are over" in detail and "key" not in detail, detail
        assert sha256(back) == sha256(source)
        cluster.ok("get", "/y", str(back))
        assert sha256(back) == sha256(source)
