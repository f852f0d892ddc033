"""A dead slave that is taken from the allow-list when the master has been restarted since it died."""

from __future__ import annotations

from pathlib import Path

from sector.testing.cluster import SimCluster


def test_a_slave_that_died_before_the_last_start_of_the_master(tmp_path: Path) -> None:
    """Nobody is told that it holds copies; off the list nothing waits for it, and should it be
    let in again, what was deleted meanwhile stays deleted."""
    with SimCluster(tmp_path / "sim", slaves=3, copies=3) as sim:
        cloud = sim.client()
        for path in ("/kept", "/removed"):
            sim.wait(cloud.write(path, b"content"))
        sim.advance(30)
        sim.kill_slave("s1")
        sim.kill_master()
        sim.start_master()
        sim.advance(30)
        assert sim.wait(cloud.stat("/kept")).replicas == ["s2", "s3"]
        assert [entry.replicas for entry in sim.wait(cloud.ls("/"))] == [["s2", "s3"]] * 2
        sim.wait(cloud.rm("/removed"))
        sim.advance(5)
        assert sim.wait(cloud.status()).counters["deletions_waiting"] == 1
        sim.up().remove_node("slave:s1")
        sim.advance(5)
        assert sim.wait(cloud.status()).counters["deletions_waiting"] == 0
        sim.start_slave("s1")
        sim.advance(60)
        assert sim.wait(cloud.stat("/kept")).replicas == ["s1", "s2", "s3"]
        assert sim.serving("/removed") == [] and not sim.wait(cloud.exists("/removed"))
