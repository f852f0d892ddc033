"""The master over the in-process network: files, replicas, crashes, rebuild (design sections 5 and 12)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from master_cluster import Cluster

from sector import errors
from sector.master.sessions import View
from sector.model import Right, Version
from sector.wire import admin, files
from sector.wire import slave as wire


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def test_write_publish_read_list_stat_remove(cluster: Cluster) -> None:
    """The main path of a file."""
    alice = cluster.client()
    alice.ask(files.Mkdir("/a"))
    version = alice.put("/a/f", 100, "digest")
    info = alice.ask(files.Stat("/a/f")).info
    assert (info.size, info.version, info.owner, info.digest) == (100, version, "alice", "digest")
    assert [e.path for e in alice.ask(files.List("/")).entries] == ["/a"]
    assert [e.path for e in alice.ask(files.List("/", recursive=True)).entries] == ["/a", "/a/f"]
    grant = alice.ask(files.OpenRead("/a/f", 10, 20))
    assert (grant.ticket.offset, grant.ticket.length, grant.ticket.op) == (10, 20, "read")
    assert grant.ticket.tag != 0 and grant.node in info.replicas
    prepared = cluster.slaves[grant.node].log[-1]
    assert isinstance(prepared, wire.PrepareRead)
    assert prepared.ticket == grant.ticket and prepared.principal.startswith("user:alice#")
    removed = alice.ask(files.Remove("/a", recursive=True))
    assert (removed.files, removed.bytes) == (1, 100)
    with pytest.raises(errors.NotFound):
        alice.ask(files.Stat("/a/f"))


def test_background_copies_reach_the_minimum(cluster: Cluster) -> None:
    """Default minimum 3: a new file is soon on three slaves, and nothing more is copied."""
    alice = cluster.client()
    alice.put("/f")
    cluster.until(lambda: len(cluster.holders("/f")) == 3)
    cluster.sleep(15)
    assert sum(isinstance(r, wire.Copy) for s in cluster.slaves.values() for r in s.log) == 2
    status = alice.ask(admin.Status())
    assert (status.files, status.bytes, status.under_replicated, status.slaves_up) == (1, 10, 0, 3)
    assert status.nodes["s1"]["spes"] == 2 and status.nodes["s1"]["sockets"] == 7
    assert {"associations", "connections", "sessions", "tasks"} <= set(status.counters)


# leases -------------------------------------------------------------------------------------------------
def test_lease_is_exclusive_and_expires(cluster: Cluster) -> None:
    """One writer a path; an abandoned lease ends after its time."""
    alice, bob = cluster.client(), cluster.client("bob")
    grant = alice.ask(files.OpenWrite("/f", 10))
    with pytest.raises(errors.LeaseHeld):
        bob.ask(files.OpenWrite("/f", 10))
    with pytest.raises(errors.LeaseHeld):
        bob.ask(files.Mkdir("/f"))
    cluster.sleep(40)
    kept = alice.ask(files.LeaseKeep("/f", grant.lease))
    assert kept.state == "open" and 50 < kept.lease_s <= 60
    cluster.sleep(40)
    with pytest.raises(errors.LeaseHeld):
        bob.ask(files.OpenWrite("/f", 10))
    cluster.sleep(30)
    assert alice.ask(files.LeaseKeep("/f", grant.lease)).state == "lost"
    with pytest.raises(errors.LeaseLost):
        cluster.run(cluster.slaves[grant.node].receive("/f"))
    bob.put("/f")
    assert alice.ask(files.Stat("/f")).info.owner == "bob"


def test_lease_of_another_user_is_not_usable(cluster: Cluster) -> None:
    """Who knows the id of a lease cannot renew, continue or drop it without being its user."""
    alice, bob = cluster.client(), cluster.client("bob")
    grant = alice.ask(files.OpenWrite("/f", 10))
    assert bob.ask(files.LeaseKeep("/f", grant.lease)).state == "lost"
    bob.ask(files.LeaseDrop("/f", grant.lease))
    with pytest.raises(errors.LeaseLost):
        bob.ask(files.OpenWrite("/f", 10, lease=grant.lease))
    assert alice.ask(files.LeaseKeep("/f", grant.lease)).state == "open"


def test_dropped_lease_frees_the_path(cluster: Cluster) -> None:
    """LeaseDrop discards; the slave's late publish is refused."""
    alice, bob = cluster.client(), cluster.client("bob")
    grant = alice.ask(files.OpenWrite("/f", 10))
    alice.ask(files.LeaseDrop("/f", grant.lease))
    with pytest.raises(errors.LeaseLost):
        cluster.run(cluster.slaves[grant.node].receive("/f"))
    bob.put("/f")


