"""A file that is moved once more before the master has heard that its slaves made the move before that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from sector.errors import TimedOut
from sector.testing.cluster import SimCluster
from tests.sim.test_scrub import attic

CONTENT, NEWER = b"first" * 20_000, b"second" * 10_000


def moved_unheard(sim: SimCluster, *, lost: bool = False) -> Deferred[None]:
    """`/a` is `/b` on all slaves, and the master does not know: it hears of it when what this returns fires,
    or, `lost`, never."""
    cloud = sim.client()
    sim.wait(cloud.write("/a", CONTENT))
    sim.until(lambda: len(sim.serving("/a")) == 3)
    sim.advance(5)
    gate: Deferred[None] = Deferred()
    errands: Any = sim.up().errands
    heard = errands._renames_done

    async def late(node: str, renames: Any) -> None:
        if not gate.called:
            if lost:
                raise TimedOut("the answer is lost")
            await gate
        await heard(node, renames)

    errands._renames_done = late
    sim.wait(cloud.mv("/a", "/b"))
    sim.until(lambda: len(sim.serving("/b")) == 3)
    return gate


def told(sim: SimCluster) -> None:
    """All slaves report all that they have."""
    nodes = sim.up().hub.core.members.nodes.values()
    for node in nodes:
        node.want_report, node.reported = True, False
    sim.until(lambda: all(node.reported for node in nodes))


def kept(sim: SimCluster, **files: bytes) -> None:
    """In the end just these files are there, three times each, and nothing lies in an attic."""
    wanted = {f"/{name}": content for name, content in files.items()}

    def there() -> bool:
        slaves = [slave.service for slave in sim.slaves.values()]
        return all(slave is not None and set(slave.disk.entries) == set(wanted) for slave in slaves)

    sim.until(there, 300)
    told(sim)
    sim.advance(20)
    cloud = sim.client()
    assert sorted(entry.path for entry in sim.wait(cloud.ls("/"))) == sorted(wanted)
    for path, content in wanted.items():
        assert sim.wait(cloud.read(path)) == content
        assert sim.wait(cloud.stat(path)).replicas == ["s1", "s2", "s3"]
        for slave in sim.slaves.values():
            assert slave.native(path).read_bytes() == content
    assert [attic(sim, name) for name in sim.slaves] == [[], [], []]


@pytest.mark.parametrize("lost", [False, True], ids=["late", "lost"])
@pytest.mark.parametrize("names", ["c", "cd", "a", "ca"])
def test_the_moves_are_made_one_after_the_other(tmp_path: Path, seed: int, names: str, lost: bool) -> None:
    """Also back to the name that the file had at first."""
    with SimCluster(tmp_path / "sim", seed=seed) as sim:
        gate = moved_unheard(sim, lost=lost)
        here = "b"
        for name in names:
            sim.wait(sim.client().mv(f"/{here}", f"/{name}"))
            here = name
            sim.advance(0.5)
        gate.callback(None)
        kept(sim, **{here: CONTENT})


def test_a_report_names_it_as_it_was_told(tmp_path: Path, seed: int) -> None:
    """That name has a tombstone by now; the content does not go."""
    with SimCluster(tmp_path / "sim", seed=seed) as sim:
        gate = moved_unheard(sim)
        sim.wait(sim.client().mv("/b", "/c"))
        told(sim)
        sim.advance(2)
        assert len(sim.serving("/b")) == 3
        gate.callback(None)
        kept(sim, c=CONTENT)


def test_something_else_gets_the_name_between(tmp_path: Path, seed: int) -> None:
    """It does not write over what the slaves still have there."""
    with SimCluster(tmp_path / "sim", seed=seed) as sim:
        gate = moved_unheard(sim, lost=True)
        cloud = sim.client()
        sim.wait(cloud.mv("/b", "/c"))
        gate.callback(None)
        sim.wait(cloud.write("/b", NEWER))
        kept(sim, b=NEWER, c=CONTENT)


def test_another_file_is_moved_to_the_name_between(tmp_path: Path, seed: int) -> None:
    """A log that is rotated."""
    with SimCluster(tmp_path / "sim", seed=seed) as sim:
        gate = moved_unheard(sim)
        cloud = sim.client()
        sim.wait(cloud.mv("/b", "/c"))
        sim.wait(cloud.write("/x", NEWER))
        sim.wait(cloud.mv("/x", "/b"))
        gate.callback(None)
        kept(sim, b=NEWER, c=CONTENT)


@pytest.mark.parametrize("late", [False, True])
def test_it_is_removed(tmp_path: Path, seed: int, late: bool) -> None:
    """Whatever name each slave has for it."""
    with SimCluster(tmp_path / "sim", seed=seed) as sim:
        gate = moved_unheard(sim)
        cloud = sim.client()
        sim.wait(cloud.mv("/b", "/c"))
        if not late:
            gate.callback(None)
        sim.wait(cloud.rm("/c"))
        if late:
            sim.advance(5)
            gate.callback(None)
        kept(sim)


def test_it_is_replaced(tmp_path: Path, seed: int) -> None:
    """By a file that is moved over it."""
    with SimCluster(tmp_path / "sim", seed=seed) as sim:
        gate = moved_unheard(sim)
        cloud = sim.client()
        sim.wait(cloud.mv("/b", "/c"))
        sim.wait(cloud.write("/x", NEWER))
        sim.wait(cloud.mv("/x", "/c", overwrite=True))
        gate.callback(None)
        kept(sim, c=NEWER)


def test_the_master_ends_before_it_hears(tmp_path: Path, seed: int) -> None:
    """The next one does not know what the slaves have done, but what they were told."""
    with SimCluster(tmp_path / "sim", seed=seed) as sim:
        moved_unheard(sim, lost=True)
        sim.wait(sim.client().mv("/b", "/c"))
        sim.kill_master()
        sim.start_master()
        kept(sim, c=CONTENT)


def test_the_slaves_end_before_they_hear(tmp_path: Path, seed: int) -> None:
    """What they find on their disks has the name between."""
    with SimCluster(tmp_path / "sim", seed=seed) as sim:
        gate = moved_unheard(sim, lost=True)
        sim.wait(sim.client().mv("/b", "/c"))
        for name in sim.slaves:
            sim.kill_slave(name)
        gate.callback(None)
        for name in sim.slaves:
            sim.start_slave(name)
        kept(sim, c=CONTENT)


def test_the_database_is_lost_before_they_hear(tmp_path: Path, seed: int) -> None:
    """The slaves have heard of no tombstone for the one name that they have."""
    with SimCluster(tmp_path / "sim", seed=seed) as sim:
        moved_unheard(sim, lost=True)
        sim.wait(sim.client().mv("/b", "/c"))
        sim.advance(5)
        sim.kill_master()
        for file in (sim.root / "master").glob("master.db*"):
            file.unlink()
        sim.start_master(rebuild=True)
        sim.advance(60)
        kept(sim, b=CONTENT)


@pytest.mark.parametrize("later", [False, True], ids=["replaced", "replaced and moved on"])
def test_a_report_names_what_a_moved_file_has_replaced(tmp_path: Path, seed: int, later: bool) -> None:
    """All slaves were away meanwhile, and report before they hear of any move: what is to come to that name
    still counts."""
    with SimCluster(tmp_path / "sim", seed=seed) as sim:
        cloud = sim.client()
        for path, content in (("/x", CONTENT), ("/y", NEWER)):
            sim.wait(cloud.write(path, content))
            sim.until(lambda path=path: len(sim.serving(path)) == 3)
        sim.advance(5)
        for name in sim.slaves:
            sim.kill_slave(name)
        sim.advance(100)
        sim.wait(cloud.mv("/x", "/y", overwrite=True))
        if later:
            sim.wait(cloud.mv("/y", "/z"))
        sim.advance(100, step=0.1)
        gate: Deferred[None] = Deferred()
        errands: Any = sim.up().errands
        step = errands._once

        async def late(node: str, state: Any) -> bool:
            if not gate.called:
                await gate
            return bool(await step(node, state))

        errands._once = late
        for name in sim.slaves:
            sim.start_slave(name)
        sim.advance(5)
        gate.callback(None)
        kept(sim, **{"z" if later else "y": CONTENT})


def test_others_put_a_file_where_a_moved_one_is_to_come(tmp_path: Path, seed: int) -> None:
    """It is found by the slave's start, and gives way."""
    with SimCluster(tmp_path / "sim", seed=seed) as sim:
        cloud = sim.client()
        sim.wait(cloud.write("/x", CONTENT))
        sim.until(lambda: len(sim.serving("/x")) == 3)
        sim.advance(5)
        for name in sim.slaves:
            sim.kill_slave(name)
        sim.advance(100)
        sim.wait(cloud.mv("/x", "/y"))
        for slave in sim.slaves.values():
            slave.native("/y").write_bytes(b"of others")
        for name in sim.slaves:
            sim.start_slave(name)
        places = [slave.native("/y") for slave in sim.slaves.values()]
        sim.until(lambda: all(place.read_bytes() == CONTENT for place in places), 300)
        told(sim)
        assert sim.wait(cloud.read("/y")) == CONTENT
        assert [attic(sim, name) for name in sim.slaves] == [["/y"]] * 3


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("then", ["/b", "/b/x", "/b over another"])
def test_slaves_were_cut_off_when_they_were_told(tmp_path: Path, seed: int, then: str, older: bool) -> None:
    """They hear of all moves at once, and the name between has something newer by then, which stays."""
    with SimCluster(tmp_path / "sim", seed=seed) as sim:
        cloud = sim.client()
        files = [("/a", CONTENT), ("/x", NEWER), ("/y", NEWER)]
        for path, content in files if older else reversed(files):
            sim.wait(cloud.write(path, content))
            sim.until(lambda path=path: len(sim.serving(path)) == 3)
        sim.advance(5)
        master = sim.up().hub.gmp.address[1]
        ports = [slave.gmp.address[1] for slave in sim.slaves.values() if slave.gmp is not None]
        sim.hub.blocked |= {(master, port) for port in ports} | {(port, master) for port in ports}
        sim.wait(cloud.mv("/a", "/b"))
        sim.advance(1)
        sim.wait(cloud.mv("/b", "/c"))
        if then == "/b/x":
            sim.wait(cloud.mkdir("/b"))
        elif then == "/b over another":
            sim.wait(cloud.mv("/y", "/b"))
        sim.wait(cloud.mv("/x", then.partition(" ")[0], overwrite=True))
        sim.advance(3)
        sim.hub.blocked.clear()
        sim.advance(60, step=0.1)
        for path, content in (("/c", CONTENT), (then.partition(" ")[0], NEWER)):
            assert sim.wait(cloud.read(path)) == content
            assert sim.wait(cloud.stat(path)).replicas == ["s1", "s2", "s3"]
            assert len(sim.serving(path)) == 3
        assert [attic(sim, name) for name in sim.slaves] == [[], [], []]
