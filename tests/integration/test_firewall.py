"""Put and get through real packet filters: two network namespaces, rules at the client's side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import running

HOST = "10.77.3.2"
EXTRACT = Path(__file__).resolve().parents[2] / "examples" / "inverted_index.py:extract"
SIZE = 20_000_000
DROP_ALL = ("i meta l4proto udp drop", "o meta l4proto udp drop")
DROP_IN = ("i meta l4proto udp drop",)
DROP_LARGE = ("i meta l4proto udp meta length > 1200 drop", "o meta l4proto udp meta length > 1200 drop")
DROP_MOST = (
    "i udp sport {{ {data} }} meta length > 500 drop",
    "o udp dport {{ {data} }} meta length > 500 drop",
)
PROHIBITED = ("o udp dport {{ {data} }} reject with icmpx type admin-prohibited",)
REFUSED = ("o udp dport {{ {data} }} reject with icmpx type port-unreachable",)


def run(*words: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """A program with its output; the test fails if it does."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False, **options)
    assert not check or done.returncode == 0, (words, done.stdout, done.stderr)
    return done


def inside(space: str) -> tuple[str, ...]:
    """What runs a program in a namespace (`ip netns exec` also mounts, which a chroot does not allow)."""
    return ("nsenter", f"--net=/run/netns/{space}")


class Site:
    """A cluster in one namespace, its user in the other."""

    def __init__(self, base: Path) -> None:
        self.base = base
        mark = f"{os.getpid() % 100000}"
        self.user, self.there = f"su{mark}", f"sc{mark}"
        self.links = f"vu{mark}", f"vc{mark}"
        self.env = dict(os.environ, SECTOR_CONFIG=str(base / "client.toml"))

    def sector(self, space: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A `sector` command in a namespace."""
        return run(*inside(space), sys.executable, "-m", "sector.cli.main", *words, env=self.env)

    def open(self) -> None:
        """Make the namespaces, start the cluster, log in over the link."""
        for space in (self.user, self.there):
            run("ip", "netns", "add", space)
        ends = f"{self.links[0]} netns {self.user} type veth peer name {self.links[1]} netns {self.there}"
        run("ip", "link", "add", *ends.split())
        for space, link, address in (
            (self.user, self.links[0], "10.77.3.1/24"),
            (self.there, self.links[1], f"{HOST}/24"),
        ):
            run(*inside(space), "ip", "addr", "add", address, "dev", link)
            run(*inside(space), "ip", "link", "set", link, "up")
            run(*inside(space), "ip", "link", "set", "lo", "up")
        cluster = str(self.base / "c")
        self.sector(self.there, "init", cluster, "--host", HOST, "--slaves", "2")
        for node in ("slave1", "slave2"):
            settings = self.base / "c" / f"{node}.toml"
            text = settings.read_text()
            assert text.count("[data]\n") == 1
            settings.write_text(text.replace("[data]\n", "[data]\nudp_retry_s = 2.0\nudp_wait_s = 1.0\n"))
        self.sector(self.there, "up", "--dir", cluster, "--detach")
        secret = str(self.base / "c" / "admin.password")
        login = ("--user", "admin", "--password-file", secret, "--ca", str(self.base / "c" / "ca.pem"))
        self.sector(self.user, "login", f"{HOST}:7001", *login)

    def close(self) -> None:
        """Stop everything."""
        words = (*inside(self.there), sys.executable, "-m", "sector.cli.main")
        run(*words, "down", "--dir", str(self.base / "c"), check=False, env=self.env)
        for space in (self.user, self.there):
            run("ip", "netns", "del", space, check=False)

    def rules(self, *rules: str, space: str = "") -> None:
        """What the user's side (or the other) drops from now on; none = nothing."""
        text = "flush ruleset\n"
        if rules:
            text += "table inet f {\n chain i { type filter hook input priority 0; }\n"
            text += " chain o { type filter hook output priority 0; }\n}\n"
        text += "".join(f"add rule inet f {rule}\n" for rule in rules)
        run(*inside(space or self.user), "nft", "-f", "-", input=text)

    def forget(self) -> None:
        """As if what earlier commands found out were too old to count."""
        (self.base / "client.toml.ways").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("firewall"))
    try:
        made.open()
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    ("name", "rules", "path", "messages", "reason"),
    [
        ("open", (), "udp", False, ""),
        ("all", DROP_ALL, "tls", True, "silence"),
        ("one_direction", DROP_IN, "tls", True, "silence"),
        ("large", DROP_LARGE, "udp", False, ""),
        ("most", DROP_MOST, "tls", False, ""),
        ("prohibited", PROHIBITED, "tls", False, "administratively prohibited"),
        ("refused", REFUSED, "tls", False, "port unreachable"),
        ("open_again", (), "udp", False, ""),
    ],
)
def test_files_move_whatever_of_udp_is_blocked(
    site: Site, name: str, rules: tuple[str, ...], path: str, messages: bool, reason: str
) -> None:
    """Brief lines say what is blocked; the bytes are the same (design section 3)."""
    site.forget()
    site.rules(*(rule.format(data="7011, 7013") for rule in rules))
    source, back = site.base / f"{name}.in", site.base / f"{name}.out"
    source.write_bytes(os.urandom(SIZE))
    put = site.sector(site.user, "put", "--json", str(source), f"/{name}")
    get = site.sector(site.user, "get", "--json", f"/{name}", str(back))
    assert back.read_bytes() == source.read_bytes()
    for done in (put, get):
        shown = json.loads(done.stdout)
        assert shown["path"] == path, done
        assert reason in shown["path_reason"]
        assert ("TLS connections instead" in done.stderr) == (path == "tls")
        assert ("messages go over TLS instead" in done.stderr) == messages


