"""Replicas in doubt: one failed read costs none, and a good one counts again whatever was said of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sector import errors
from sector._udt import checksum
from sector.master import namespace
from sector.slave import beneath
from sector.slave.service import Slave
from sector.testing.cluster import SimCluster
from sector.wire import files


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[SimCluster]:
    """One slave with the only replica of /a."""
    with SimCluster(tmp_path / "sim", slaves=1, copies=1, scrub_days=0) as made:
        made.wait(made.client().write("/a", b"content"))
        yield made


def kept(sim: SimCluster) -> bool:
    """Whether the replica is where it was, and readers get it."""
    cloud = sim.client()
    service = sim.slaves["s1"].service
    assert isinstance(service, Slave)
    assert not os.listdir(Path(service.disk.root, ".sector/attic"))
    assert sim.wait(cloud.stat("/a")).replicas == ["s1"]
    return sim.wait(cloud.read("/a")) == b"content"


def report_bad(sim: SimCluster) -> None:
    cloud = sim.client()
    version = sim.wait(cloud.stat("/a")).version
    sim.wait(cloud.session.call(files.ReportBad("/a", version, "s1", "unreadable")))


def bad(sim: SimCluster) -> list[bool]:
    rows = sim.wait(sim.up().hub.store.read(lambda tx: tx.replicas("/a")))
    return [row.bad for row in rows]


def now_bad(sim: SimCluster) -> None:
    """The slave once said that its replica was bad."""
    version = sim.wait(sim.client().stat("/a")).version
    sim.wait(sim.up().hub.store.write(lambda tx: namespace.replica_bad(tx, "s1", "/a", version)))
    assert bad(sim) == [True]


def test_a_read_that_fails_once_costs_no_replica(sim: SimCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failed = checksum.block_crcs, []

    def once(*args: Any) -> Any:
        if not failed:
            failed.append(args)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*args)

    monkeypatch.setattr(checksum, "block_crcs", once)
    with suppress(errors.SectorError):
        sim.wait(sim.client().read("/a"))
    assert failed
    sim.advance(20)
    assert kept(sim)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_a_disk_that_fails_for_a_moment_costs_no_replica(
    sim: SimCluster, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A reader has said that it could not read it, and the slave looks at it when it can open nothing."""
    real, tries = beneath.open_beneath, []

    def refused(root: int, path: str, flags: int, mode: int = 0o644) -> int:
        if path == "/a":
            tries.append(path)
            raise OSError(number, os.strerror(number))
        return real(root, path, flags, mode)

    with monkeypatch.context() as full:
        full.setattr(beneath, "open_beneath", refused)
        report_bad(sim)
        sim.advance(3)
        assert tries
    sim.advance(20)
    assert kept(sim)


def test_a_replica_that_is_bad_each_time_goes(sim: SimCluster) -> None:
    native = sim.slaves["s1"].native("/a")
    stamp = native.stat()
    with native.open("r+b") as file:
        file.write(b"ROT")
    os.utime(native, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    report_bad(sim)
    sim.advance(20)
    assert not native.exists()
    assert sim.wait(sim.client().stat("/a")).replicas == []


def test_a_damaged_record_alone_is_written_anew(sim: SimCluster) -> None:
    service = sim.slaves["s1"].service
    assert isinstance(service, Slave)
    Path(service.disk._record_file(service.disk.entries["/a"])).write_bytes(b"{")
    report_bad(sim)
    sim.advance(20)
    assert kept(sim)


@pytest.mark.parametrize("how", ["report", "reader"])
def test_a_good_replica_that_was_said_to_be_bad_counts_again(sim: SimCluster, how: str) -> None:
    """Its disk was away when the slave looked, and is back."""
    now_bad(sim)
    if how == "report":
        sim.stop_slave("s1")
        sim.start_slave("s1")
    else:
        report_bad(sim)
    sim.advance(20)
    assert bad(sim) == [False]
    assert kept(sim)


def test_one_that_is_still_bad_goes_when_it_is_reported(sim: SimCluster) -> None:
    now_bad(sim)
    sim.stop_slave("s1")
    native = sim.slaves["s1"].native("/a")
    stamp = native.stat()
    with native.open("r+b") as file:
        file.write(b"ROT")
    os.utime(native, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    sim.start_slave("s1")
    sim.advance(20)
    assert not native.exists() and bad(sim) == [True]
