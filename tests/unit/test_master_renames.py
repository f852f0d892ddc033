"""Renames that slaves have yet to hear of: nothing is removed before them, and no replica is given up for
want of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from master_cluster import Cluster

from sector import errors
from sector.master import namespace
from sector.master.store import SqlStore, _deliver
from sector.wire import files
from sector.wire import slave as wire

ALL = ["s1", "s2", "s3"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


class Held:
    """The writer thread of a store, which works when it is told to."""

    def __init__(self, store: SqlStore) -> None:
        self.store: Any = store
        store._thread = self  # type: ignore[assignment]

    def go_on(self) -> None:
        """Write what waits; from now on nothing does."""
        while not self.store._jobs.empty():
            outcome: list[Any] = []
            self.store._commit(self.store._writer, [self.store._jobs.get_nowait()], outcome)
            _deliver(outcome)
        self.store._thread = None


def everywhere(cluster: Cluster, *paths: str) -> None:
    """Put the files, and wait until all slaves have them and know of everything."""
    alice = cluster.client()
    for path in paths:
        alice.put(path, digest=path)
    cluster.until(lambda: all(len(cluster.holders(path)) == 3 for path in paths))
    cluster.sleep(5)
    for slave in cluster.slaves.values():
        slave.log.clear()


def away(cluster: Cluster) -> None:
    """The slaves are cut off for so long that they count as lost; their processes live on."""
    for slave in cluster.slaves.values():
        slave.alive = False
    cluster.sleep(12)


def back(cluster: Cluster, *, join: bool = True) -> None:
    """They are heard again."""
    for slave in cluster.slaves.values():
        slave.alive = True
        if join:
            slave.join()
        slave._beat()


def move_unheard(cluster: Cluster, source: str, target: str) -> None:
    """The move is in the database, and the rest of the master has not heard of it."""
    cluster.store.write(lambda tx: namespace.move(tx, source, target, False, cluster.wall()))


@pytest.mark.parametrize("join", [True, False])
def test_nothing_is_removed_before_the_rename_that_saves_it(cluster: Cluster, join: bool) -> None:
    """/y becomes /z, then /x becomes /y and is removed, while the slaves are cut off; they know /z as /y."""
    everywhere(cluster, "/x", "/y")
    away(cluster)
    alice = cluster.client()
    alice.ask(files.Move("/y", "/z"))
    alice.ask(files.Move("/x", "/y"))
    alice.ask(files.Remove("/y"))
    back(cluster, join=join)
    cluster.sleep(5)
    assert sorted(cluster.holders("/z")) == ALL
    for slave in cluster.slaves.values():
        assert {path: meta.digest for path, meta in slave.files.items()} == {"/z": "/y"}
        changes = [r for r in slave.log if isinstance(r, wire.RenameFiles | wire.Delete | wire.Mirror)]
        assert isinstance(changes[0], wire.RenameFiles)
    assert alice.ask(files.Stat("/z")).info.replicas == ALL


def test_moved_while_slaves_were_away_is_read_at_once_when_they_are_back(cluster: Cluster) -> None:
    """Though they take no errand yet: the reader's slave renames first, and no replica is struck."""
    everywhere(cluster, "/a", "/old")
    away(cluster)
    alice = cluster.client()
    alice.ask(files.Remove("/old"))
    alice.ask(files.Move("/a", "/b"))
    for slave in cluster.slaves.values():
        slave.script.mute.add(wire.Delete)
    back(cluster)
    cluster.sleep(0.5)
    for _ in ALL:
        alice.ask(files.OpenRead("/b"))
    assert alice.ask(files.Stat("/b")).info.replicas == ALL
    cluster.until(lambda: sorted(cluster.holders("/b")) == ALL)


def test_a_rename_that_a_slave_has_not_heard_of_costs_no_replica(cluster: Cluster) -> None:
    """It is in the database, and the master knew nothing of it when it asked for the file."""
    everywhere(cluster, "/a")
    alice = cluster.client()
    move_unheard(cluster, "/a", "/b")
    version = alice.ask(files.Stat("/b")).info.version
    for name in ALL:
        alice.ask(files.ReportBad("/b", version, name, "not found"))
    assert alice.ask(files.Stat("/b")).info.replicas == ALL
    assert alice.ask(files.OpenRead("/b")).info.version == version
    cluster.until(lambda: sorted(cluster.holders("/b")) == ALL)


def test_a_move_whose_caller_gave_up_is_followed_by_all_slaves(cluster: Cluster) -> None:
    """Ctrl-C while the move waits for the writer thread: it is made, and all that follows it is done."""
    everywhere(cluster, "/a")
    alice = cluster.client()
    writer = Held(cluster.store)
    moving = alice.call(files.Move("/a", "/b"))
    moving.addErrback(lambda failure: failure.trap(errors.Cancelled))
    cluster.sleep(0.5)
    moving.cancel()
    writer.go_on()
    assert cluster.master.hub.serial == cluster.run(cluster.store.read(lambda tx: tx.setting("serial")))
    assert ("user:alice", "move", "/a to /b: 1 files") in cluster.audit
    alice.ask(files.OpenRead("/b"))
    cluster.until(lambda: sorted(cluster.holders("/b")) == ALL)
    assert alice.ask(files.Stat("/b")).info.replicas == ALL
    alice.put("/a", digest="new")
    assert all(slave.files["/b"].digest == "/a" for slave in cluster.slaves.values())


def test_a_removal_whose_caller_gave_up_is_in_the_audit_log(cluster: Cluster) -> None:
    """It was made; only its answer still waited for the slaves."""
    everywhere(cluster, "/a")
    for slave in cluster.slaves.values():
        slave.script.mute.add(wire.Delete)
    removing = cluster.client().call(files.Remove("/a"))
    removing.addErrback(lambda failure: failure.trap(errors.Cancelled))
    cluster.sleep(0.5)
    removing.cancel()
    assert ("user:alice", "remove", "/a: 1 files, 10 bytes") in cluster.audit


def test_a_directory_whose_maker_gave_up_is_mirrored(cluster: Cluster) -> None:
    """The master's serial is that of its database, so that the slaves get what they lack."""
    everywhere(cluster, "/a")
    alice = cluster.client()
    writer = Held(cluster.store)
    making = alice.call(files.Mkdir("/d"))
    making.addErrback(lambda failure: failure.trap(errors.Cancelled))
    cluster.sleep(0.5)
    making.cancel()
    writer.go_on()
    cluster.until(lambda: all("/d" in slave.directories for slave in cluster.slaves.values()))


def test_a_publish_that_its_slave_gave_up_is_told_to_the_parts_of_the_master(cluster: Cluster) -> None:
    """The file is there: its copies are looked after at once."""
    alice = cluster.client()
    grant = alice.ask(files.OpenWrite("/f", 10))
    slave = cluster.slaves[grant.node]
    cluster.master.context.job_leases[grant.lease] = ("job:1/alice", "/f")
    writer = Held(cluster.store)
    publishing = slave.receive("/f")
    publishing.addErrback(lambda failure: failure.trap(errors.Cancelled))
    cluster.sleep(0.5)
    publishing.cancel()
    slave.take(slave.prepared.pop(grant.lease).meta)
    writer.go_on()
    assert not cluster.master.context.job_leases
    cluster.until(lambda: len(cluster.holders("/f")) >= 2, 3)
