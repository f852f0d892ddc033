"""`sector up` and `down` with real processes: what they print, what survives, and that nothing is left.

Processes are signalled only by the numbers that this test's own `up` printed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from running import running

from sector.cli import cluster_run
from sector.cli.cluster_dir import ClusterDir, ports_of
from sector.ports import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


WATCH = """
import time, sector

with sector.connect() as cloud:
    print(cloud.status().state, flush=True)
    while True:
        time.sleep(0.1)
        try:
            cloud.status()
        except sector.SectorError as error:
            print(time.monotonic(), type(error).__name__, flush=True)
            break
"""


class Cluster:
    """One directory and the commands on it, as their own processes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.dir = home / "c"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("SECTOR_") or k == "SECTOR_PORTS"}
        self.env["SECTOR_CONFIG"] = str(home / "client.toml")

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "sector.cli.main", *arguments]

    def run(self, *arguments: str, config: str = "", stdin: str = "") -> tuple[int, str, str]:
        env = {**self.env, "SECTOR_CONFIG": str(self.home / config)} if config else self.env
        done = subprocess.run(
            self.command(*arguments),
            env=env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def good(self, *arguments: str, config: str = "") -> Any:
        status, out, err = self.run(*arguments, "--json", config=config)
        assert status == 0, (arguments, out, err)
        return json.loads(out)

    def refused(self, *arguments: str, config: str = "") -> str:
        """The one line of a command that fails with status 1."""
        status, out, err = self.run(*arguments, config=config)
        assert (status, out) == (1, ""), (status, out, err)
        assert err.startswith("sector: ") and err.count("\n") == 1
        return err

    def up(self, slaves: int = 1) -> Any:
        ports = [] if self.dir.exists() else ["--port-base", "0"]
        return self.good("up", "--dir", str(self.dir), "--slaves", str(slaves), *ports, "--detach")

    def down(self) -> Any:
        return self.good("down", "--dir", str(self.dir))

    def live(self) -> set[str]:
        return {process.name for process in cluster_run.running(self.dir)}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path)
    yield found
    cluster_run.stop(cluster_run.running(found.dir))
    assert cluster_run.running(found.dir) == []


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The first true value of `condition`, asked again and again for at most `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def test_up_prints_what_the_design_says_and_commands_work_at_once(cluster: Cluster) -> None:
    shown = cluster.up(2)
    assert {"dir", "master", "user", "password_file", "cumulus", "monitor", "slaves", "pids"} == set(shown)
    assert shown["cumulus"] is None and shown["monitor"] is None and shown["user"] == "admin"
    assert set(shown["pids"]) == {"security", "master", "slave1", "slave2"}
    assert [set(s) for s in shown["slaves"]] == [{"id", "pid", "data_dir", "gmp", "udt"}] * 2
    nodes = cluster.good("node", "list")
    assert [(n["id"], n["state"], n["pid"]) for n in nodes] == [
        (s["id"], "up", s["pid"]) for s in shown["slaves"]
    ]
    assert cluster.good("status")["slaves_up"] == 2
    assert (cluster.home / "client.toml").stat().st_mode & 0o777 == 0o600
    password = Path(shown["password_file"]).read_text().strip()
    assert password not in (cluster.home / "client.toml").read_text()
    logs = "".join(path.read_text() for path in (cluster.dir / "log").iterdir())
    assert password not in logs
    for pid in shown["pids"].values():
        assert password.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()

    again = cluster.up(2)
    assert again["pids"] == shown["pids"]
    stopped = cluster.down()["stopped"]
    assert {(line["name"], line["pid"]) for line in stopped} == set(shown["pids"].items())
    assert not any(line["killed"] for line in stopped) and cluster.live() == set()
    assert cluster.down()["stopped"] == []


def test_only_what_is_missing_is_started_and_slaves_can_be_added(cluster: Cluster) -> None:
    first = cluster.up(1)
    os.kill(first["pids"]["slave1"], signal.SIGKILL)
    until(lambda: "slave1" not in cluster.live())
    second = cluster.up(2)
    for name in ("security", "master"):
        assert second["pids"][name] == first["pids"][name]
    assert second["pids"]["slave1"] != first["pids"]["slave1"]
    assert cluster.live() == {"security", "master", "slave1", "slave2"}
    until(lambda: [n["state"] for n in cluster.good("node", "list")] == ["up", "up"])


def test_a_killed_up_leaves_nothing_that_down_does_not_find(cluster: Cluster) -> None:
    ClusterDir(cluster.dir).init(cluster="x", host="127.0.0.1", port_base=7000, slaves=1)
    arguments = cluster.command(
        "up", "--dir", str(cluster.dir), "--slaves", "1", "--port-base", "0", "--detach"
    )
    for wanted in ("security", "master"):
        starting = subprocess.Popen(arguments, env=cluster.env, stdout=subprocess.DEVNULL)
        until(lambda: wanted in cluster.live())  # noqa: B023
        starting.kill()
        starting.wait()
        assert wanted in {line["name"] for line in cluster.down()["stopped"]}
        assert cluster.live() == set()
    assert set(cluster.up(1)["pids"]) == {"security", "master", "slave1"}


def free_base() -> int:
    """A port base for two slaves whose ports are all free now."""
    while True:
        (base,) = free_ports(1)
        wanted = {number for node in ports_of(base, 2).values() for number in node.values()}
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for number in wanted:
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    one = stack.enter_context(socket.socket(socket.AF_INET, kind))
                    one.bind(("127.0.0.1", number))
            return base


def test_up_with_the_same_ports_again_changes_nothing(cluster: Cluster) -> None:
    """While it runs other ports are refused with a line that names the old ones; when it has stopped all
    move, also those of slaves that are not started."""
    bases = [free_base(), free_base()]
    while bases[0] == bases[1]:
        bases[1] = free_base()

    def up(base: int, slaves: int = 1) -> list[str]:
        where = ("--dir", str(cluster.dir), "--slaves", str(slaves), "--port-base", str(base))
        return ["up", *where, "--detach"]

    first = cluster.good(*up(bases[0], 2))
    assert first["master"] == f"127.0.0.1:{bases[0] + 1}"
    assert cluster.good(*up(bases[0], 2)) == first
    status, out, told = cluster.run(*up(bases[1], 2))
    assert (status, out, told.count("\n")) == (2, "", 1)
    assert f"than from {bases[1]} on: security tls {bases[0]} (" in told and "sector down first" in told
    cluster.down()
    assert cluster.good(*up(bases[0], 2))["master"] == first["master"]
    cluster.down()
    status, _, err = cluster.run(*up(bases[1]), config="client.toml")
    assert status == 0 and f"now those from {bases[1]} on; before: security tls {bases[0]}," in err
    cluster.up(2)
    assert cluster.good("status")["slaves_up"] == 2
    moved = cluster.good("status")["master_id"], cluster.good(*up(0, 2))["master"]
    assert moved == ("master", f"127.0.0.1:{bases[1] + 1}")  # free ones are taken once


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_up_in_the_foreground_stops_all_at_its_end(cluster: Cluster, number: signal.Signals) -> None:
    arguments = cluster.command(
        "up", "--dir", str(cluster.dir), "--slaves", "1", "--port-base", "0", "--json"
    )
    with running(arguments, env=cluster.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as popen:
        assert popen.stdout is not None and popen.stderr is not None
        shown = json.loads(popen.stdout.readline())
        assert cluster.live() == {"security", "master", "slave1"}
        os.kill(shown["pids"]["slave1"], signal.SIGKILL)
        assert b"slave1" in popen.stderr.readline()
        assert cluster.live() == {"security", "master"}
        popen.send_signal(number)
        assert popen.wait(60) == 128 + number
    assert cluster.live() == set()


def test_a_port_in_use_is_one_clear_line_and_starts_nothing(cluster: Cluster) -> None:
    place = ClusterDir(cluster.dir)
    place.init(cluster="x", host="127.0.0.1", port_base=7000, slaves=1)
    ports = cluster_run.free_ports("127.0.0.1", 1)
    place.set_ports(ports, "127.0.0.1")
    up = ("up", "--dir", str(cluster.dir), "--slaves", "1", "--detach")
    for node, key, kind in (
        ("security", "tls", socket.SOCK_STREAM),
        ("master", "tls", socket.SOCK_STREAM),
        ("master", "gmp", socket.SOCK_DGRAM),
        ("slave1", "udt", socket.SOCK_DGRAM),
    ):
        with socket.socket(socket.AF_INET, kind) as taken:
            taken.bind(("127.0.0.1", ports[node][key]))
            if kind == socket.SOCK_STREAM:
                taken.listen()
            line = cluster.refused(*up)
            assert f"{node} did not start" in line and str(ports[node][key]) in line and "in use" in line
        assert cluster.live() == set()


def test_logins_users_and_revocation(cluster: Cluster) -> None:
    shown = cluster.up(1)
    ca, pw = str(cluster.dir / "ca.pem"), cluster.home / "pw"
    pw.write_text("wonderland\n")
    cluster.good("user", "add", "alice", "--password-file", str(pw))
    login = ("login", shown["master"], "--user", "alice", "--password-file", str(pw))
    assert "no CA" in cluster.refused(*login, config="alice.toml")
    cluster.good(*login, "--ca", ca, config="alice.toml")
    assert "wonderland" not in (cluster.home / "alice.toml").read_text()
    assert "administrator" in cluster.refused("user", "list", config="alice.toml")

    (cluster.home / "bad").write_text("wrong\n")
    wrong = cluster.refused("login", "--user", "alice", "--password-file", str(cluster.home / "bad"))
    unknown = cluster.refused("login", "--user", "nobody", "--password-file", str(pw))
    assert wrong == unknown and "wrong" in wrong

    # the master restarts: the session goes on without a password
    os.kill(shown["pids"]["master"], signal.SIGKILL)
    until(lambda: "master" not in cluster.live())
    cluster.up(1)
    assert cluster.good("status", config="alice.toml")["state"] == "running"

    watching = subprocess.Popen(
        [sys.executable, "-c", WATCH],
        env={**cluster.env, "SECTOR_CONFIG": str(cluster.home / "alice.toml")},
        stdout=subprocess.PIPE,
        text=True,
    )
    with watching:
        assert watching.stdout is not None and watching.stdout.readline() == "running\n"
        cluster.good("user", "remove", "alice")
        removed = time.monotonic()
        ended, why = watching.stdout.readline().split()
    assert why == "SessionExpired" and float(ended) - removed < 5
    assert "session has ended" in cluster.refused("status", config="alice.toml")
    with_audit = ClusterDir(cluster.dir).database()
    assert with_audit.audit_check() is None
    with_audit.close()


def test_a_slave_that_is_not_on_the_list_is_refused(cluster: Cluster) -> None:
    shown = cluster.up(1)
    os.kill(shown["pids"]["slave1"], signal.SIGKILL)
    until(lambda: "slave1" not in cluster.live())
    cluster.good("acl", "slave", "remove", "slave1")
    line = cluster.refused("up", "--dir", str(cluster.dir), "--slaves", "1", "--detach")
    assert "allow-list" in line and "sector acl slave add slave1" in line
    assert cluster.live() == {"security", "master"}
    cluster.good("acl", "slave", "add", "slave1")
    assert "slave1" in cluster.up(1)["pids"]