def test_a_put_over_tls_says_what_it_waited_for(site: Site) -> None:
    """`--stats` over TLS as over UDP: here the cap, with round trip and packets."""
    site.forget()
    site.rules(*DROP_ALL)
    source = site.base / "waited.in"
    source.write_bytes(os.urandom(12_000_000))
    put = site.sector(site.user, "put", "--json", "--stats", "--limit", "4MB/s", str(source), "/waited")
    shown = json.loads(put.stdout)
    assert shown["path"] == "tls"
    (one,) = shown["files"]
    assert max(one["limited"], key=one["limited"].__getitem__) == "cap", one
    assert one["stats"]["rtt_us"] > 0 and one["stats"]["pkts_sent"] > 1000
    site.rules()


def test_what_one_command_found_out_spares_the_next_its_wait(site: Site) -> None:
    """Each later command asks UDP for a moment only, and is back on it as soon as it is answered."""
    source, back = site.base / "wait.in", site.base / "wait.out"
    source.write_bytes(os.urandom(100_000))
    site.forget()
    site.rules(*DROP_ALL)
    took = []
    for words in (("put", str(source), "/wait"), ("get", "/wait", str(back)), ("get", "/wait", str(back))):
        began = time.monotonic()
        done = site.sector(site.user, words[0], "--json", *words[1:])
        took.append(time.monotonic() - began)
        assert json.loads(done.stdout)["path"] == "tls"
        assert "messages go over TLS instead" in done.stderr
    # 2 s of silence for messages, 3 s for data, against a quarter of a second each
    assert min(took[1:]) < took[0] - 2.0, took
    assert (site.base / "client.toml.ways").stat().st_mode & 0o777 == 0o600
    site.rules()
    done = site.sector(site.user, "get", "--json", "/wait", str(back))
    assert json.loads(done.stdout)["path"] == "udp", done
    assert "TLS" not in done.stderr
    ways = site.base / "client.toml.ways"  # another slave may still be in it
    assert not ways.exists() or json.loads(ways.read_text())["messages_why"] == ""
    assert back.read_bytes() == source.read_bytes()


LONG = """
import sys, msgspec, sector
from sector.client.blocking import connected
from sector.config import load_client

config = load_client()
data = msgspec.structs.replace(config.data, udp_retry_s=2.0)
config = msgspec.structs.replace(config, data=data)
with connected(config, on_note=lambda text: print("note", text, flush=True)) as cloud:
    for line in sys.stdin:
        cloud.put(line.split()[0], line.split()[1])
        print("done", flush=True)
"""


def heard(program: subprocess.Popen[str], mark: str) -> list[str]:
    """The lines of a program up to one that begins with `mark`."""
    lines: list[str] = []
    assert program.stdout is not None
    for line in program.stdout:
        lines.append(line.strip())
        if line.startswith(mark):
            return lines
    raise AssertionError(lines)


