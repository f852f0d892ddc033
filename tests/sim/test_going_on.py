"""Transfers that break off go on where they were: puts and copies, over bad lines and restarts of slaves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from sector import errors
from sector.client.cloud import CloudClient
from sector.client.progress import Progress
from sector.client.unfinished import Unfinished
from sector.model import BLOCK_BYTES
from sector.slave.room import PART_S
from sector.testing.cluster import SimCluster, SimSlave, write_random
from sector.testing.data import SimTransfer
from sector.wire.files import LeaseKeep, LeaseState

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


def die(sim: SimCluster, cloud: CloudClient, folder: Path | None = None) -> None:
    """The client's process is killed; the locks of the dead are freed."""
    sim.net.broken.add(cloud.data.address[1])
    cloud.session.call = lambda *args, **options: Deferred()  # type: ignore[method-assign,assignment]
    for note in (folder / "puts").iterdir() if folder is not None else ():
        body = note.read_bytes()
        note.unlink()
        note.write_bytes(body)


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
        sim.advance(PART_S + 20, step=0.2)
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


@pytest.mark.parametrize("slaves", [2, 5])
def test_copies_go_on_where_they_broke(tmp_path: Path, seed: int, slaves: int) -> None:
    """A copy to another slave over a bad line: what has arrived is not sent again, wherever there is room."""
    with SimCluster(tmp_path / "sim", slaves=slaves, copies=2, seed=seed) as sim:
        cloud = sim.client()
        content = write_random(tmp_path / "a", 30 * MB)
        sim.wait(cloud.put(tmp_path / "a", "/a"))
        sim.net.moved.clear()
        for at in (5, 12, 20):
            sim.until(lambda at=at: sum(sim.net.moved.values()) > at * MB)
            assert cut(sim)
        sim.wait(cloud.replicate("/a", wait=True))
        assert sum(sim.net.moved.values()) < 30 * MB + 4 * BLOCK_BYTES
        for name in sim.serving("/a"):
            assert sim.slaves[name].native("/a").read_bytes() == content
        assert len(sim.serving("/a")) == 2
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


def remembering(sim: SimCluster, folder: Path) -> CloudClient:
    """A client that knows of puts that were killed."""
    client = sim.client()
    client.link = replace(client.link, unfinished=Unfinished(folder / "puts"))
    return client


@pytest.mark.parametrize("changed_at", [None, 0, 20 * MB])
def test_a_killed_put_is_gone_on_with(sim: SimCluster, tmp_path: Path, changed_at: int | None) -> None:
    """The same file to the same place, by another process: neither the lease of the dead one nor what has
    arrived stands in its way. A file that was changed since is sent from there."""
    content = write_random(tmp_path / "a", 40 * MB)
    first = remembering(sim, tmp_path)
    progress = Progress()
    putting = first.put(tmp_path / "a", "/a", progress=progress)
    putting.addErrback(lambda _: None)
    sim.until(lambda: progress.bytes_done > 30 * MB)
    node = writer_of(sim).name
    die(sim, first, tmp_path)
    sim.advance(3)
    if changed_at is not None:
        content = content[:changed_at] + b"changed" + content[changed_at + 7 :]
        (tmp_path / "a").write_bytes(content)
    sim.net.moved.clear()
    second = remembering(sim, tmp_path)
    began = sim.clock.seconds()
    summary = sim.wait(second.put(tmp_path / "a", "/a"))
    assert sim.clock.seconds() - began < 10
    assert sim.wait(second.read("/a")) == content
    same = 30 * MB if changed_at is None else changed_at
    assert sim.net.moved[second.data.address[1]] < 40 * MB - same + 2 * BLOCK_BYTES
    if same:
        assert summary.files[0].node == node
        assert "where an earlier put ended" in summary.notes[0]
    assert summary.files[0].digest == sim.wait(second.stat("/a")).digest
    assert list((tmp_path / "puts").iterdir()) == []


