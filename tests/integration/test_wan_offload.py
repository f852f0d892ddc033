"""Fast emulated links: pieces at both ends, single frames between them, and every byte right."""

from __future__ import annotations

import subprocess
import sys

import pytest
from running import running

from sector.bench import wan
from sector.bench.link import Link

pytestmark = pytest.mark.alone
SERVER = """
import hashlib, socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
s = socket.create_server((sys.argv[1], 7000), family=family)
print("ready", flush=True)
c, _ = s.accept()
seen = hashlib.sha256()
while data := c.recv(1 << 20):
    seen.update(data)
print(seen.hexdigest(), flush=True)
"""
CLIENT = """
import hashlib, os, socket, sys
c = socket.create_connection((sys.argv[1], 7000))
data = os.urandom(8_000_000)
c.sendall(data)
print(hashlib.sha256(data).hexdigest())
"""
# One call of 20 segments (UDP_SEGMENT = 103) to a socket without GRO, which must see 20 datagrams.
DATAGRAMS = """
import json, socket, sys
s = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], 7000))
s.settimeout(10)
print("ready", flush=True)
got = []
while len(got) < 20:
    data = s.recv(65536)
    got.append((len(data), data[:1] * len(data) == data and data[0]))
print(json.dumps(got), flush=True)
"""
SEND_PIECE = """
import socket, sys
s = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(17, 103, 1000)
s.sendto(b"".join(bytes([i]) * 1000 for i in range(19)) + b"\\x13" * 7, (sys.argv[1], 7000))
"""


def both(path: wan.Path, host: str, server: str, client: str) -> tuple[str, str]:
    """Runs a program at each end; what each printed last."""
    receiver = [*path.receiver, sys.executable, "-c", server, host]
    with running(receiver, stdout=subprocess.PIPE, text=True) as there:
        try:
            assert there.stdout and there.stdout.readline() == "ready\n"
            sender = [*path.sender, sys.executable, "-c", client, host]
            here = subprocess.run(sender, capture_output=True, text=True, timeout=60, check=True).stdout
            answer, _ = there.communicate(timeout=60)
        finally:
            there.kill()
    return here.strip(), answer.strip()


@pytest.mark.parametrize("host", ["10.77.0.2", "fd77::2"])
@pytest.mark.parametrize("line", ["", ",loss=1%,reorder=1%:1ms,dup=1%", ",corrupt=1%"])
def test_tcp_in_pieces_arrives_whole(host: str, line: str) -> None:
    """Loss, order, copies and bit errors hit single frames; a broken one is noticed by its checksum."""
    with wan.emulated(Link.parse(f"rate=1g,rtt=4ms{line}"), engine="user", seed=5) as path:
        sent, got = both(path, host, SERVER, CLIENT)
    assert sent == got
    there = path.report["ab"]
    assert 0 < there["pieces_in"] < there["in_frames"] / 2 and there["in_frames"] > 8_000_000 / 1448
    assert 0 < there["pieces_out"] < there["out_frames"]
    if "corrupt" in line:
        assert there["corrupted"] > 10
    if "loss" in line:
        assert 10 < there["drop_loss"] < there["in_frames"] / 20


@pytest.mark.parametrize("host", ["10.77.0.2", "fd77::2"])
def test_a_receiver_without_gro_gets_single_datagrams(host: str) -> None:
    with wan.emulated(Link.parse("rate=1g,rtt=4ms"), engine="user") as path:
        _, got = both(path, host, DATAGRAMS, SEND_PIECE)
    assert got == str([[1000, i] for i in range(19)] + [[7, 19]])
    assert path.report["ab"]["pieces_in"] == 1 and path.report["ab"]["in_frames"] >= 20
    assert path.report["ab"]["pieces_out"] >= 1
