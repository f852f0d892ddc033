"""One slave of the allow-list that lies: it costs no data that others hold, and no number that is needed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from master_cluster import Cluster
from twisted.internet.defer import ensureDeferred

from sector import errors
from sector.model import SliceMeta, Tombstone, Version
from sector.wire import files
from sector.wire import slave as wire


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, slaves=4)
    yield made
    made.close()


def newer(version: Version, path: str = "/f") -> SliceMeta:
    return SliceMeta(path, Version(version.epoch, version.counter + 1000), 5, "alice", 0o644, 1.0, "lie")


@pytest.mark.parametrize("by", ["report", "scan"])
@pytest.mark.parametrize("holds", [True, False])
def test_a_claim_of_newer_content_takes_nothing_from_the_others(
    cluster: Cluster, by: str, holds: bool
) -> None:
    """Readers go on to get what was written, and the other replicas stay where they are."""
    alice = cluster.client()
    version = alice.put("/f")
    cluster.until(lambda: len(cluster.holders("/f")) == 3)
    with_it = sorted(cluster.holders("/f"))
    liar = with_it[0] if holds else next(name for name in cluster.slaves if name not in with_it)
    slave = cluster.slaves[liar]
    slave.files["/f"] = newer(version)
    if by == "report":
        cluster.run(ensureDeferred(slave.report()))
    else:
        cluster.run(slave.call(wire.Adopted(liar, [newer(version)])))
    cluster.sleep(120)
    assert alice.ask(files.Stat("/f")).info.version == version
    honest = {name: held for name, held in cluster.holders("/f").items() if name != liar}
    assert set(honest.values()) == {version} and len(honest) == 3
    for _ in range(8):
        assert alice.ask(files.OpenRead("/f")).node != liar
    told = [line for line in cluster.audit if line[1] == "newer content"]
    assert told and told[0][0] == f"slave:{liar}" and "/f" in told[0][2]
    assert slave.files["/f"] == newer(version)  # nor is it lost, should it be true
    assert alice.put("/f") > version


def test_what_several_slaves_say_is_newer_is_taken(cluster: Cluster) -> None:
    """An older copy of the database was put back."""
    alice = cluster.client()
    version = alice.put("/f")
    cluster.until(lambda: len(cluster.holders("/f")) == 3)
    ahead = newer(version)
    for name in sorted(cluster.holders("/f"))[:2]:
        cluster.slaves[name].files["/f"] = ahead
        cluster.run(ensureDeferred(cluster.slaves[name].report()))
    assert alice.ask(files.Stat("/f")).info.version == ahead.version
    cluster.until(lambda: list(cluster.holders("/f").values()) == [ahead.version] * 3)


def test_newer_content_of_a_slave_counts_when_the_others_are_lost(cluster: Cluster) -> None:
    alice = cluster.client()
    version = alice.put("/f")
    cluster.until(lambda: len(cluster.holders("/f")) == 3)
    first = sorted(cluster.holders("/f"))[0]
    for name in cluster.slaves.keys() - {first}:
        cluster.slaves[name].stop()
    cluster.sleep(15)
    cluster.slaves[first].files["/f"] = newer(version)
    cluster.run(ensureDeferred(cluster.slaves[first].report()))
    assert alice.ask(files.Stat("/f")).info.version == newer(version).version


def test_versions_of_the_far_future_leave_room_for_others(cluster: Cluster) -> None:
    """Else no version could be given any more, and nothing be written."""
    end = Version(1 << 62, 1 << 62)
    liar = cluster.slaves["s1"]
    liar.files["/far"] = SliceMeta("/far", end, 5, "alice", 0o644, 1.0, "lie")
    liar.tombstones["/t"] = Tombstone("/t", end, 1.0)
    cluster.run(ensureDeferred(liar.report()))
    liar.tombstones.clear()
    cluster.restart()
    for path in ("/far", "/t", "/other"):
        version = cluster.client().put(path)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(version), type=Version) == version


def test_bad_replicas_that_nobody_counted_are_not_told(cluster: Cluster) -> None:
    """A slave could fill the audit log."""
    alice = cluster.client()
    version = alice.put("/f")
    cluster.until(lambda: len(cluster.holders("/f")) == 3)
    liar = sorted(cluster.holders("/f"))[0]
    before = len(cluster.audit)
    lies = [(f"/none/{n}", version) for n in range(1000)]
    for _ in range(3):
        cluster.run(cluster.slaves[liar].call(wire.Adopted(liar, [], [], lies, ["x" * 8000] * 1000)))
    assert len(cluster.audit) == before
    cluster.run(cluster.slaves[liar].call(wire.Adopted(liar, [], [], [("/f", version)], ["x" * 8000])))
    told = cluster.audit[before:]
    assert len(told) == 1 and told[0][1] == "bad replica" and len(told[0][2]) < 1000


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0])
def test_loads_and_times_are_numbers(cluster: Cluster, bad: float) -> None:
    """They end in JSON, and in dates on a terminal."""
    beat = wire.Heartbeat("s1", 1, 1, 1, 1, 0, bad)
    with pytest.raises(errors.Protocol):
        cluster.run(cluster.slaves["s1"].call(beat))
    if bad != -1.0:
        for state in (wire.ScrubState(began=bad), wire.ScrubState(ended=bad)):
            with pytest.raises(errors.Protocol):
                cluster.run(cluster.slaves["s1"].call(wire.Scrubbed("s1", state)))
