"""A disk that is busy for some seconds, and one that gives no answer any more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from sector.slave.pulse import HUNG_S
from sector.testing.cluster import Mortal, SimCluster


@pytest.fixture
def sim(tmp_path: Path, seed: int) -> Iterator[SimCluster]:
    with SimCluster(tmp_path / "sim", slaves=2, copies=1, seed=seed) as cluster:
        cluster.advance(5)
        yield cluster


class Stuck:
    """All threads of a slave's disk pool wait for a disk; what was asked happens when it answers again."""

    def __init__(self, pool: Mortal) -> None:
        self._real = pool.run
        self._waiting: list[tuple[Deferred[Any], Any]] = []
        pool.run = self._run  # type: ignore[method-assign]
        self._pool = pool

    def _run(self, *work: Any, **options: Any) -> Deferred[Any]:
        later: Deferred[Any] = Deferred()
        self._waiting.append((later, lambda: self._real(*work, **options)))
        return later

    def answer(self) -> None:
        self._pool.run = self._real  # type: ignore[method-assign]
        for later, work in self._waiting:
            work().addBoth(later.callback)


def states(sim: SimCluster) -> list[str]:
    """Of both slaves, as the master has them."""
    return [node.state for _, node in sorted(sim.up().hub.core.members.nodes.items())]


def test_a_slave_whose_disk_is_slow_for_a_while_is_not_lost(sim: SimCluster) -> None:
    """Many large files are synced at once: nothing of what it has has to be copied elsewhere."""
    pool = sim.slaves["s1"].pool
    assert pool is not None
    stuck = Stuck(pool)
    seen = set()
    for _ in range(50):
        sim.advance(0.5)
        seen.update(states(sim))
    assert seen == {"up"}
    stuck.answer()
    sim.advance(10)
    assert states(sim) == ["up", "up"]
    sim.wait(sim.client().write("/a", b"content"))


def test_a_slave_whose_disk_hangs_is_lost_and_comes_back(sim: SimCluster) -> None:
    pool = sim.slaves["s1"].pool
    assert pool is not None
    stuck = Stuck(pool)
    sim.advance(HUNG_S + 13)
    assert states(sim) == ["lost", "up"]
    stuck.answer()
    sim.advance(10)
    assert states(sim) == ["up", "up"]
