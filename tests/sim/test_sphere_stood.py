"""Processes that stand still for a while: stopped by a signal, or on a machine that was."""

from __future__ import annotations

import pytest
from test_sphere import SphereSim, parts, sim, store  # noqa: F401 - a fixture
from test_sphere_session import sessions_end

from sector.master.jobs import OVER_S, SILENCE_S, Jobs
from sector.slave.spe import SILENT_S, Spe
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


def test_what_was_read_before_the_late_timers_is_heard_at_no_later_time(sim: SphereSim) -> None:  # noqa: F811
    """Else a driver that ends just then would count as there for as long again as its master and its slaves
    stood still."""
    slow_job(sim)
    served = [sim.up().context, *(slave.service.context for slave in sim.slaves.values() if slave.service)]
    found = [getattr(hook, "__self__", None) for context in served for hook in context.on_stop]
    masters, slaves = ([one for one in found if isinstance(one, kind)] for kind in (Jobs, Spe))
    assert len(masters) == 1 and len(slaves) == len(sim.slaves)
    told = [live for one in masters for live in one.live.values()]
    told += [job for one in slaves for job in one.jobs.values()]
    assert len(told) == 1 + len(sim.slaves)
    sim.clock.rightNow += SILENT_S + 60
    for one in told:
        one.heard = sim.clock.seconds()
    for late in (masters[0]._tick, *(one._sweep for one in slaves)):
        late()
    assert {one.heard for one in told} == {sim.clock.seconds()}


def test_a_session_that_ends_before_a_stand_still_has_a_successor(sim: SphereSim) -> None:  # noqa: F811
    """Its driver has had no time yet to come with another one."""
    driver, contents = slow_job(sim)
    sessions_end(sim)
    sim.clock.advance(OVER_S + 20)
    assert [part.data for part in parts(sim, driver)] == contents
