"""A copy is complete at its target, a report of that slave is faster than the word of it, and users have done
something to the file meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from sector.testing.cluster import SimCluster
from sector.wire.slave import Replicated
from tests.sim.test_scrub import attic

TARGET = "s2"


class Held:
    """What slave `TARGET` tells of copies waits until `free`."""

    def __init__(self, sim: SimCluster) -> None:
        self._gate: Deferred[None] = Deferred()
        self.paths: list[str] = []
        slave = sim.slaves[TARGET].service
        assert slave is not None
        transfers: Any = slave.transfers
        tell: Callable[[Any], Awaitable[None]] = transfers._tell

        async def later(made: Any) -> None:
            said = made()
            if isinstance(said, Replicated):
                self.paths.append(said.path)
                await self._gate
            await tell(made)

        transfers._tell = later

    def free(self) -> None:
        """Now the master may hear."""
        self._gate.callback(None)


def copied(sim: SimCluster, held: Held) -> str:
    """A file of which the slave has a copy that the master does not know of yet."""
    cloud = sim.client()
    for number in range(20):
        sim.wait(cloud.write(f"/f{number}", b"old" * 1000))
        sim.advance(2)
        if held.paths:
            break
    (path,) = held.paths
    return path


def reported(sim: SimCluster) -> None:
    """The slave tells all that it has."""
    node = sim.up().hub.core.members.get(TARGET)
    node.want_report, node.reported = True, False
    sim.until(lambda: node.reported)


@pytest.mark.parametrize("deed", ["removed", "replaced", "renamed"])
def test_a_copy_that_came_too_late_does_not_stay_in_the_attic(tmp_path: Path, seed: int, deed: str) -> None:
    """A report names it before the master hears that it is complete: it is removed, not kept for ever."""
    with SimCluster(tmp_path / "sim", slaves=2, copies=2, seed=seed) as sim:
        cloud = sim.client()
        held = Held(sim)
        path = copied(sim, held)
        slave = sim.slaves[TARGET].service
        assert slave is not None
        if deed == "removed":
            sim.wait(cloud.rm(path))
        elif deed == "replaced":
            sim.wait(cloud.write(path, b"new" * 1000))
        else:
            sim.wait(cloud.mv(path, "/elsewhere"))
        reported(sim)
        held.free()
        sim.advance(30)
        assert attic(sim, TARGET) == []
        left = {"removed": [], "replaced": [path], "renamed": ["/elsewhere"]}[deed]
        assert [name for name in (path, "/elsewhere") if name in slave.disk.entries] == left


def test_a_copy_that_is_never_told_of_does_not_stay_visible(tmp_path: Path, seed: int) -> None:
    """The slave ends before it could tell, and names the removed file in its first report."""
    with SimCluster(tmp_path / "sim", slaves=2, copies=2, seed=seed) as sim:
        path = copied(sim, Held(sim))
        sim.wait(sim.client().rm(path))
        sim.kill_slave(TARGET)
        assert sim.slaves[TARGET].native(path).exists()
        sim.start_slave(TARGET)
        sim.until(lambda: not sim.slaves[TARGET].native(path).exists(), 600)
