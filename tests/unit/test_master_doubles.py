"""Two processes under the name of one slave (decision 0251)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from master_cluster import Cluster, ScriptedSlave

from sector import errors


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def test_a_second_process_under_the_name_of_a_slave_waits_until_the_first_is_silent(cluster: Cluster) -> None:
    """It does not take the place of one that is heard: the two would push each other out for ever, and what
    was for the one would be done by the other."""
    first = cluster.slaves["s1"]
    alice = cluster.client()
    alice.put("/f")
    cluster.until(lambda: len(cluster.holders("/f")) == 3)
    second = ScriptedSlave(cluster, "s1", "10.0.0.9")
    for _ in range(20):
        with pytest.raises(errors.Conflict, match="slave s1 runs already, as process 1 at"):
            second.start()
        cluster.sleep(1)
    assert cluster.master.hub.core.members.get("s1").instance == first.gmp.instance
    assert len(cluster.holders("/f")) == 3
    first.join()  # the same process may always come again
    first.stop()
    cluster.until(lambda: cluster.master.hub.core.members.get("s1").state != "up")
    second.start()
    assert cluster.master.hub.core.members.get("s1").gmp.host == "10.0.0.9"


def test_a_slave_that_starts_again_is_taken_at_once(cluster: Cluster) -> None:
    """Its data directory or its port is the same, hence the process that had them has ended."""
    slave = cluster.slaves["s1"]
    slave.stop()
    slave.start()
    assert cluster.master.hub.core.members.get("s1").instance == slave.gmp.instance
