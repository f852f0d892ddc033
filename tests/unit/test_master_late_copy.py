"""A copy that was given up for its time and arrives after all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from master_cluster import Cluster

from sector.wire import slave as wire


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, slaves=4)
    yield made
    made.close()


def test_a_copy_that_was_given_up_and_arrives_is_looked_at(cluster: Cluster) -> None:
    """It may be one too many: that is not found in a later round only."""
    cluster.sleep(30)
    version = cluster.client().put("/f")
    cluster.sleep(30)
    before = cluster.holders("/f")
    (late,) = (slave for slave in cluster.slaves.values() if slave.id not in before)
    late.take(cluster.slaves[min(before)].files["/f"])
    cluster.run(late.call(wire.Replicated(late.id, bytes(16), "/f", version, "")))
    cluster.until(lambda: len(cluster.holders("/f")) == len(before), 1)
