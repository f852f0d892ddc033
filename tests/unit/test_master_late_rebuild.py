"""Slaves whose report a rebuild did not wait for (decision 0300)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from master_cluster import START, Cluster

from sector import errors
from sector.master import slave_calls
from sector.model import SliceMeta, Tombstone, Version
from sector.wire import admin, files
from sector.wire import slave as wire


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def meta(path: str, counter: int, digest: str = "d") -> SliceMeta:
    """What a slave has from the time before."""
    return SliceMeta(path, Version(5, counter), 10, "u", 0o644, START, digest)


def rebuild(cluster: Cluster, known: bool = True) -> list[str]:
    """The master dies, its database is deleted, a new one rebuilds for 30 s. Returns the allow-list, to be
    changed."""
    cluster.kill_master()
    for path in cluster.folder.glob("master.db*"):
        path.unlink()
    names = list(cluster.slaves) if known else []

    async def everyone() -> list[str]:
        if not names:
            raise errors.Unreachable("the security server does not answer")
        return list(names)

    for slave in cluster.slaves.values():
        slave._reporting = True  # nobody reports by itself
    cluster.start_master(rebuild=True, rebuild_wait_s=30.0, allow_list=everyone)
    return names


def test_a_slave_that_is_awaited_gets_no_mirror_before_its_report(cluster: Cluster) -> None:
    """The mirror of a rebuilt master takes the place of the directories that the slave remembers."""
    first, late = cluster.slaves["s1"], cluster.slaves["s3"]
    rebuild(cluster)
    late.directories["/only"] = SliceMeta("/only", Version(5, 7), 0, "u", 0o755, START, "dir")
    first.join()
    cluster.run(first.call(wire.Report("s1", True, True)))
    cluster.sleep(35)
    alice = cluster.client()
    assert alice.ask(admin.Status()).state == "running"
    late.join()
    cluster.sleep(20)
    alice.ask(files.Mkdir("/new"))
    cluster.sleep(10)
    assert list(late.directories) == ["/only"] and late.mirror_serial < cluster.master.hub.serial_base
    late._reporting = False
    cluster.until(lambda: set(late.directories) == {"/only", "/new"})
    assert [entry.path for entry in alice.ask(files.List("/")).entries] == ["/new", "/only"]
    assert alice.ask(admin.Status()).counters["slaves_awaited"] == 1


def test_a_report_that_the_end_of_a_rebuild_cuts_in_two_is_merged_as_one(cluster: Cluster) -> None:
    """By the rebuild's rules: its newer content is taken though others have an older one, its tombstones
    remove, and what is written next is newer than all of it."""
    first, late = cluster.slaves["s1"], cluster.slaves["s3"]
    rebuild(cluster)
    for slave in (first, late):
        slave.join()
    first.files = {path: meta(path, 1) for path in ("/x", "/y")}
    late.files = {path: meta(path, 9, "new") for path in ("/y", "/z")}
    cluster.run(first.call(wire.Report("s1", True, True, list(first.files.values()))))
    cluster.run(late.call(wire.Report("s3", True, False, [late.files["/z"]])))
    cluster.sleep(35)
    alice = cluster.client()
    assert alice.ask(admin.Status()).state == "running"
    ahead = Version(int(cluster.wall()) + 10**6, 3)
    stones = [Tombstone("/x", Version(5, 3), START), Tombstone("/a", ahead, START)]
    cluster.run(late.call(wire.Report("s3", False, True, [late.files["/y"]], stones)))
    found = {entry.path: entry.version for entry in alice.ask(files.List("/")).entries}
    assert found == {"/y": Version(5, 9), "/z": Version(5, 9)}
    assert alice.put("/a") > ahead
    first._reporting = late._reporting = False
    cluster.master.remove_node("slave:s2")  # the last that is awaited: all report once more
    cluster.until(lambda: "/x" not in first.files)


def test_a_report_under_way_when_the_last_comes_is_not_the_one_that_is_asked_for_then(
    cluster: Cluster,
) -> None:
    """It named its files before the deletions of the last were known."""
    first, late = cluster.slaves["s1"], cluster.slaves["s3"]
    rebuild(cluster).remove("s2")
    for slave in (first, late):
        slave.join()
    first.files = {"/x": meta("/x", 1)}
    cluster.run(first.call(wire.Report("s1", True, True, list(first.files.values()))))
    cluster.sleep(35)
    assert cluster.master.hub.awaited == {"s3"}
    cluster.run(first.call(wire.Report("s1", True, False, list(first.files.values()))))
    cluster.run(late.call(wire.Report("s3", True, True, [], [Tombstone("/x", Version(5, 3), START)])))
    assert not cluster.master.hub.awaited
    cluster.run(first.call(wire.Report("s1", False, True)))
    node = cluster.master.hub.core.members.get("s1")
    assert node.want_report and not node.reported
    first._reporting = False
    cluster.until(lambda: "/x" not in first.files and node.reported)
    assert first.attic == [("/x", Version(5, 1))] and not node.want_report


def test_a_report_under_way_when_the_rebuild_ends_is_followed_by_one_of_normal_service(
    cluster: Cluster,
) -> None:
    first, other = cluster.slaves["s1"], cluster.slaves["s2"]
    names = rebuild(cluster)
    names.remove("s3")
    for slave in (first, other):
        slave.join()
    first.files = {"/x": meta("/x", 1)}
    cluster.run(first.call(wire.Report("s1", True, True)))
    cluster.run(first.call(wire.Report("s1", True, False, list(first.files.values()))))
    cluster.run(other.call(wire.Report("s2", True, True, [], [Tombstone("/x", Version(5, 3), START)])))
    cluster.until(lambda: cluster.master.hub.state == "running", 25)
    cluster.run(first.call(wire.Report("s1", False, True)))
    assert cluster.master.hub.core.members.get("s1").want_report
    first._reporting = False
    cluster.until(lambda: "/x" not in first.files)


def test_what_lies_below_a_name_that_is_written_is_taken_when_the_write_is_given_up(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan found it, or an awaited slave brought it: it stays where it is, and is told again."""
    monkeypatch.setattr(slave_calls, "HELD_PAUSE_S", 20.0)
    first, late = cluster.slaves["s1"], cluster.slaves["s3"]
    rebuild(cluster).remove("s2")
    for slave in (first, late):
        slave.join()
    cluster.run(first.call(wire.Report("s1", True, True)))
    cluster.sleep(35)
    alice = cluster.client()
    for path in ("/big", "/huge"):
        alice.ask(files.OpenWrite(path, 10))
    first.files = {"/big/sub": meta("/big/sub", 1)}
    late.files = {"/huge/sub": meta("/huge/sub", 2)}
    first._reporting = late._reporting = False
    cluster.run(first.call(wire.Adopted("s1", found=list(first.files.values()))))
    cluster.sleep(10)
    assert not cluster.master.hub.awaited and not alice.ask(files.List("/")).entries
    cluster.sleep(120)
    assert [entry.path for entry in alice.ask(files.List("/huge")).entries] == ["/huge/sub"]
    assert [entry.path for entry in alice.ask(files.List("/big")).entries] == ["/big/sub"]
    assert first.attic == late.attic == []


def test_a_rebuild_waits_for_the_list_of_slaves(cluster: Cluster) -> None:
    """Without it nobody knows who is missing. A name that is taken off it meanwhile is not waited for."""
    first = cluster.slaves["s1"]
    names = rebuild(cluster, known=False)
    first.join()
    cluster.run(first.call(wire.Report("s1", True, True)))
    cluster.sleep(100)
    assert cluster.master.hub.state == "rebuilding"
    names.append("s1")
    cluster.until(lambda: cluster.master.hub.state == "running", 10)
    assert not cluster.master.hub.awaited


def test_a_name_that_leaves_the_list_holds_no_rebuild_up(cluster: Cluster) -> None:
    first = cluster.slaves["s1"]
    names = rebuild(cluster)
    first.join()
    cluster.run(first.call(wire.Report("s1", True, True)))
    cluster.sleep(10)
    assert cluster.master.hub.state == "rebuilding"
    names[:] = ["s1"]
    cluster.until(lambda: cluster.master.hub.state == "running", 10)
