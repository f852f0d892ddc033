"""Transfers that break off go on where they were: puts and copies, over bad lines and restarts of slaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.internet.defer import Deferred

from sector.client.cloud import CloudClient
from sector.client.progress import Progress
from sector.model import BLOCK_BYTES
from sector.testing.cluster import SimCluster, SimSlave, write_random

MB = 1_000_000


@pytest.fixture
def sim(tmp_path: Path, seed: int) -> Iterator[SimCluster]:
    """Two slaves that do not copy, and a master."""
    with SimCluster(tmp_path / "sim", slaves=2, copies=1, seed=seed) as cluster:
        yield cluster


def cut(sim: SimCluster) -> int:
    """Break every transfer under way as a dead line does; how many there were."""
    count = 0
    for slave in sim.slaves.values():
        for side in list(slave.data.transfers if slave.data else ()):
            if side.peer is not None:
                for end in (side, side.peer):
                    end.fail("BROKEN", "connection broken: the peer fell silent")
                count += 1
    return count


def writer_of(sim: SimCluster) -> SimSlave:
    """The slave that receives now."""
    return next(s for s in sim.slaves.values() if s.service and s.service.core.open)


def die(sim: SimCluster, cloud: CloudClient) -> None:
    """The client's process is killed."""
    sim.net.broken.add(cloud.data.address[1])
    cloud.session.call = lambda *args, **options: Deferred()  # type: ignore[method-assign,assignment]


def temps(sim: SimCluster) -> list[str]:
    """What lies in the temporary folders of all slaves."""
    return [p.name for s in sim.slaves.values() for p in (s.root / ".sector/tmp").iterdir()]


def test_put_over_a_line_that_breaks_often(sim: SimCluster, tmp_path: Path) -> None:
    """Every 2 MB, as a middlebox does: each time it goes on at the block where it was, the content and its
    digest are right, and nothing is left behind."""
    cloud = sim.client()
    content = write_random(tmp_path / "a", 30 * MB)
    progress = Progress()
    putting = cloud.put(tmp_path / "a", "/a", progress=progress)
    breaks = 0
    while breaks < 12:
        at = progress.bytes_done
        sim.until(lambda at=at: progress.bytes_done > at + 2 * MB)
        breaks += cut(sim)
    summary = sim.wait(putting)
    assert sum(sim.net.moved.values()) < 30 * MB + 12 * BLOCK_BYTES
    assert summary.files[0].digest == sim.wait(cloud.stat("/a")).digest
    sim.wait(cloud.get("/a", tmp_path / "b"))
    assert (tmp_path / "b").read_bytes() == content
    assert len(summary.notes) == 12 and all("continued at" in note for note in summary.notes)
    assert temps(sim) == []


@pytest.mark.parametrize("clean", [True, False])
def test_put_goes_on_when_its_slave_is_back(sim: SimCluster, tmp_path: Path, clean: bool) -> None:
    """Stopped or killed in the middle and started again: the same slave goes on with what it has."""
    cloud = sim.client()
    content = write_random(tmp_path / "a", 40 * MB)
    sim.net.bytes_per_s = 2e6
    progress = Progress()
    putting = cloud.put(tmp_path / "a", "/a", progress=progress)
    sim.until(lambda: progress.bytes_done > 30 * MB)
    slave = writer_of(sim)
    before = sum(sim.net.moved.values())
    (sim.stop_slave if clean else sim.kill_slave)(slave.name)
    sim.advance(1)
    sim.start_slave(slave.name)
    summary = sim.wait(putting)
    assert sum(sim.net.moved.values()) - before < 10 * MB + 2 * BLOCK_BYTES
    assert summary.files[0].node == slave.name
    assert slave.native("/a").read_bytes() == content
    assert temps(sim) == []


def test_a_part_with_other_bytes_is_not_gone_on_with(sim: SimCluster, tmp_path: Path) -> None:
    """What lies at the slave is compared: the put goes on where the bytes begin to differ."""
    cloud = sim.client()
    content = write_random(tmp_path / "a", 30 * MB)
    progress = Progress()
    putting = cloud.put(tmp_path / "a", "/a", progress=progress)
    sim.until(lambda: progress.bytes_done > 20 * MB)
    slave = writer_of(sim)
    part = next((slave.root / ".sector/tmp").iterdir())
    with part.open("r+b") as file:
        file.seek(7 * BLOCK_BYTES + 5)
        file.write(b"rotten")
    cut(sim)
    summary = sim.wait(putting)
    assert slave.native("/a").read_bytes() == content
    assert "continued at 7.3 MB" in summary.notes[0]


def test_a_slave_that_stays_away_is_not_waited_for_longer_than_sending_takes(
    sim: SimCluster, tmp_path: Path
) -> None:
    """The other one gets the file from its beginning."""
    cloud = sim.client()
    content = write_random(tmp_path / "a", 30 * MB)
    progress = Progress()
    putting = cloud.put(tmp_path / "a", "/a", progress=progress)
    sim.until(lambda: progress.bytes_done > 20 * MB)
    slave = writer_of(sim)
    began = sim.clock.seconds()
    sim.kill_slave(slave.name)
    summary = sim.wait(putting)
    assert sim.clock.seconds() - began < 20
    assert summary.files[0].node != slave.name
    assert "began anew" in summary.notes[0]
    assert sim.wait(cloud.read("/a")) == content


