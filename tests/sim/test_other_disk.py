"""A data directory on another disk: its files have other inode numbers, and looking into all of them takes
hours. Until then they are what their records say."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sector import errors
from sector.clock import pause
from sector.slave import scan
from sector.slave.scan import TreeWatch
from sector.slave.service import Slave
from sector.testing.cluster import SimCluster, SimSlave

LONG_S = 4000.0


@pytest.fixture
def sim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimCluster]:
    """One slave, which after a start first looks into its files when an hour has passed."""
    look = TreeWatch._round

    async def late(watch: TreeWatch, catalogue: Any) -> None:
        if catalogue.verify:
            await pause(watch._clock, LONG_S)
        await look(watch, catalogue)

    monkeypatch.setattr(scan, "_FIRST_CHECK_BYTES", 0)
    monkeypatch.setattr(TreeWatch, "_round", late)
    with SimCluster(tmp_path / "sim", slaves=1, copies=1) as made:
        yield made


def service_of(slave: SimSlave) -> Slave:
    assert isinstance(slave.service, Slave)
    return slave.service


def to_other_disk(sim: SimCluster) -> None:
    """As `rsync -a` to a new disk does it."""
    sim.kill_slave("s1")
    sim.advance(15)
    for folder, _, names in os.walk(sim.slaves["s1"].root / "files"):
        for name in names:
            file = Path(folder, name)
            shutil.copy2(file, file.with_name("copy of it"))
            os.replace(file.with_name("copy of it"), file)
    sim.start_slave("s1")
    sim.until(lambda: service_of(sim.slaves["s1"]).ready.called)


def test_what_is_looked_into_later_is_read_moved_and_removed(sim: SimCluster) -> None:
    cloud = sim.client()
    sim.wait(cloud.mkdir("/d"))
    for name in ("x", "y", "gone", "new", "a", "b"):
        sim.wait(cloud.write(f"/d/{name}", name.encode()))
    sim.advance(10)
    to_other_disk(sim)
    assert sim.wait(cloud.read("/d/x")) == b"x"
    assert sim.wait(cloud.stat("/d/y")).replicas == ["s1"]
    sim.wait(cloud.mv("/d/a", "/t"))
    sim.wait(cloud.mv("/d/b", "/d/a"))
    sim.wait(cloud.mv("/t", "/d/b"))
    sim.wait(cloud.mv("/d", "/e"))
    sim.wait(cloud.rm("/e/gone"))
    sim.wait(cloud.write("/e/new", b"other"))
    for _ in range(2):
        sim.advance(30)
        wanted = {"x": b"x", "y": b"y", "new": b"other", "a": b"b", "b": b"a"}
        assert {name: sim.wait(cloud.read(f"/e/{name}")) for name in wanted} == wanted
        assert {file.name: file.read_bytes() for file in sim.slaves["s1"].native("/e").iterdir()} == wanted
        sim.advance(LONG_S + 700, 0.5)
    assert len(os.listdir(sim.slaves["s1"].root / ".sector/attic")) == 0


def test_a_file_that_was_edited_meanwhile_is_never_taken_for_the_content(sim: SimCluster) -> None:
    """Its size is the same, its bytes are not."""
    cloud = sim.client()
    sim.wait(cloud.write("/read", b"good"))
    sim.wait(cloud.write("/left", b"good"))
    sim.advance(10)
    sim.kill_slave("s1")
    for path in ("/read", "/left"):
        sim.slaves["s1"].native(path).write_bytes(b"evil")
    sim.start_slave("s1")
    sim.until(lambda: service_of(sim.slaves["s1"]).ready.called)
    with pytest.raises(errors.SectorError):
        sim.wait(cloud.read("/read"))
    sim.advance(LONG_S + 30, 0.5)
    assert service_of(sim.slaves["s1"]).disk.entries == {}
    assert sim.wait(cloud.stat("/left")).replicas == []