def test_continued_write_goes_to_another_slave(cluster: Cluster) -> None:
    """OpenWrite with the lease of an earlier grant: same lease, new ticket and version."""
    alice = cluster.client()
    first = alice.ask(files.OpenWrite("/f", 10))
    again = alice.ask(files.OpenWrite("/f", 10, exclude=[first.node], lease=first.lease))
    assert again.lease == first.lease and again.node != first.node and again.version > first.version
    with pytest.raises(errors.LeaseLost):
        cluster.run(cluster.slaves[first.node].receive("/f"))
    assert cluster.run(cluster.slaves[again.node].receive("/f")).version == again.version
    with pytest.raises(errors.Conflict, match="published as version"):
        alice.ask(files.OpenWrite("/f", 10, lease=first.lease))


def test_full_or_silent_slave_is_passed_over(cluster: Cluster) -> None:
    """A slave that refuses or does not answer PrepareWrite costs a retry, not the write."""
    alice = cluster.client()
    cluster.slaves["s1"].script.fail[wire.PrepareWrite] = [errors.NoSpace("full")]
    cluster.slaves["s2"].script.mute.add(wire.PrepareWrite)
    for index in range(3):
        alice.put(f"/f{index}")
    assert len(alice.ask(files.List("/")).entries) == 3


def test_slave_with_a_broken_disk_is_passed_over(cluster: Cluster) -> None:
    """One that refuses every file costs no write; where all refuse, the path is free again at once."""
    alice = cluster.client()
    broken = [errors.LocalIO("Read-only file system") for _ in range(9)]
    cluster.slaves["s1"].script.fail[wire.PrepareWrite] = list(broken)
    cluster.slaves["s2"].script.fail[wire.PrepareWrite] = list(broken)
    for index in range(3):
        alice.put(f"/f{index}")
    for slave in cluster.slaves.values():
        slave.script.fail[wire.PrepareWrite] = list(broken)
    with pytest.raises(errors.Unavailable, match="Read-only file system"):
        alice.ask(files.OpenWrite("/g", 10))
    for slave in cluster.slaves.values():
        slave.script.fail.clear()
    cluster.client("bob").put("/g")


def test_no_space_names_what_is_left(cluster: Cluster) -> None:
    """A file that fits nowhere is refused at open."""
    alice = cluster.client()
    with pytest.raises(errors.NoSpace, match="the emptiest has"):
        alice.ask(files.OpenWrite("/f", 1 << 50))
    for slave in cluster.slaves.values():
        slave.script.fail[wire.PrepareWrite] = [errors.NoSpace("full")] * 9
    with pytest.raises(errors.NoSpace):
        alice.ask(files.OpenWrite("/f", 10))
    for slave in cluster.slaves.values():
        slave.script.fail.clear()
    alice.put("/f")


# rights -------------------------------------------------------------------------------------------------
def test_rights_are_checked(cluster: Cluster) -> None:
    """r to read, stat and list; w to write, remove, move and mkdir; longest directory wins."""
    alice = cluster.client()
    alice.ask(files.Mkdir("/home/bob", parents=True))
    alice.put("/home/f")
    bob = cluster.client("bob", "r", "/home")
    assert bob.ask(files.Stat("/home/f")).info.size == 10
    bob.ask(files.OpenRead("/home/f"))
    for request in (
        files.OpenWrite("/home/f", 1),
        files.Remove("/home/f"),
        files.Mkdir("/home/x"),
        files.Move("/home/f", "/home/g"),
        files.Replicate("/home/f"),
        files.Stat("/"),
        files.List("/"),
    ):
        with pytest.raises(errors.Denied):
            bob.ask(request)
    with pytest.raises(errors.BadPath):
        bob.ask(files.Stat("/home/../etc"))


