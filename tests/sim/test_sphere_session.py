"""Jobs that outlast the session they were begun under."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_sphere import KB, SphereSim, expected_buckets, parts, scatter, store

from sector import errors
from sector.master.jobs import OVER_S
from sector.sphere.stream import SphereStream


@pytest.fixture
def sim(tmp_path: Path, seed: int) -> Iterator[SphereSim]:
    with SphereSim(tmp_path / "sim", slaves=3, copies=1, seed=seed) as cluster:
        cluster.advance(3)
        yield cluster


def sessions_end(sim: SphereSim) -> None:
    """Twelve hours are over, as the master's door sees it."""
    sim.wall_ahead += 13 * 3600
    rows = sim.up().hub.sessions.expired()
    for row in rows:
        sim.up().hub.gmp.remove_key(row.key_id)
    sim.up().sessions_ended(rows)


@pytest.mark.parametrize("after_s", [0.2, 1.1, 1.9])
def test_a_job_goes_on_under_the_next_session(sim: SphereSim, after_s: float) -> None:
    """Its client has a password file: results of before and after the change are whole, each once."""
    cloud = sim.client()
    contents = store(sim, cloud, 30)
    driver = sim.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data), in_order=True)
    sim.advance(after_s)
    assert not driver.ended
    sessions_end(sim)
    assert sorted(part.data for part in parts(sim, driver)) == sorted(contents)
    assert driver.status().state == "done"


@pytest.mark.parametrize("after_s", [0.2, 0.6, 1.1])
def test_a_job_with_buckets_goes_on_under_the_next_session(sim: SphereSim, after_s: float) -> None:
    """Slaves publish in its user's name all the while."""
    cloud = sim.client()
    contents = store(sim, cloud, 8)
    stream = SphereStream(cloud, "/in", record_size=10, granularity="batch")
    driver = sim.job(cloud, stream, scatter, output="/out/b", buckets=7, segment_bytes=30 * KB)
    sim.advance(after_s)
    assert not driver.ended
    sessions_end(sim)
    sim.wait(driver.wait(), 900)
    assert [sim.wait(cloud.read(f"/out/b.{b}")) for b in range(7)] == expected_buckets(contents, 7)


def test_a_segment_that_meets_many_ends_of_sessions_is_not_lost(sim: SphereSim) -> None:
    """That it runs again is nobody's fault: a segment that was lost five times would end the job."""
    cloud = sim.client()
    contents = store(sim, cloud, 6)
    for spawner in sim.spawners.values():
        assert spawner.made is not None
        spawner.made.seconds = lambda task: 30.0
    driver = sim.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data), in_order=True)
    for _ in range(8):
        sim.advance(20, step=0.1)
        assert not driver.ended
        sessions_end(sim)
    assert [part.data for part in parts(sim, driver)] == contents
    assert driver.plan is not None and driver.plan.losses == {}


def test_a_job_whose_client_cannot_begin_another_session_ends(sim: SphereSim) -> None:
    """And one whose session was closed before its time ends at once, as ever."""
    cloud = sim.client()
    store(sim, cloud, 30)
    cloud.session._begin = None
    driver = sim.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data))
    sim.advance(1)
    sessions_end(sim)
    with pytest.raises(errors.SessionExpired):
        sim.wait(driver.wait())
    sim.advance(OVER_S + 5)
    jobs = sim.up().context.on_stop[0].__self__  # type: ignore[attr-defined]
    assert jobs.live == {}
