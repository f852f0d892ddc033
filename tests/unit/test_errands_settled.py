"""Deletions that wait until a slave has heard of them, many at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from master_cluster import Cluster

from sector.master.errands import _Slave

COUNT = 4000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, slaves=1, copies=1)
    yield made
    made.close()


class Serial(int):
    """A serial that counts what it is compared with."""

    compared = 0

    def _counted(self) -> int:
        type(self).compared += 1
        return int(self)

    def __eq__(self, other: object) -> bool:
        return self._counted() == other

    def __lt__(self, other: int) -> bool:
        return self._counted() < other

    def __le__(self, other: int) -> bool:
        return self._counted() <= other

    def __gt__(self, other: int) -> bool:
        return self._counted() > other

    def __ge__(self, other: int) -> bool:
        return self._counted() >= other

    __hash__ = int.__hash__


def state_of(cluster: Cluster) -> _Slave:
    state = cluster.master.errands._state("s1")
    assert state is not None
    return state


def wait_for(cluster: Cluster, count: int) -> list[int]:
    """Wait for `count` serials that no slave has; the numbers of those that fired come into the answer."""
    errands, fired = cluster.master.errands, list[int]()
    first = state_of(cluster).acked + 1
    for number in range(count):
        errands.settled(Serial(first + number)).addCallback(lambda _, number=number: fired.append(number))
    assert fired == []
    return fired


def test_an_acknowledgement_compares_each_waiting_deletion_once(cluster: Cluster) -> None:
    """Every change waits for it: with thousands, the master's one thread stood for seconds."""
    fired = wait_for(cluster, COUNT)
    errands, state = cluster.master.errands, state_of(cluster)
    state.acked += COUNT // 2
    Serial.compared = 0
    errands._acknowledged(state)
    assert fired == list(range(COUNT // 2))
    assert Serial.compared <= 2 * COUNT
    state.acked += COUNT
    errands._acknowledged(state)
    assert fired == list(range(COUNT))
    assert not errands._waiting


def test_those_whose_time_is_over_do_not_wait_any_more(cluster: Cluster) -> None:
    fired = wait_for(cluster, 3)
    cluster.clock.advance(2.1)
    assert sorted(fired) == [0, 1, 2]
    assert not cluster.master.errands._waiting


def test_none_waits_for_a_master_that_stops(cluster: Cluster) -> None:
    fired = wait_for(cluster, 3)
    cluster.master.errands.stop()
    assert fired == [0, 1, 2]
    assert not cluster.master.errands._waiting