def test_expired_session_is_refused(cluster: Cluster) -> None:
    """After its session ended a client gets session_expired."""
    alice = cluster.client()
    cluster.sessions.close([alice.row.id])
    with pytest.raises(errors.SessionExpired):
        alice.ask(files.Stat("/"))


def test_clients_cannot_speak_for_slaves(cluster: Cluster) -> None:
    """Publish and the like need the key of that very slave."""
    alice = cluster.client()
    grant = alice.ask(files.OpenWrite("/f", 10))
    meta = cluster.slaves[grant.node].expected["/f"].meta
    with pytest.raises(errors.Denied):
        alice.ask(wire.Publish(grant.node, grant.lease, meta))
    other = next(s for s in cluster.slaves.values() if s.id != grant.node)
    with pytest.raises(errors.Denied):
        cluster.run(other.call(wire.Publish(grant.node, grant.lease, meta)))
    with pytest.raises(errors.LeaseLost):
        cluster.run(other.call(wire.Publish(other.id, grant.lease, meta)))


# crash points -------------------------------------------------------------------------------------------
def test_master_killed_between_prepare_and_publish(cluster: Cluster) -> None:
    """The lease is in the database: after a restart it is open, renewable, and the slave can publish."""
    alice = cluster.client()
    grant = alice.ask(files.OpenWrite("/f", 10))
    epoch = cluster.master.hub.epoch
    cluster.kill_master()
    cluster.sleep(200)
    cluster.start_master()
    for slave in cluster.slaves.values():
        slave.join()
    assert cluster.master.hub.epoch == epoch + 200 == int(cluster.wall())
    assert alice.ask(files.LeaseKeep("/f", grant.lease)).state == "open"
    version = cluster.run(cluster.slaves[grant.node].receive("/f")).version
    assert version == grant.version
    state = alice.ask(files.LeaseKeep("/f", grant.lease))
    assert (state.state, state.version) == ("published", version)


def test_publish_repeated_after_lost_answer_is_the_same(cluster: Cluster) -> None:
    """Master killed between commit and answer: the repeated Publish gets the same version."""
    alice = cluster.client()
    grant = alice.ask(files.OpenWrite("/f", 10))
    slave = cluster.slaves[grant.node]
    meta = slave.expected["/f"].meta
    request = wire.Publish(slave.id, grant.lease, meta)
    assert cluster.run(slave.call(request)).version == grant.version
    cluster.restart()
    assert cluster.run(slave.call(request)).version == grant.version
    assert alice.ask(files.Stat("/f")).info.version == grant.version


def test_prepared_content_of_a_report_is_published_or_discarded(cluster: Cluster) -> None:
    """A slave that crashed after the master's commit is told to publish; a lost lease is discarded."""
    alice = cluster.client()
    first, second = (alice.ask(files.OpenWrite(path, 10, near="s1")) for path in ("/f", "/g"))
    slave = cluster.slaves["s1"]
    for grant, path in ((first, "/f"), (second, "/g")):
        prepared = slave.expected[path]
        slave.prepared[grant.lease] = prepared
    cluster.run(slave.call(wire.Publish("s1", first.lease, slave.prepared[first.lease].meta)))
    alice.ask(files.LeaseDrop("/g", second.lease))
    slave.stop()
    slave.start()
    cluster.until(lambda: not slave.prepared)
    assert "/f" in slave.files and "/g" not in slave.files


def test_stale_slave_brings_nothing_back(cluster: Cluster) -> None:
    """A slave that was away returns with deleted, old and renamed content: dropped, or followed."""
    alice = cluster.client()
    for name in ("/dead", "/old", "/moved"):
        alice.put(name)
    cluster.until(lambda: all(len(cluster.holders(n)) == 3 for n in ("/dead", "/old", "/moved")))
    cluster.slaves["s1"].stop()
    cluster.sleep(12)
    alice.ask(files.Remove("/dead"))
    new = alice.put("/old", 20, "new")
    alice.ask(files.Move("/moved", "/there"))
    cluster.sleep(3)
    back = cluster.slaves["s1"]
    back.start()
    cluster.until(lambda: back.mirror_serial == cluster.master.hub.serial)
    cluster.until(lambda: cluster.holders("/old") == dict.fromkeys(("s1", "s2", "s3"), new))
    cluster.until(lambda: "/there" in back.files)
    assert "/dead" not in back.files and "/moved" not in back.files
    assert "/dead" in back.tombstones and "/moved" in back.tombstones
    assert [e.path for e in alice.ask(files.List("/")).entries] == ["/old", "/there"]


