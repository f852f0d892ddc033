"""Buckets that are asked for twice at once: the client lost an answer while the slave still writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_sphere import KB, SphereSim, expected_buckets, scatter, store
from twisted.internet.defer import Deferred

from sector.clock import pause
from sector.sphere.stream import SphereStream
from sector.wire.files import LeaseDrop, OpenWrite
from sector.wire.sphere import BucketSeal


@pytest.mark.parametrize("gap_s", [0.05, 0.15, 0.3])
def test_buckets_sealed_twice_are_whole(tmp_path: Path, seed: int, gap_s: float) -> None:
    """The two requests do not take each other's files away; the second answer names what is there."""
    with SphereSim(tmp_path / "sim", slaves=3, copies=1, seed=seed, disk_s=0.1) as sim:
        sim.advance(3)
        cloud = sim.client()
        contents = store(sim, cloud, 4)
        stream = SphereStream(cloud, "/in", record_size=10, granularity="batch")
        driver = sim.job(cloud, stream, scatter, output="/out/b", buckets=4, segment_bytes=20 * KB)
        assert driver.nodes is not None
        real = driver.nodes.call

        def call(node: str, request: Any, **options: Any) -> Any:
            if not isinstance(request, BucketSeal):
                return real(node, request, **options)
            first: Deferred[Any] = real(node, request, **options)
            again = pause(sim.clock, gap_s).addCallback(lambda _: real(node, request, **options))
            return first.addBoth(lambda _: again)

        driver.nodes.call = call  # type: ignore[method-assign]
        sim.wait(driver.wait(), 900)
        assert [sim.wait(cloud.read(f"/out/b.{b}")) for b in range(4)] == expected_buckets(contents, 4)
        for part in driver.parts:
            assert part.path is not None
            assert sim.wait(cloud.stat(part.path)).version == part.version


def test_many_buckets_are_published_beside_each_other(tmp_path: Path, seed: int) -> None:
    """Each waits for its disk and its master: a hundred do not take a hundred times as long."""
    with SphereSim(tmp_path / "sim", slaves=1, copies=1, seed=seed, disk_s=0.1) as sim:
        sim.advance(3)
        cloud = sim.client()
        contents = store(sim, cloud, 2)
        stream = SphereStream(cloud, "/in", record_size=10, granularity="batch")
        driver = sim.job(cloud, stream, scatter, output="/out/b", buckets=100)
        sim.until(lambda: sim.slaves["s1"].native("/out/b.0").exists())
        began = sim.clock.seconds()
        sim.wait(driver.wait(), 900)
        assert sim.clock.seconds() - began < 12  # 50 s one after the other
        assert [part.index for part in driver.parts] == list(range(100))
        found = [sim.wait(cloud.read(f"/out/b.{b}")) for b in range(100)]
        assert found == expected_buckets(contents, 100)


def test_a_bucket_whose_name_is_being_written_does_not_lose_the_others(tmp_path: Path, seed: int) -> None:
    """Somebody holds the lease on one of them for some seconds: the job waits, and all are whole."""
    with SphereSim(tmp_path / "sim", slaves=2, copies=1, seed=seed, disk_s=0.02) as sim:
        sim.advance(3)
        cloud = sim.client()
        contents = store(sim, cloud, 2)
        sim.wait(cloud.mkdir("/out"))
        grant = sim.wait(cloud.session.call(OpenWrite("/out/b.7", 100)))
        sim.clock.callLater(8.0, cloud.session.call, LeaseDrop("/out/b.7", grant.lease))
        stream = SphereStream(cloud, "/in", record_size=10, granularity="batch")
        driver = sim.job(cloud, stream, scatter, output="/out/b", buckets=20)
        sim.wait(driver.wait(), 900)
        found = [sim.wait(cloud.read(f"/out/b.{b}")) for b in range(20)]
        assert found == expected_buckets(contents, 20)
