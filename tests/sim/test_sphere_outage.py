"""A client that is cut off from the whole cluster for a while, with a job under way."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_sphere import SphereSim, parts, store

from sector import errors
from sector.master.jobs import SILENCE_S
from sector.sphere.stream import SphereStream


def cut_off(sim: SphereSim, port: int) -> None:
    """Nothing gets from or to the client."""
    others = [address[1] for address in sim.hub.endpoints if address[1] != port]
    sim.hub.blocked |= {(port, other) for other in others} | {(other, port) for other in others}


@pytest.mark.parametrize("away_s", [20.0, 60.0, 85.0])
def test_an_outage_costs_time_and_no_job(tmp_path: Path, seed: int, away_s: float) -> None:
    """Hours of work are not thrown away for a minute in which nothing was heard."""
    with SphereSim(tmp_path / "sim", slaves=3, copies=1, seed=seed) as sim:
        sim.advance(3)
        cloud = sim.client()
        contents = store(sim, cloud, 40)
        driver = sim.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data), in_order=True)
        sim.advance(1.2)
        assert not driver.ended
        cut_off(sim, cloud.gmp.address[1])
        sim.advance(away_s, step=0.05)
        sim.hub.blocked.clear()
        assert [part.data for part in parts(sim, driver)] == contents


def test_the_job_of_a_client_that_is_gone_ends(tmp_path: Path, seed: int) -> None:
    with SphereSim(tmp_path / "sim", slaves=3, copies=1, seed=seed) as sim:
        sim.advance(3)
        cloud = sim.client()
        store(sim, cloud, 40)
        driver = sim.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data))
        sim.advance(1.2)
        cut_off(sim, cloud.gmp.address[1])
        sim.advance(SILENCE_S + 5, step=0.1)
        jobs = sim.up().context.on_stop[0].__self__  # type: ignore[attr-defined]
        assert jobs.live == {} and jobs.jobs[driver.id].state == "lost"
        sim.hub.blocked.clear()
        with pytest.raises(errors.Cancelled, match="was silent for"):
            sim.wait(driver.wait())
