"""Bits that rot at rest: who finds them, and from where the file is repaired."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred

from sector.master import placement
from sector.master.replication import CopyRule, CopyRules
from sector.testing.cluster import SimCluster

SIZE = 20 << 20  # beyond what a slave reads before it sends


def test_a_copy_from_a_rotten_replica_condemns_it(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target finds out; the source then looks at its own disk, and does not go on as a good replica and
    as the source of the next try."""
    content = os.urandom(1 << 20) * (SIZE >> 20)
    real = placement.for_source

    def rotten_first(holders: Any, **options: Any) -> list[str]:
        return sorted(real(holders, **options), key=lambda name: name != "s1")

    monkeypatch.setattr(placement, "for_source", rotten_first)
    with SimCluster(tmp_path / "sim", slaves=3, copies=2, seed=seed) as sim:
        cloud = sim.client()
        sim.kill_slave("s3")
        sim.advance(15)
        sim.wait(cloud.write("/a", content))
        sim.until(lambda: len(sim.wait(cloud.stat("/a")).replicas) == 2)
        native = sim.slaves["s1"].native("/a")
        stamp = native.stat()
        with open(native, "r+b") as file:
            os.pwrite(file.fileno(), b"\xff\x00\xff\x00", SIZE - 100)
        os.utime(native, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        sim.up().hub.core.new_rules(CopyRules(CopyRule(minimum=3)))
        sim.start_slave("s3")
        sim.advance(120)
        for slave in sim.slaves.values():
            assert slave.native("/a").read_bytes() == content, slave.name
        assert len(os.listdir(sim.slaves["s1"].root / ".sector" / "attic")) == 1


def test_who_finds_a_bad_replica_at_the_same_time_counts_it_once(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second finds it while it is being set aside, the third when it is."""
    with SimCluster(tmp_path / "sim", slaves=1, copies=1, seed=seed) as sim:
        sim.wait(sim.client().write("/a", b"x"))
        service = sim.slaves["s1"].service
        assert service is not None
        version = service.disk.entries["/a"].version
        counted: list[str] = []
        monkeypatch.setattr(service.transfers, "on_bad", lambda path, *_: counted.append(path))
        disk, turn = service.transfers._pool.run, Deferred[None]()

        async def busy(work: Any, *args: Any) -> Any:
            await turn
            return await disk(work, *args)

        monkeypatch.setattr(service.transfers._pool, "run", busy)
        first, second = (ensureDeferred(service.transfers.condemn("/a", version, "rot")) for _ in range(2))
        assert sim.wait(second) is False and not first.called
        turn.callback(None)
        assert sim.wait(first) is True
        assert sim.wait(ensureDeferred(service.transfers.condemn("/a", version, "rot"))) is False
        assert counted == ["/a"]
        assert len(os.listdir(sim.slaves["s1"].root / ".sector" / "attic")) == 1


@pytest.mark.parametrize("offset", [0, 1, (5 << 20) + 7])
def test_a_long_range_is_never_read_with_rot_in_it(tmp_path: Path, offset: int) -> None:
    """More than a slave checks before it sends it, and not the whole file, whose digest tells."""
    with SimCluster(tmp_path / "sim", slaves=2, copies=2, scrub_days=0) as sim:
        cloud = sim.client()
        content = os.urandom(1 << 20) * 40
        sim.wait(cloud.write("/a", content))
        sim.advance(30)
        native = sim.slaves["s1"].native("/a")
        stamp = native.stat()
        with native.open("r+b") as file:
            file.seek(20 << 20)
            file.write(b"rot")
        os.utime(native, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        length = (34 << 20) + 5
        for _ in range(4):
            assert sim.wait(cloud.read_at("/a", offset, length)) == content[offset : offset + length]
        sim.advance(30)
        assert native.read_bytes() == content  # it was found, and copied anew