def test_a_part_that_nobody_comes_for_goes(sim: SimCluster, tmp_path: Path) -> None:
    """A client that was killed: its part takes room for some minutes, no longer, over a restart too."""
    for restart in (False, True):
        cloud = sim.client()
        write_random(tmp_path / "a", 30 * MB)
        progress = Progress()
        putting = cloud.put(tmp_path / "a", "/a", progress=progress)
        putting.addErrback(lambda _: None)
        sim.until(lambda progress=progress: progress.bytes_done > 10 * MB)
        slave = writer_of(sim)
        die(sim, cloud)
        sim.advance(15)
        assert len(temps(sim)) == 1
        if restart:
            sim.stop_slave(slave.name)
            sim.start_slave(slave.name)
            sim.advance(15)
            assert len(temps(sim)) == 1
        sim.advance(320, step=0.1)
        assert temps(sim) == []
        sim.net.broken.clear()


def test_a_part_gives_its_room_to_other_files(
    sim: SimCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that has no room beside it: what waits in vain is removed first."""
    cloud = sim.client()
    write_random(tmp_path / "a", 30 * MB)
    progress = Progress()
    putting = cloud.put(tmp_path / "a", "/a", progress=progress)
    putting.addErrback(lambda _: None)
    sim.until(lambda: progress.bytes_done > 10 * MB)
    slave = writer_of(sim)
    die(sim, cloud)
    sim.advance(15)
    assert slave.service is not None
    room = 40 * MB
    disk = slave.service.disk
    monkeypatch.setattr(
        disk,
        "_free",
        lambda info: room - sum(p.stat().st_blocks * 512 for p in Path(disk.root, ".sector/tmp").iterdir()),
    )
    for other in sim.slaves.values():
        if other is not slave:
            sim.stop_slave(other.name)
    fresh = sim.client()
    write_random(tmp_path / "b", 20 * MB)
    assert sim.wait(fresh.put(tmp_path / "b", "/b")).bytes == 20 * MB


def test_copies_go_on_where_they_broke(tmp_path: Path, seed: int) -> None:
    """A copy to another slave over a bad line: what has arrived is not sent again."""
    with SimCluster(tmp_path / "sim", slaves=2, copies=2, seed=seed) as sim:
        cloud = sim.client()
        content = write_random(tmp_path / "a", 30 * MB)
        sim.wait(cloud.put(tmp_path / "a", "/a"))
        sim.net.moved.clear()
        for at in (5, 12, 20):
            sim.until(lambda at=at: sum(sim.net.moved.values()) > at * MB)
            assert cut(sim)
        sim.wait(cloud.replicate("/a", wait=True))
        assert sum(sim.net.moved.values()) < 30 * MB + 4 * BLOCK_BYTES
        for slave in sim.slaves.values():
            assert slave.native("/a").read_bytes() == content
        assert temps(sim) == []


def test_a_killed_get_is_gone_on_with(sim: SimCluster, tmp_path: Path) -> None:
    """The next get of the same version to the same place takes over what is there; what was changed in
    between is noticed by the digest, and costs the whole file."""
    cloud = sim.client()
    content = write_random(tmp_path / "a", 30 * MB)
    sim.wait(cloud.put(tmp_path / "a", "/a"))
    here = tmp_path / "here"
    here.mkdir()
    for damaged in (False, True):
        version = sim.wait(cloud.stat("/a")).version
        part = here / f".b.{version.epoch}-{version.counter}.part"
        part.write_bytes(content[: 20 * MB])
        if damaged:
            with part.open("r+b") as file:
                file.write(b"other bytes")
        sim.net.moved.clear()
        summary = sim.wait(cloud.get("/a", here / "b"))
        assert (here / "b").read_bytes() == content
        assert [p.name for p in here.iterdir()] == ["b"]
        assert "continued at 19.9 MB" in summary.notes[0]
        rest = 30 * MB - 19 * BLOCK_BYTES
        assert sum(sim.net.moved.values()) == (rest + 30 * MB if damaged else rest)
        (here / "b").unlink()


def test_two_gets_to_one_place_do_not_share_a_part(sim: SimCluster, tmp_path: Path) -> None:
    """Each has its own; a link or a file of two names under that name is left alone."""
    cloud = sim.client()
    content = write_random(tmp_path / "a", 30 * MB)
    sim.wait(cloud.put(tmp_path / "a", "/a"))
    here = tmp_path / "here"
    here.mkdir()
    both = [cloud.get("/a", here / "b"), cloud.get("/a", here / "b")]
    sim.until(lambda: len(list(here.glob(".b.*.part"))) == 2)
    for getting in both:
        sim.wait(getting)
    assert (here / "b").read_bytes() == content
    assert [p.name for p in here.iterdir()] == ["b"]
    version = sim.wait(cloud.stat("/a")).version
    part = here / f".b.{version.epoch}-{version.counter}.part"
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    for plant in (part.symlink_to, part.hardlink_to):
        plant(victim)
        sim.wait(cloud.get("/a", here / "b"))
        assert victim.read_bytes() == b"mine"
        assert (here / "b").read_bytes() == content
        part.unlink()


def test_get_waits_for_the_only_slave_that_has_the_file(sim: SimCluster, tmp_path: Path) -> None:
    """Restarted in the middle: the get goes on with it when it is back, not longer away than it took."""
    cloud = sim.client()
    content = write_random(tmp_path / "a", 40 * MB)
    sim.wait(cloud.put(tmp_path / "a", "/a"))
    name = sim.serving("/a")[0]
    sim.net.bytes_per_s = 1e6
    sim.net.moved.clear()
    progress = Progress()
    getting = cloud.get("/a", tmp_path / "b", progress=progress)
    sim.until(lambda: progress.bytes_done > 30 * MB)
    sim.kill_slave(name)
    sim.advance(25)
    sim.start_slave(name)
    sim.wait(getting)
    assert (tmp_path / "b").read_bytes() == content
    assert sum(sim.net.moved.values()) < 40 * MB + 2 * BLOCK_BYTES