def test_lost_slave_is_replaced_and_its_surplus_removed(tmp_path: Path) -> None:
    """Four slaves, one lost: copied again; it returns: the fourth copy goes."""
    cluster = Cluster(tmp_path, slaves=4)
    alice = cluster.client()
    for index in range(8):
        alice.put(f"/f{index}")
    names = [f"/f{index}" for index in range(8)]
    cluster.until(lambda: all(len(cluster.holders(n)) == 3 for n in names))
    cluster.slaves["s1"].stop()
    cluster.sleep(5)
    status = alice.ask(admin.Status())
    assert (status.slaves_up, status.slaves_known) == (3, 4)
    states = {n.id: n.state for n in alice.ask(admin.NodeList()).nodes}
    assert states == {"s1": "suspect", "s2": "up", "s3": "up", "s4": "up"}
    cluster.until(
        lambda: alice.ask(admin.Status()).slaves_up == 3 and "lost" in str(alice.ask(admin.NodeList()))
    )
    for entry in alice.ask(files.List("/")).entries:
        assert "s1" not in entry.replicas
    cluster.until(lambda: all(len(cluster.holders(n)) == 3 for n in names))
    cluster.slaves["s1"].start()
    cluster.until(lambda: all(len(cluster.holders(n)) == 3 for n in names), 120)
    cluster.sleep(30)
    assert all(len(cluster.holders(n)) == 3 for n in names)
    for name in names:
        assert sorted(alice.ask(files.Stat(name)).info.replicas) == sorted(cluster.holders(name))
    cluster.close()


def test_read_goes_on_from_another_replica(cluster: Cluster) -> None:
    """Excluded, silent and empty-handed slaves are passed over; the empty-handed one gets a new copy."""
    alice = cluster.client()
    version = alice.put("/f")
    cluster.until(lambda: len(cluster.holders("/f")) == 3)
    first = alice.ask(files.OpenRead("/f")).node
    second = alice.ask(files.OpenRead("/f", exclude=[first], version=version)).node
    assert second != first
    del cluster.slaves[first].files["/f"]
    assert alice.ask(files.OpenRead("/f")).node != first
    cluster.until(lambda: len(cluster.holders("/f")) == 3)
    alice.put("/f", 20)
    with pytest.raises(errors.Conflict):
        alice.ask(files.OpenRead("/f", version=version))
    for slave in cluster.slaves.values():
        slave.script.mute.add(wire.PrepareRead)
    with pytest.raises(errors.Unavailable):
        alice.ask(files.OpenRead("/f"))


def test_bad_replica_is_replaced(cluster: Cluster) -> None:
    """A reported replica that its slave finds damaged is copied anew; a report alone costs none."""
    alice = cluster.client()
    version = alice.put("/f")
    cluster.until(lambda: len(cluster.holders("/f")) == 3)
    cluster.slaves["s1"].damaged.add("/f")
    alice.ask(files.ReportBad("/f", version, "s1", "checksum"))
    assert "/f" not in cluster.slaves["s1"].files
    cluster.until(lambda: "/f" in cluster.slaves["s1"].files)
    for node in ("s1", "s2", "s3"):
        alice.ask(files.ReportBad("/f", version, node, "checksum"))
        cluster.sleep(1)
        assert len(alice.ask(files.Stat("/f")).info.replicas) == 3
        assert len(cluster.holders("/f")) == 3
    del cluster.slaves["s2"].files["/f"]  # and one that has lost it
    alice.ask(files.ReportBad("/f", version, "s2", "checksum"))
    assert alice.ask(files.Stat("/f")).info.replicas == ["s1", "s3"]
    cluster.until(lambda: len(cluster.holders("/f")) == 3)
    alice.ask(files.OpenRead("/f"))


