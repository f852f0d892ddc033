"""Between the master's commit and the slave's disk: lost answers, full disks, slaves that come back late."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sector import errors
from sector.slave.mirror import Part
from sector.slave.service import Slave
from sector.testing.cluster import SimCluster
from sector.wire.slave import Publish, Replicated


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[SimCluster]:
    """One slave."""
    with SimCluster(tmp_path / "sim", slaves=1, copies=1) as cluster:
        yield cluster


def only(sim: SimCluster) -> Slave:
    service = sim.slaves["s1"].service
    assert service is not None
    return service


@pytest.mark.parametrize("size", [1000, 3 << 20])
@pytest.mark.parametrize("slaves", [1, 2])
def test_all_bytes_are_synced_before_they_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, slaves: int
) -> None:
    """Those of a put before the master hears of it, those of a replica before its target says that it is
    there. The transfer itself syncs large files only."""
    synced: set[tuple[int, int]] = set()
    told: list[tuple[bool, bool]] = []
    asked: list[bool] = []
    real = os.fsync

    def spy(fd: int) -> None:
        real(fd)
        info = os.fstat(fd)
        synced.add((info.st_ino, info.st_size))

    def watch(service: Slave) -> None:
        call, receive = service.transfers._master_call, service.transfers._data.receive_file

        async def told_of(request: Any, **options: Any) -> Any:
            if isinstance(request, Publish | Replicated):
                disk = service.disk
                (record,) = disk.prepared.values() if isinstance(request, Publish) else disk.entries.values()
                told.append((isinstance(request, Publish), (record.inode, size) in synced))
            return await call(request, **options)

        def receiving(*arguments: Any, **options: Any) -> Any:
            asked.append(options["fsync"])
            return receive(*arguments, **options)

        monkeypatch.setattr(service.transfers, "_master_call", told_of)
        monkeypatch.setattr(service.transfers._data, "receive_file", receiving)

    monkeypatch.setattr(os, "fsync", spy)
    with SimCluster(tmp_path / "copies", slaves=slaves, copies=slaves) as cluster:
        for slave in cluster.slaves.values():
            assert slave.service is not None
            watch(slave.service)
        cluster.wait(cluster.client().write("/a", b"x" * size))
        cluster.until(lambda: len(told) == slaves)
    assert told == [(True, True), (False, True)][:slaves]
    assert asked == [size > 1 << 20] * slaves


def test_a_full_master_does_not_take_a_commit_back(sim: SimCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a commit is lost; asked again, the master has no room to write anything. The client reads
    in the namespace that the put is done: the slave must still have it."""
    transfers = only(sim).transfers
    real = transfers._master_call
    asked: list[Publish] = []

    async def call(request: Any, **options: Any) -> Any:
        if isinstance(request, Publish):
            asked.append(request)
            if len(asked) == 1:
                await real(request, **options)
                raise errors.TimedOut("the answer was lost")
            if len(asked) == 2:
                raise errors.NoSpace("the disk of the master's database is full")
        return await real(request, **options)

    monkeypatch.setattr(transfers, "_master_call", call)
    cloud = sim.client()
    sim.wait(cloud.write("/a", b"precious"))
    assert len(asked) == 3
    assert sim.wait(cloud.read("/a")) == b"precious"


def test_a_full_master_refuses_what_it_never_committed(
    sim: SimCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfers = only(sim).transfers
    real = transfers._master_call

    async def call(request: Any, **options: Any) -> Any:
        if isinstance(request, Publish):
            raise errors.NoSpace("the disk of the master's database is full")
        return await real(request, **options)

    monkeypatch.setattr(transfers, "_master_call", call)
    with pytest.raises(errors.NoSpace, match="disk of the slave is full"):
        sim.wait(sim.client().write("/a", b"x"))
    assert only(sim).disk.prepared == {}
    assert os.listdir(sim.slaves["s1"].root / ".sector" / "tmp") == []


def test_a_commit_outlives_its_lease(sim: SimCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slave was killed after the commit and comes back days later, when the master has forgotten the
    lease; what it has not yet made visible is the file."""

    def killed(*_: Any) -> None:
        sim.kill_slave("s1")
        raise errors.LocalIO("killed")

    monkeypatch.setattr(only(sim).disk, "publish_thd", killed)
    cloud = sim.client()
    cloud.write("/a", b"precious").addErrback(lambda _: None)
    sim.until(lambda: sim.slaves["s1"].service is None)
    sim.wait(sim.up().hub.store.write(lambda tx: tx.expire_leases(sim.wall() + 3 * 86400)))
    sim.start_slave("s1")
    sim.advance(10)
    assert sim.wait(sim.client("bob").read("/a")) == b"precious"


def test_a_full_disk_gets_room_by_what_is_removed(sim: SimCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """No byte is left for the tombstone until the file is gone."""
    cloud = sim.client()
    sim.wait(cloud.write("/a", bytes(1 << 20)))
    disk = only(sim).disk
    real = disk.mirror._append

    def append(part: Part) -> None:
        if sim.serving("/a"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(part)

    monkeypatch.setattr(disk.mirror, "_append", append)
    sim.wait(cloud.rm("/a"))
    sim.advance(5)
    assert sim.serving("/a") == []
    assert "/a" in disk.mirror.tombstones


def test_a_full_disk_gets_room_although_a_rename_waits_for_it(
    sim: SimCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No byte is left for the record under the new name: what is removed goes first, but nothing under a name
    whose content is to move away."""
    cloud = sim.client()
    sim.wait(cloud.write("/a", b"a"))
    sim.wait(cloud.write("/b", b"b"))
    sim.wait(cloud.write("/large", bytes(1 << 20)))
    disk = only(sim).disk
    real = disk._write_record

    def write(record: Any) -> None:
        if sim.serving("/large"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(record)

    monkeypatch.setattr(disk, "_write_record", write)
    sim.wait(cloud.mv("/b", "/c"))
    sim.wait(cloud.mv("/a", "/b"))
    sim.advance(40)
    assert sim.serving("/c") == []
    sim.wait(cloud.rm("/large"))
    sim.advance(40)
    assert sim.serving("/large") == []
    assert [sim.wait(cloud.read(path)) for path in ("/b", "/c")] == [b"a", b"b"]


@pytest.mark.parametrize("writer", ["waits", "is gone"])
def test_what_was_complete_when_everything_ended_takes_no_room_for_ever(
    sim: SimCluster, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    """The power fails while a slave with complete content waits for its master: it goes once its writer has
    begun anew, or has not come back."""
    transfers = only(sim).transfers
    real = transfers._master_call

    async def call(request: Any, **options: Any) -> Any:
        if isinstance(request, Publish):
            raise errors.Unreachable("the master is away")
        return await real(request, **options)

    monkeypatch.setattr(transfers, "_master_call", call)
    client = sim.client()
    writing = client.write("/a", b"x" * 1000)
    writing.addErrback(lambda _: None)
    sim.until(lambda: only(sim).disk.prepared)
    sim.kill_master()
    sim.advance(2)
    sim.kill_slave("s1")
    if writer == "is gone":
        sim.wait(client.gmp.stop())
    sim.advance(1)
    sim.start_master()
    sim.start_slave("s1")
    sim.advance(300)
    assert sim.serving("/a") == (["s1"] if writer == "waits" else [])
    assert only(sim).disk.prepared == {}
    assert os.listdir(sim.slaves["s1"].root / ".sector" / "tmp") == []
    kept = [name for _, _, names in os.walk(sim.slaves["s1"].root / ".sector" / "meta") for name in names]
    assert len(kept) == len(sim.serving("/a"))
