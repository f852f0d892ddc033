"""A path that carries less than both ends believe: three network namespaces, a small link in the middle, and
a router whose ICMP messages a filter drops."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "csrc" / "build" / "bench_udt"
PEER = ROOT / "csrc" / "build" / "libudt_peer"
SIZE = 8_000_000
pytestmark = pytest.mark.alone
PORT = "9000"
NO_ICMP = """
table inet f {
 chain o { type filter hook output priority 0;
  icmp type destination-unreachable drop; icmpv6 type packet-too-big drop; }
}
"""


def run(*words: str, check: bool = True, text: str | None = None) -> None:
    """A program; the test fails if it does."""
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=60, check=False)
    assert not check or done.returncode == 0, (words, done.stdout, done.stderr)


def inside(space: str) -> tuple[str, ...]:
    """What runs a program in a namespace."""
    return ("nsenter", f"--net=/run/netns/{space}")


class Path3:
    """near (10.78.1.1) - router - far (10.78.2.1); the far link has a small MTU. IPv6: fd78:1::1."""

    def __init__(self) -> None:
        mark = f"{os.getpid() % 100000}"
        self.near, self.router, self.far = (f"{name}{mark}" for name in ("mn", "mr", "mf"))

    def _link(self, a: str, b: str, number: int) -> None:
        ends = [f"v{number}{space}" for space in (a, b)]
        run(*f"ip link add {ends[0]} netns {a} type veth peer name {ends[1]} netns {b}".split())
        for space, link, host in ((a, ends[0], 1), (b, ends[1], 2)):
            run(*inside(space), "ip", "addr", "add", f"10.78.{number}.{host}/24", "dev", link)
            address = f"fd78:{number}::{host}/64"
            run(*inside(space), "ip", "addr", "add", address, "dev", link, "nodad")
            run(*inside(space), "ip", "link", "set", link, "up")

    def open(self) -> None:
        """Make all of it."""
        for space in (self.near, self.router, self.far):
            run("ip", "netns", "add", space)
            run(*inside(space), "ip", "link", "set", "lo", "up")
        self._link(self.near, self.router, 1)
        self._link(self.far, self.router, 2)
        words = ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]
        run(*inside(self.router), "sysctl", "-q", "-w", *words)
        for space, number in ((self.near, 1), (self.far, 2)):
            run(*inside(space), "ip", "route", "add", "default", "via", f"10.78.{number}.2")
            run(*inside(space), "ip", "-6", "route", "add", "default", "via", f"fd78:{number}::2")

    def shape(self, mtu: int, *, icmp: bool, far_end: bool) -> None:
        """The MTU of the far link, at the router's end or at both; whether the router may say so."""
        run(*inside(self.router), "ip", "link", "set", f"v2{self.router}", "mtu", str(mtu))
        end = mtu if far_end else 1500
        run(*inside(self.far), "ip", "link", "set", f"v2{self.far}", "mtu", str(end))
        run(*inside(self.router), "nft", "-f", "-", text="flush ruleset\n" + ("" if icmp else NO_ICMP))

    def close(self) -> None:
        """Take all of it away."""
        for space in (self.near, self.router, self.far):
            run("ip", "netns", "del", space, check=False)


