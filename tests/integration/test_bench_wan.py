"""`sector bench udt` and the link emulator with real processes in real namespaces."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from running import running

from sector.bench import cells, cores, pair, wan
from sector.bench.common import program
from sector.bench.link import Link
from sector.bench.peers import PEERS, Run
from sector.ports import free_ports

pytestmark = pytest.mark.alone
SECTOR = Path(sys.executable).with_name("sector")
ECHO = """
import socket
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.bind(("::", 7000))
print("ready", flush=True)
while True:
    data, at = s.recvfrom(9000)
    s.sendto(data, at)
"""
ASK = """
import json, socket, sys, time
s = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(1)
took, lost = [], 0
for i in range(int(sys.argv[2])):
    start = time.monotonic()
    s.sendto(str(i).encode().ljust(1472, b"."), (sys.argv[1], 7000))
    try:
        while s.recv(9000).rstrip(b".") != str(i).encode():
            pass
        took.append(time.monotonic() - start)
    except TimeoutError:
        lost += 1
print(json.dumps([sorted(took), lost]))
"""


def bench(*arguments: str, status: int = 0) -> Any:
    """`sector bench udt`: its JSON, or its standard error when it is to fail."""
    done = subprocess.run(
        [str(SECTOR), "bench", "udt", *arguments], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout) if status == 0 else done.stderr


def echoes(path: wan.Path, host: str, count: int) -> tuple[list[float], int]:
    """Sorted round trips in seconds through a path, and how many never came back."""
    with running([*path.receiver, sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout and server.stdout.readline() == "ready\n"
            client = [*path.sender, sys.executable, "-c", ASK, host, str(count)]
            done = subprocess.run(client, capture_output=True, text=True, timeout=60, check=True)
        finally:
            server.kill()
    took, lost = json.loads(done.stdout)
    return took, lost


def users_of(namespace: int) -> list[str]:
    """Processes that are in a network namespace, or hold a descriptor of it."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        links = [process / "ns" / "net"]
        try:
            links += list((process / "fd").iterdir())
            if any(os.readlink(link) == f"net:[{namespace}]" for link in links if link.is_symlink()):
                found.append(process.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("host", ["10.77.0.2", "fd77::2"])
def test_a_round_trip_takes_what_was_asked_for(host: str) -> None:
    with wan.emulated(Link.parse("rate=1g,rtt=20ms"), engine="user") as path:
        took, lost = echoes(path, host, 50)
    assert lost == 0 and took[0] >= 0.020 and took[len(took) // 2] < 0.035
    there = path.report["ab"]
    assert (
        there["in_frames"] >= 50 and there["drop_queue"] == there["drop_before"] == there["drop_device"] == 0
    )
    assert path.report["ab"]["late_us"]["p50"] < 5000


def test_lost_frames_are_counted_by_cause() -> None:
    with wan.emulated(Link.parse("rate=1g,rtt=2ms,loss=20%"), engine="user", seed=3) as path:
        took, lost = echoes(path, "10.77.0.2", 25)
    gone = path.report["ab"]["drop_loss"] + path.report["ba"]["drop_loss"]
    assert lost > 0 and len(took) + lost == 25 and gone >= lost


def test_one_frame_is_one_datagram_even_from_a_sender_with_gso() -> None:
    """Or loss would hit 44 datagrams at once."""
    with wan.emulated(Link.parse("rate=50m,rtt=2ms,queue=20f"), engine="user") as path:
        run = Run(path.host, 9000, 0.5)
        ((rx, tx),) = pair.transfers(path, [(PEERS["udp"], run)])
    there = path.report["ab"]
    assert there["in_frames"] >= tx["bytes"] // 1472 - there["drop_before"] * 2
    assert there["max_queue_frames"] == 20 and there["drop_queue"] > 100
    assert rx["bytes"] % 1472 == 0
    # what lay in the socket when the receiver got a processor came over the link before: not rx["gbps"]
    assert rx["bytes"] * 8 < 50e6 * (tx["seconds"] + 0.02)


def test_nothing_is_left_when_the_emulator_is_killed() -> None:
    command = [program("wan"), "--link", "rate=1g,rtt=1ms"]
    with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as emulator:
        assert emulator.stdout
        ends = json.loads(emulator.stdout.readline())["ends"]
        inode = os.stat(ends[0]["ns"]).st_ino
        inside = subprocess.Popen([program("wan"), "enter", ends[0]["ns"], "sleep", "60"])
        try:
            until = time.monotonic() + 5
            while str(inside.pid) not in users_of(inode) and time.monotonic() < until:
                time.sleep(0.02)
            assert str(inside.pid) in users_of(inode)
            emulator.send_signal(signal.SIGKILL)
            emulator.wait()
        finally:
            inside.kill()
            inside.wait()
    assert users_of(inode) == []
    assert "wan0" not in Path("/proc/net/dev").read_text()


def test_a_program_at_an_end_dies_with_who_started_it() -> None:
    with wan.emulated(Link.parse("rate=1g,rtt=1ms"), engine="user") as path:
        starter = f"import subprocess; subprocess.Popen({[*path.sender, 'sleep', '60']!r}); input()"
        with running([sys.executable, "-c", starter], stdin=subprocess.PIPE) as parent:
            inode = os.stat(path.sender[2]).st_ino
            here = users_of(inode)
            until = time.monotonic() + 5
            while len(users_of(inode)) == len(here) and time.monotonic() < until:
                time.sleep(0.02)
            parent.kill()
        until = time.monotonic() + 5
        while len(users_of(inode)) > 1 and time.monotonic() < until:
            time.sleep(0.02)
        assert len(users_of(inode)) == 1  # the emulator


@pytest.mark.slow
def test_a_series_goes_on_and_a_cell_runs_alone(tmp_path: Path) -> None:
    file, picture = tmp_path / "r.jsonl", tmp_path / "p.html"
    common = ("--seconds", "2", "--engine", "user", "--json")
    grid = ("--grid", "rate=50m;rtt=10ms;loss=0,1%", "--results", str(file))
    whole = bench(*grid, "--peer", "tcp-cubic", "--picture", str(picture), *common)
    errors = [f"{row['cell']}: {row['error']}" for row in whole["results"] if "error" in row]
    assert len(errors) <= 1, errors
    if errors:  # a full machine: the same command measures what is missing, and the rest stays
        print(errors)
        whole = bench(*grid, "--peer", "tcp-cubic", "--picture", str(picture), *common)
        whole["results"] = [row for row in whole["results"] if "error" not in row]
        whole["results"].sort(key=lambda row: ("1%" in row["cell"], row["peer"]))
    assert [row["cell"] for row in whole["results"]] == [
        f"50m-10ms-{loss}-{peer}" for loss in ("0", "1%") for peer in ("sector", "tcp-cubic")
    ]
    for row in whole["results"]:
        assert 0 < row["steady_gbps"] <= 0.0485 and row["own_drops"] == 0, row
        assert row["limit_gbps"] == pytest.approx(0.05 * 1456 / 1538, abs=1e-4)
        assert sum(row["samples_mbps"]) > 0
    assert "tcp-cubic" in picture.read_text()
    lines = file.read_text()
    again = bench(*grid, "--peer", "tcp-cubic", *common)["results"]
    assert [row for row in again if row in whole["results"]] == [row for row in again if "error" not in row]
    assert file.read_text() == lines  # nothing was measured again
    alone = bench("--cell", "50m-10ms-1%-libudt", *common)["results"]
    assert [row["cell"] for row in alone] == ["50m-10ms-1%-libudt"] and alone[0]["bytes"] > 0


@pytest.mark.slow
def test_two_flows_of_unequal_rtt_share_one_queue() -> None:
    row = cells.share_of(Link.parse("rate=20m,rtt=20ms"), [("sector", "10ms"), ("tcp-cubic", "60ms")], 8, 3)
    assert len(row["mbps"]) == 2 and min(row["mbps"]) > 0
    assert 0.5 < row["utilisation"] <= 1.03 and 0.5 <= row["jain"] <= 1


def test_a_virtual_cable_carries_single_frames() -> None:
    """What netem is put on, where the kernel has it."""
    with wan.veth_pair(8_000_000) as path:
        ((rx, _),) = pair.transfers(path, [(PEERS["tcp-cubic"], Run(path.host, 9000, 0.5))])
        shown = subprocess.run(
            [*path.sender, "cat", "/proc/thread-self/net/dev"], capture_output=True, text=True, check=True
        ).stdout
        sent = next(line.split(":")[1].split() for line in shown.splitlines() if "wan0:" in line)
    assert rx["bytes"] > 0 and int(sent[8]) / int(sent[9]) <= 1514  # bytes per frame


def test_a_loopback_of_its_own_has_the_mtu_asked_for() -> None:
    with wan.local(("--mtu", "1500", "--no-offload")) as path:
        assert (
            "mtu 1500"
            in subprocess.run(
                [*path.sender, "ip", "link", "show", "lo"], capture_output=True, text=True, check=True
            ).stdout
        )
        ((rx, tx),) = pair.transfers(path, [(PEERS["tcp-cubic-1500"], Run(path.host, 9000, 0.5))])
    assert rx["bytes"] > 0 and tx["bytes"] >= rx["bytes"]


def test_namespaces_need_no_root() -> None:
    """A user namespace gives what is needed; whoever made the ends may enter them."""
    nobody = 65534
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        tool = str(shutil.copy(program("wan"), folder))
        who: dict[str, Any] = {}
        if os.geteuid() == 0:
            who = {"user": nobody, "group": nobody, "extra_groups": []}
        command = [tool, "local", "--mtu", "1500"]
        if subprocess.run(["unshare", "--user", "true"], check=False, capture_output=True, **who).returncode:
            # The kernel gives nobody a user namespace here (no one in a chroot gets one): one line says so.
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **who
            )
            assert done.returncode == 1
            assert done.stderr == "wan: a user namespace (or be root): Operation not permitted\n"
            return
        with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **who) as ends:
            assert ends.stdin and ends.stdout
            namespace = json.loads(ends.stdout.readline())["ends"][0]["ns"]
            enter = [tool, "enter", namespace, "ip", "link", "show", "lo"]
            shown = subprocess.run(enter, capture_output=True, text=True, check=True, **who)
            assert "mtu 1500" in shown.stdout and "UP" in shown.stdout
            ends.stdin.close()


