"""A session that is closed before its time takes its tickets, transfers and leases with it (spec/security.md,
"Sessions", 5)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sector import errors
from sector.client.cloud import CloudClient
from sector.master.admission import Admission
from sector.model import Right
from sector.testing.cluster import SimCluster
from sector.wire.files import OpenRead, OpenWrite, WriteGrant
from sector.wire.slave import PrepareRead

MB = 1 << 20


@pytest.fixture
def sim(tmp_path: Path, seed: int) -> Iterator[SimCluster]:
    """One megabyte a second: transfers can be seen under way."""
    with SimCluster(tmp_path / "sim", seed=seed, bytes_per_s=1e6) as cluster:
        yield cluster


def close_sessions(sim: SimCluster, user: str, epoch: int = 2) -> None:
    """What the master does when the security server names a user with changed rights."""
    master = sim.up()
    rows = master.hub.sessions.apply_epochs({user: epoch})
    for row in rows:
        master.hub.gmp.remove_key(row.key_id)
    master.sessions_ended(rows)


def open_transfers(sim: SimCluster) -> int:
    """Transfers that wait or run on all slaves."""
    return sum(len(slave.service.core.open) for slave in sim.slaves.values() if slave.service is not None)


def temps(sim: SimCluster) -> list[Path]:
    """Files of data under way."""
    return [file for s in sim.slaves.values() for file in (s.root / ".sector" / "tmp").iterdir()]


def test_transfers_under_way_end(sim: SimCluster) -> None:
    admin, alice = sim.client("root"), sim.client("alice")
    sim.wait(admin.write("/big", bytes(8 * MB)), 900)
    sim.advance(60)
    reading: Any = alice.read("/big")
    writing: Any = alice.write("/new", bytes(8 * MB))
    outcome: list[Any] = []
    reading.addBoth(outcome.append)
    writing.addBoth(outcome.append)
    sim.until(lambda: open_transfers(sim) >= 2)
    sim.advance(1)
    sim.rights["alice"] = []  # her client logs in again by itself
    close_sessions(sim, "alice")
    sim.advance(2)
    assert open_transfers(sim) == 0
    assert temps(sim) == []
    sim.advance(30)
    assert not sim.wait(admin.exists("/new"))
    sim.wait(admin.write("/new", b"free again"))


def grant_of(sim: SimCluster, cloud: CloudClient, request: Any) -> Any:
    """A grant whose ticket nobody uses."""
    return sim.wait(cloud.call(request))


def test_unused_tickets_are_worth_nothing(sim: SimCluster) -> None:
    admin, alice = sim.client("root"), sim.client("alice")
    sim.wait(admin.write("/f", b"secret"))
    grant_of(sim, alice, OpenRead("/f"))
    grant: WriteGrant = grant_of(sim, alice, OpenWrite("/g", 10))
    assert open_transfers(sim) == 2 and len(temps(sim)) == 1
    session = next(row for row in sim.up().hub.sessions.rows() if row.user == "alice")
    close_sessions(sim, "alice")
    sim.advance(1)
    assert open_transfers(sim) == 0 and temps(sim) == []
    assert sim.wait(sim.up().hub.store.read(lambda tx: tx.lease(grant.lease))) is None
    # a command for that session which was on its way already
    hub = sim.up().hub
    version = sim.wait(admin.stat("/f")).version
    ticket = hub.ticket("read", "/f", version, 0, 6)
    late = PrepareRead(hub.epoch, ticket, f"user:alice#{session.id.hex()}")
    with pytest.raises(errors.SessionExpired):
        sim.wait(hub.call_slave(sim.serving("/f")[0], late))
    assert open_transfers(sim) == 0
    assert sim.wait(admin.read("/f")) == b"secret"


def test_lease_ends_where_the_right_is_gone_although_the_user_came_back(sim: SimCluster) -> None:
    """He may log in again before the master hears that his right was taken: the new session must not keep
    the old lease alive. A lease on a path that he still may write stays."""
    admin = sim.client("root")
    for folder in ("/home", "/team"):
        sim.wait(admin.mkdir(folder))
    alice = sim.client("alice")
    taken: WriteGrant = grant_of(sim, alice, OpenWrite("/team/f", 10))
    kept: WriteGrant = grant_of(sim, alice, OpenWrite("/home/f", 10))
    sim.rights["alice"] = [Right("alice", "/home", "rw")]
    old = [row for row in sim.up().hub.sessions.rows() if row.user == "alice"]
    sim.client("alice")
    rows = sim.up().hub.sessions.close([row.id for row in old])
    sim.up().sessions_ended(rows)
    sim.advance(1)
    store = sim.up().hub.store
    assert sim.wait(store.read(lambda tx: tx.lease(taken.lease))) is None
    assert sim.wait(store.read(lambda tx: tx.lease(kept.lease))) is not None


def test_puts_outlive_a_crowd_that_logs_in(sim: SimCluster, tmp_path: Path) -> None:
    """Five clients whose sessions end together, at a master that lets in one login a second."""
    names = [f"user{number}" for number in range(5)]
    (tmp_path / "local").mkdir()
    for number in range(8):
        (tmp_path / "local" / str(number)).write_bytes(bytes(1000))
    clouds = [sim.client(name) for name in names]
    for cloud, name in zip(clouds, names, strict=True):
        sim.wait(cloud.mkdir(f"/{name}"))
    sim.admission = Admission(1, 1)
    for name in names:
        close_sessions(sim, name)
    at = sim.clock.seconds()
    puts = [
        cloud.put(tmp_path / "local", f"/{name}/", recursive=True)
        for cloud, name in zip(clouds, names, strict=True)
    ]
    for put in puts:
        assert len(sim.wait(put).files) == 8
    assert 3 < sim.clock.seconds() - at < 60


def test_a_client_begins_in_a_crowd(sim: SimCluster) -> None:
    """Many commands at once, as those of an array job: none fails because it is not the first."""
    sim.admission = Admission(1, 1)
    for number in range(4):
        assert sim.wait(sim.client(f"user{number}").ls("/")) == []
