"""Input that has left the slave that was known to have it and lies on others: a job reads it there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_sphere import KB, SphereSim, damage, parts, store

from sector.master import namespace as ns
from sector.sphere.records import encode, from_lengths
from sector.sphere.stream import SphereStream


@pytest.fixture
def lone(tmp_path: Path, seed: int) -> Iterator[SphereSim]:
    """Four slaves, one replica of each file."""
    with SphereSim(tmp_path / "sim", slaves=4, copies=1, seed=seed) as cluster:
        cluster.advance(3)
        yield cluster


def leave(sim: SphereSim, cloud: Any, folder: str) -> None:
    """Each file gets a second copy, and the first one goes: what a slave's return, or a second attempt at a
    copy, leaves behind is one too many, and any of them may be taken."""
    first = {info.path: (info.replicas[0], info.version) for info in sim.wait(cloud.ls(folder))}
    sim.wait(cloud.replicate(folder, copies=2, wait=True))
    master = sim.up()
    master.hub.core.paused = True  # it would have a third one made where the first was
    for path, (node, version) in first.items():

        def order(tx: Any, path: str = path, node: str = node, version: Any = version) -> None:
            ns.replica_surplus(tx, node, path, version, sim.wall())

        sim.wait(master.hub.store.write(order))
        master.errands.poke(node)
    sim.until(lambda: all(node not in sim.serving(path) for path, (node, _) in first.items()))
    assert all(len(sim.serving(path)) == 1 for path in first)


def reverse(data: Any, ctx: Any) -> bytes:
    return bytes(data)[::-1]


@pytest.mark.parametrize("how", ["surplus", "damaged", "lost"])
def test_the_next_stage_reads_its_input_where_it_is_now(lone: SphereSim, how: str) -> None:
    """Of each output the driver knows the one slave that made it; all was there, and the stage ended with
    "no slave has this version any more"."""
    cloud = lone.client()
    contents = store(lone, cloud, 72 if how == "lost" else 24)  # more than run at once
    first = lone.job(cloud, SphereStream(cloud, "/in"), reverse, output="/mid/a")
    lone.wait(first.wait())
    stream = first.output_stream()
    if how == "surplus":
        leave(lone, cloud, "/mid")
    else:
        lone.wait(cloud.replicate("/mid", copies=2, wait=True))
    if how == "damaged":
        for file in stream.files:
            damage(lone, file.holders[0], file.path, 7)
    if how == "lost":
        lone.up().hub.core.paused = True
        lone.kill_slave(stream.files[0].holders[0])
        lone.advance(15)
    began = lone.clock.seconds()
    second = lone.job(cloud, stream, reverse, in_order=True)
    assert [part.data for part in parts(lone, second)] == contents
    assert lone.clock.seconds() - began < 20
    second.plan.check_invariants()  # type: ignore[union-attr]


@pytest.mark.parametrize("index", [False, True])
def test_input_that_goes_elsewhere_while_the_job_runs(lone: SphereSim, index: bool) -> None:
    """Its record indexes, too."""
    cloud = lone.client()
    contents = store(lone, cloud, 24)
    if index:
        offsets = encode(from_lengths([10] * (10 * KB)))
        for number in range(len(contents)):
            lone.wait(cloud.write(f"/in/f{number}.idx", offsets))
    for spawner in lone.spawners.values():
        assert spawner.made is not None
        spawner.made.seconds = lambda task: 30.0
    stream = SphereStream(cloud, "/in", index=index, granularity="segment" if index else None)
    driver = lone.job(cloud, stream, lambda data, ctx: bytes(data), in_order=True)
    lone.advance(1)
    leave(lone, cloud, "/in")
    assert not driver.plan.done  # type: ignore[union-attr]
    assert [part.data for part in parts(lone, driver)] == contents
    assert driver.plan.attempts > len(contents)  # type: ignore[union-attr]
    driver.plan.check_invariants()  # type: ignore[union-attr]


def test_input_that_goes_elsewhere_beside_a_restart_of_the_master(lone: SphereSim) -> None:
    """A master that cannot be asked is waited for, and no slave is blamed meanwhile."""
    cloud = lone.client()
    contents = store(lone, cloud, 24)
    for spawner in lone.spawners.values():
        assert spawner.made is not None
        spawner.made.seconds = lambda task: 30.0
    driver = lone.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data), in_order=True)
    lone.advance(1)
    leave(lone, cloud, "/in")
    assert not driver.plan.done  # type: ignore[union-attr]
    lone.kill_master()
    lone.until(lambda: bool(driver.plan.done), 60)  # type: ignore[union-attr]
    lone.advance(20)
    lone.start_master()
    assert [part.data for part in parts(lone, driver)] == contents
    assert not driver.plan.losses  # type: ignore[union-attr]
    driver.plan.check_invariants()  # type: ignore[union-attr]