@pytest.fixture(scope="module")
def path() -> Iterator[Path3]:
    made = Path3()
    try:
        made.open()
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def listening(space: str, words: list[str], target: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A receiver that has bound its port."""
    with target.open("wb") as out:
        process = subprocess.Popen([*inside(space), *words], stdout=out, stderr=subprocess.PIPE)
        try:
            for _ in range(200):
                done = subprocess.run(
                    [*inside(space), "ss", "-lunH", "sport", "=", f":{PORT}"],
                    capture_output=True,
                    check=False,
                )
                if done.stdout.strip():
                    break
                time.sleep(0.05)
            yield process
        finally:
            process.kill()
            process.wait()


UDTCAT = [sys.executable, "-m", "sector.cli.main", "udtcat"]


@pytest.mark.parametrize("peer", ["ours", "libudt"])
@pytest.mark.parametrize(
    ("mtu", "icmp", "far_end", "sender"),
    [(1400, False, False, "near"), (1400, True, True, "near"), (1300, False, True, "far")],
    ids=["filtered", "told", "first-hop"],
)
def test_a_stream_passes_a_small_path(
    path: Path3, tmp_path: Path, peer: str, mtu: int, icmp: bool, far_end: bool, sender: str
) -> None:
    """8 MB from us arrive whole in seconds, whoever receives them (decisions/0097)."""
    path.shape(mtu, icmp=icmp, far_end=far_end)
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(os.urandom(SIZE))
    spaces = (path.near, path.far) if sender == "near" else (path.far, path.near)
    host = "10.78.2.1" if sender == "near" else "10.78.1.1"
    receiver = (
        [*UDTCAT, "-l", PORT]
        if peer == "ours"
        else [str(PEER), "listen", PORT, "--any", "--recv", str(target)]
    )
    with listening(spaces[1], receiver, tmp_path / "out" if peer == "ours" else tmp_path / "talk") as process:
        began = time.monotonic()
        with source.open("rb") as content:
            done = subprocess.run(
                [*inside(spaces[0]), *UDTCAT, host, PORT],
                stdin=content,
                capture_output=True,
                timeout=60,
                check=False,
            )
        took = time.monotonic() - began
        assert done.returncode == 0, done.stderr
        assert process.wait(20) == 0, process.stderr and process.stderr.read()
    assert target.read_bytes() == source.read_bytes()
    assert took < 20, f"{took:.1f} s"


def test_ipv6_without_a_word_from_the_router(path: Path3, tmp_path: Path) -> None:
    """Nobody fragments IPv6 on the way: nothing may get a number that is larger than what was tried."""
    path.shape(1400, icmp=False, far_end=False)
    with listening(path.far, [str(BENCH), "recv", PORT], tmp_path / "out") as process:
        words = [str(BENCH), "send", "fd78:2::1", PORT, f"{SIZE // 1_000_000}M"]
        done = subprocess.run([*inside(path.near), *words], capture_output=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        assert process.wait(20) == 0
    assert json.loads((tmp_path / "out").read_text().splitlines()[-1])["bytes"] >= SIZE


ECHO = """
from twisted.internet import reactor
from sector.gmp.api import GmpKey
from sector.gmp.node import open_gmp
server = open_gmp(reactor, "0.0.0.0", PORT)
server.add_key(GmpKey(7, b"k" * 32, "the client"))
server.register(1, lambda call: call.payload)
reactor.run()
""".replace("PORT", PORT)

CALLS = """
import sys, time
from twisted.internet import task
from sector.gmp.api import GmpKey, Peer
from sector.gmp.node import open_gmp

async def main(reactor):
    client = open_gmp(reactor, "0.0.0.0", 0)
    client.add_key(GmpKey(7, b"k" * 32, "the server"))
    for size in (10, 600, 1000, 1000, 20000):
        began = time.monotonic()
        answer = await client.call(Peer(sys.argv[1], PORT, 7), 1, b"x" * size, deadline_s=10)
        assert answer == b"x" * size
        print(size, round(time.monotonic() - began, 2), flush=True)
    await client.stop()

task.react(main)
""".replace("PORT", PORT)


@pytest.mark.parametrize("icmp", [True, False], ids=["told", "filtered"])
def test_messages_pass_a_path_smaller_than_they_are(path: Path3, tmp_path: Path, icmp: bool) -> None:
    """Over IPv4 a path may carry less than the 1232 bytes of a message: routers may cut what was lost twice,
    and the next ones at once. Calls of 1000 bytes had no answer until their deadlines, larger ones had."""
    path.shape(900, icmp=icmp, far_end=True)
    with listening(path.far, [sys.executable, "-c", ECHO], tmp_path / "talk"):
        done = subprocess.run(
            [*inside(path.near), sys.executable, "-c", CALLS, "10.78.2.1"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, (done.stdout, done.stderr[-500:])
    took = [float(line.split()[1]) for line in done.stdout.splitlines()]
    assert max(took) < 3 and took[3] < 0.2, took
