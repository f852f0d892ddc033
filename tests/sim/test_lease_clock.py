"""Write leases and a wall clock that is set (simulated)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from sector import errors
from sector.testing.cluster import SimCluster, write_random
from sector.wire import files

HOUR_S = 3600.0


@pytest.fixture
def sim(tmp_path: Path, seed: int) -> Iterator[SimCluster]:
    with SimCluster(tmp_path / "sim", slaves=2, copies=1, seed=seed) as cluster:
        cluster.advance(2)
        yield cluster


def begin(sim: SimCluster, path: str) -> files.WriteGrant:
    """Open a path for writing and leave it so."""
    cloud = sim.client()
    grant: files.WriteGrant = sim.wait(cloud.call(files.OpenWrite(path, 10)))
    return grant


def test_a_lease_outlives_a_clock_that_is_set_ahead(sim: SimCluster) -> None:
    grant = begin(sim, "/a")
    sim.wall_ahead = HOUR_S
    sim.advance(12)  # more than once looked for leases that are over
    kept = sim.wait(sim.client().call(files.LeaseKeep("/a", grant.lease)))
    assert kept.state == "open"
    assert kept.lease_s <= sim.up().hub.config.master.lease_s


def test_a_lease_ends_in_its_time_when_the_clock_was_set_back(sim: SimCluster) -> None:
    begin(sim, "/a")
    lease_s = sim.up().hub.config.master.lease_s
    sim.wall_ahead = -HOUR_S
    sim.advance(lease_s / 2)
    with pytest.raises(errors.LeaseHeld):
        sim.wait(sim.client().write("/a", b"other"))
    sim.advance(lease_s / 2 + 6)
    sim.wait(sim.client().write("/a", b"other"))


def test_a_lease_ends_in_its_time_when_the_clock_was_set_back_between_two_masters(sim: SimCluster) -> None:
    begin(sim, "/a")
    lease_s = sim.up().hub.config.master.lease_s
    sim.kill_master()
    sim.wall_ahead = -HOUR_S
    sim.start_master()
    sim.advance(lease_s + 6)
    sim.wait(sim.client().write("/a", b"other"))


def test_a_lease_outlives_a_database_that_is_busy_for_longer(
    sim: SimCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer renews it all the time; what he asks waits, as a directory with a million files is moved."""
    grant = begin(sim, "/a")
    store, client = sim.up().hub.store, sim.client()
    real, waiting = store.write, []

    def busy(rule: Any) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        waiting.append((rule, done))
        return done

    monkeypatch.setattr(store, "write", busy)
    for _ in range(9):
        sim.advance(15)
        client.call(files.LeaseKeep("/a", grant.lease), deadline_s=300.0).addErrback(lambda _: None)
    monkeypatch.setattr(store, "write", real)
    for rule, done in waiting:
        real(rule).addBoth(done.callback)
    kept = sim.wait(client.call(files.LeaseKeep("/a", grant.lease)))
    assert kept.state == "open"


def test_a_put_that_outlasts_its_session_is_published(sim: SimCluster, tmp_path: Path) -> None:
    """Nobody renews the session (there is no password file): what was begun under it, and has not been taken
    back, is brought to its end; the lease of a put that has ended so is not kept."""
    cloud = sim.client()
    cloud.session._begin = None
    content = write_random(tmp_path / "a", 30_000_000)
    sim.net.bytes_per_s = 100e3
    putting = cloud.put(tmp_path / "a", "/a")
    sim.advance(20, step=0.1)
    over = [row.id for row in sim.up().hub.sessions.rows()]
    sim.up().hub.sessions.close(over)
    sim.up().hub.gmp.remove_key(cloud.session.peer.key_id)
    sim.wait(putting)
    assert sim.wait(sim.client().read("/a")) == content


def test_the_lease_of_a_writer_whose_line_is_dead_ends(sim: SimCluster, tmp_path: Path) -> None:
    """The slave keeps it as long as bytes may come, no longer."""
    cloud = sim.client()
    write_random(tmp_path / "a", 30_000_000)
    sim.net.bytes_per_s = 100e3
    putting = cloud.put(tmp_path / "a", "/a")
    putting.addErrback(lambda _: None)
    sim.advance(100, step=0.1)
    sim.net.broken.add(cloud.data.address[1])  # type: ignore[attr-defined]
    cloud.session.call = lambda *args, **options: Deferred()  # type: ignore[method-assign,assignment]
    sim.advance(15 + 2 * sim.up().hub.config.master.lease_s, step=0.1)
    sim.net.bytes_per_s = 100e6
    sim.wait(sim.client().write("/a", b"other"))
