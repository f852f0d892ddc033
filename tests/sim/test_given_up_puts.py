"""Puts that are given up while they ask for a lease: the paths are free at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import CancelledError

from sector import errors
from sector.client.cloud import CloudClient
from sector.master.store import Writing
from sector.testing.cluster import SimCluster
from sector.wire.files import OpenWrite

FILES = 40


@pytest.fixture
def sim(tmp_path: Path, seed: int) -> Iterator[SimCluster]:
    """Slaves that take up to 100 ms before they are ready, and a database that takes 20."""
    with SimCluster(tmp_path / "sim", seed=seed, disk_s=0.05) as cluster:
        store = cluster.up().hub.store
        write: Any = store.write

        def late(rule: Any) -> Any:
            outcome: Any = Writing()
            cluster.clock.callLater(0.02, lambda: write(rule).addBoth(outcome.callback))
            return outcome

        store.write = late  # type: ignore[method-assign]
        yield cluster


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A directory of small files."""
    source = tmp_path / "web"
    source.mkdir()
    for number in range(FILES):
        (source / f"{number:02}").write_bytes(bytes(1000))
    return source


def leases(sim: SimCluster) -> int:
    """How many paths are being written."""
    return len(sim.wait(sim.up().hub.store.read(lambda tx: tx.leases_of("alice"))))


def begin(cloud: CloudClient, local: Path) -> list[Any]:
    """A put under way; its outcome appears in the list."""
    outcome: list[Any] = []
    putting = cloud.put(local, "/web", recursive=True)
    putting.addBoth(outcome.append)
    outcome.append(putting)
    return outcome


def leave(sim: SimCluster, cloud: CloudClient, outcome: list[Any], after_s: float) -> None:
    """Ctrl-C, a moment after the first files ask for leases."""
    sim.until(lambda: len(cloud.session._flights) >= 10)
    sim.advance(after_s, step=0.001)
    outcome[0].cancel()
    sim.until(lambda: len(outcome) > 1)
    assert outcome[1].check(errors.Cancelled, CancelledError)


@pytest.mark.parametrize("after_ms", [0, 5, 15, 25, 40, 60, 90, 130])
def test_the_same_put_is_taken_right_after_ctrl_c(sim: SimCluster, local: Path, after_ms: int) -> None:
    """Whatever was under way, also where the command ends without waiting for it."""
    cloud, other = sim.client(), sim.client()
    sim.wait(cloud.mkdir("/web"))
    leave(sim, cloud, begin(cloud, local), after_ms / 1000)
    sim.wait(cloud.close())
    sim.clients.remove(cloud)
    sim.advance(0.3)
    assert leases(sim) == 0
    assert len(sim.wait(other.put(local, "/web", recursive=True)).files) == FILES


@pytest.mark.parametrize("after_ms", [0, 25, 60])
def test_a_client_that_stays_gives_up_what_comes_late(sim: SimCluster, local: Path, after_ms: int) -> None:
    cloud = sim.client()
    sim.wait(cloud.mkdir("/web"))
    leave(sim, cloud, begin(cloud, local), after_ms / 1000)
    sim.advance(1.0)
    assert leases(sim) == 0 and not cloud.link.ending
    assert len(sim.wait(cloud.put(local, "/web", recursive=True)).files) == FILES


def test_one_file_that_fails_leaves_no_leases(sim: SimCluster, local: Path) -> None:
    """It ends the put of all others."""
    cloud, other = sim.client(), sim.client("bob")
    sim.wait(cloud.mkdir("/web"))
    sim.wait(other.mkdir("/web/web/00", parents=True))  # where a file is to be
    outcome = begin(cloud, local)
    sim.until(lambda: len(outcome) > 1)
    assert outcome[1].check(errors.IsDirectory)
    sim.advance(1.0)
    assert leases(sim) == 0
    sim.wait(other.rm("/web/web/00"))
    assert len(sim.wait(cloud.put(local, "/web", recursive=True)).files) == FILES


@pytest.mark.parametrize("after_ms", [1, 10, 19, 21, 22])
def test_the_master_ends_the_lease_of_a_question_that_was_taken_back(sim: SimCluster, after_ms: int) -> None:
    """By a client that does not wait for what it is granted; no other slave is troubled."""
    cloud = sim.client()
    asking = cloud.call(OpenWrite("/a", 1000))
    asking.addErrback(lambda failure: failure.trap(errors.Cancelled) and None)
    sim.advance(after_ms / 1000, step=0.001)
    assert not asking.called
    asking.cancel()
    sim.advance(0.3)
    assert leases(sim) == 0
    temps = [file for s in sim.slaves.values() for file in (s.root / ".sector" / "tmp").iterdir()]
    assert len(temps) <= 1
    assert sim.wait(cloud.call(OpenWrite("/a", 1000))).lease
