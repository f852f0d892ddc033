"""One path that a slave cannot remove or rename, among many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from master_cluster import Cluster, ScriptedSlave
from twisted.internet.defer import ensureDeferred, fail
from twisted.logger import capturedLogs

from sector import errors
from sector.cli.cluster import stuck_lines
from sector.master import stuck
from sector.master.values import PendingRename, Trash
from sector.model import SliceMeta, Version
from sector.wire import admin, files
from sector.wire import slave as wire

V1, V2 = Version(1, 1), Version(1, 2)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, slaves=1, copies=1)
    yield made
    made.close()


class Refusing:
    """A slave whose disk refuses to remove or rename some paths; counts what it is asked."""

    def __init__(self, slave: ScriptedSlave, *paths: str) -> None:
        self.slave = slave
        self.paths = set(paths)
        self.error: errors.SectorError = errors.LocalIO("Permission denied")
        self.asked: list[list[str]] = []
        slave.rpc.serve(wire.Delete, slave._scripted(wire.Delete, self.delete))
        slave.rpc.serve(wire.RenameFiles, slave._scripted(wire.RenameFiles, self.rename))

    def delete(self, request: wire.Delete) -> Any:
        """The first refused path ends the command."""
        return self._judge([dead.path for dead in request.tombstones], lambda: self.slave.delete(request))

    def rename(self, request: wire.RenameFiles) -> Any:
        """The same."""
        return self._judge([move.source for move in request.renames], lambda: self.slave.rename(request))

    def _judge(self, paths: list[str], work: Any) -> Any:
        self.asked.append(paths)
        if self.paths & set(paths):
            raise self.error
        return work()


def many(cluster: Cluster, count: int) -> list[str]:
    """Files of a directory."""
    alice = cluster.client()
    alice.ask(files.Mkdir("/a"))
    names = [f"/a/{number:03}" for number in range(count)]
    for name in names:
        alice.put(name)
    cluster.sleep(3)
    return names


def test_halves_find_the_path_that_is_refused(cluster: Cluster) -> None:
    """All others are removed, at the cost of some more commands; the log names the one, once."""
    names = many(cluster, 100)
    slave = cluster.slaves["s1"]
    refusing = Refusing(slave, names[37])
    with capturedLogs() as said:
        cluster.client().ask(files.Remove("/a", recursive=True))
        cluster.sleep(5)
        assert not slave.files and [path for path, _ in slave.attic] == [names[37]]  # by its tombstone
        assert len(refusing.asked) < 20
        count = len(refusing.asked)
        cluster.sleep(500)
        assert len(refusing.asked) == count
        cluster.sleep(120)
        assert len(refusing.asked) == count + 1
    told = [one for one in said if one.get("path") == names[37] and one["log_level"].name == "warn"]
    assert len(told) == 1
    refusing.paths.clear()
    cluster.sleep(620)
    assert cluster.master.errands.stuck("s1") == 0


def test_a_stuck_rename_holds_back_only_what_is_removed_under_its_names(cluster: Cluster) -> None:
    """/y is to become /z and cannot; a new /y, which another one became, is removed: what the slave has as /y
    stays there, and /w goes."""
    alice = cluster.client()
    for path in ("/w", "/x", "/y"):
        alice.put(path, digest=path)
    cluster.sleep(3)
    slave = cluster.slaves["s1"]
    refusing = Refusing(slave, "/y", "/x")
    alice.ask(files.Move("/y", "/z"))
    alice.ask(files.Move("/x", "/y"))
    alice.ask(files.Remove("/y"))
    alice.ask(files.Remove("/w"))
    cluster.sleep(30)
    assert slave.files["/y"].digest == "/y" and "/w" not in slave.files
    assert "/y" not in slave.tombstones, "it is buried with the rename"
    assert slave.mirror_serial == cluster.master.hub.serial
    status = alice.ask(admin.Status())
    assert status.counters["errands_stuck"] == status.nodes["s1"]["errands_stuck"] >= 2
    refusing.paths.clear()
    alice.ask(files.OpenRead("/z"))
    assert slave.files["/z"].digest == "/y"
    cluster.sleep(620)
    assert {path: meta.digest for path, meta in slave.files.items()} == {"/z": "/y"}
    assert "/y" in slave.tombstones and cluster.master.errands.stuck("s1") == 0


def test_what_took_the_name_of_a_stuck_rename_can_be_read_and_copied(tmp_path: Path) -> None:
    """s1 is stuck at /y, which is to become /old, and has the file that is /y by now; it may not be written
    over there."""
    cluster = Cluster(tmp_path, slaves=2, copies=1)
    alice, slave = cluster.client(), cluster.slaves["s1"]
    cluster.slaves["s2"].stop()
    cluster.sleep(12)
    for path in ("/x", "/y"):
        alice.put(path)
    refusing = Refusing(slave, "/y")
    alice.ask(files.Move("/y", "/old"))
    alice.ask(files.Move("/x", "/y"))
    cluster.sleep(3)
    version = alice.ask(files.Stat("/y")).info.version
    assert slave.files["/y"].version == version
    assert alice.ask(files.OpenRead("/y")).node == "s1"
    alice.ask(files.ReportBad("/y", version, "s1", "unreadable"))
    cluster.slaves["s2"].start()
    cluster.until(lambda: set(cluster.holders("/y")) == {"s1", "s2"}, 10)
    asked = len(refusing.asked)
    with pytest.raises(errors.LocalIO):
        cluster.run(ensureDeferred(cluster.master.errands.ensure_renamed("s1", "/y")))
    assert len(refusing.asked) == asked + 1
    cluster.close()


def put_on(cluster: Cluster, node: str, path: str) -> Version:
    """A new file on this slave."""
    others = [name for name in cluster.slaves if name != node]
    grant = cluster.client().ask(files.OpenWrite(path, 10, exclude=others))
    assert grant.node == node
    return cluster.run(cluster.slaves[node].receive(path, "new")).version


@pytest.mark.parametrize("how", ["the rename succeeds", "what it moves is removed"])
def test_a_deletion_under_a_name_that_a_rename_is_stuck_at_is_on_the_slave_afterwards(
    tmp_path: Path, how: str
) -> None:
    """s1 has /y still, which is /z by now; s2 has the new /y and is away when that is removed. When the
    database is made anew from both, /y is no file. Nor is a slave without the tombstone waited for as one
    that has it."""
    cluster = Cluster(tmp_path, slaves=2, copies=1)
    alice, slave = cluster.client(), cluster.slaves["s1"]
    put_on(cluster, "s1", "/y")
    cluster.sleep(3)
    refusing = Refusing(slave, "/y")
    alice.ask(files.Move("/y", "/z"))
    cluster.sleep(3)
    version = put_on(cluster, "s2", "/y")
    cluster.sleep(3)
    cluster.slaves["s2"].stop()
    cluster.sleep(15)
    before = cluster.clock.seconds()
    alice.ask(files.Remove("/y"))
    assert cluster.clock.seconds() > before + 1.9
    cluster.sleep(5)
    assert slave.mirror_serial == cluster.master.hub.serial and "/y" in slave.files
    before = cluster.clock.seconds()
    alice.ask(files.Mkdir("/d"))
    alice.ask(files.Remove("/d"))
    assert cluster.clock.seconds() < before + 1, "other deletions are waited for no longer"
    cluster.restart()
    cluster.sleep(30)
    refusing.paths.clear()
    if how == "the rename succeeds":
        alice.ask(files.OpenRead("/z"))
        assert slave.files["/z"].digest == "new"
    else:
        alice.ask(files.Remove("/z"))
        cluster.sleep(620)
    cluster.sleep(3)
    assert slave.tombstones["/y"].version > version and "/y" not in slave.files
    cluster.close()


@pytest.mark.parametrize("error", [errors.Busy("later"), errors.Conflict("an old epoch"), errors.NoSpace("")])
def test_what_is_not_one_paths_fault_is_asked_again_whole(
    cluster: Cluster, error: errors.SectorError
) -> None:
    """A slave that is busy, full or follows another master fails at everything: nothing is left out."""
    names = many(cluster, 8)
    refusing = Refusing(cluster.slaves["s1"], names[0])
    refusing.error = error
    cluster.client().ask(files.Remove("/a", recursive=True))
    cluster.sleep(20)
    assert len(refusing.asked) < 10 and {len(paths) for paths in refusing.asked} == {8}
    assert cluster.master.errands.stuck("s1") == 0
    refusing.paths.clear()
    cluster.sleep(20)
    assert not cluster.slaves["s1"].files


@pytest.mark.parametrize("error", [errors.LocalIO("database is locked"), errors.NoSpace("full")])
@pytest.mark.parametrize("what", ["removed", "renamed"])
def test_a_database_that_fails_is_no_paths_fault(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, what: str, error: errors.SectorError
) -> None:
    """The slave did it, and the master cannot write that down: it asks for all of it once more, later."""
    names = many(cluster, 100)
    refusing = Refusing(cluster.slaves["s1"])
    alice = cluster.client()
    real, failures = cluster.store.write, [error]

    def write(rule: Any) -> Any:
        fails = failures and (
            "trash_done" in rule.__code__.co_names or "renames_done" in rule.__code__.co_names
        )
        return fail(failures.pop()) if fails else real(rule)

    monkeypatch.setattr(cluster.store, "write", write)
    if what == "removed":
        alice.ask(files.Remove("/a", recursive=True))
    else:
        alice.ask(files.Move("/a", "/b"))
    cluster.sleep(2)
    assert not failures and [sorted(paths) for paths in refusing.asked] == [names, names]
    assert cluster.master.errands.stuck("s1") == 0
    left = set(cluster.slaves["s1"].files)
    assert left == (set() if what == "removed" else {"/b" + name[2:] for name in names})


def test_a_slave_that_starts_anew_is_asked_for_all(cluster: Cluster) -> None:
    """An administrator has mended the directory and started it."""
    names = many(cluster, 3)
    slave = cluster.slaves["s1"]
    Refusing(slave, *names)
    cluster.client().ask(files.Remove("/a", recursive=True))
    cluster.sleep(20)
    assert cluster.master.errands.stuck("s1") == 3
    slave.stop()
    slave.start()
    cluster.sleep(5)
    assert not slave.files


def test_no_more_than_some_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that refuses everything fills no memory."""
    monkeypatch.setattr(stuck, "MOST", 2)
    known = stuck.Stuck()
    meta = SliceMeta("/new", V2, 1, "alice", 0o644, 1.0, "d")
    keys = [
        stuck.key_of(item)
        for item in (PendingRename("/a", V1, meta), Trash("/a", V1, 1.0, True), Trash("/a", V1, 1.0, False))
    ]
    assert len(set(keys)) == 3
    assert [known.add(key, 10.0) for key in keys] == [True, True, False]
    assert [known.news(key) for key in (*keys, keys[0])] == [True, True, False, False]
    assert not known.due(609.0) and known.waiting(609.0) == set(keys[:2])
    assert known.due(610.0) and known.waiting(610.0) == frozenset() and len(known) == 0
    assert known.add(keys[2], 610.0)
    known.done(keys[2])
    assert len(known) == 0 and not known.due(1e9)


def test_the_status_names_slaves_that_are_stuck() -> None:
    """And no others; an older master tells nothing."""
    lines = stuck_lines({"s2": {"errands_stuck": 3}, "s1": {"errands_stuck": 0}, "s3": {}})
    assert [line.partition(" files")[0] for line in lines] == ["stuck  s2 cannot remove or rename 3"]
