"""Put and get through real packet filters: two network namespaces, rules at the client's side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HOST = "10.77.3.2"
SIZE = 20_000_000
DROP_ALL = ("i meta l4proto udp drop", "o meta l4proto udp drop")
DROP_IN = ("i meta l4proto udp drop",)
DROP_LARGE = ("i meta l4proto udp meta length > 1200 drop", "o meta l4proto udp meta length > 1200 drop")
PROHIBITED = ("o udp dport {{ {data} }} reject with icmpx type admin-prohibited",)


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

    def rules(self, *rules: str) -> None:
        """What the user's side drops from now on; none = nothing."""
        text = "flush ruleset\n"
        if rules:
            text += "table inet f {\n chain i { type filter hook input priority 0; }\n"
            text += " chain o { type filter hook output priority 0; }\n}\n"
        text += "".join(f"add rule inet f {rule}\n" for rule in rules)
        run(*inside(self.user), "nft", "-f", "-", input=text)


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
        ("large", DROP_LARGE, "tls", False, ""),
        ("prohibited", PROHIBITED, "tls", False, "administratively prohibited"),
        ("open_again", (), "udp", False, ""),
    ],
)
def test_files_move_whatever_of_udp_is_blocked(
    site: Site, name: str, rules: tuple[str, ...], path: str, messages: bool, reason: str
) -> None:
    """Brief lines say what is blocked; the bytes are the same (design section 3)."""
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
