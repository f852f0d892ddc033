"""The master's table of jobs stays small and listable whatever functions report."""

from __future__ import annotations

import msgspec
from test_sphere import SphereSim, sim, store  # noqa: F401 - a fixture

from sector.sphere.stream import SphereStream
from sector.wire.sphere import JobInfo, JobList, JobReport, JobShow, UdfFault


def test_long_errors_of_many_workers_are_kept_within_bounds(sim: SphereSim) -> None:  # noqa: F811
    """Twenty workers fail at once with the longest texts; a list of such jobs has none of them."""
    cloud = sim.client()
    store(sim, cloud, 1)
    driver = sim.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: b"x")
    faults = [UdfFault(n, 0, "ValueError", "m" * 8000, "t" * 60_000, "udf_error") for n in range(20)]
    sim.wait(cloud.call(JobReport(driver.id, "failed", driver.counts(), 1, faults)))
    (line,) = sim.wait(cloud.call(JobList())).jobs
    assert line.state == "failed"
    assert len(msgspec.msgpack.encode(line)) < 1000
    info: JobInfo = sim.wait(cloud.call(JobShow(driver.id)))
    assert info.errors[0] == faults[0]
    assert [(error.segment, error.type) for error in info.errors] == [(n, "ValueError") for n in range(20)]
    assert len(msgspec.msgpack.encode(info)) < 200_000
