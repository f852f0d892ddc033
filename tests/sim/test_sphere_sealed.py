"""Slaves that are lost, stopped or out of reach when all segments of a job with buckets are done."""

from __future__ import annotations

from typing import Any

import pytest
from test_sphere import KB, SphereSim, expected_buckets, parts, scatter, sim, store  # noqa: F401 - a fixture

from sector import errors
from sector.sphere.job import JobDriver
from sector.sphere.result import Part
from sector.sphere.stream import SphereStream


def bucket_job(sim: SphereSim, output: str = "") -> tuple[JobDriver, list[bytes]]:  # noqa: F811
    """A job whose input is on two slaves each, and its nine buckets."""
    cloud = sim.client()
    contents = store(sim, cloud)
    sim.wait(cloud.replicate("/in", copies=2, wait=True))
    stream = SphereStream(cloud, "/in", record_size=10, granularity="batch")
    driver = sim.job(cloud, stream, scatter, output=output, buckets=9, segment_bytes=30 * KB)
    return driver, expected_buckets(contents, 9)


@pytest.mark.parametrize("back", [False, True], ids=["gone", "restarted"])
def test_a_slave_that_is_lost_before_its_buckets_are_fetched_costs_only_time(
    sim: SphereSim,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    back: bool,
) -> None:
    """Each bucket comes once, in its order; the job failed when all of its segments were done."""
    driver, expected = bucket_job(sim)
    box, lost = driver.box, []
    assert box is not None
    real = box.of_bucket

    async def of_bucket(item: Any, node: str, row_bytes: int) -> Part:
        if node == "s2" and not lost:
            lost.append(item.bucket)
            sim.kill_slave("s2")
            if back:
                sim.start_slave("s2")
        return await real(item, node, row_bytes)

    monkeypatch.setattr(box, "of_bucket", of_bucket)
    found = parts(sim, driver)
    assert [part.index for part in found] == list(range(9)) and lost == [2]
    assert [part.data for part in found] == expected


def test_a_bucket_that_never_arrives_ends_the_job(
    sim: SphereSim,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a segment does that is lost again and again."""
    driver, _ = bucket_job(sim)
    box = driver.box
    assert box is not None
    real = box.of_bucket

    async def of_bucket(item: Any, node: str, row_bytes: int) -> Part:
        if item.bucket == 4:
            raise errors.Unavailable("a result did not arrive")
        return await real(item, node, row_bytes)

    monkeypatch.setattr(box, "of_bucket", of_bucket)
    with pytest.raises(errors.JobFailed, match="bucket 4 was lost 5 times, last: a result did not arrive"):
        sim.wait(driver.wait(), 300)
