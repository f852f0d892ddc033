"""An older copy of the master's database is put back (a disk that broke, a backup)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sector.errors import ReadOnly
from sector.model import Right
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


def lose_changes(sim: SimCluster, copy: Path) -> None:
    """Content is written and removed after the copy was taken; then master and slaves go, and the copy is put
    back. The master is up again, without slaves."""
    database = copy.parent / "master" / "master.db"
    sim.kill_master()
    shutil.copy(database, copy)
    sim.start_master()
    cloud = sim.client()
    sim.wait(cloud.write("/b", b"two"))
    sim.wait(cloud.rm("/b"))
    sim.advance(5)
    for name in sim.slaves:
        sim.kill_slave(name)
    sim.kill_master()
    for file in database.parent.glob("master.db*"):
        if not file.name.endswith(".lock"):
            file.unlink()
    shutil.copy(copy, database)
    sim.start_master()


def test_an_older_copy_is_noticed_though_as_much_has_changed_since(sim: SimCluster, tmp_path: Path) -> None:
    """What was done before the slaves came has the same numbers as what they remember."""
    sim.wait(sim.client().write("/a", b"one"))
    lose_changes(sim, tmp_path / "copy.db")
    cloud = sim.client()
    for number in range(50):
        sim.wait(cloud.mkdir(f"/d{number}"))
    sim.start_slave("s1")
    sim.advance(30)
    assert sim.up().hub.state == "rebuild_needed"
    with pytest.raises(ReadOnly):
        sim.wait(cloud.mkdir("/late"))
    service = sim.slaves["s1"].service
    assert service is not None and "/b" in service.disk.mirror.tombstones


def test_a_slave_is_heard_before_it_is_told(sim: SimCluster, tmp_path: Path) -> None:
    """A mirror that reached it before its first heartbeat would hide that it remembers more; while that is in
    doubt none is sent, whatever changes."""
    sim.wait(sim.client().mkdir("/old"))
    lose_changes(sim, tmp_path / "copy.db")
    cloud = sim.client()
    for number in range(50):
        sim.wait(cloud.mkdir(f"/d{number}"))
    sim.start_slave("s1")
    service = sim.slaves["s1"].service
    assert service is not None
    remembered = service.disk.mirror.serial
    master = sim.up()
    sim.until(lambda: "s1" in master.hub.core.members.nodes)
    for number in range(50):
        master.rights_changed({"bob": (Right("bob", f"/d{number}", "r"),)})
        sim.advance(0.5)
    assert master.hub.state == "rebuild_needed"
    assert service.disk.mirror.serial == remembered
    assert "/old" in service.disk.mirror.directories and "/d1" not in service.disk.mirror.directories


def test_what_a_slave_was_sent_is_no_more_than_the_master_knows(sim: SimCluster) -> None:
    """A mirror has a change whose answer from the database has not come yet, or went to nobody."""
    cloud = sim.client()
    sim.wait(cloud.mkdir("/d"))
    sim.advance(5)
    master = sim.up()
    hub, service = master.hub, sim.slaves["s1"].service
    assert service is not None and service.disk.mirror.serial == hub.serial == 1
    for _ in range(2):
        sim.wait(hub.store.write(lambda tx: tx.serial()))
    hub.serial = 2
    master.errands.poke("s1")
    sim.until(lambda: service.disk.mirror.serial == 3)
    hub.core.members.get("s1").want_report = True
    sim.until(lambda: not hub.core.members.get("s1").want_report or hub.state != "running")
    assert hub.state == "running"
    sim.wait(cloud.mkdir("/late"))
    for slave in sim.slaves.values():
        sim.until(lambda one=slave: one.service is not None and one.service.disk.mirror.serial == 4)
