"""`sector node preflight` against a real master: a machine that may join, and what filters do to it."""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, running
from test_firewall import DROP_IN, DROP_LARGE, Site, inside, run

Checks = dict[str, list[dict[str, Any]]]


def by_name(text: str) -> Checks:
    """The checks of a run with --json by their names."""
    document = json.loads(text)
    found: Checks = {}
    for check in document["checks"]:
        found.setdefault(check["name"], []).append(check)
    states = [check["state"] for check in document["checks"]]
    assert document["failed"] == states.count("failed") and document["ok"] == ("failed" not in states)
    assert all(check["remedy"] for check in document["checks"] if check["state"] != "ok")
    return found


def states(checks: Checks, name: str) -> list[str]:
    """States of all checks of a name."""
    return [check["state"] for check in checks.get(name, [])]


@pytest.fixture(scope="module")
def young(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One slave runs, another one may join: its files are beside the others."""
    base = tmp_path_factory.mktemp("young")
    with running(base, slaves=2) as cluster:
        cluster.kill(cluster.slave("slave2")["pid"])
        yield cluster


def test_a_machine_that_may_join(young: Cluster) -> None:
    """All of the network is fine, and both UDP ports were reached from the master."""
    config = young.dir / "up" / "slave2.toml"
    done = young.run("node", "preflight", "--config", str(config), "--json")
    checks = by_name(done.out)
    assert done.status == 0, done.said
    wanted = ("software", "kernel", "udp_buffers", "udp_offload", "aes", "certificate", "disk", "ports")
    for name in (*wanted, "tls_master", "clock", "address", "udp", "path_mtu"):
        assert set(states(checks, name)) == {"ok"}, (name, checks.get(name))
    assert states(checks, "udp_in") == ["ok", "ok"]
    assert len(checks["udp"]) == 2, "the master and the other slave"
    assert "1500 bytes" in checks["path_mtu"][0]["text"]
    assert not list((young.dir / "up").rglob(".preflight*")), "nothing is left behind"
    for _ in range(3):  # at once again: nothing of the last time stands in the way
        again = young.run("node", "preflight", "--config", str(config))
        assert again.status == 0 and re.search(r"^ok +udp_in +", again.out, re.M), again.said


def test_what_is_wrong_is_named_with_its_cure(young: Cluster, tmp_path: Path) -> None:
    """A running node, a taken port, a clock and a certificate that do not fit, a master that is not there."""
    up = young.dir / "up"
    runs = by_name(young.run("node", "preflight", "--config", str(up / "slave1.toml"), "--json").out)
    assert states(runs, "ports") == ["warning"] and "runs already" in runs["ports"][0]["text"]
    text = (up / "slave2.toml").read_text()
    for name in ("ca.pem", "slave1.pem", "slave1.key", "slave2.pem", "slave2.key"):
        (tmp_path / name).write_bytes((up / name).read_bytes())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        away = re.sub(r"udt = \d+", f"udt = {port}", text)
        away = re.sub(r"masters = .*", 'masters = ["127.0.0.1:9"]', away)
        (tmp_path / "away.toml").write_text(away)
        done = young.run("node", "preflight", "--config", str(tmp_path / "away.toml"), "--json")
    checks = by_name(done.out)
    assert done.status == 1
    assert states(checks, "ports") == ["failed"] and f"{port}/udp" in checks["ports"][0]["text"]
    assert states(checks, "tls_master") == ["failed"] and states(checks, "udp") == ["warning"]
    (tmp_path / "wrong.toml").write_text(text.replace("slave2.pem", "slave1.pem"))
    done = young.run("node", "preflight", "--config", str(tmp_path / "wrong.toml"), "--json", "--no-network")
    assert states(by_name(done.out), "certificate") == ["failed"] and done.status == 1


def test_a_slave_that_was_taken_off_the_list_is_told(young: Cluster) -> None:
    """The master says what an administrator has to do; nothing is sent to the ports."""
    young.ok("acl", "slave", "remove", "slave2")
    try:
        config = str(young.dir / "up" / "slave2.toml")
        checks = by_name(young.run("node", "preflight", "--config", config, "--json").out)
        assert states(checks, "tls_master") == ["failed"] and "udp_in" not in checks
        assert "sector acl slave add slave2" in checks["tls_master"][0]["remedy"]
    finally:
        young.ok("acl", "slave", "add", "slave2")


def test_a_user_asks_for_his_master(young: Cluster) -> None:
    """Without settings of a service: TLS and UDP to the master, and to any peer named."""
    slave = young.info["slaves"][0]["gmp"]
    done = young.run("node", "preflight", "--peer", slave, "--json")
    checks = by_name(done.out)
    assert done.status == 0, done.said
    assert states(checks, "tls_master") == ["ok"] and states(checks, "udp") == ["ok", "ok"]
    done = young.run("node", "preflight", "--peer", "127.0.0.1:9", "--json")
    assert done.status == 1 and "failed" in states(by_name(done.out), "udp")
    assert young.run("node", "preflight", "--peer", "a b").status == 2


def test_filters_are_found(tmp_path: Path) -> None:
    """UDP dropped on the way in, or only large packets dropped: named, with what to ask for."""
    site = Site(tmp_path)
    try:
        site.open()
        cluster = tmp_path / "c"
        down = run(*inside(site.there), "sh", "-c", "cat " + str(cluster / "slave2.toml"))
        config = re.sub(r'host = ".*"', 'host = "10.77.3.1"', down.stdout)
        (cluster / "here.toml").write_text(re.sub(r'^dir = ".*"', 'dir = "data/here"', config, flags=re.M))

        def look(*rules: str) -> Checks:
            site.rules(*rules)
            words = ("node", "preflight", "--config", str(cluster / "here.toml"), "--json")
            program = (*inside(site.user), sys.executable, "-m", "sector.cli.main")
            return by_name(run(*program, *words, check=False, env=site.env).stdout)

        free = look()
        assert states(free, "udp_in") == ["ok", "ok"] and set(states(free, "udp")) == {"ok"}, free
        large = look(*DROP_LARGE)
        assert set(states(large, "udp")) == {"ok"} and set(states(large, "path_mtu")) == {"warning"}
        assert "up to 1200 bytes" in large["path_mtu"][0]["text"]
        closed = look(*DROP_IN)
        assert states(closed, "udp_in") == ["failed", "failed"] and set(states(closed, "udp")) == {"failed"}
        assert states(closed, "tls_master") == ["ok"]
    finally:
        site.close()
