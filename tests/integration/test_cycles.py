"""Nothing grows: many put/get/rm cycles, memory, descriptors and threads of every daemon."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster import Cluster, alive, running, wait_for

USER = Path(__file__).with_name("cycle_user.py")
CYCLES = int(os.environ.get("SECTOR_TEST_CYCLES", "1000"))
QUIET_S = 35.0


def usage(pid: int) -> dict[str, int]:
    """RSS in kB, threads, descriptors."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return {
        "rss": int(fields["VmRSS"].split()[0]),
        "threads": int(fields["Threads"]),
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
    }


def daemons(cluster: Cluster) -> dict[str, int]:
    """Name -> pid."""
    return cluster.info["pids"] | {slave["id"]: slave["pid"] for slave in cluster.info["slaves"]}


def at_rest(cluster: Cluster) -> dict[str, dict[str, int]]:
    """Usage of each daemon when its background work is over (a prepared copy whose file is gone waits for a
    minute at most), and the descriptors have been the same for longer than the 30 s after which the master
    gives up an idle connection to the security server."""

    def idle() -> bool:
        status = cluster.json("status")
        slaves = status["nodes"].values()
        return status["counters"]["tasks"] == 0 and all(node["tasks"] == 0 for node in slaves)

    wait_for("the end of all copies", idle, 120, every=3.0)
    last: dict[str, dict[str, int]] = {}
    since = 0.0

    def quiet() -> bool:
        nonlocal last, since
        now = {name: usage(pid) for name, pid in daemons(cluster).items()}
        if {name: use["descriptors"] for name, use in now.items()} != {
            name: use["descriptors"] for name, use in last.items()
        }:
            since = time.monotonic()
        last = now
        return time.monotonic() - since >= QUIET_S

    wait_for("rest", quiet, 110, every=0.2)
    return last


@pytest.mark.timeout(900)
def test_cycles_leave_nothing_behind(tmp_path: Path) -> None:
    """RSS at the end <= RSS after a fifth + 5 %; descriptors and threads equal."""
    source = tmp_path / "x"
    source.write_bytes(os.urandom(200_000))
    with running(tmp_path / "c") as cluster:
        user = subprocess.Popen(
            [sys.executable, str(USER), str(source), str(tmp_path / "back"), str(CYCLES)],
            env=cluster.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with user:
            assert user.stdin is not None and user.stdout is not None
            assert user.stdout.readline().strip() == str(CYCLES // 5)
            early = at_rest(cluster)
            print(file=user.stdin, flush=True)
            assert user.stdout.readline().strip() == str(CYCLES)
            late = at_rest(cluster)
            print(file=user.stdin, flush=True)
        assert user.returncode == 0
        assert (tmp_path / "back").read_bytes() == source.read_bytes()
    for name, first in early.items():
        last = late[name]
        print(name, first, last)
        assert last["rss"] <= first["rss"] * 1.05, (name, first, last)
        assert last["threads"] == first["threads"], (name, first, last)
        assert last["descriptors"] == first["descriptors"], (name, first, last)


def test_no_orphan_after_a_killed_slave(tmp_path: Path) -> None:
    """The workers and the spawner of a killed slave end with it."""
    with running(tmp_path / "c", slaves=2) as cluster:
        slave = cluster.info["slaves"][0]
        children = descendants(slave["pid"])
        cluster.kill(slave["pid"])
        for child in children:
            wait_for(f"the end of {child}", lambda child=child: not alive(child), 10)


def descendants(pid: int) -> list[int]:
    """All processes below `pid`."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        for child in parents.get(queue.pop(), []):
            found.append(child)
            queue.append(child)
    return found
