"""What a job leaves on a slave's disk goes when the job ends, also when the slave was away or restarted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from test_sphere import KB, SphereSim, expected_buckets, scatter, sim, store  # noqa: F401 - a fixture
from test_sphere_outage import cut_off

from sector import errors
from sector.master.jobs import SILENCE_S
from sector.slave.spe import SILENT_S
from sector.sphere.plan import Limits
from sector.sphere.stream import SphereStream
from sector.wire.sphere import JobCancel


def folder_of(cluster: SphereSim, node: str, job: str) -> Path:
    return cluster.slaves[node].root / ".sector" / "sphere" / job


@pytest.mark.parametrize("away", [False, True], ids=["restarted", "away"])
def test_nothing_of_a_cancelled_job_stays_on_a_slave_that_restarted(
    sim: SphereSim,  # noqa: F811
    away: bool,
) -> None:
    """`away`: it comes back only after the end, and nobody ever tells it of the job."""
    cloud = sim.client()
    store(sim, cloud, 8)
    stream = SphereStream(cloud, "/in", record_size=10, granularity="batch")
    driver = sim.job(cloud, stream, scatter, output="/out/b", buckets=9, segment_bytes=25 * KB)
    sim.until(lambda: len(driver.plan.done) > 8)  # type: ignore[union-attr]
    sim.kill_slave("s2")
    left = folder_of(sim, "s2", driver.id)
    assert any(path.stat().st_size for path in left.rglob("*-*-*")), "runs of buckets"
    if not away:
        sim.start_slave("s2")
        sim.advance(1.5)  # the driver has not missed it yet
    sim.wait(cloud.call(JobCancel(driver.id)))
    if away:
        sim.advance(2)
        sim.start_slave("s2")
        sim.advance(5)
        assert left.exists()  # the job might still be going on
        hour_before = time.time() - 3600
        os.utime(left, (hour_before, hour_before))
        sim.advance(20 * 60, step=1.0)
    else:
        sim.advance(5)
    assert not left.exists()
    assert not [node for node in sim.slaves if folder_of(sim, node, driver.id).exists()]
    assert (sim.slaves["s2"].root / ".sector" / "sphere").is_dir()


def test_the_end_of_a_job_does_not_wait_for_a_slave_that_is_gone(sim: SphereSim) -> None:  # noqa: F811
    """Neither the one who cancels it nor its driver."""
    cloud = sim.client()
    store(sim, cloud, 8)
    driver = sim.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data))
    sim.kill_slave("s2")
    began = sim.clock.seconds()
    sim.wait(cloud.call(JobCancel(driver.id)))
    assert sim.clock.seconds() - began < 4
    sim.wait(driver.finished())
    assert sim.clock.seconds() - began < 6 and driver.status().state == "cancelled"


def test_a_restart_keeps_what_a_job_of_several_days_has(sim: SphereSim) -> None:  # noqa: F811
    """Its runs of buckets count on: only segments that the slave was at, or had to hand over, run again."""
    cloud = sim.client()
    contents = store(sim, cloud, 8)
    stream = SphereStream(cloud, "/in", record_size=10, granularity="batch")
    driver = sim.job(cloud, stream, scatter, output="/out/b", buckets=9, segment_bytes=25 * KB)
    sim.until(lambda: len(driver.plan.done) > 20)  # type: ignore[union-attr]
    sim.kill_slave("s2")
    left = folder_of(sim, "s2", driver.id)
    before = {path.name for path in left.rglob("*-*-*")}
    days_before = time.time() - 3 * 86400
    os.utime(left, (days_before, days_before))
    sim.start_slave("s2")
    sim.advance(1)
    assert before and before <= {path.name for path in left.rglob("*-*-*")}
    sim.wait(driver.wait(), 900)
    assert [sim.wait(cloud.read(f"/out/b.{b}")) for b in range(9)] == expected_buckets(contents, 9)


def test_a_slave_that_never_hears_of_the_end_ends_the_job_itself(sim: SphereSim) -> None:  # noqa: F811
    """The master did not reach it when the job ended, and nobody says it again: what runs there ends all the
    same, and others get its workers."""
    cloud = sim.client()
    store(sim, cloud, 8)
    workers, gmp = sim.spawners["s2"].made, sim.slaves["s2"].gmp
    assert workers is not None and gmp is not None
    workers.seconds = lambda task: 1e6
    driver = sim.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data))
    assert driver.plan is not None
    driver.plan.limits = Limits(attempts=10**6)  # what it gives up is cancelled, here even through a cut line
    sim.until(lambda: workers.active)
    cut_off(sim, cloud.gmp.address[1])
    between = {(7002, gmp.address[1]), (gmp.address[1], 7002)}
    sim.hub.blocked |= between
    sim.advance(SILENCE_S + 15, step=0.25)
    assert sim.up().context.on_stop[0].__self__.jobs[driver.id].state == "lost"  # type: ignore[attr-defined]
    sim.hub.blocked -= between
    sim.advance(60, step=0.25)
    assert workers.active and folder_of(sim, "s2", driver.id).exists()
    sim.advance(SILENT_S + 90, step=0.25)
    assert workers.active == [] and not folder_of(sim, "s2", driver.id).exists()
    sim.hub.blocked.clear()
    with pytest.raises(errors.Cancelled, match="was silent for"):
        sim.wait(driver.wait())
