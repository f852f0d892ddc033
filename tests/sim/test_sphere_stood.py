"""Processes that stand still for a while: stopped by a signal, or on a machine that was."""

from __future__ import annotations

import pytest
from test_sphere import SphereSim, parts, sim, store  # noqa: F401 - a fixture
from test_sphere_session import sessions_end

from sector.master.jobs import OVER_S, SILENCE_S
from sector.slave.spe import SILENT_S
from sector.sphere.job import JobDriver
from sector.sphere.stream import SphereStream


def slow_job(sim: SphereSim) -> tuple[JobDriver, list[bytes]]:  # noqa: F811
    """A job whose segments take a minute each, under way."""
    cloud = sim.client()
    contents = store(sim, cloud)
    sim.wait(cloud.replicate("/in", copies=2, wait=True))
    for spawner in sim.spawners.values():
        assert spawner.made is not None
        spawner.made.seconds = lambda task: 60.0
    driver = sim.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data), in_order=True)
    sim.advance(2.5)
    return driver, contents


@pytest.mark.parametrize("gap_s", [20.0, OVER_S + 5, SILENCE_S + 20, SILENT_S + 60])
def test_a_cluster_that_stood_still_goes_on_where_it_was(sim: SphereSim, gap_s: float) -> None:  # noqa: F811
    """Master, slaves and driver at once: nobody takes the others for gone, no segment runs again."""
    driver, contents = slow_job(sim)
    sim.clock.advance(gap_s)
    assert [part.data for part in parts(sim, driver)] == contents
    assert driver.plan is not None and driver.plan.retries == 0


def test_a_session_that_ends_before_a_stand_still_has_a_successor(sim: SphereSim) -> None:  # noqa: F811
    """Its driver has had no time yet to come with another one."""
    driver, contents = slow_job(sim)
    sessions_end(sim)
    sim.clock.advance(OVER_S + 20)
    assert [part.data for part in parts(sim, driver)] == contents
