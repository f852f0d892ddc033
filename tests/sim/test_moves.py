"""Renames that slaves hear of late: names that were handed on meanwhile, content that was not yet visible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sector import errors
from sector.slave.service import Slave
from sector.testing.cluster import SimCluster
from sector.wire.login import Join, Joined

ROTATED = {f"/log.{n}": f"/log.{n + 1}" for n in range(4)}
CASES = {
    "rotated logs": ({**ROTATED}, [(f"/log.{n}", f"/log.{n + 1}") for n in (3, 2, 1, 0)]),
    "two files change places": ({"/a": "/b", "/b": "/a"}, [("/a", "/t"), ("/b", "/a"), ("/t", "/b")]),
    "two directories change places": (
        {f"/{one}/{n}": f"/{other}/{n}" for n in range(3) for one, other in ("ab", "ba")},
        [("/a", "/t"), ("/b", "/a"), ("/t", "/b")],
    ),
    "a file after a directory": ({"/b/y": "/c/y", "/a": "/b"}, [("/b", "/c"), ("/a", "/b")]),
    "a directory after a file": ({"/b": "/c", "/a/y": "/b/y"}, [("/b", "/c"), ("/a", "/b")]),
}


@pytest.mark.parametrize("case", list(CASES))
def test_names_handed_on_while_slaves_were_away(tmp_path: Path, case: str) -> None:
    """Every content is at its last name, on every slave: none was replaced by the next one on its way."""
    names, moves = CASES[case]
    with SimCluster(tmp_path / "sim", slaves=2, copies=2) as sim:
        cloud = sim.client()
        for name in names:
            sim.wait(cloud.mkdir(name.rpartition("/")[0] or "/", parents=True))
            sim.wait(cloud.write(name, f"first {name}".encode()))
        sim.advance(30)
        for slave in sim.slaves:
            sim.kill_slave(slave)
        sim.advance(90)
        for source, target in moves:
            sim.wait(cloud.mv(source, target))
        for slave in sim.slaves:
            sim.start_slave(slave)
        sim.advance(60)
        for name, last in names.items():
            assert sim.wait(cloud.read(last)) == f"first {name}".encode()
            for slave in sim.slaves.values():
                assert slave.native(last).read_bytes() == f"first {name}".encode()


def test_written_while_a_rename_is_still_to_come(tmp_path: Path) -> None:
    """/b has become /c and /a has become /b, and a new /a is written before the slave heard of either."""
    with SimCluster(tmp_path / "sim", slaves=1, copies=1) as sim:
        cloud = sim.client()
        sim.wait(cloud.write("/a", b"a"))
        sim.wait(cloud.write("/b", b"b"))
        sim.kill_slave("s1")
        sim.advance(15)
        sim.wait(cloud.mv("/b", "/c"))
        sim.wait(cloud.mv("/a", "/b"))
        sim.start_slave("s1")
        sim.until(lambda: sim.up().hub.core.members.up())
        sim.wait(cloud.write("/a", b"new"))
        sim.advance(30)
        found = [sim.wait(cloud.read(path)) for path in ("/a", "/b", "/c")]
        assert found == [b"new", b"a", b"b"]


def test_moved_while_the_slave_that_committed_it_was_away(tmp_path: Path) -> None:
    """The slave is killed between the master's commit and its own rename; the put counts as done, another
    user moves the file; the slave comes back."""
    with SimCluster(tmp_path / "sim", slaves=1, copies=1) as sim:
        cloud, other = sim.client(), sim.client("bob")
        service = sim.slaves["s1"].service
        assert isinstance(service, Slave)

        def killed(*_: Any) -> None:
            sim.kill_slave("s1")
            raise errors.LocalIO("killed")

        service.disk.publish_thd = killed  # type: ignore[method-assign]
        writing = cloud.write("/a", b"precious")
        writing.addErrback(lambda _: None)
        sim.until(lambda: sim.slaves["s1"].service is None)
        sim.wait(other.mv("/a", "/b"))
        sim.start_slave("s1")
        sim.advance(90)
        assert sim.wait(other.read("/b")) == b"precious"
        assert sim.serving("/a") == []


def test_a_slave_tells_what_it_could_not_rename(tmp_path: Path) -> None:
    """Its data was lost while it was away: the master does not count it, and has another copy made."""
    with SimCluster(tmp_path / "sim", slaves=2, copies=2) as sim:
        cloud = sim.client()
        sim.wait(cloud.write("/a", b"x"))
        sim.advance(30)
        sim.kill_slave("s1")
        sim.advance(15)
        sim.wait(cloud.mv("/a", "/b"))
        sim.slaves["s1"].native("/a").unlink()
        sim.start_slave("s1")
        sim.advance(60)
        assert sim.slaves["s1"].native("/b").read_bytes() == b"x"
        assert sorted(sim.wait(cloud.stat("/b")).replicas) == ["s1", "s2"]


def test_a_former_name_that_has_new_content_is_not_buried(tmp_path: Path) -> None:
    """A log is rotated and the rotated one removed while a slave is away: it takes a copy of the new log
    when it is back, and nothing that it remembers costs that log when the database has to be rebuilt."""
    with SimCluster(tmp_path / "sim", slaves=3, copies=3) as sim:
        cloud = sim.client()
        sim.wait(cloud.write("/log", b"old"))
        sim.advance(30)
        sim.kill_slave("s1")
        sim.advance(90)
        sim.wait(cloud.mv("/log", "/log.1"))
        sim.wait(cloud.write("/log", b"new"))
        sim.wait(cloud.rm("/log.1"))
        sim.start_slave("s1")
        sim.advance(60)
        assert sim.slaves["s1"].native("/log").read_bytes() == b"new"
        sim.kill_master()
        (tmp_path / "sim" / "master").rename(tmp_path / "lost")
        sim.start_master(rebuild=True)
        sim.advance(60)
        assert sim.wait(sim.client().read("/log")) == b"new"
        assert sim.serving("/log") == ["s1", "s2", "s3"] and not sim.serving("/log.1")


def rebuilt(sim: SimCluster, away: list[str]) -> dict[str, bytes]:
    """The database is lost and made anew while slaves are away; what users read when these are back."""
    sim.advance(30)
    sim.kill_master()
    for file in (sim.root / "master").glob("master.db*"):
        file.unlink()
    sim.start_master(rebuild=True, rebuild_wait_s=5.0)
    sim.advance(30)
    for name in away:
        sim.start_slave(name)
    sim.advance(60)
    cloud = sim.client()
    found = [entry.path for entry in sim.wait(cloud.ls("/", recursive=True)) if entry.kind == "file"]
    return {path: sim.wait(cloud.read(path)) for path in found}


@pytest.mark.parametrize("moves", [[("/d/a", "/d/b")], [("/d", "/e")], [("/d/a", "/x"), ("/x", "/y")]])
def test_a_move_that_no_holder_heard_of_costs_no_content(
    tmp_path: Path, moves: list[tuple[str, str]]
) -> None:
    """The slaves that do not have the file know of its former name's end, those that have it do not know
    its new name, and the database is lost: it is there, as it was before."""
    with SimCluster(tmp_path / "sim", slaves=4, copies=2) as sim:
        cloud = sim.client()
        sim.wait(cloud.mkdir("/d"))
        sim.wait(cloud.write("/d/a", b"precious"))
        sim.advance(60)
        away = sim.serving("/d/a")
        for name in away:
            sim.kill_slave(name)
        sim.advance(15)
        for source, target in moves:
            sim.wait(cloud.mv(source, target))
        assert rebuilt(sim, away) == {"/d/a": b"precious"}


@pytest.mark.parametrize("then", ["removed", "replaced", "heard by one"])
def test_nothing_returns_under_a_name_that_it_had(tmp_path: Path, then: str) -> None:
    """Where the moved file was removed or replaced, or a slave has it under its new name, the former name's
    end is known to others."""
    with SimCluster(tmp_path / "sim", slaves=4, copies=2) as sim:
        cloud = sim.client()
        sim.wait(cloud.write("/a", b"old"))
        sim.advance(60)
        away = sim.serving("/a")[: 1 if then == "heard by one" else 2]
        for name in away:
            sim.kill_slave(name)
        sim.advance(15)
        sim.wait(cloud.mv("/a", "/b"))
        if then == "removed":
            sim.wait(cloud.rm("/b"))
        elif then == "replaced":
            sim.wait(cloud.write("/b", b"new"))
        wanted = {"removed": {}, "replaced": {"/b": b"new"}, "heard by one": {"/b": b"old"}}
        assert rebuilt(sim, away) == wanted[then]


class Parted(SimCluster):
    """A cluster whose slaves can be cut off from the master."""

    parted: frozenset[str] = frozenset()

    async def _join(self, join: Join) -> Joined:
        if join.slave_id in self.parted:
            raise errors.Unreachable("connection to the master refused")
        return await super()._join(join)

    def part(self, *names: str) -> None:
        """Nothing gets from these slaves, or all, to the master, or back, until they count as lost."""
        self.parted = frozenset(names or self.slaves)
        master = self.up().hub.gmp.address[1]
        cut = [slave.gmp for name, slave in self.slaves.items() if name in self.parted]
        ports = [gmp.address[1] for gmp in cut if gmp is not None]
        self.hub.blocked |= {(port, master) for port in ports} | {(master, port) for port in ports}
        self.advance(20)
        assert not self.parted & {node.id for node in self.up().hub.core.members.alive()}

    def heal(self) -> None:
        """All is as before."""
        self.parted = frozenset()
        self.hub.blocked.clear()
        self.advance(60)


def test_names_handed_on_and_removed_while_slaves_were_cut_off(tmp_path: Path) -> None:
    """Their processes live on: /y becomes /z, then /x becomes /y and is removed. No slave removes what it
    still knows as /y; a file that was moved beside a removed one can be read from all of them."""
    with Parted(tmp_path / "sim", slaves=3, copies=3) as sim:
        cloud = sim.client()
        for path in ("/x", "/y", "/a", "/gone"):
            sim.wait(cloud.write(path, f"first {path}".encode()))
        sim.advance(30)
        sim.part()
        for source, target in (("/y", "/z"), ("/x", "/y"), ("/a", "/b")):
            sim.wait(cloud.mv(source, target))
        for path in ("/y", "/gone"):
            sim.wait(cloud.rm(path))
        sim.heal()
        assert sim.wait(cloud.read("/z")) == b"first /y"
        assert sim.wait(cloud.read("/b")) == b"first /a"
        for name in sim.slaves:
            found = sim.slaves[name].root / "files"
            assert {file.name: file.read_bytes() for file in found.iterdir() if file.is_file()} == {
                "z": b"first /y",
                "b": b"first /a",
            }
        assert sorted(sim.wait(cloud.stat("/z")).replicas) == ["s1", "s2", "s3"]


def test_a_rename_that_comes_late_gives_nobody_the_version_that_replaced_it(tmp_path: Path) -> None:
    """/a became /b and was overwritten there while s2 was cut off: what s2 has of it is the version that was
    moved, and it is asked once."""
    with Parted(tmp_path / "sim", slaves=2, copies=2) as sim:
        cloud = sim.client()
        sim.wait(cloud.write("/a", b"old"))
        sim.advance(30)
        assert sorted(sim.serving("/a")) == ["s1", "s2"]
        sim.part("s2")
        sim.wait(cloud.mv("/a", "/b"))
        sim.wait(cloud.write("/b", b"new"))
        new = sim.wait(cloud.stat("/b"))
        service = sim.slaves["s2"].service
        assert isinstance(service, Slave)
        rename, had = service.disk.rename_thd, []

        def renamed(*what: Any) -> bool:
            done = rename(*what)
            had.append({path: r.version < new.version for path, r in service.disk.entries.items()})
            return done

        service.disk.rename_thd = renamed  # type: ignore[method-assign]
        sim.heal()
        assert had == [{"/b": True}]
        assert sorted(sim.serving("/b")) == ["s1", "s2"]
        for slave in sim.slaves.values():
            assert slave.native("/b").read_bytes() == b"new"
            assert not slave.native("/a").exists()
        assert sim.serving("/a") == []
