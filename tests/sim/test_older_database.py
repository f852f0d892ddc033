"""An older copy of the master's database is put back (a disk that broke, a backup)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sector.testing.cluster import SimCluster
from sector.wire.login import Join, Joined


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[SimCluster]:
    with SimCluster(tmp_path, slaves=3, seed=1) as cluster:
        yield cluster


def test_what_is_written_after_an_older_copy_was_put_back_is_newer_than_what_it_does_not_know(
    sim: SimCluster, tmp_path: Path
) -> None:
    """Nothing but puts came since the copy, so nothing shows that it is an older one. A slave that had been
    away gets a new content; those with one of before the loss are back afterwards."""
    cloud = sim.client()
    sim.wait(cloud.write("/a", b"one"))
    sim.until(lambda: len(sim.serving("/a")) == 3)
    sim.kill_master()
    database = tmp_path / "master" / "master.db"
    copy = tmp_path / "copy.db"
    shutil.copy(database, copy)
    sim.start_master()
    sim.kill_slave("s3")
    for number in range(20):  # versions are drawn
        sim.wait(cloud.write(f"/b{number}", b"b"))
    sim.wait(cloud.write("/a", b"two"))
    sim.advance(30)
    sim.kill_master()
    for name in ("s1", "s2"):
        sim.kill_slave(name)
    for file in database.parent.glob("master.db*"):
        if not file.name.endswith(".lock"):
            file.unlink()
    shutil.copy(copy, database)
    sim.start_master()
    sim.start_slave("s3")
    cloud = sim.client()
    sim.wait(cloud.write("/a", b"three"))
    for name in ("s1", "s2"):
        sim.start_slave(name)
    sim.advance(60)
    assert sim.wait(cloud.read("/a")) == b"three"


def test_a_clock_that_was_set_back_does_not_take_the_epoch_with_it(sim: SimCluster) -> None:
    epoch = sim.up().hub.epoch
    sim.kill_master()
    sim.wall_ahead -= 86400.0
    sim.start_master()
    assert sim.up().hub.epoch == epoch + 1


def test_slaves_wait_quietly_for_who_starts_a_rebuild(sim: SimCluster, tmp_path: Path) -> None:
    """They know more than the database: they stay joined, so that what it does know can be read, ask less and
    less often whether their report is taken, and are there at once when the rebuild begins."""
    cloud = sim.client()
    sim.wait(cloud.write("/a", b"one"))
    sim.until(lambda: len(sim.serving("/a")) == 3)
    sim.kill_master()
    database = tmp_path / "master" / "master.db"
    copy = tmp_path / "copy.db"
    shutil.copy(database, copy)
    sim.start_master()
    sim.wait(cloud.write("/b", b"two"))
    sim.wait(cloud.rm("/b"))
    sim.advance(5)
    sim.kill_master()
    for file in database.parent.glob("master.db*"):
        if not file.name.endswith(".lock"):
            file.unlink()
    shutil.copy(copy, database)
    joins: list[float] = []
    join = SimCluster._join

    async def counted(self: SimCluster, request: Join) -> Joined:
        joined = await join(self, request)
        joins.append(sim.clock.seconds())
        return joined

    for slave in sim.slaves.values():
        assert slave.service is not None
        slave.service._join = lambda request: counted(sim, request)
    sim.start_master()
    sim.advance(120, step=0.1)
    assert sim.up().hub.state == "rebuild_needed"
    assert len(joins) == 3
    cloud = sim.client()
    assert sim.wait(cloud.read("/a")) == b"one"
    sim.kill_master()
    for file in database.parent.glob("master.db*"):
        if not file.name.endswith(".lock"):
            file.unlink()
    sim.start_master(rebuild=True)
    sim.until(lambda: sim.up().hub.state == "running", limit_s=20)
    cloud = sim.client()
    assert [entry.path for entry in sim.wait(cloud.ls("/"))] == ["/a"]