@pytest.mark.parametrize("size", [18 * MB + 5, 20 * BLOCK_BYTES, 60 * MB])
def test_a_file_that_became_shorter_or_longer_is_gone_on_with(
    sim: SimCluster, tmp_path: Path, size: int
) -> None:
    """Between a put that was killed at 30 of 40 MB and the next one."""
    content = write_random(tmp_path / "a", 40 * MB)
    first = remembering(sim, tmp_path)
    progress = Progress()
    putting = first.put(tmp_path / "a", "/a", progress=progress)
    putting.addErrback(lambda _: None)
    sim.until(lambda: progress.bytes_done > 30 * MB)
    die(sim, first, tmp_path)
    content = (content * 2)[:size]
    (tmp_path / "a").write_bytes(content)
    sim.net.moved.clear()
    second = remembering(sim, tmp_path)
    summary = sim.wait(second.put(tmp_path / "a", "/a"))
    assert [note for note in summary.notes if "ended" not in note] == []
    assert sim.wait(second.read("/a")) == content
    assert sim.net.moved.get(second.data.address[1], 0) <= max(0, size - 30 * MB) + BLOCK_BYTES
    assert temps(sim) == []


def test_a_put_that_lives_is_not_disturbed_by_a_second_one(sim: SimCluster, tmp_path: Path) -> None:
    """The second is refused as ever, and the first ends well."""
    content = write_random(tmp_path / "a", 40 * MB)
    first, second = remembering(sim, tmp_path), remembering(sim, tmp_path)
    progress = Progress()
    putting = first.put(tmp_path / "a", "/a", progress=progress)
    sim.until(lambda: progress.bytes_done > 20 * MB)
    with pytest.raises(errors.LeaseHeld):
        sim.wait(second.put(tmp_path / "a", "/a"))
    assert not sim.wait(putting).notes
    assert sim.wait(second.read("/a")) == content
    assert list((tmp_path / "puts").iterdir()) == []


def test_a_get_that_fails_for_want_of_slaves_keeps_what_has_come(sim: SimCluster, tmp_path: Path) -> None:
    """The error says so, and the same get goes on with it when they are back; what is cancelled leaves
    nothing."""
    cloud = sim.client()
    content = write_random(tmp_path / "a", 40 * MB)
    sim.wait(cloud.put(tmp_path / "a", "/a"))
    name = sim.serving("/a")[0]
    here = tmp_path / "here"
    here.mkdir()
    progress = Progress()
    getting = cloud.get("/a", here / "b", progress=progress)
    sim.until(lambda: progress.bytes_done > 30 * MB)
    sim.kill_slave(name)
    with pytest.raises(errors.Unavailable) as told:
        sim.wait(getting)
    assert "the same command goes on with it" in told.value.hint
    sim.start_slave(name)
    sim.advance(5)
    sim.net.moved.clear()
    sim.wait(cloud.get("/a", here / "b"))
    assert (here / "b").read_bytes() == content
    assert sum(sim.net.moved.values()) < 10 * MB + 2 * BLOCK_BYTES
    assert [p.name for p in here.iterdir()] == ["b"]
    again = cloud.get("/a", here / "c")
    sim.until(lambda: any(p.stat().st_size > 10 * MB for p in here.glob(".c.*.part")))
    again.cancel()
    with pytest.raises((errors.Cancelled, CancelledError)):
        sim.wait(again)
    assert [p.name for p in here.iterdir()] == ["b"]


@pytest.mark.parametrize("late", [False, True])
def test_a_put_whose_confirmation_is_lost_has_succeeded(
    sim: SimCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """The slave published it and the line died before its last word; `late`: between the question what became
    of the lease and the next attempt."""
    cloud = sim.client()
    content = write_random(tmp_path / "a", 20 * MB)
    monkeypatch.setattr(SimTransfer, "finish", silent(SimTransfer.finish))
    if late:
        real = cloud.session.call
        first = [True]

        async def call(request: Any, **options: Any) -> Any:
            reply = await real(request, **options)
            if isinstance(request, LeaseKeep) and first and reply.state == "published":
                first.clear()
                return LeaseState("open", 60.0, reply.version)
            return reply

        cloud.session.call = call  # type: ignore[method-assign]
    summary = sim.wait(cloud.put(tmp_path / "a", "/a"))
    assert "published all the same" in summary.notes[0]
    assert summary.files[0].digest == sim.wait(cloud.stat("/a")).digest
    monkeypatch.undo()
    assert sim.wait(cloud.read("/a")) == content


def silent(finish: Any) -> Any:
    """The receiver's last word goes nowhere, and both ends hear of a broken line."""

    def lost(self: SimTransfer, **what: Any) -> None:
        peer = self.peer
        if self.ended or peer is None:
            return
        for side in (self, peer):
            side.fail("BROKEN", "connection broken: the peer fell silent")

    return lost
