"""The wall clock of all nodes is set while they run: an hour ahead, and back again."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, running, wait_for, write_random

LIBRARY = Path(__file__).resolve().parents[2] / "csrc/build/wall_clock.so"
HOUR_S = 3600


class WallClock:
    """The time of day of all processes that were started since, `ahead_s` from this one's."""

    def __init__(self, file: Path, patch: pytest.MonkeyPatch) -> None:
        self._file = file
        self.set(0)
        patch.setenv("LD_PRELOAD", str(LIBRARY))
        patch.setenv("WALL_CLOCK", str(file))

    def set(self, ahead_s: float) -> None:
        with open(self._file, "r+b" if self._file.exists() else "wb") as file:
            os.pwrite(file.fileno(), struct.pack("=q", round(ahead_s * 1e9)), 0)


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WallClock:
    return WallClock(tmp_path / "clock", monkeypatch)


@pytest.fixture
def cluster(tmp_path: Path, clock: WallClock) -> Iterator[Cluster]:
    """Made under that clock."""
    with running(tmp_path / "c", slaves=3) as found:
        yield found


def states(cluster: Cluster) -> dict[str, str]:
    return {node["id"]: node["state"] for node in cluster.json("node", "list")}


def test_a_clock_that_is_set_ahead_and_back_ends_no_timer_and_stops_none(
    tmp_path: Path, clock: WallClock, cluster: Cluster
) -> None:
    """No slave is lost by it and a transfer under way goes on; when it is set back, a slave that dies is
    missed as soon as ever, and the master was running for no hour."""
    write_random(tmp_path / "big", 40_000_000, 1)
    before = time.monotonic()
    moving = cluster.popen("put", str(tmp_path / "big"), "/big", "--limit", "10MB/s")
    time.sleep(1.5)
    clock.set(HOUR_S)
    time.sleep(2)
    clock.set(0)
    out, err = moving.communicate(timeout=60)
    assert moving.returncode == 0, out + err
    assert time.monotonic() - before >= 2.5  # its rate is kept too
    clock.set(HOUR_S)
    cluster.ok("put", str(tmp_path / "big"), "/again")
    assert cluster.json("status")["uptime_s"] < 120
    log = (cluster.dir / "up/log/master.log").read_text()
    assert " is lost" not in log
    wait_for(
        "a word on it", lambda: (cluster.dir / "up/log/master.log").read_text().count("clock was set") >= 3
    )

    clock.set(-HOUR_S)
    cluster.kill(cluster.slave("slave2")["pid"])
    wait_for("the loss of a slave", lambda: states(cluster)["slave2"] == "lost", 25, 0.5)
    cluster.ok("get", "/again", str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == (tmp_path / "big").read_bytes()
