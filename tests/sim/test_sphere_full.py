"""Disks that fill up while data arrives: the client's ends the job by name, a slave's leaves it out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_sphere import KB, SphereSim, parts, store

from sector import errors
from sector.slave import spe_data
from sector.sphere.result import Spool
from sector.sphere.stream import SphereStream


@pytest.fixture
def lone(tmp_path: Path, seed: int) -> Iterator[SphereSim]:
    """Three slaves, one replica of each file."""
    with SphereSim(tmp_path / "sim", slaves=3, copies=1, seed=seed) as cluster:
        cluster.advance(3)
        yield cluster


def test_a_large_result_for_which_the_client_has_no_room_ends_the_job(
    lone: SphereSim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ran the segment five times and advised to wait for the slaves."""
    cloud = lone.client()
    store(lone, cloud, 1, 700 * KB)
    monkeypatch.setattr(Spool, "room", lambda self, size: 1 << 62)  # no file is so long
    driver = lone.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data))
    with pytest.raises((errors.NoSpace, errors.LocalIO), match=r"a result in /.*on this machine"):
        lone.wait(driver.wait())
    assert driver.counts().retries == 0 and driver.status().left_out == {}


def test_a_slave_without_room_for_input_from_others_is_left_out(
    lone: SphereSim, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = lone.client()
    contents = store(lone, cloud, 12)
    real = spe_data.temporary_thd

    def temporary(folder: str) -> int:
        return os.open("/dev/full", os.O_RDWR) if "/s1/" in folder else real(folder)

    monkeypatch.setattr(spe_data, "temporary_thd", temporary)
    for spawner in (lone.spawners["s2"], lone.spawners["s3"]):
        assert spawner.made is not None
        spawner.made.seconds = lambda task: 3.0  # s1 helps them
    driver = lone.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data), in_order=True)
    began = lone.clock.seconds()
    assert [part.data for part in parts(lone, driver)] == contents
    assert list(driver.status().left_out) == ["s1"]
    assert lone.clock.seconds() - began < 40
