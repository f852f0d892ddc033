"""A slave whose disk is too full to set anything aside."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sector.slave.disk import Disk
from sector.testing.cluster import SimCluster


@pytest.fixture
def sim(tmp_path: Path, seed: int) -> Iterator[SimCluster]:
    with SimCluster(tmp_path / "sim", slaves=2, copies=1, seed=seed) as cluster:
        yield cluster


def test_what_cannot_be_set_aside_does_not_hold_a_report_up(
    sim: SimCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other content under names that the cloud has lies in a slave's tree. It is in service after one join
    all the same, and what is in the way goes to the attic when there is room."""
    cloud = sim.client()
    names = [f"/f{number}" for number in range(6)]
    for name in names:
        sim.wait(cloud.write(name, b"of the cloud"))
    holder = next(s for s in sim.slaves.values() if sim.serving(names[0])[0] == s.name)
    slave = next(s for s in sim.slaves.values() if s is not holder)
    mine = [name for name in names if slave.name not in sim.serving(name)]
    sim.advance(70, step=0.1)
    sim.stop_slave(slave.name)
    for name in mine:
        slave.native(name).write_bytes(b"by hand")
    full = True
    real = Disk._to_attic

    def to_attic(self: Disk, *args: Any) -> str:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, *args)

    monkeypatch.setattr(Disk, "_to_attic", to_attic)
    sim.start_slave(slave.name)
    assert slave.service is not None
    joins: list[float] = []
    join = slave.service._join

    def counted(request: Any) -> Any:
        joins.append(sim.clock.seconds())
        return join(request)

    slave.service._join = counted
    sim.until(lambda: slave.service is not None and slave.service.ready.called, limit_s=3)
    sim.advance(20)
    assert len(joins) <= 1
    assert all(sim.wait(cloud.read(name)) == b"of the cloud" for name in names)
    full = False
    sim.advance(700, step=0.2)
    assert not [name for name in mine if slave.name in sim.serving(name)]
    assert len(os.listdir(slave.root / ".sector/attic")) == len(mine)
