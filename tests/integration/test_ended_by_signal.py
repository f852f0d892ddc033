"""A command that is ended by SIGTERM or SIGHUP takes with it what it has begun, as with Ctrl-C."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path

import pytest
from cluster import Cluster, wait_for, write_random
from running import running

BIG = 20_000_000
ENDS = [signal.SIGTERM, signal.SIGHUP]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def counter(cluster: Cluster, name: str) -> int:
    found: int = cluster.json("status")["counters"][name]
    return found


@pytest.mark.parametrize("number", ENDS)
def test_an_ended_put_leaves_no_lease(cluster: Cluster, tmp_path: Path, number: signal.Signals) -> None:
    write_random(tmp_path / "big", BIG, 1)
    command = cluster.command("put", "--limit", "1MB/s", str(tmp_path / "big"), f"/p/{number.name}")
    with running(command, env=cluster.env, **PIPES) as putting:
        wait_for("the lease", lambda: counter(cluster, "leases"))
        putting.send_signal(number)
        said = putting.communicate(timeout=30)[1]
        assert putting.returncode == 128 + number
    assert said.split("\n") == ["", f"sector: ended by {number.name}", ""]
    wait_for("its end", lambda: not counter(cluster, "leases"), 5)


@pytest.mark.parametrize("number", ENDS)
def test_an_ended_get_leaves_no_part(cluster: Cluster, tmp_path: Path, number: signal.Signals) -> None:
    """Sent twice, as timeout(1) does: the second does not cut the cleaning up short."""
    write_random(tmp_path / "big", BIG, 2)
    cluster.ok("put", str(tmp_path / "big"), f"/g/{number.name}")
    place = tmp_path / "got"
    place.mkdir()
    command = cluster.command("get", "--limit", "1MB/s", f"/g/{number.name}", str(place))
    with running(command, env=cluster.env, **PIPES) as getting:
        wait_for("the part", lambda: list(place.iterdir()))
        getting.send_signal(number)
        getting.send_signal(number)
        assert getting.wait(30) == 128 + number
    assert list(place.iterdir()) == []


def test_an_ended_run_leaves_no_job(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "udf.py").write_text("import time\ndef slow(data, ctx):\n    time.sleep(60)\n")
    cluster.ok("put", str(tmp_path / "udf.py"), "/in/")
    command = cluster.command("sphere", "run", f"{tmp_path}/udf.py:slow", "/in", "--granularity", "file")
    with running(command, env=cluster.env, **PIPES) as job:
        begun = wait_for("the job", lambda: cluster.json("job", "list"))[0]["id"]
        wait_for("a worker", lambda: cluster.json("job", "show", begun)["spes"])
        job.send_signal(signal.SIGTERM)
        assert job.wait(30) == 128 + signal.SIGTERM
    assert cluster.json("job", "show", begun)["state"] == "cancelled"


def test_an_ended_bench_leaves_no_child(cluster: Cluster) -> None:
    """On one core: with two it would wait for a quiet machine."""
    command = ["taskset", "-c", "0", *cluster.command("bench", "udt", "--seconds", "60", "--runs", "1")]
    with running(command, env=cluster.env, **PIPES) as bench:
        children = Path(f"/proc/{bench.pid}/task/{bench.pid}/children")
        both = wait_for("both ends", lambda: len(found := children.read_text().split()) >= 2 and found)
        bench.send_signal(signal.SIGTERM)
        assert bench.wait(30) == 128 + signal.SIGTERM
    wait_for("their end", lambda: not any(Path(f"/proc/{pid}").exists() for pid in both), 5)


@pytest.mark.parametrize("command", [("status",), ("ls", "/")])
def test_a_command_that_waits_for_a_silent_master_ends(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Whether its reactor runs in the main thread or in another."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        text = f'[client]\nmasters = ["127.0.0.1:{silent.getsockname()[1]}"]\nuser = "u"\n'
        text += f'ca_sha256 = "{"00" * 32}"\nsession = "{"00" * 16}"\nsecret = "{"00" * 32}"\n'
        (tmp_path / "client.toml").write_text(text)
        alone = Cluster(tmp_path)
        with running(alone.command(*command), env=alone.env, **PIPES) as waiting:
            silent.settimeout(30)
            peer, _ = silent.accept()
            with peer:
                waiting.send_signal(signal.SIGTERM)
                said = waiting.communicate(timeout=30)[1]
                assert waiting.returncode == 128 + signal.SIGTERM
    assert said.split("\n") == ["", "sector: ended by SIGTERM", ""]


def test_what_the_caller_ignores_stays_ignored(cluster: Cluster, tmp_path: Path) -> None:
    """nohup sector put …: the terminal closes, the command goes on."""
    write_random(tmp_path / "big", 3_000_000, 3)
    command = ["nohup", *cluster.command("put", "--limit", "1MB/s", str(tmp_path / "big"), "/nohup")]
    with running(command, env=cluster.env, stdin=subprocess.DEVNULL, **PIPES) as putting:
        wait_for("the lease", lambda: counter(cluster, "leases"))
        putting.send_signal(signal.SIGHUP)
        assert putting.wait(60) == 0


def test_a_service_whose_terminal_closes_stops_as_at_its_end(tmp_path: Path) -> None:
    one = Cluster(tmp_path, slaves=1)
    one.start()
    try:
        log = tmp_path / "up" / "log" / "slave1.log"
        one_pid = one.info["slaves"][0]["pid"]
        subprocess.run(["kill", "-HUP", str(one_pid)], check=True)
        wait_for("its end", lambda: not Path(f"/proc/{one_pid}").exists())
        assert "slave slave1 stops" in log.read_text()
    finally:
        one.stop()
