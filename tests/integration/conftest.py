"""One cluster for tests that only use it; tests that break things start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster import Cluster, running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four slaves, shared by the tests of a module."""
    with running(tmp_path_factory.mktemp("cluster")) as running_cluster:
        yield running_cluster
