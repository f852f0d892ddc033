"""An older copy of the master's database is put back (a disk that broke, a backup)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sector.testing.cluster import SimCluster


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
