"""Slow disks and impatient users: operations that overtake each other on the way to a slave."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from sector import errors
from sector.clock import pause
from sector.slave import service
from sector.testing import cluster
from sector.testing.cluster import SimCluster
from sector.wire.files import ReportBad
from sector.wire.slave import Report


@pytest.fixture
def slow(tmp_path: Path, seed: int) -> Iterator[SimCluster]:
    """Each disk operation takes up to 200 ms."""
    with SimCluster(tmp_path / "sim", seed=seed, disk_s=0.1) as cluster:
        yield cluster


def seen(sim: SimCluster, cloud: Any, path: str) -> bool:
    """Whether the master knows the path already."""
    return bool(sim.wait(cloud.exists(path)))


def test_renamed_between_commit_and_rename(slow: SimCluster) -> None:
    """The master has committed a put, the slave has not yet made it visible, another user moves the file:
    the only replica must not be lost."""
    cloud, other = slow.client(), slow.client("bob")
    writing = cloud.write("/a", b"precious")
    writing.addErrback(lambda _: None)
    slow.until(lambda: seen(slow, other, "/a"))
    slow.wait(other.mv("/a", "/b"))
    assert slow.wait(other.read("/b")) == b"precious"
    slow.advance(60)
    assert slow.wait(other.read("/b")) == b"precious"
    assert len(slow.serving("/b")) == 3
    assert slow.serving("/a") == []


def test_read_between_commit_and_rename(slow: SimCluster) -> None:
    """A reader that is faster than the slave's disk waits; the replica is not taken for lost."""
    cloud, other = slow.client(), slow.client("bob")
    writing = cloud.write("/a", b"fresh")
    slow.until(lambda: seen(slow, other, "/a"))
    assert slow.wait(other.read("/a")) == b"fresh"
    slow.wait(writing)
    assert slow.wait(other.stat("/a")).replicas != []


def test_deleted_between_commit_and_rename(slow: SimCluster) -> None:
    cloud, other = slow.client(), slow.client("bob")
    writing = cloud.write("/a", b"short life")
    writing.addErrback(lambda _: None)
    slow.until(lambda: seen(slow, other, "/a"))
    slow.wait(other.rm("/a"))
    slow.advance(60)
    assert slow.serving("/a") == []
    assert not seen(slow, other, "/a")


class Journal:
    """What a checker outside of the system knows: acknowledged contents and deletions by path."""

    def __init__(self) -> None:
        self.certain: dict[str, bytes | None] = {}
        self.maybe: dict[str, set[bytes | None]] = {}

    def may_be(self, path: str) -> set[bytes | None]:
        """What a read may give."""
        return self.maybe.get(path, set()) | {self.certain.get(path)}


@pytest.mark.parametrize("round_", range(6))
def test_nothing_acknowledged_is_lost(tmp_path: Path, seed: int, round_: int) -> None:
    """Random puts, removes and reads while slaves and the master are killed and started again: every
    acknowledged write is found, every acknowledged removal stays, reads never give a mix."""
    rng = random.Random(seed * 1000 + round_)
    journal = Journal()
    paths = [f"/d/{name}" for name in "abcde"]
    with SimCluster(tmp_path / "sim", slaves=4, seed=rng.randrange(1 << 30), disk_s=0.02) as sim:
        cloud = sim.client()
        sim.wait(cloud.mkdir("/d"))
        down: str | None = None
        for _ in range(60):
            match rng.randrange(12):
                case 0 if down is None:
                    down = rng.choice(list(sim.slaves))
                    sim.kill_slave(down)
                case 1 | 2 if down is not None:
                    sim.start_slave(down)
                    down = None
                    sim.advance(rng.random() * 5)
                case 3 if rng.random() < 0.5:
                    sim.kill_master()
                    sim.advance(rng.random() * 3)
                    sim.start_master()
                    sim.advance(rng.random() * 3)
                case 4 | 5:
                    path = rng.choice(paths)
                    change(sim, journal, path, cloud.rm(path), None)
                case 6 | 7 | 8:
                    path = rng.choice(paths)
                    content = rng.randbytes(rng.choice([0, 10, 1 << 20, 1_500_000]))
                    change(sim, journal, path, cloud.write(path, content), content)
                case _:
                    path = rng.choice(paths)
                    try:
                        assert sim.wait(cloud.read(path)) in journal.may_be(path)
                    except errors.NotFound:
                        assert None in journal.may_be(path)
                    except errors.SectorError:
                        continue
            if rng.random() < 0.3:
                sim.advance(rng.random() * 4)
        if down is not None:
            sim.start_slave(down)
        sim.advance(120)
        fresh = sim.client()
        for path in paths:
            try:
                found: bytes | None = sim.wait(fresh.read(path))
            except errors.NotFound:
                found = None
            assert found in journal.may_be(path), (path, seed, round_)
            if found is not None:
                state = sim.wait(fresh.replicate(path, wait=True))
                assert state.have >= 3