@pytest.mark.parametrize(
    "peer", ["sector", "sector_compatible", "sector-to-libudt", "libudt-to-sector", "udp"]
)
def test_loopback_figures_of_a_peer(peer: str) -> None:
    found = bench("--only", "--peer", peer, "--runs", "1", "--seconds", "0.5", "--no-wait", "--json")
    (row,) = found["results"]
    assert row["peer"] == peer and row["gbps"] > 0 and row["rx_cpu_s_per_gb"] > 0
    assert row.get("ok", True)


def test_the_way_from_core_to_core_is_measured() -> None:
    """The benches of loopback wait for cores that share a cache."""
    assert 1 < cores.round_trip_ns() < 1e6
    done = subprocess.run([program("peer_cores"), "0"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "needs two processors" in done.stderr


def test_many_connections_over_one_port_are_told_apart() -> None:
    port = str(free_ports(1)[0])
    options = ["--flows", "50"]
    receiver = [program("bench_udt"), "recv", port, *options]
    with running(receiver, stdout=subprocess.PIPE, text=True) as rx:
        try:
            sender = [program("bench_udt"), "send", "127.0.0.1", port, "20M", *options]
            sent = subprocess.run(sender, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout
            out, _ = rx.communicate(timeout=60)
        finally:
            rx.kill()
    got, tx = json.loads(out.splitlines()[-1]), json.loads(sent)
    assert got["bytes"] == tx["bytes"] == sum(got["flow_bytes"]) == sum(tx["flow_bytes"])
    assert len(got["flow_bytes"]) == 50 and min(got["flow_bytes"]) > 0


def test_between_hosts_each_end_is_one_command() -> None:
    port = str(free_ports(1)[0])
    listen = [str(SECTOR), "bench", "udt", "--listen", port]
    with running(listen, stdout=subprocess.PIPE, text=True) as receiver:
        time.sleep(1)
        sent = bench("--to", f"127.0.0.1:{port}", "--seconds", "0.5")
        out, _ = receiver.communicate(timeout=60)
    assert json.loads(out)["bytes"] == sent["bytes"] > 0
