"""Buckets that are asked for twice at once: the client lost an answer while the slave still writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_sphere import KB, SphereSim, expected_buckets, scatter, store
from twisted.internet.defer import Deferred

from sector.clock import pause
from sector.sphere.stream import SphereStream
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