def change(sim: SimCluster, journal: Journal, path: str, work: Deferred[Any], content: bytes | None) -> None:
    """Wait for a change and note what may be true afterwards."""
    try:
        sim.wait(work)
    except errors.NotFound:
        assert content is None
        assert None in journal.may_be(path)
    except errors.SectorError:
        journal.maybe.setdefault(path, set()).add(content)
        return
    journal.certain[path] = content
    journal.maybe.pop(path, None)


def test_reported_replicas_are_read_before_they_are_given_up(tmp_path: Path, seed: int) -> None:
    """A reader says of every replica that it is bad: sound ones stay, the one that is bad gets replaced."""
    with SimCluster(tmp_path / "sim", seed=seed) as sim:
        cloud = sim.client()
        sim.wait(cloud.write("/f", b"x" * 3_000_000))
        sim.until(lambda: len(sim.serving("/f")) == 3)
        version = sim.wait(cloud.stat("/f")).version
        for node in sim.slaves:
            sim.wait(cloud.call(ReportBad("/f", version, node, "I say so")))
        sim.advance(5)
        assert len(sim.serving("/f")) == 3
        assert len(sim.wait(cloud.stat("/f")).replicas) == 3
        native = sim.slaves["s2"].native("/f")
        stamp = native.stat()
        with native.open("r+b") as file:
            file.seek(2_500_000)
            file.write(b"y")
        os.utime(native, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        sim.wait(cloud.call(ReportBad("/f", version, "s2", "checksum")))
        sim.until(lambda: native.is_file() and native.read_bytes() == b"x" * 3_000_000)
        assert len(sim.wait(cloud.stat("/f")).replicas) == 3


def test_a_report_of_many_files_looks_at_each_a_few_times(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 40 parts, while files come and go: complete, and without a scan of the catalogue for each part."""
    scans: list[int] = []
    scan = service.Slave._unsent

    def counted(self: Any, sent: set[tuple[str, Any]]) -> Any:
        scans.append(len(sent))
        return scan(self, sent)

    with SimCluster(tmp_path / "sim", slaves=1, copies=1, seed=seed) as sim:
        cloud = sim.client()
        for number in range(80):
            sim.wait(cloud.write(f"/f{number:02}", b"x"))
        monkeypatch.setattr(service, "_REPORT_FILES", 2)
        monkeypatch.setattr(service.Slave, "_unsent", counted)
        slave = sim.slaves["s1"].service
        assert slave is not None
        slave._spawn(slave._report(), "report")
        sim.wait(cloud.rm("/f79"))
        sim.wait(cloud.mv("/f78", "/g"))
        sim.wait(cloud.write("/f77", b"new"))
        sim.until(lambda: len(scans) > 0)
        sim.advance(5)
        assert len(scans) < 6
        paths = [info.path for info in sim.wait(cloud.ls("/"))]
        assert paths == [f"/f{number:02}" for number in range(78)] + ["/g"]
        assert all(info.replicas == ["s1"] for info in sim.wait(cloud.ls("/")))
        assert sim.wait(cloud.read("/f77")) == b"new"


def test_a_rename_of_many_files_may_take_its_time(slow: SimCluster) -> None:
    """The answer to a rename that is under way is waited for: it must not look refused and happen."""
    cloud = slow.client()
    slow.wait(cloud.write("/d/a", b"x"))
    errands = slow.up().errands
    soon = errands.settled
    errands.settled = lambda serial, limit_s=30.0: pause(slow.clock, 30.0).addCallback(  # type: ignore[method-assign]
        lambda _: soon(serial)
    )
    slow.wait(cloud.mv("/d", "/e"))
    assert slow.wait(cloud.read("/e/a")) == b"x"


def test_a_report_that_stopped_is_asked_for_again_whatever_the_clock_says(
    slow: SimCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of day jumps back in the middle of a report that never ends."""
    slave = slow.slaves["s1"].service
    assert slave is not None
    calls, node = slow.up().slaves, slow.up().hub.core.members.get("s1")
    slow.wait(slave.master_call(Report("s1", True, False, [], [], [], [], 0)))
    node.want_report = True
    assert "s1" in calls._reports
    monkeypatch.setattr(cluster, "EPOCH", cluster.EPOCH - 86400.0)
    slow.until(lambda: "s1" not in calls._reports, limit_s=60.0)
    assert not node.want_report
