"""Jobs whose last segment takes much longer than all others."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_sphere import KB, SphereSim, expected_buckets, scatter, store

from sector.clock import pause
from sector.slave import spe
from sector.slave.service import Slave
from sector.sphere.job_nodes import Nodes
from sector.sphere.stream import SphereStream
from sector.sphere.tasks import Task


def tail(sim: SphereSim) -> list[int]:
    """Segment 7 takes 400 s, all others half a second; the segments that were run."""
    runs: list[int] = []

    def seconds(task: Task) -> float:
        runs.append(task.segment)
        return 400.0 if task.segment == 7 else 0.5

    for spawner in sim.spawners.values():
        assert spawner.made is not None
        spawner.made.seconds = seconds
    return runs


def test_idle_slaves_keep_what_they_hold_of_a_job(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have nothing to do for longer than a driver may be silent, and it is not: each segment runs
    once."""
    monkeypatch.setattr(spe, "SILENT_S", 100.0)
    with SphereSim(tmp_path / "sim", slaves=4, copies=1, seed=seed) as sim:
        sim.advance(3)
        cloud = sim.client()
        contents = store(sim, cloud, 8)
        runs = tail(sim)
        stream = SphereStream(cloud, "/in", record_size=10, granularity="batch")
        driver = sim.job(cloud, stream, scatter, output="/out/b", buckets=7, segment_bytes=100 * KB)
        sim.advance(395, step=0.25)
        sim.wait(driver.wait(), 3000)
        assert [sim.wait(cloud.read(f"/out/b.{b}")) for b in range(7)] == expected_buckets(contents, 7)
        assert sorted(runs) == list(range(8))


def test_idle_slaves_hear_of_a_driver_that_waits_for_the_master(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for the slaves of now and gets no answer for longer than they keep a job without a word."""
    monkeypatch.setattr(spe, "SILENT_S", 100.0)
    with SphereSim(tmp_path / "sim", slaves=4, copies=1, seed=seed) as sim:
        sim.advance(3)
        cloud = sim.client()
        contents = store(sim, cloud, 8)
        runs = tail(sim)
        stream = SphereStream(cloud, "/in", record_size=10, granularity="batch")
        driver = sim.job(cloud, stream, scatter, output="/out/b", buckets=7, segment_bytes=100 * KB)
        sim.until(lambda: len(driver.plan.done) == 7)  # type: ignore[union-attr]
        monkeypatch.setattr(Nodes, "missed", True)
        monkeypatch.setattr(driver, "rejoin", lambda: asks_for_long(sim))
        sim.advance(390, step=0.25)
        sim.wait(driver.wait(), 3000)
        assert [sim.wait(cloud.read(f"/out/b.{b}")) for b in range(7)] == expected_buckets(contents, 7)
        assert sorted(runs) == list(range(8))


async def asks_for_long(sim: SphereSim) -> None:
    """Stands for a question that nobody answers."""
    await pause(sim.clock, 380.0)


@pytest.mark.parametrize("buckets", [7, 0])
def test_a_slave_that_has_forgotten_a_job_takes_part_again(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, buckets: int
) -> None:
    """Its driver was cut off from it for longer: the code is shipped to it again, and what it held is made
    anew."""
    with SphereSim(tmp_path / "sim", slaves=4, copies=1, seed=seed) as sim:
        sim.advance(3)
        cloud = sim.client()
        contents = store(sim, cloud, 40)
        stream = SphereStream(cloud, "/in", record_size=10, granularity="batch")
        function = scatter if buckets else lambda data, ctx: data
        driver = sim.job(cloud, stream, function, output="/out/b", buckets=buckets, segment_bytes=100 * KB)
        sim.advance(1.2)
        for name in ("s1", "s2"):
            service = sim.slaves[name].service
            assert service is not None
            job = next(iter(spe_of(service).jobs.values()))
            sim.wait(spe_of(service)._end(job, "its client fell silent"))
        sim.wait(driver.wait(), 3000)
        if buckets:
            found = [sim.wait(cloud.read(f"/out/b.{b}")) for b in range(buckets)]
            assert found == expected_buckets(contents, buckets)
        else:
            assert [sim.wait(cloud.read(f"/out/b.{n}")) for n in range(40)] == contents


def spe_of(service: Slave) -> spe.Spe:
    """The Sphere part of a slave."""
    part: spe.Spe = service.context.on_stop[0].__self__  # type: ignore[attr-defined]
    return part
