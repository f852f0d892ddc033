"""Files on a simulated cluster: what users see when all is well, and when slaves or the master die."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sector import errors
from sector.client.progress import Progress
from sector.testing.cluster import SimCluster, write_random

MB = 1_000_000


@pytest.fixture
def sim(tmp_path: Path, seed: int) -> Iterator[SimCluster]:
    """Three slaves and a master, running."""
    with SimCluster(tmp_path / "sim", seed=seed) as cluster:
        yield cluster


def test_put_stat_list_get_remove(sim: SimCluster, tmp_path: Path) -> None:
    """The everyday round trip."""
    cloud = sim.client()
    content = write_random(tmp_path / "a.bin", 3 * MB + 17)
    summary = sim.wait(cloud.put(tmp_path / "a.bin", "/data/sub/a.bin"))
    assert [moved.path for moved in summary.files] == ["/data/sub/a.bin"]
    info = sim.wait(cloud.stat("/data/sub/a.bin"))
    assert (info.size, info.owner, info.kind) == (len(content), "alice", "file")
    assert [entry.path for entry in sim.wait(cloud.ls("/data"))] == ["/data/sub"]
    sim.wait(cloud.get("/data/sub/a.bin", tmp_path / "b.bin"))
    assert (tmp_path / "b.bin").read_bytes() == content
    removed = sim.wait(cloud.rm("/data", recursive=True))
    assert (removed.files, removed.bytes) == (1, len(content))
    with pytest.raises(errors.NotFound):
        sim.wait(cloud.stat("/data/sub/a.bin"))
    sim.until(lambda: not sim.serving("/data/sub/a.bin"))
