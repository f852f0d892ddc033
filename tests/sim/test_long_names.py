"""Slaves with names as long as they may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from sector._udt.traffic import NAMES
from sector.testing.cluster import SimCluster, SimSlave
from sector.testing.data import SimDataPort


@pytest.mark.parametrize("length", [1, 42, 64])
def test_a_slave_that_has_moved_petabytes_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """Its heartbeat says what it has moved, and has to fit into a CONTROL message all the same."""
    monkeypatch.setattr(SimDataPort, "traffic", lambda self: dict.fromkeys(NAMES, 10**15))
    sim = SimCluster(tmp_path / "sim", slaves=0, copies=1)
    name = "n" * length
    sim.slaves = {name: SimSlave(name, tmp_path / "sim" / name)}
    with sim:
        sim.advance(30)
        assert [node.state for node in sim.wait(sim.client().nodes())] == ["up"]
        cloud = sim.client()
        sim.wait(cloud.write("/a", b"content"))
        assert sim.wait(cloud.read("/a")) == b"content"
