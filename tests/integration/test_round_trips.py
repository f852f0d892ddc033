"""How often a small file waits for a far site: a cluster behind an emulated link of 400 ms."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sector.bench import wan
from sector.bench.link import Link

pytestmark = pytest.mark.alone
RTT_S = 0.4
PROGRAM = """
import sys, time
from sector.client.blocking import connected
from sector.config import load_client

with connected(load_client()) as cloud:
    cloud.user
    for words in sys.argv[1:]:
        verb, *rest = words.split(",")
        began = time.monotonic()
        (cloud.put if verb == "put" else cloud.get)(*rest)
        print(time.monotonic() - began, flush=True)
"""


class Far:
    """A cluster at one end of the link, its user at the other."""

    def __init__(self, path: wan.Path, base: Path) -> None:
        self.path = path
        self.base = base
        self.env = dict(os.environ, SECTOR_CONFIG=str(base / "client.toml"))

    def run(self, end: list[str], *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A program at one end."""
        done = subprocess.run(
            [*end, *words], env=self.env, capture_output=True, text=True, timeout=90, check=False
        )
        assert not check or done.returncode == 0, (words, done.stdout, done.stderr)
        return done

    def sector(self, end: list[str], *words: str, check: bool = True) -> Any:
        """A `sector` command at one end."""
        return self.run(end, sys.executable, "-m", "sector.cli.main", *words, check=check)

    def round_trips(self, *words: str) -> list[float]:
        """What each of these puts and gets of one program waited for, in round trips."""
        out = self.run(self.path.sender, sys.executable, "-c", PROGRAM, *words).stdout
        return [float(line) / RTT_S for line in out.split()]


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    base = tmp_path_factory.mktemp("far")
    link = Link.parse(f"rate=1g,rtt={RTT_S * 1000:g}ms")
    with wan.emulated(link, engine="user") as path:
        made = Far(path, base)
        there, host = path.receiver, path.host
        try:
            made.sector(there, "init", str(base / "c"), "--host", host, "--slaves", "1")
            made.sector(there, "up", "--dir", str(base / "c"), "--detach")
            secret, ca = str(base / "c" / "admin.password"), str(base / "c" / "ca.pem")
            login = ("--user", "admin", "--password-file", secret, "--ca", ca)
            made.sector(path.sender, "login", f"{host}:7001", *login)
            yield made
        finally:
            made.sector(there, "down", "--dir", str(base / "c"), check=False)


def test_a_small_file_takes_three_round_trips_and_two_on_a_connection_that_stands(far: Far) -> None:
    """docs/guide/transport.md: HELLO, lease and ticket, data and DONE. What else a loaded machine adds is
    less than half a round trip in the best of three."""
    source = far.base / "small"
    source.write_bytes(os.urandom(10_000))
    back = far.base / "back"
    firsts: dict[str, list[float]] = {"put": [], "get": []}
    laters: dict[str, list[float]] = {"put": [], "get": []}
    for turn in range(3):
        puts = far.round_trips(f"put,{source},/first{turn}", f"put,{source},/later{turn}")
        gets = far.round_trips(f"get,/first{turn},{back}", f"get,/later{turn},{back}")
        for verb, (first, later) in (("put", puts), ("get", gets)):
            firsts[verb].append(first)
            laters[verb].append(later)
    for verb in ("put", "get"):
        assert 2.9 < min(firsts[verb]) < 3.6, (firsts, laters)
        assert 1.9 < min(laters[verb]) < 2.6, (firsts, laters)
    assert back.read_bytes() == source.read_bytes()