# renames and the mirror -----------------------------------------------------------------------------------
def test_renamed_directory_is_followed_by_all_slaves(cluster: Cluster) -> None:
    """One transaction for many files; slaves follow, also one that was silent meanwhile."""
    alice = cluster.client()
    alice.ask(files.Mkdir("/a/b", parents=True))
    names = [f"/a/b/f{index}" for index in range(20)]
    for name in names:
        alice.put(name)
    cluster.until(lambda: all(len(cluster.holders(n)) == 3 for n in names))
    cluster.slaves["s2"].script.fail[wire.RenameFiles] = [errors.Busy("later")]
    alice.ask(files.Move("/a", "/z"))
    assert len(alice.ask(files.List("/z", recursive=True)).entries) == 21
    assert alice.ask(files.OpenRead("/z/b/f3")).info.path == "/z/b/f3"
    cluster.until(lambda: all(len(s.files) == 20 and "/z/b/f3" in s.files for s in cluster.slaves.values()))
    for slave in cluster.slaves.values():
        cluster.until(lambda s=slave: s.mirror_serial == cluster.master.hub.serial)
        assert set(slave.directories) == {"/z", "/z/b"}
        assert set(names) <= set(slave.tombstones)
        assert not slave.attic
    cluster.sleep(30)
    assert all(len(cluster.holders(f"/z/b/f{i}")) == 3 for i in range(20))


def test_write_to_a_name_whose_content_moves_away(cluster: Cluster) -> None:
    """The slave renames before it takes new content of the old name."""
    alice = cluster.client()
    alice.put("/f", 10, "old")
    cluster.until(lambda: len(cluster.holders("/f")) == 3)
    for slave in cluster.slaves.values():
        slave.script.fail[wire.RenameFiles] = [errors.Busy("later")]
    alice.ask(files.Move("/f", "/g"))
    alice.put("/f", 20, "new")
    cluster.until(lambda: all({"/f", "/g"} <= set(s.files) for s in cluster.slaves.values()))
    assert all(s.files["/g"].digest == "old" for s in cluster.slaves.values())
    assert all(s.files["/f"].digest == "new" for s in cluster.slaves.values())


def test_removed_is_on_a_slave_before_the_answer(cluster: Cluster) -> None:
    """An acknowledged deletion survives the loss of the master's database."""
    alice = cluster.client()
    alice.put("/f")
    alice.ask(files.Remove("/f"))
    assert any("/f" in slave.tombstones for slave in cluster.slaves.values())


def test_rights_are_mirrored(cluster: Cluster) -> None:
    """Directory rights reach every slave, and so does their end."""
    cluster.master.rights_changed({"alice": (Right("alice", "/", "rw"),), "bob": ()})
    cluster.until(lambda: all(s.rights == {("alice", "/"): "rw"} for s in cluster.slaves.values()))
    cluster.master.rights_changed({"alice": ()})
    cluster.until(lambda: all(s.rights == {("alice", "/"): ""} for s in cluster.slaves.values()))


# rebuild --------------------------------------------------------------------------------------------------
def forget_database(cluster: Cluster, **options: object) -> None:
    """The master dies, its database is deleted; a new one rebuilds."""
    cluster.kill_master()
    for path in cluster.folder.glob("master.db*"):
        path.unlink()
    cluster.start_master(rebuild=True, **options)


