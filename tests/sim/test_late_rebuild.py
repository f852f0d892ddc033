"""A rebuild that ends before all slaves have reported: those that come later count as if they had (0300)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sector.testing.cluster import SimCluster


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[SimCluster]:
    """Three slaves that are all away, and an empty database. "s3" left first, then /x was removed; "s2" left,
    then /y was replaced and /empty made, which "s1" alone knows."""
    with SimCluster(tmp_path / "sim", slaves=3, copies=3) as made:
        cloud = made.client()
        for path in ("/x", "/y", "/z"):
            made.wait(cloud.write(path, b"old"))
        made.wait(cloud.mkdir("/gone"))
        made.advance(30)
        made.kill_slave("s3")
        made.advance(15)
        made.wait(cloud.rm("/x"))
        made.wait(cloud.rm("/gone"))
        made.advance(15)
        made.kill_slave("s2")
        made.advance(15)
        made.wait(cloud.write("/y", b"new"))
        made.wait(cloud.mkdir("/empty"))
        made.advance(15)
        made.kill_slave("s1")
        made.kill_master()
        for file in (made.root / "master").glob("master.db*"):
            file.unlink()
        made.start_master(rebuild=True, rebuild_wait_s=60.0)
        yield made


def content(sim: SimCluster) -> dict[str, bytes]:
    """What users see; directories have none."""
    cloud = sim.client()
    found = sim.wait(cloud.ls("/", recursive=True))
    return {one.path: sim.wait(cloud.read(one.path)) if one.kind == "file" else b"" for one in found}


def test_a_rebuild_does_not_end_without_any_slave(sim: SimCluster) -> None:
    sim.advance(200)
    assert sim.up().hub.state == "rebuilding"
    sim.start_slave("s1")
    sim.until(lambda: sim.up().hub.state == "running", 30)
    assert content(sim) == {"/y": b"new", "/z": b"old", "/empty": b""}


@pytest.mark.parametrize("restarted", [False, True])
def test_who_comes_later_counts_as_in_the_rebuild(sim: SimCluster, restarted: bool) -> None:
    """Its tombstones, its newer content and its directories, also after a restart of the master."""
    sim.advance(70)
    sim.start_slave("s3")
    sim.until(lambda: sim.up().hub.state == "running", 30)
    assert content(sim) == {"/x": b"old", "/y": b"old", "/z": b"old", "/gone": b""}
    sim.wait(sim.client().write("/z", b"newest"))
    sim.wait(sim.client().write("/later", b"1"))
    if restarted:
        sim.kill_master()
        sim.start_master()
    sim.advance(20)
    assert sim.wait(sim.client().status()).counters["slaves_awaited"] == 2
    sim.start_slave("s1")
    sim.advance(30)
    wanted = {"/y": b"new", "/z": b"newest", "/later": b"1", "/empty": b""}
    assert content(sim) == wanted
    sim.start_slave("s2")
    sim.advance(60)
    assert content(sim) == wanted
    status = sim.wait(sim.client().status())
    assert status.counters["slaves_awaited"] == 0 and all(n["reported"] for n in status.nodes.values())
    for slave in sim.slaves.values():
        assert slave.native("/y").read_bytes() == b"new" and not slave.native("/x").exists()
        assert slave.service is not None
        mirror = slave.service.disk.mirror
        assert list(mirror.directories) == ["/empty"] and "/x" in mirror.tombstones
    sim.wait(sim.client().write("/y", b"next"))
    sim.advance(30)
    assert all(slave.native("/y").read_bytes() == b"next" for slave in sim.slaves.values())


def test_what_users_did_since_stands(sim: SimCluster) -> None:
    """A slave that comes after a rebuild takes back nothing that was written, removed or moved meanwhile."""
    sim.advance(70)
    sim.start_slave("s3")
    sim.until(lambda: sim.up().hub.state == "running", 30)
    cloud = sim.client()
    sim.wait(cloud.rm("/y"))
    sim.wait(cloud.mv("/z", "/moved"))
    sim.wait(cloud.rm("/x"))
    sim.wait(cloud.mkdir("/x"))
    sim.wait(cloud.write("/x/f", b"f"))
    for name in ("s1", "s2"):
        sim.start_slave(name)
        sim.advance(30)
    assert content(sim) == {"/moved": b"old", "/x": b"", "/x/f": b"f", "/empty": b""}


def test_who_is_taken_off_the_list_is_awaited_no_longer(sim: SimCluster) -> None:
    sim.advance(70)
    sim.start_slave("s3")
    sim.until(lambda: sim.up().hub.state == "running", 30)
    for name, left in (("s1", 1), ("s2", 0)):
        sim.up().remove_node(f"slave:{name}")
        sim.advance(2)
        assert sim.wait(sim.client().status()).counters["slaves_awaited"] == left
    sim.kill_master()
    sim.start_master()
    assert not sim.up().hub.awaited
