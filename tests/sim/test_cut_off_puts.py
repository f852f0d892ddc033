"""Puts whose client reaches nobody for longer than a lease lasts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_going_on import cut, temps, writer_of

from sector import errors
from sector.client.progress import Progress
from sector.testing.cluster import SimCluster, write_random

MB = 1_000_000


@pytest.fixture
def sim(tmp_path: Path, seed: int) -> Iterator[SimCluster]:
    with SimCluster(tmp_path / "sim", slaves=2, copies=1, seed=seed) as cluster:
        yield cluster


def begin(sim: SimCluster, tmp_path: Path, path: str, **options: Any) -> tuple[Any, Any, bytes]:
    """A put of 40 MB of which three quarters have arrived."""
    cloud, progress = sim.client(), Progress()
    content = write_random(tmp_path / "a", 40 * MB)
    sim.net.bytes_per_s = 4e6
    putting = cloud.put(tmp_path / "a", path, progress=progress, **options)
    sim.until(lambda: progress.bytes_done > 30 * MB)
    return cloud, putting, content


def away(sim: SimCluster, cloud: Any, seconds: float) -> None:
    """The line of the client is dead for so long."""
    me = cloud.gmp.address[1]
    others = [address[1] for address in sim.hub.endpoints if address[1] != me]
    sim.hub.blocked |= {(me, other) for other in others} | {(other, me) for other in others}
    cut(sim)
    sim.advance(seconds, step=0.1)
    sim.hub.blocked.clear()


@pytest.mark.parametrize("away_s", [70.0, 120.0, 170.0])
@pytest.mark.parametrize("before", [None, b"an older version"])
def test_a_put_goes_on_with_a_new_lease(
    sim: SimCluster, tmp_path: Path, away_s: float, before: bytes | None
) -> None:
    """Nobody else has written: hours of sending are not thrown away for two minutes without a line."""
    if before is not None:
        sim.wait(sim.client().write("/a", before))
    cloud, putting, content = begin(sim, tmp_path, "/a", create="any" if before else "new")
    slave, moved = writer_of(sim), sum(sim.net.moved.values())
    away(sim, cloud, away_s)
    summary = sim.wait(putting)
    assert slave.native("/a").read_bytes() == content
    assert sum(sim.net.moved.values()) - moved < 14 * MB
    assert summary.files[0].digest == sim.wait(cloud.stat("/a")).digest
    sim.advance(120)
    assert temps(sim) == []


@pytest.mark.parametrize("how", ["written", "leased", "made", "its directory is gone"])
def test_what_others_did_meanwhile_stays(sim: SimCluster, tmp_path: Path, how: str) -> None:
    other = sim.client("bob")
    sim.wait(other.mkdir("/d"))
    cloud, putting, _ = begin(sim, tmp_path, "/d/a", create="new" if how == "made" else "any")
    outcome: list[Any] = []
    putting.addBoth(outcome.append)
    me = cloud.gmp.address[1]
    others = [address[1] for address in sim.hub.endpoints if address[1] not in (me, other.gmp.address[1])]
    sim.hub.blocked |= {(me, port) for port in others} | {(port, me) for port in others}
    cut(sim)
    sim.advance(75, step=0.1)
    if how in ("written", "made"):
        sim.wait(other.write("/d/a", b"theirs"))
    elif how == "leased":
        theirs = other.put(write_other(tmp_path), "/d/a")
        sim.advance(1)
    else:
        sim.wait(other.rm("/d", recursive=True))
    sim.hub.blocked.clear()
    sim.until(lambda: outcome)
    said = errors.Exists if how == "made" else errors.LeaseLost
    assert isinstance(outcome[0].value, said), outcome[0].value
    if how == "leased":
        sim.wait(theirs)
        assert sim.wait(other.stat("/d/a")).size == 20 * MB
    elif how == "its directory is gone":
        assert not sim.wait(other.exists("/d"))
    else:
        assert sim.wait(other.read("/d/a")) == b"theirs"


def write_other(tmp_path: Path) -> Path:
    write_random(tmp_path / "theirs", 20 * MB, seed=2)
    return tmp_path / "theirs"


def test_a_slave_that_the_master_did_not_hear_costs_one_more_attempt(sim: SimCluster, tmp_path: Path) -> None:
    """The client hears both; the lease ends all the same, and the slave publishes nothing."""
    cloud, putting, content = begin(sim, tmp_path, "/a")
    slave = writer_of(sim)
    assert slave.gmp is not None
    master, there = sim.up().hub.gmp.address[1], slave.gmp.address[1]
    sim.hub.blocked |= {(master, there), (there, master)}
    me = cloud.gmp.address[1]
    sim.hub.blocked |= {(me, master), (master, me)}
    sim.advance(75, step=0.1)
    sim.hub.blocked.clear()
    sim.wait(putting)
    assert sim.wait(cloud.read("/a")) == content