def test_rebuild_restores_files_directories_and_deletions(cluster: Cluster) -> None:
    """All metadata is back; deleted stays deleted; reads only until all have reported."""
    alice = cluster.client()
    alice.ask(files.Mkdir("/a/empty", parents=True))
    for index in range(7):
        alice.put(f"/a/f{index}", 10 + index)
    alice.put("/dead")
    cluster.until(lambda: len(cluster.holders("/dead")) == 3)
    cluster.until(lambda: all(len(cluster.holders(f"/a/f{i}")) == 3 for i in range(7)))
    stale = cluster.slaves["s3"]
    stale.stop()
    cluster.sleep(12)
    alice.ask(files.Remove("/dead"))
    new = alice.put("/a/f0", 99, "new")
    cluster.until(lambda: len(cluster.holders("/a/f0")) == 2)
    alive = [s for s in cluster.slaves.values() if s.alive]
    cluster.until(lambda: all(s.mirror_serial == cluster.master.hub.serial for s in alive))
    before = alice.ask(files.List("/", recursive=True)).entries
    epoch = cluster.master.hub.epoch

    async def everyone() -> list[str]:
        return ["s1", "s2", "s3"]

    forget_database(cluster, allow_list=everyone)
    alice = cluster.client()
    stale.start()
    cluster.slaves["s1"].join()
    cluster.until(lambda: cluster.master.rebuild is not None and len(cluster.master.rebuild.reported) == 2)
    assert alice.ask(admin.Status()).state == "rebuilding"
    assert alice.ask(files.OpenRead("/a/f1")).info.size == 11
    with pytest.raises(errors.ReadOnly):
        alice.ask(files.Mkdir("/x"))
    with pytest.raises(errors.ReadOnly):
        alice.ask(files.OpenWrite("/x", 1))
    cluster.slaves["s2"].join()
    cluster.until(lambda: alice.ask(admin.Status()).state == "running")
    assert cluster.master.hub.epoch > epoch
    after = alice.ask(files.List("/", recursive=True)).entries
    key = [(i.path, i.kind, i.size, i.version, i.owner, i.mode, i.mtime, i.digest) for i in before]
    assert [(i.path, i.kind, i.size, i.version, i.owner, i.mode, i.mtime, i.digest) for i in after] == key
    cluster.until(lambda: "/dead" not in stale.files)
    cluster.until(lambda: cluster.holders("/a/f0") == dict.fromkeys(("s1", "s2", "s3"), new))
    cluster.until(lambda: all(s.mirror_serial == cluster.master.hub.serial for s in cluster.slaves.values()))
    assert "/dead" in stale.tombstones
    assert alice.put("/a/f0") > new


def test_rebuild_ends_after_the_wait(cluster: Cluster) -> None:
    """A slave that never comes does not hold the cluster up."""
    alice = cluster.client()
    alice.put("/f")
    cluster.until(lambda: len(cluster.holders("/f")) == 3)
    cluster.slaves["s3"].stop()

    async def everyone() -> list[str]:
        return ["s1", "s2", "s3"]

    forget_database(cluster, allow_list=everyone, rebuild_wait_s=30.0)
    for name in ("s1", "s2"):
        cluster.slaves[name].join()
    alice = cluster.client()
    cluster.sleep(25)
    assert alice.ask(admin.Status()).state == "rebuilding"
    cluster.sleep(10)
    assert alice.ask(admin.Status()).state == "running"
    assert alice.ask(files.Stat("/f")).info.size == 10


def test_rebuild_refuses_a_database_with_content(cluster: Cluster) -> None:
    """Nothing is thrown away by a wrong flag; an unfinished rebuild goes on without the flag."""
    alice = cluster.client()
    alice.put("/f")
    cluster.kill_master()
    with pytest.raises(errors.Conflict, match="not empty"):
        cluster.start_master(rebuild=True)
    cluster.kill_master()
    cluster.start_master()
    assert cluster.master.hub.state == "running"
    forget_database(cluster)
    cluster.restart()
    assert cluster.master.hub.state == "rebuilding"


def test_lost_database_without_rebuild_adopts_nothing(cluster: Cluster) -> None:
    """A slave that remembers more than the database: refused, and the status says what to do."""
    alice = cluster.client()
    alice.put("/f")
    alice.ask(files.Remove("/f"))
    cluster.until(lambda: all(s.mirror_serial for s in cluster.slaves.values()))
    cluster.kill_master()
    for path in cluster.folder.glob("master.db*"):
        path.unlink()
    cluster.start_master()
    for slave in cluster.slaves.values():
        slave.files["/f"] = slave.files.get("/f") or wire.SliceMeta("/f", Version(1, 1), 1, "a", 0, 0.0, "d")
        slave.join()
    alice = cluster.client()
    cluster.sleep(5)
    assert alice.ask(admin.Status()).state == "rebuild_needed"
    assert alice.ask(files.List("/")).entries == []