def test_a_session_under_way_leaves_udp_when_it_is_blocked_and_returns(site: Site) -> None:
    """A master that had answered falls silent, TLS is answered: messages go around, with the reason."""
    source = site.base / "way.in"
    source.write_bytes(os.urandom(50_000))
    site.forget()
    site.rules()
    words = (*inside(site.user), "timeout", "80", sys.executable, "-c", LONG)
    pipe = subprocess.PIPE
    with running(words, env=site.env, stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdin is not None
        try:
            print(source, "/way1", file=program.stdin, flush=True)
            assert heard(program, "done") == ["done"]
            site.rules(*DROP_ALL)
            print(source, "/way2", file=program.stdin, flush=True)
            lines = heard(program, "done")
            assert any("7002 gets no answer" in line and "over TLS" in line for line in lines), lines
            site.rules()
            assert "is answered again; messages go over it" in heard(program, "note")[-1]
            print(source, "/way3", file=program.stdin, flush=True)
            assert heard(program, "done")
        finally:
            program.stdin.close()
            program.terminate()
    for name in ("/way1", "/way2", "/way3"):
        site.sector(site.user, "get", name, str(site.base / "way.out"))
        assert (site.base / "way.out").read_bytes() == source.read_bytes()


def test_a_slave_whose_messages_are_blocked_stays_in_the_cluster(site: Site) -> None:
    """Its heartbeats and the master's commands go inside TLS, until UDP is answered again."""
    site.forget()
    site.rules()
    log = site.base / "c" / "log" / "slave1.log"
    begin = len(log.read_text())

    def until(mark: str, limit_s: float = 60.0) -> None:
        end = time.monotonic() + limit_s
        while mark not in log.read_text()[begin:]:
            assert time.monotonic() < end, log.read_text()[begin:]
            time.sleep(0.2)

    try:
        site.rules("i udp dport 7002 drop", "i udp sport 7002 drop", space=site.there)
        until("messages go over TLS instead")
        source, back = site.base / "slave.in", site.base / "slave.out"
        for index in range(4):
            source.write_bytes(os.urandom(30_000))
            site.sector(site.user, "put", str(source), f"/slave{index}")
            site.sector(site.user, "get", f"/slave{index}", str(back))
            assert back.read_bytes() == source.read_bytes()
        nodes = {
            node["id"]: node for node in json.loads(site.sector(site.user, "node", "list", "--json").stdout)
        }
        assert nodes["slave1"]["state"] == "up", nodes
        assert "over TLS" in (site.base / "c" / "log" / "master.log").read_text()
    finally:
        site.rules(space=site.there)
    until("is answered again")


def test_slaves_that_cannot_reach_each_other_copy_and_shuffle(site: Site) -> None:
    """Replicas go over TLS between them, requests of jobs through the master; each says so, once a peer."""
    site.forget()
    site.rules()
    logs = [site.base / "c" / "log" / f"{node}.log" for node in ("slave1", "slave2")]
    begin = [len(log.read_text()) for log in logs]
    slaves = "{ 7010, 7011, 7012, 7013 }"
    pages = site.base / "pages"
    pages.mkdir()
    for index in range(8):
        (pages / f"{index}.html").write_text(f"<p>some words {index * 7919}</p>\n" * 50)
    job = ("sphere", "run", str(EXTRACT), "/pages", "--granularity", "file", "--buckets", "4", "--output")
    try:
        site.rules(f"i udp sport {slaves} udp dport {slaves} drop", space=site.there)
        site.sector(site.user, "put", "-r", str(pages), "/pages")
        site.sector(site.user, "replicate", "--wait", "/pages")
        for page in json.loads(site.sector(site.user, "ls", "-l", "/pages", "--json").stdout):
            assert len(page["replicas"]) == 2, page
        blocked = json.loads(site.sector(site.user, *job, "/blocked", "--json").stdout)
    finally:
        site.rules(space=site.there)
    assert blocked["state"] == "done" and blocked["retries"] == 0
    site.sector(site.user, *job, "/open")
    for index in range(4):
        buckets = [site.sector(site.user, "cat", f"/{name}.{index}").stdout for name in ("blocked", "open")]
        assert buckets[0] == buckets[1] != ""
    said = [log.read_text()[at:] for log, at in zip(logs, begin, strict=True)]
    assert any("messages go through the master instead" in text for text in said)
    assert any("TLS connections instead" in text for text in said)
    for mark in ("a peer came over TLS", "messages go through the master instead"):
        assert all(sum(mark in line for line in text.splitlines()) <= 1 for text in said), said
