"""Files on a simulated cluster: what users see when all is well, and when slaves or the master die."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sector import errors
from sector.client.progress import Progress
from sector.clock import pause
from sector.model import Right
from sector.testing.cluster import SimCluster, write_random
from sector.wire.slave import Delete

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


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1, 5 * MB])
def test_round_trip_of_sizes(sim: SimCluster, tmp_path: Path, size: int) -> None:
    """Nothing, one byte, exactly one block, and more come back the same, replicas included."""
    cloud = sim.client()
    content = write_random(tmp_path / "a", size)
    sim.wait(cloud.put(tmp_path / "a", "/a"))
    state = sim.wait(cloud.replicate("/a", wait=True))
    assert (state.wanted, state.have) == (3, 3)
    sim.until(lambda: len(sim.serving("/a")) == 3)
    for slave in sim.slaves.values():
        assert slave.native("/a").read_bytes() == content
    sim.wait(cloud.get("/a", tmp_path / "b"))
    assert (tmp_path / "b").read_bytes() == content
    assert sim.wait(cloud.read("/a")) == content


def test_hundred_megabytes(sim: SimCluster, tmp_path: Path) -> None:
    """A file of 100 MB, there and back."""
    cloud = sim.client()
    content = write_random(tmp_path / "a", 100 * MB)
    put = sim.wait(cloud.put(tmp_path / "a", "/a"))
    got = sim.wait(cloud.get("/a", tmp_path / "b"))
    assert (put.bytes, got.bytes) == (100 * MB, 100 * MB)
    assert (tmp_path / "b").read_bytes() == content


def test_a_local_name_that_is_no_text_is_refused_but_under_another(sim: SimCluster, tmp_path: Path) -> None:
    """Names in the cloud are UTF-8; a file of an older system can be given one."""
    cloud = sim.client()
    place = os.fsdecode(bytes(tmp_path) + b"/caf\xe9.txt")
    content = write_random(Path(place), 1000)
    with pytest.raises(errors.BadPath, match="not valid UTF-8"):
        sim.wait(cloud.put(place, "/d/"))
    sim.wait(cloud.put(place, "/d/cafe.txt"))
    assert sim.wait(cloud.read("/d/cafe.txt")) == content


def test_tree_round_trip(sim: SimCluster, tmp_path: Path) -> None:
    """put -r and get -r keep names, empty directories and contents; the listing is paged right."""
    cloud = sim.client()
    top = tmp_path / "tree"
    for index in range(40):
        folder = top / f"d{index % 3}" / "inner"
        folder.mkdir(parents=True, exist_ok=True)
        write_random(folder / f"f{index} ü\n", 100 * index, index)
    (top / "empty").mkdir()
    summary = sim.wait(cloud.put(top, "/t", recursive=True))
    assert len(summary.files) == 40
    sim.wait(cloud.get("/t", tmp_path / "back", recursive=True))
    before = {p.relative_to(top): p.is_dir() or p.read_bytes() for p in top.rglob("*")}
    back = tmp_path / "back"
    assert {p.relative_to(back): p.is_dir() or p.read_bytes() for p in back.rglob("*")} == before


def test_get_goes_on_when_the_serving_slave_dies(sim: SimCluster, tmp_path: Path) -> None:
    """Killed in the middle of a get: the other replica continues at a block, the digest is right, and one
    line says what happened."""
    cloud = sim.client()
    content = write_random(tmp_path / "a", 30 * MB)
    sim.wait(cloud.put(tmp_path / "a", "/a"))
    sim.wait(cloud.replicate("/a", wait=True))
    sim.advance(2)
    before = dict(sim.net.moved)
    progress = Progress()
    getting = cloud.get("/a", tmp_path / "b", progress=progress)
    sim.until(lambda: progress.bytes_done > 10 * MB)
    ports = {slave.data.address[1]: slave.name for slave in sim.slaves.values() if slave.data}
    server = next(ports[p] for p, n in sim.net.moved.items() if n > before.get(p, 0))
    sim.kill_slave(server)
    summary = sim.wait(getting)
    assert (tmp_path / "b").read_bytes() == content
    assert len(summary.notes) == 1
    assert f"slave {server} stopped answering at 1" in summary.notes[0]
    assert "continued from s" in summary.notes[0]
    again = sum(n - before.get(p, 0) for p, n in sim.net.moved.items())
    assert again < 30 * MB + 2 * (1 << 20)


def test_get_over_a_line_that_breaks_often(sim: SimCluster, tmp_path: Path) -> None:
    """Every 2 MB, as a middlebox does that drops TCP connections: each time it goes on where it was."""
    cloud = sim.client()
    content = write_random(tmp_path / "a", 30 * MB)
    sim.wait(cloud.put(tmp_path / "a", "/a"))
    progress = Progress()
    getting = cloud.get("/a", tmp_path / "b", progress=progress)
    breaks = 0
    while breaks < 12:
        at = progress.bytes_done
        sim.until(lambda at=at: progress.bytes_done > at + 2 * MB)
        for slave in sim.slaves.values():
            for side in list(slave.data.transfers if slave.data else ()):
                if side.sending and side.peer in cloud.data.transfers:
                    for end in (side.peer, side):  # the get; slaves copy meanwhile
                        end.fail("BROKEN", "connection broken: the peer fell silent")
                    breaks += 1
    summary = sim.wait(getting)
    assert (tmp_path / "b").read_bytes() == content
    assert len(summary.notes) == 12


def test_put_goes_on_when_the_receiving_slave_dies(sim: SimCluster, tmp_path: Path) -> None:
    """Killed in the middle of a put: the same lease, another slave, nothing half visible."""
    cloud = sim.client()
    content = write_random(tmp_path / "a", 20 * MB)
    progress = Progress()
    putting = cloud.put(tmp_path / "a", "/a", progress=progress)
    sim.until(lambda: progress.bytes_done > 5 * MB)
    name = next(s.name for s in sim.slaves.values() if s.service and s.service.core.open)
    sim.kill_slave(name)
    summary = sim.wait(putting)
    assert any(name in note for note in summary.notes)
    assert sim.wait(cloud.read("/a")) == content


def test_put_over_a_restart_of_the_master(sim: SimCluster, tmp_path: Path) -> None:
    """The master killed while data flows and started again later: the same put ends well, no password."""
    cloud = sim.client()
    content = write_random(tmp_path / "a", 20 * MB)
    progress = Progress()
    putting = cloud.put(tmp_path / "a", "/a", progress=progress)
    sim.until(lambda: progress.bytes_done > 5 * MB)
    sim.kill_master()
    sim.advance(5)
    sim.start_master()
    summary = sim.wait(putting)
    assert summary.bytes == len(content)
    assert sim.wait(cloud.read("/a")) == content


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.19, 0.2, 0.21, 0.22, 0.25])
def test_master_dies_around_the_publish(sim: SimCluster, tmp_path: Path, delay: float) -> None:
    """Wherever the master dies: after its return the file is whole or not there at all."""
    cloud = sim.client()
    content = write_random(tmp_path / "a", 20 * MB)
    putting = cloud.put(tmp_path / "a", "/a")
    sim.advance(delay, step=0.005)
    sim.kill_master()
    sim.advance(3)
    sim.start_master()
    try:
        sim.wait(putting)
    except errors.SectorError:
        assert not sim.wait(cloud.exists("/a"))
    else:
        assert sim.wait(cloud.read("/a")) == content


def test_a_deleted_file_is_not_brought_back(sim: SimCluster, tmp_path: Path) -> None:
    """A slave that was away while a file was deleted removes its copy."""
    cloud = sim.client()
    write_random(tmp_path / "a", MB)
    sim.wait(cloud.put(tmp_path / "a", "/a"))
    sim.wait(cloud.replicate("/a", wait=True))
    sim.kill_slave("s2")
    sim.advance(15)
    sim.wait(cloud.rm("/a"))
    sim.start_slave("s2")
    sim.advance(10)
    assert not sim.wait(cloud.exists("/a"))
    assert sim.serving("/a") == []


def test_old_content_is_not_brought_back(sim: SimCluster, tmp_path: Path) -> None:
    """A slave that was away while a file was replaced gets the new content, not the other way round."""
    cloud = sim.client()
    sim.wait(cloud.write("/a", b"old"))
    sim.wait(cloud.replicate("/a", wait=True))
    sim.kill_slave("s2")
    sim.advance(15)
    sim.wait(cloud.write("/a", b"new content"))
    sim.start_slave("s2")
    sim.advance(30)
    assert sim.wait(cloud.read("/a")) == b"new content"
    sim.until(
        lambda: all(sim.slaves[n].native("/a").read_bytes() == b"new content" for n in sim.serving("/a"))
    )
    sim.wait(cloud.replicate("/a", wait=True))
    assert len(sim.serving("/a")) == 3


@pytest.mark.parametrize("pause_s", [0.0, 0.2])
def test_what_was_deleted_or_replaced_while_a_slave_was_away_takes_no_room_there(
    sim: SimCluster, pause_s: float
) -> None:
    """The slave removes it, whether it hears of that before its report or after: nothing goes to its attic,
    which is never emptied."""
    cloud = sim.client()
    names = ["/gone", "/new"]
    for name in names:
        sim.wait(cloud.write(name, b"old"))
        sim.wait(cloud.replicate(name, wait=True))
    sim.advance(90)
    away = sim.slaves[sim.serving("/new")[0]]
    sim.kill_slave(away.name)
    sim.advance(15)
    sim.wait(cloud.rm("/gone"))
    sim.wait(cloud.write("/new", b"new"))
    call = sim.up().hub.call_slave

    async def slow(node: str, request: Any, *limits: Any, **options: Any) -> Any:
        await pause(sim.clock, pause_s if isinstance(request, Delete) else 0.0)
        return await call(node, request, *limits, **options)

    sim.up().hub.call_slave = slow  # type: ignore[method-assign]
    sim.start_slave(away.name)
    sim.advance(90)
    assert not away.native("/gone").exists()
    assert not away.native("/new").exists() or away.native("/new").read_bytes() == b"new"
    assert list((away.root / ".sector" / "attic").iterdir()) == []


def test_rebuild_from_the_slaves(sim: SimCluster, tmp_path: Path) -> None:
    """The database lost: files, sizes, owners, versions, directories come back; a deletion stays."""
    cloud = sim.client()
    for index in range(20):
        sim.wait(cloud.write(f"/d{index % 2}/f{index}", bytes([index]) * index))
    sim.wait(cloud.mkdir("/empty"))
    sim.wait(cloud.rm("/d0/f2"))
    sim.wait(cloud.mv("/d1/f3", "/d0/moved"))
    sim.advance(30)
    before = {
        (i.path, i.kind, i.size, i.version, i.owner, i.digest)
        for i in sim.wait(cloud.ls("/", recursive=True))
    }
    sim.kill_master()
    for file in (sim.root / "master").glob("master.db*"):
        file.unlink()
    sim.start_master(rebuild=True)
    sim.advance(60)
    fresh = sim.client()
    after = {
        (i.path, i.kind, i.size, i.version, i.owner, i.digest)
        for i in sim.wait(fresh.ls("/", recursive=True))
    }
    assert after == before


def test_file_gone_between_listing_and_reading(sim: SimCluster, tmp_path: Path) -> None:
    """One clear error, and no half file on this machine."""
    cloud = sim.client()
    sim.wait(cloud.write("/a", b"x"))
    assert [e.path for e in sim.wait(cloud.ls("/"))] == ["/a"]
    sim.wait(cloud.rm("/a"))
    with pytest.raises(errors.NotFound, match="/a"):
        sim.wait(cloud.get("/a", tmp_path / "b"))
    assert list(tmp_path.glob("*b*")) == []


def test_a_damaged_replica_is_replaced(sim: SimCluster, tmp_path: Path) -> None:
    """A flipped bit on one disk: the reader still gets the right bytes, and the replica is set aside."""
    cloud = sim.client()
    content = write_random(tmp_path / "a", 40 * MB)
    sim.wait(cloud.put(tmp_path / "a", "/a"))
    sim.wait(cloud.replicate("/a", wait=True))
    for name in sim.serving("/a")[:2]:
        native = sim.slaves[name].native("/a")
        stamp = native.stat()
        with native.open("r+b") as file:
            file.seek(23 * MB)
            byte = file.read(1)[0]
            file.seek(23 * MB)
            file.write(bytes([byte ^ 1]))
        import os

        os.utime(native, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    for attempt in range(3):
        sim.wait(cloud.get("/a", tmp_path / f"b{attempt}"))
        assert (tmp_path / f"b{attempt}").read_bytes() == content
        assert sim.wait(cloud.read_at("/a", 23 * MB, 10)) == content[23 * MB : 23 * MB + 10]


def test_adoption_of_native_files(sim: SimCluster, tmp_path: Path) -> None:
    """A file put into the tree by hand becomes a file of the cloud."""
    cloud = sim.client()
    sim.stop_slave("s1")
    native = sim.slaves["s1"].native("/by/hand")
    native.parent.mkdir(parents=True)
    native.write_bytes(b"hello")
    sim.start_slave("s1")
    sim.advance(5)
    assert sim.wait(cloud.read("/by/hand")) == b"hello"


def test_scanning_goes_on_after_the_master_was_away(sim: SimCluster) -> None:
    """A scan that cannot be told of is told of later, and is not the last one."""
    cloud = sim.client()
    slave = sim.slaves["s1"]
    assert slave.service is not None
    scans = slave.service.config.slave.scan_s
    first, second = slave.native("/by/hand"), slave.native("/by/hand2")
    first.parent.mkdir(parents=True)
    started = sim.clock.seconds()
    sim.advance(scans - started % scans - 1.5, step=0.1)
    first.write_bytes(b"native")
    sim.kill_master()
    sim.until(lambda: "/by/hand" in slave.service.disk.entries, limit_s=5.0)
    sim.advance(40.0)
    sim.start_master()
    sim.until(lambda: sim.wait(cloud.exists("/by/hand")), limit_s=60.0)
    second.write_bytes(b"native, too")
    for _ in range(int(2 * scans)):
        sim.advance(1.0, step=0.1)
        if sim.wait(cloud.exists("/by/hand2")):
            return
    raise AssertionError("the second file was not found")


def test_what_the_master_refused_to_hear_of_the_tree_is_reported(sim: SimCluster) -> None:
    """One lost answer does not leave the master ignorant of a file that was found."""
    cloud = sim.client()
    slave = sim.slaves["s1"]
    assert slave.service is not None
    ask, refused = slave.service.tree._master_call, []

    async def deaf(request: Any, **options: Any) -> Any:
        refused.append(request)
        raise errors.TimedOut("no answer")

    slave.service.tree._master_call = deaf
    slave.native("/by").mkdir(parents=True)
    slave.native("/by/hand").write_bytes(b"native")
    sim.until(lambda: refused, limit_s=400.0)
    slave.service.tree._master_call = ask
    sim.until(lambda: sim.wait(cloud.exists("/by/hand")), limit_s=30.0)


def test_exclusive_writer_and_no_replace(sim: SimCluster, tmp_path: Path) -> None:
    """Two writers of one path: the second is refused at once; "new" never replaces."""
    cloud, other = sim.client(), sim.client("bob")
    write_random(tmp_path / "a", 20 * MB)
    putting = cloud.put(tmp_path / "a", "/a")
    sim.advance(0.1)
    with pytest.raises(errors.LeaseHeld):
        sim.wait(other.write("/a", b"mine"))
    sim.wait(putting)
    with pytest.raises(errors.Exists):
        sim.wait(other.write("/a", b"mine", create="new"))


def test_cancelled_put_leaves_nothing(sim: SimCluster, tmp_path: Path) -> None:
    """Ctrl-C in a put: the path is free at once and no slave keeps data of it."""
    cloud = sim.client()
    write_random(tmp_path / "a", 20 * MB)
    putting = cloud.put(tmp_path / "a", "/a")
    putting.addErrback(lambda _: None)
    sim.advance(0.1)
    putting.cancel()
    sim.advance(1)
    sim.wait(cloud.write("/a", b"other"))
    assert sim.wait(cloud.read("/a")) == b"other"
    sim.advance(20)
    for slave in sim.slaves.values():
        assert list((slave.root / ".sector" / "tmp").iterdir()) == []


def test_get_never_replaces_a_device_or_a_pipe(sim: SimCluster, tmp_path: Path) -> None:
    """`get /a /dev/null` by root must not leave the machine without /dev/null."""
    cloud = sim.client()
    sim.wait(cloud.write("/a", b"content"))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    (tmp_path / "folder").mkdir()
    (tmp_path / "to" / "folder").mkdir(parents=True)
    for name in ("pipe", "null"):
        with pytest.raises(errors.LocalIO, match=f"{name} is not a regular file"):
            sim.wait(cloud.get("/a", tmp_path / name))
    sim.wait(cloud.write("/tree/folder", b"content"))
    with pytest.raises(errors.LocalIO, match="folder is a directory"):
        sim.wait(cloud.get("/tree/folder", tmp_path / "to"))
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
    assert (tmp_path / "null").is_symlink() and stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]


def test_get_keeps_the_link_and_the_permissions_of_what_it_replaces(sim: SimCluster, tmp_path: Path) -> None:
    """A private file stays private, and a link to a larger disk goes on leading there."""
    cloud = sim.client()
    sim.wait(cloud.write("/a", b"content"))
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "real").write_bytes(b"old")
    (tmp_path / "disk" / "real").chmod(0o600)
    (tmp_path / "link").symlink_to("disk/real")
    (tmp_path / "ahead").symlink_to("disk/new")
    sim.wait(cloud.get("/a", tmp_path / "link"))
    sim.wait(cloud.get("/a", tmp_path / "ahead"))
    assert (tmp_path / "link").is_symlink() and (tmp_path / "ahead").is_symlink()
    assert (tmp_path / "disk" / "real").read_bytes() == (tmp_path / "disk" / "new").read_bytes() == b"content"
    assert (tmp_path / "disk" / "real").stat().st_mode & 0o777 == 0o600


def test_get_without_replacing_spares_what_came_meanwhile(sim: SimCluster, tmp_path: Path) -> None:
    """Of two that fetch the same name with --no-replace one is refused, however late the other was."""
    cloud = sim.client()
    write_random(tmp_path / "a", MB)
    sim.wait(cloud.put(tmp_path / "a", "/a"))
    getting = cloud.get("/a", tmp_path / "b", overwrite=False)
    sim.until(lambda: [name for name in os.listdir(tmp_path) if name.endswith(".part")])
    (tmp_path / "b").write_bytes(b"mine")
    with pytest.raises(errors.Exists):
        sim.wait(getting)
    assert (tmp_path / "b").read_bytes() == b"mine"
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "sim"]
    sim.wait(cloud.get("/a", tmp_path / "c", overwrite=False))
    assert (tmp_path / "c").stat().st_nlink == 1


def test_a_file_that_changes_while_it_is_put_is_named(sim: SimCluster, tmp_path: Path) -> None:
    """What may be part old, part new is stored, but never without a word."""
    cloud = sim.client()
    content = write_random(tmp_path / "a", 3 * MB)
    write_random(tmp_path / "b", 3 * MB)
    putting = cloud.put([tmp_path / "a", tmp_path / "b"], "/in/")
    sim.until(lambda: any(s.service and s.service.core.open for s in sim.slaves.values()))
    with open(tmp_path / "b", "r+b") as file:
        file.write(b"other")
    os.utime(tmp_path / "b", ns=(1, 1))
    summary = sim.wait(putting)
    assert {moved.path: moved.changed for moved in summary.files} == {"/in/a": False, "/in/b": True}
    assert [note for note in summary.notes if "/b changed while it was read" in note] == summary.notes
    assert sim.wait(cloud.read("/in/a")) == content


def test_who_may_only_write_puts(sim: SimCluster, tmp_path: Path) -> None:
    """A letter-box: the right to write is enough for a put, and shows nothing of what lies there."""
    cloud = sim.client()
    sim.wait(cloud.mkdir("/box"))
    sim.rights["eve"] = [Right("eve", "/box", "w")]
    eve = sim.client("eve")
    (tmp_path / "a").write_bytes(b"abc")
    sim.wait(eve.put(tmp_path / "a", "/box/"))
    sim.wait(eve.put(tmp_path / "a", "/box/b"))
    with pytest.raises(errors.Denied):
        sim.wait(eve.ls("/box"))
    with pytest.raises(errors.Denied):
        sim.wait(eve.put(tmp_path / "a", "/elsewhere/"))
    assert [entry.path for entry in sim.wait(cloud.ls("/box"))] == ["/box/a", "/box/b"]


def test_impossible_arguments_are_refused_here(sim: SimCluster, tmp_path: Path) -> None:
    """All errors are SectorErrors that name the argument; the master is not asked."""
    cloud = sim.client()
    sim.wait(cloud.write("/a", b"abc"))
    for bad in (
        cloud.put("x", "/x", create="maybe"),
        cloud.put("x", "/x", parallel=0),
        cloud.get("/a", tmp_path, parallel=0),
        cloud.read_at("/a", -1, 2),
        cloud.read_at("/a", 0, -2),
        cloud.replicate("/a", copies=-1),
    ):
        with pytest.raises(errors.UsageError, match=r"is not possible"):
            sim.wait(bad)


def test_a_client_that_goes_away_frees_the_path(sim: SimCluster, tmp_path: Path) -> None:
    """Ctrl-C ends the program too: the lease is given up before the connection closes."""
    cloud, other = sim.client(), sim.client("bob")
    write_random(tmp_path / "a", 20 * MB)
    putting = cloud.put(tmp_path / "a", "/a")
    putting.addErrback(lambda _: None)
    sim.advance(0.1)
    with pytest.raises(errors.LeaseHeld):
        sim.wait(other.write("/a", b"mine"))
    putting.cancel()
    sim.wait(cloud.close())
    sim.wait(other.write("/a", b"mine"), 5.0)


def test_stale_epoch_is_refused(sim: SimCluster) -> None:
    """A command with a lower epoch than the slave has seen does nothing."""
    from sector.model import Tombstone, Version
    from sector.wire.slave import Delete

    cloud = sim.client()
    sim.wait(cloud.write("/a", b"x"))
    node = sim.serving("/a")[0]
    slave = sim.slaves[node].service
    assert slave is not None
    master = sim.up()
    seen = master.hub.epoch + 2
    slave.core.command(seen)
    member = master.hub.core.members.nodes[node]
    from sector.gmp.api import Peer

    peer = Peer(member.gmp.host, member.gmp.port, member.key_id)
    with pytest.raises(errors.Conflict, match="epoch"):
        sim.wait(master.hub.rpc.call(peer, Delete(seen - 1, [Tombstone("/a", Version(9, 9), 0.0)])))
    assert sim.slaves[node].native("/a").exists()


def test_many_small_files_wait_for_slaves_that_are_busy(tmp_path: Path, seed: int) -> None:
    """32 small files at once are more than three slaves of two transfers take: all arrive, and come back."""
    source = tmp_path / "tree"
    source.mkdir()
    contents = {f"f{i}": write_random(source / f"f{i}", 100 + i) for i in range(40)}
    with SimCluster(tmp_path / "sim", seed=seed, disk_s=0.02) as sim:
        for slave in sim.slaves.values():
            assert slave.service is not None
            slave.service.core._limit = 2
        cloud = sim.client()
        progress = Progress()
        summary = sim.wait(cloud.put(source, "/tree", recursive=True, progress=progress))
        assert len(summary.files) == 40
        assert any("waiting" in note for note in progress.notes), progress.notes
        sim.wait(cloud.get("/tree", tmp_path / "back", recursive=True))
    assert {path.name: path.read_bytes() for path in (tmp_path / "back").iterdir()} == contents