# adoption and local files ---------------------------------------------------------------------------------
def test_unknown_files_are_adopted(cluster: Cluster) -> None:
    """A file that a scan found becomes a Sector file and is replicated; another content of a known path is a
    conflict and does not."""
    alice = cluster.client()
    slave = cluster.slaves["s1"]
    found = wire.SliceMeta("/new/f", Version(0, 1), 5, "root", 0o644, 1.0, "x")
    slave.files["/new/f"] = found
    cluster.run(slave.call(wire.Adopted("s1", [found])))
    assert alice.ask(files.Stat("/new/f")).info.owner == "root"
    cluster.until(lambda: len(cluster.holders("/new/f")) == 3)
    version = alice.put("/g")
    cluster.until(lambda: len(cluster.holders("/g")) == 3)
    slave.files["/g"] = other = wire.SliceMeta("/g", Version(0, 1), 6, "root", 0o644, 1.0, "y")
    cluster.run(slave.call(wire.Adopted("s1", [other])))
    cluster.until(lambda: ("/g", Version(0, 1)) in slave.attic)
    cluster.until(lambda: cluster.holders("/g").get("s1") == version)
    cluster.run(slave.call(wire.Adopted("s1", [], [("/g", version)])))
    cluster.run(slave.call(wire.Adopted("s1", [], [], [("/new/f", Version(0, 1))])))


def test_local_publish_needs_the_users_right(cluster: Cluster) -> None:
    """A job's file: the principal's right counts, the slave publishes like any write."""
    alice = cluster.client("alice", "rw", "/home")
    cluster.client().ask(files.Mkdir("/home"))
    slave = cluster.slaves["s1"]
    principal = "job:1/alice"
    session = f"user:alice#{alice.row.id.hex()}"

    def resolve(name: str, slave_id: str, path: str) -> View:
        if name != principal:
            raise errors.Denied("no such job")
        return cluster.sessions.user_of(session)

    cluster.master.context.resolvers["job"] = resolve
    grant = cluster.run(slave.call(wire.LocalPublish("s1", principal, "/home/out/part.0", 7, "d")))
    meta = wire.SliceMeta("/home/out/part.0", grant.version, 7, "alice", 0o644, 1.0, "d")
    slave.files[meta.path] = meta
    assert cluster.run(slave.call(wire.Publish("s1", grant.lease, meta))).version == grant.version
    assert alice.ask(files.Stat("/home/out/part.0")).info.owner == "alice"
    for bad in (session, "user:alice#00", "job:x/y", "slave:s1", "nobody"):
        with pytest.raises(errors.Denied):  # a slave hears sessions of its readers, it never acts as one
            cluster.run(slave.call(wire.LocalPublish("s1", bad, "/home/x", 7, "d")))
    with pytest.raises(errors.Denied):
        cluster.run(slave.call(wire.LocalPublish("s1", principal, "/etc", 7, "d")))
    again = cluster.run(slave.call(wire.LocalPublish("s1", principal, "/home/x", 7, "d")))
    cluster.run(slave.call(wire.LocalDrop("s1", "/home/x", again.lease)))
    alice.put("/home/x")


def test_replicate_on_request(tmp_path: Path) -> None:
    """More copies than configured, at once and kept; of a directory the least replicated file counts."""
    cluster = Cluster(tmp_path, slaves=5)
    alice = cluster.client()
    alice.ask(files.Mkdir("/d"))
    alice.put("/d/f")
    alice.put("/d/g")
    answer = alice.ask(files.Replicate("/d", 5))
    assert answer.wanted == 5 and answer.have < 5
    cluster.until(lambda: alice.ask(files.Replicate("/d", 5)).have == 5)
    cluster.sleep(30)
    assert len(cluster.holders("/d/f")) == len(cluster.holders("/d/g")) == 5
    answer = alice.ask(files.Replicate("/d/f", 64))
    assert (answer.wanted, answer.have) == (5, 5)
    alice.ask(files.Replicate("/d/f", 3))
    cluster.until(lambda: len(cluster.holders("/d/f")) == 3)
    assert len(cluster.holders("/d/g")) == 5
    cluster.close()


def test_listing_pages(cluster: Cluster) -> None:
    """A page at a time, nothing twice, nothing left out."""
    alice = cluster.client()
    names = [f"/f{index:03}" for index in range(25)]
    for name in names:
        alice.put(name, 0)
    seen: list[str] = []
    after, more = "", True
    while more:
        page = alice.ask(files.List("/", after=after, limit=10))
        seen += [e.path for e in page.entries]
        after, more = seen[-1], page.more
        assert len(page.entries) <= 10
    assert seen == names


def test_limits_of_copies_are_settings(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, slaves=0, copies=5, per_node=3, small_copies=7, small_per_node=6)
    limits = cluster.master.hub.core.replicator.limits
    assert (limits.most(False), limits.most(True)) == ((5, 3), (7, 6))
    cluster.close()
