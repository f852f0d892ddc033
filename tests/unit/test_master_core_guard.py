"""What a master tells and believes: nothing of what a user may not read, no number that it cannot keep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from master_cluster import Client, Cluster
from twisted.internet.defer import ensureDeferred

from sector import errors
from sector.model import Right, Tombstone, Version
from sector.wire import files
from sector.wire import slave as wire
from sector.wire.login import Verified


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("recursive", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_listing_never_names_what_may_not_be_read(cluster: Cluster, recursive: bool, limit: int) -> None:
    """Whatever the size of the pages: no entry of a directory without the read right, and nothing visible is
    left out behind it, nor a directory in it that was given back."""
    admin = cluster.client("root")
    for folder in ("/a", "/b", "/b/open", "/c"):
        admin.ask(files.Mkdir(folder))
        for index in range(3):
            admin.put(f"{folder}/f{index}", 0)
    for given in ([], [Right("eve", "/b/open", "r")]):
        rights = [Right("eve", "/", "r"), Right("eve", "/b", ""), *given]
        row, _ = cluster.sessions.create(Verified("eve", [], rights, 1), "10.0.9.9/32")
        cluster.gmp.add_key(cluster.sessions.gmp_key(row))
        eve = Client(cluster, row)
        seen: list[str] = []
        after, more = "", True
        while more:
            page = eve.ask(files.List("/", recursive=recursive, after=after, limit=limit))
            assert len(page.entries) <= limit
            assert page.entries or not page.more
            seen += [e.path for e in page.entries]
            after, more = seen[-1], page.more
        wanted = {"/a", "/c"}
        if recursive:
            wanted |= {f"{d}/f{i}" for d in ("/a", "/c") for i in range(3)}
            wanted |= {"/b/open", *(f"/b/open/f{i}" for i in range(3))} if given else set()
        assert seen == sorted(wanted)


def test_versions_from_the_future_are_overtaken(cluster: Cluster) -> None:
    """Content and deletions newer than the database ever gave (an older copy of it was put back): such a path
    can be written, removed and written again, and numbers go on being new."""
    alice, s1 = cluster.client(), cluster.slaves["s1"]
    before = alice.put("/early")
    ahead = Version(before.epoch + 7, before.counter + 1000)
    s1.files["/f"] = wire.SliceMeta("/f", ahead, 5, "alice", 0o644, 1.0, "old")
    s1.tombstones["/t"] = Tombstone("/t", Version(ahead.epoch + 1, 3), 1.0)
    cluster.run(ensureDeferred(s1.report()))
    assert alice.ask(files.Stat("/f")).info.version == ahead
    assert alice.put("/f", digest="new") > ahead
    assert alice.put("/t") > s1.tombstones["/t"].version
    cluster.until(lambda: len(cluster.holders("/t")) == len(cluster.holders("/f")) == 3)
    alice.ask(files.Remove("/f"))
    cluster.until(lambda: cluster.holders("/f") == {})
    cluster.restart()
    assert alice.put("/late") > s1.tombstones["/t"].version > ahead
    assert cluster.holders("/f") == {}


@pytest.mark.parametrize(
    "bad",
    [
        wire.SliceMeta("/x", Version(1, 2**63), 1, "o", 0, 1.0, "d"),
        wire.SliceMeta("/x", Version(2**64 - 1, 1), 1, "o", 0, 1.0, "d"),
        wire.SliceMeta("/x", Version(1, 1), 2**63, "o", 0, 1.0, "d"),
        wire.SliceMeta("/x", Version(1, 1), 1, "o", 0, float("nan"), "d"),
        wire.SliceMeta("/x", Version(1, 1), 1, "o", 0, float("inf"), "d"),
    ],
)
def test_numbers_that_no_database_keeps_are_refused(cluster: Cluster, bad: wire.SliceMeta) -> None:
    """At decoding, with one clear error; nothing of the report counts and the next one does."""
    s1 = cluster.slaves["s1"]
    for request in (wire.Report("s1", True, True, [bad]), wire.Adopted("s1", [bad])):
        with pytest.raises(errors.Protocol):
            cluster.run(s1.call(request))
    cluster.run(ensureDeferred(s1.report()))
    with pytest.raises(errors.NotFound):
        cluster.client().ask(files.Stat("/x"))


def test_refusals_are_audited_but_cannot_flood_the_log(cluster: Cluster) -> None:
    """Who asked for what he may not have is on record (design section 4)."""
    cluster.client().ask(files.Mkdir("/private"))
    eve, mallory = cluster.client("eve", "rw", "/home"), cluster.client("mallory", "", "/")
    with pytest.raises(errors.Denied):
        eve.ask(files.Stat("/private"))
    assert cluster.audit[-1][:2] == ("user:eve", "denied") and "Stat" in cluster.audit[-1][2]
    for _ in range(200):
        with pytest.raises(errors.Denied):
            mallory.ask(files.OpenRead("/private/x"))
    told = [line for line in cluster.audit if line[0] == "user:mallory"]
    assert 20 < len(told) < 60
    with pytest.raises(errors.Denied):
        eve.ask(files.Remove("/private"))
    assert cluster.audit[-1][0] == "user:eve"
    cluster.sleep(61)
    with pytest.raises(errors.Denied):
        mallory.ask(files.List("/"))
    assert cluster.audit[-1][0] == "user:mallory" and "List" in cluster.audit[-1][2]
