"""Input that one slave alone has, while that slave is away: a job waits for it, and fails only when it stays
away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_sphere import SphereSim, parts, store

from sector import errors
from sector.sphere.stream import KnownFile, SphereStream


@pytest.fixture
def lone(tmp_path: Path, seed: int) -> Iterator[SphereSim]:
    """Four slaves, one replica of each file."""
    with SphereSim(tmp_path / "sim", slaves=4, copies=1, seed=seed) as cluster:
        cluster.advance(3)
        yield cluster


@pytest.mark.parametrize("away_s", [0.5, 4.0, 25.0])
@pytest.mark.parametrize("killed_after", [0.1, 0.7])
def test_a_holder_that_restarts_costs_no_result(lone: SphereSim, away_s: float, killed_after: float) -> None:
    """The others ask it for its input while it does not know the job again, or does not answer."""
    cloud = lone.client()
    contents = store(lone, cloud, 16)
    victim = lone.serving("/in/f15")[0]
    driver = lone.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data), in_order=True)
    lone.advance(killed_after)
    lone.kill_slave(victim)
    lone.advance(away_s)
    lone.start_slave(victim)
    assert [part.data for part in parts(lone, driver)] == contents
    driver.plan.check_invariants()  # type: ignore[union-attr]


def test_a_holder_that_was_away_at_the_beginning_is_taken_when_it_comes(lone: SphereSim) -> None:
    """It is up and has the input, but cannot start workers when the job begins."""
    cloud = lone.client()
    contents = store(lone, cloud, 8)
    late = lone.serving("/in/f3")[0]
    workers = lone.spawners[late].made
    assert workers is not None
    workers.break_down("the process that starts workers has ended")
    lone.advance(3)
    driver = lone.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data), in_order=True)
    assert late not in driver.nodes.links  # type: ignore[union-attr]
    lone.advance(20)
    workers.break_down("")
    assert [part.data for part in parts(lone, driver)] == contents


def test_a_job_on_what_nobody_has_now_is_refused_by_name(lone: SphereSim) -> None:
    """Nothing was removed, and it does not say so."""
    cloud = lone.client()
    store(lone, cloud, 8)
    lone.kill_slave(lone.serving("/in/f3")[0])
    lone.advance(15)  # the master knows
    with pytest.raises(errors.Unavailable, match=r"/in/f\d cannot be read now: no slave that has it is up"):
        lone.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data))


def test_a_holder_that_stays_away_is_named(lone: SphereSim) -> None:
    """The job ends after some minutes; the slaves that answer are not taken for lost."""
    cloud = lone.client()
    store(lone, cloud, 8)
    victim = lone.serving("/in/f3")[0]
    driver = lone.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data))
    lone.advance(0.1)
    lone.kill_slave(victim)
    with pytest.raises(errors.JobFailed, match=f"cannot be read now: slave {victim} has it"):
        lone.wait(driver.wait(), 1200)
    up = [link.info.node for link in driver.nodes.up]  # type: ignore[union-attr]
    assert len(up) == 3 and victim not in up


@pytest.mark.parametrize("how", ["removed", "replaced", "moved"])
def test_input_that_vanishes_is_told_at_once(lone: SphereSim, how: str) -> None:
    """Between the look-up and the run, as the output of a first stage may: the slave that had it says that it
    has it no more, and nothing is waited for."""
    cloud = lone.client()
    store(lone, cloud, 8)
    seen = [KnownFile(i.path, i.size, i.version, tuple(i.replicas)) for i in lone.wait(cloud.ls("/in"))]
    work = {
        "removed": lambda: cloud.rm("/in/f7"),
        "replaced": lambda: cloud.write("/in/f7", b"other content"),
        "moved": lambda: cloud.mv("/in/f7", "/elsewhere"),
    }
    lone.wait(work[how]())
    driver = lone.job(cloud, SphereStream.of_files(cloud, seen), lambda data, ctx: bytes(data))
    began = lone.clock.seconds()
    with pytest.raises(errors.NotFound, match="/in/f7 changed or was removed"):
        lone.wait(driver.wait(), 1200)
    assert lone.clock.seconds() - began < 10
