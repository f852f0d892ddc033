"""The master over the in-process network: files, replicas, crashes, rebuild (design sections 5 and 12)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from master_cluster import Cluster

from sector import errors
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
