"""A slave with millions of files, whose report takes longer than a slave may be silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from sector.clock import pause
from sector.testing.cluster import SimCluster
from sector.wire.slave import Report


@pytest.mark.parametrize("rebuild", [False, True])
def test_a_slave_that_reports_for_long_is_there(tmp_path: Path, seed: int, rebuild: bool) -> None:
    """After a restart of the master: what it holds may be read, and nobody copies it. Each part of a report
    takes a while, as in a master to which all slaves report at once."""
    with SimCluster(tmp_path / "sim", slaves=3, copies=2, seed=seed) as sim:
        cloud = sim.client()
        for number in range(6):
            sim.wait(cloud.write(f"/f{number}", b"content"))
        sim.until(lambda: all(len(sim.serving(f"/f{n}")) == 2 for n in range(6)))
        sim.kill_master()
        if rebuild:
            for file in (tmp_path / "sim" / "master").glob("master.db*"):
                if not file.name.endswith(".lock"):
                    file.unlink()
        sim.start_master(rebuild=rebuild)
        master = sim.up()
        for slave in sim.slaves.values():
            assert slave.service is not None
            slow(sim, slave.service)
        worst: set[str] = set()
        ended = sim.clock.seconds() + 45
        while sim.clock.seconds() < ended:
            sim.advance(0.5)
            if sim.clock.seconds() > ended - 40:  # all have joined
                worst |= {node.state for node in master.hub.core.members.nodes.values()}
        assert len(master.hub.core.members.nodes) == 3
        assert worst == {"up"}
        sim.advance(60)
        assert all(len(sim.serving(f"/f{n}")) == 2 for n in range(6))
        assert master.hub.core.replicator.copied == 0
        assert sim.wait(sim.client().read("/f3")) == b"content"


def slow(sim: SimCluster, service: Any) -> None:
    """Parts of its reports take 20 s at the master."""
    ask = service.master_call

    async def asked(request: Any, deadline_s: float = 10.0, control: bool = False) -> Any:
        if isinstance(request, Report):
            waiting: Deferred[None] = pause(sim.clock, 20.0)
            await waiting
        return await ask(request, deadline_s, control)

    service.master_call = asked
