"""Copies that are too many: the last good one stays, whatever happens before the slave hears of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sector.master import namespace as ns
from sector.master.replication import CopyRule, CopyRules
from sector.slave import service
from sector.testing.cluster import SimCluster
from sector.wire.slave import Report

ONE = CopyRules(CopyRule(minimum=1))


@pytest.fixture
def sim(tmp_path: Path, seed: int) -> Iterator[SimCluster]:
    """Two slaves with slow disks, two copies of "/a"."""
    with SimCluster(tmp_path / "sim", slaves=2, copies=2, seed=seed, disk_s=0.2) as cluster:
        cloud = cluster.client()
        cluster.wait(cloud.write("/a", b"precious"))
        cluster.until(lambda: len(cluster.wait(cloud.stat("/a")).replicas) == 2)
        cluster.advance(20)
        yield cluster


def ordered(sim: SimCluster) -> list[str]:
    """Slaves that have an order to drop something."""
    store = sim.up().hub.store
    return [name for name in sim.slaves if sim.wait(store.read(lambda tx, name=name: tx.trash(name, 5)))]


def test_the_last_copy_is_spared_when_the_others_are_lost(sim: SimCluster) -> None:
    """One of two copies is to go; its slave dies before it does so, the other slave dies for good; what comes
    back is the last copy."""
    sim.up().hub.core.new_rules(ONE)
    sim.until(lambda: ordered(sim))
    told = ordered(sim)[0]
    other = "s1" if told == "s2" else "s2"
    sim.kill_slave(told)
    sim.advance(15)
    sim.kill_slave(other)
    sim.advance(15)
    sim.start_slave(told)
    sim.advance(30)
    assert sim.slaves[told].native("/a").is_file()
    assert sim.wait(sim.clients[0].read("/a")) == b"precious"
    sim.start_slave(other)
    sim.advance(60)
    assert len(sim.serving("/a")) == 1  # now there are two again, and one is too many
    assert sim.wait(sim.clients[0].read("/a")) == b"precious"


def test_what_a_report_names_while_it_is_dropped_counts_no_more(
    sim: SimCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of a report is on its way while the slave drops a copy that it names: if the master counted it,
    the only other copy would be the next surplus one."""
    monkeypatch.setattr(service, "_REPORT_FILES", 1)
    cloud = sim.clients[0]
    for name in "bcd":
        sim.wait(cloud.write(f"/{name}", b"."))
    sim.advance(30)
    slave = sim.slaves["s2"].service
    assert slave is not None
    real = slave.master_call
    version = sim.wait(cloud.stat("/a")).version
    store = sim.up().hub.store
    dropped: list[str] = []

    async def slow_part(request: Any, **options: Any) -> Any:
        named = isinstance(request, Report) and not request.last and request.files
        if named and request.files[0].path == "/a" and not dropped:
            dropped.append("/a")
            await store.write(lambda tx: ns.replica_surplus(tx, "s2", "/a", version, sim.wall()))
            slave.disk.delete_thd("/a", version)
            await store.write(lambda tx: tx.trash_done("s2", tx.trash("s2", 5)))
        return await real(request, **options)

    monkeypatch.setattr(slave, "master_call", slow_part)
    sim.wait(slave._report())
    assert dropped
    assert [r.node for r in sim.wait(store.read(lambda tx: tx.replicas("/a")))] == ["s1"]


def test_a_copy_that_is_to_go_does_not_count_again(sim: SimCluster) -> None:
    """The slave reports it once more before it hears of the order."""
    store = sim.up().hub.store
    version = sim.wait(sim.clients[0].stat("/a")).version
    sim.wait(store.write(lambda tx: ns.replica_surplus(tx, "s2", "/a", version, sim.wall())))
    slave = sim.slaves["s2"].service
    assert slave is not None
    sim.wait(slave._report())
    assert [r.node for r in sim.wait(store.read(lambda tx: tx.replicas("/a")))] == ["s1"]
