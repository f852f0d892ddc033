"""A job whose input takes long to cut (each record index is read first, perhaps from far away)."""

from __future__ import annotations

from typing import Any

import pytest
from test_sphere import SphereSim, parts, sim, store  # noqa: F401 - a fixture
from twisted.internet.defer import Deferred

from sector import errors
from sector.clock import pause
from sector.sphere import job
from sector.sphere.job import JobDriver
from sector.sphere.job_request import Options
from sector.sphere.pack import pack
from sector.sphere.stream import SphereStream
from sector.wire.sphere import JobCancel, JobList, JobShow


@pytest.fixture
def beginning(sim: SphereSim, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[bytes], JobDriver]:  # noqa: F811
    """A client, the contents of its files, and a job that needs two minutes to be cut."""
    cloud = sim.client()
    contents = store(sim, cloud)
    real = job.make_segments

    async def slow(*arguments: Any) -> Any:
        await pause(sim.clock, 120.0)
        return await real(*arguments)

    monkeypatch.setattr(job, "make_segments", slow)
    blob = pack(lambda data, ctx: bytes(data), None)
    return cloud, contents, JobDriver(cloud, SphereStream(cloud, "/in"), blob, Options(in_order=True))


def test_a_job_lives_while_its_input_is_cut(sim: SphereSim, beginning: Any) -> None:  # noqa: F811
    """The master hears of it all the time; it ended it as silent after 45 s."""
    cloud, contents, driver = beginning
    sim.wait(driver.start())
    assert sim.wait(cloud.call(JobShow(driver.id))).state == "running"
    assert [part.data for part in parts(sim, driver)] == contents


def test_a_job_is_cancelled_while_its_input_is_cut(sim: SphereSim, beginning: Any) -> None:  # noqa: F811
    cloud, _, driver = beginning
    starting = Deferred.fromCoroutine(driver.start())
    sim.advance(20)
    (info,) = sim.wait(cloud.call(JobList())).jobs
    sim.wait(cloud.call(JobCancel(info.id)))
    with pytest.raises(errors.Cancelled, match="cancelled by alice"):
        sim.wait(starting)
    assert sim.wait(cloud.call(JobShow(info.id))).state == "cancelled"
