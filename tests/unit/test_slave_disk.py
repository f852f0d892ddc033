"""The data directory of a slave: crash points, planted links, full disks, records, attic."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slave_disk import LEASE, V1, V2, V3, Breaker, content_of, interrupted, meta_of, opened, seal, store

from sector import errors, space
from sector._udt.checksum import block_crcs, content_digest, crc32c, crc32c_tables
from sector.model import Tombstone, Version, digest_text
from sector.slave import area, beneath, disk, room
from sector.slave.disk import Disk


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Disk]:
    """An empty data directory."""
    target = opened(tmp_path / "d")
    yield target
    target.close_thd()


def test_publish_makes_a_native_file(here: Disk) -> None:
    record = store(here, "/a/b/c.dat", b"hello", V1)
    native = Path(here.root, "files/a/b/c.dat")
    assert native.read_bytes() == b"hello"
    assert native.stat().st_mode & 0o777 == 0o640
    assert record.meta == meta_of("/a/b/c.dat", b"hello", V1)
    assert content_of(here, "/a/b/c.dat", V1) == b"hello"
    with pytest.raises(errors.NotFound):
        here.open_read_thd("/a/b/c.dat", V2)


def test_everything_survives_a_restart(here: Disk) -> None:
    """Records, prepared content and tombstones; unfinished data does not."""
    store(here, "/a", b"one", V1)
    seal(here, "/b", b"waiting", V2)
    os.close(here.reserve_thd("/c", 1000).fd)
    here.bury_thd([Tombstone("/dead", V1, 5.0)])
    here.close_thd()
    again = opened(Path(here.root))
    assert {path: r.version for path, r in again.entries.items()} == {"/a": V1}
    assert [r.path for r in again.prepared.values()] == ["/b"]
    assert "/dead" in again.mirror.tombstones
    assert len(os.listdir(Path(here.root, ".sector/tmp"))) == 1
    again.publish_thd(again.prepared[LEASE])
    assert content_of(again, "/b", V2) == b"waiting"
    again.close_thd()


def meta_files(target: Disk) -> list[Path]:
    """All records on disk, set aside or not."""
    return sorted(Path(target.root, ".sector/meta").rglob("*.json*"))


def test_a_copied_record_is_set_aside(here: Disk) -> None:
    """Somebody's `cp` in .sector/meta: the content keeps its version, now and after the next start."""
    store(here, "/a", b"one", V2)
    here.close_thd()
    file = meta_files(here)[0]
    file.with_name("copy.json").write_bytes(file.read_bytes())
    warned = []
    for _ in range(2):
        again = opened(Path(here.root))
        assert {path: r.version for path, r in again.entries.items()} == {"/a": V2}
        assert content_of(again, "/a", V2) == b"one"
        warned.append(any("it was set aside" in line for line in again.warnings))
        again.close_thd()
    assert warned == [True, False]
    assert {one.name for one in meta_files(here)} == {file.name, "copy.json.bad"}


def test_a_misnamed_record_gets_its_name_back(here: Disk) -> None:
    """As after a restore under other names."""
    store(here, "/a", b"one", V2)
    here.close_thd()
    file = meta_files(here)[0]
    file.rename(file.with_name("restored.json"))
    again = opened(Path(here.root))
    assert {path: r.version for path, r in again.entries.items()} == {"/a": V2}
    assert [line for line in again.warnings if "wrong name" in line]
    assert meta_files(here) == [file]
    again.close_thd()


def test_crash_at_every_step_of_replacing_leaves_old_or_new(tmp_path: Path) -> None:
    """Interrupted before each change of the disk: recovery finds the old version or the new one, its
    bytes match its record, and a prepared version can still be published."""
    steps = 0
    outcomes = set()
    while True:
        root = tmp_path / f"c{steps}"
        first = opened(root)
        store(first, "/a/f", b"old" * 1000, V1)
        first.close_thd()
        breaker = interrupted(root, steps, lambda d: store(d, "/a/f", b"new!" * 2000, V2))
        after = opened(root)
        record = after.entries["/a/f"]
        content = content_of(after, "/a/f", record.version)
        assert content == {V1: b"old" * 1000, V2: b"new!" * 2000}[record.version]
        assert digest_text(content_digest(list(after.crcs_thd(record)), len(content))) == record.digest
        prepared = LEASE in after.prepared
        assert not (prepared and record.version == V2)
        outcomes.add((record.version, prepared))
        if prepared:
            after.publish_thd(after.prepared[LEASE])
            assert content_of(after, "/a/f", V2) == b"new!" * 2000
        assert not list(Path(root, ".sector/attic").iterdir())
        after.close_thd()
        again = opened(root)
        assert len(list(Path(root, ".sector/meta").rglob("*.json"))) == 1
        assert os.listdir(Path(root, ".sector/tmp")) == []
        again.close_thd()
        if not breaker.hit:
            break
        steps += 1
    assert steps >= 10
    assert outcomes == {(V1, False), (V1, True), (V2, False)}


def test_crash_at_every_step_of_a_rename_keeps_the_content(tmp_path: Path) -> None:
    """Interrupted anywhere, then repeated: the content is at one of the two paths, at last at the new."""
    steps = 0
    while True:
        root = tmp_path / f"c{steps}"
        first = opened(root)
        store(first, "/x/f", b"precious", V1)
        first.close_thd()
        new = meta_of("/y/g", b"precious", V2)
        breaker = interrupted(root, steps, lambda d, new=new: d.rename_thd("/x/f", V1, new))
        after = opened(root)
        held = {path: content_of(after, path, r.version) for path, r in after.entries.items()}
        assert held in ({"/x/f": b"precious"}, {"/y/g": b"precious"})
        assert after.rename_thd("/x/f", V1, new) or "/y/g" in held
        assert content_of(after, "/y/g", V2) == b"precious"
        assert list(after.entries) == ["/y/g"]
        after.close_thd()
        if not breaker.hit:
            break
        steps += 1
    assert steps >= 5


def test_data_is_durable_before_it_becomes_visible(here: Disk) -> None:
    """fsync of the data and of its record come before the rename, fsync of the directory after it."""
    breaker = Breaker(10**6)
    modules = (area, beneath, disk, room)
    for module in modules:
        module.os = breaker  # type: ignore[attr-defined]
    try:
        store(here, "/a", b"x", V1)
    finally:
        for module in modules:
            module.os = os  # type: ignore[attr-defined]
    calls = [name for name in breaker.calls if name in ("fsync", "rename")]
    # data, tmp directory, [meta], record | record in place, its directory | data in place, its directory
    assert calls[-3:] == ["fsync", "rename", "fsync"]
    assert calls.count("rename") == 2
    assert calls[: calls.index("rename")].count("fsync") >= 3


@pytest.mark.parametrize("lease", [LEASE, b""])
def test_sealing_syncs_what_was_received(here: Disk, monkeypatch: pytest.MonkeyPatch, lease: bytes) -> None:
    """All bytes through the descriptor that they came by, before anything else; the transfer may not have."""
    synced: list[tuple[int, int]] = []
    real = os.fsync

    def spy(fd: int) -> None:
        real(fd)
        info = os.fstat(fd)
        synced.append((info.st_ino, info.st_size))

    monkeypatch.setattr(os, "fsync", spy)
    sealed = seal(here, "/a", b"x" * 1000, V1, lease)
    assert synced[0] == (sealed.inode, 1000)
    assert meta_files(here)[0].stat().st_ino in [inode for inode, _ in synced]


@pytest.mark.parametrize("planted", ["/in/link/f", "/link/f", "/file"])
def test_planted_symbolic_link_is_refused(here: Disk, tmp_path: Path, planted: str) -> None:
    """Neither written through, nor read through, nor deleted through; the refusal comes before any byte."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"secret")
    tree = Path(here.root, "files")
    where = tree / planted.lstrip("/").removesuffix("/f")
    where.parent.mkdir(parents=True, exist_ok=True)
    where.symlink_to(outside / "f" if planted == "/file" else outside)
    with pytest.raises(errors.Conflict, match="symbolic link"):
        here.reserve_thd(planted, 10)
    record = seal(here, "/ok", b"evil", V1)
    import msgspec

    if planted != "/file":
        with pytest.raises(errors.Conflict, match="symbolic link"):
            here.publish_thd(msgspec.structs.replace(record, path=planted))
    here.entries[planted] = msgspec.structs.replace(record, path=planted)
    with pytest.raises(errors.Conflict, match="symbolic link"):
        here.open_read_thd(planted, V1)
    del here.entries[planted]
    assert (outside / "f").read_bytes() == b"secret"
    here.close_thd()
    again = opened(Path(here.root))
    assert planted not in again.entries
    assert any("not a regular file" in text for text in again.warnings) or planted != "/file"
    again.close_thd()


@pytest.mark.parametrize("way", ["openat2", "walk"])
def test_paths_never_lead_out(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of opening refuse links and `..`; both open what is really there."""
    monkeypatch.setattr(beneath, "_has_openat2", way == "openat2")
    (tmp_path / "t/d").mkdir(parents=True)
    (tmp_path / "t/d/f").write_bytes(b"in")
    (tmp_path / "out").write_bytes(b"out")
    (tmp_path / "t/l").symlink_to(tmp_path / "out")
    (tmp_path / "t/dl").symlink_to("d")
    root = os.open(tmp_path / "t", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fd = beneath.open_beneath(root, "/d/f", os.O_RDONLY)
        assert os.read(fd, 9) == b"in"
        assert not os.get_inheritable(fd)
        os.close(fd)
        for bad in ("/../out", "/d/../../out", "/l", "/dl/f"):
            with pytest.raises(OSError) as caught:
                beneath.open_beneath(root, bad, os.O_RDONLY)
            assert caught.value.errno in (errno.ELOOP, errno.EXDEV)
    finally:
        os.close(root)


def test_full_disk_is_refused_at_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the disk has free is refused before a byte is accepted, and nothing is left of it; the system
    is not asked for it, as it would take all that is free before it refuses."""
    target = Disk(str(tmp_path / "d"), "s1")
    target.open_thd()
    free, _ = target.space_thd()
    asked: list[int] = []
    monkeypatch.setattr(space, "fallocate", lambda fd, size: not asked.append(size))
    with pytest.raises(errors.NoSpace, match="no room"):
        target.reserve_thd("/big", free + (1 << 40))
    assert asked == []
    assert os.listdir(tmp_path / "d/.sector/tmp") == []
    target.close_thd()


def test_some_space_is_kept_free(tmp_path: Path) -> None:
    """However much is to be kept: at most a twentieth of the disk, so that a small one is of use too."""
    plain = Disk(str(tmp_path / "d"), "s1")
    plain.open_thd()
    free, _ = plain.space_thd()
    plain.close_thd()
    target = Disk(str(tmp_path / "d"), "s1", keep_free_bytes=1 << 60)
    target.open_thd()
    whole = os.statvfs(tmp_path)
    kept = free - target.space_thd()[0]
    assert abs(kept - whole.f_blocks * whole.f_frsize // 20) < free // 100 + (1 << 20)
    target.close_thd()


def test_reserved_space_is_taken_at_once(here: Disk) -> None:
    temp = here.reserve_thd("/a", 8 << 20)
    assert os.fstat(temp.fd).st_blocks * 512 >= 8 << 20
    assert os.fstat(temp.fd).st_size == 0
    here.drop_temp_thd(temp)


def test_one_process_and_one_slave_for_each_directory(here: Disk) -> None:
    with pytest.raises(errors.Busy, match="in use"):
        Disk(here.root, "s1").open_thd()
    here.close_thd()
    with pytest.raises(errors.BadConfig, match="belongs to slave s1"):
        Disk(here.root, "s2").open_thd()


def test_publish_is_refused_when_newer_content_or_a_tombstone_is_here(here: Disk) -> None:
    store(here, "/a", b"newest", V3)
    with pytest.raises(errors.Conflict):
        store(here, "/a", b"older", V2)
    here.bury_thd([Tombstone("/b", V2, 0.0)])
    with pytest.raises(errors.Conflict, match="deleted"):
        store(here, "/b", b"dead", V2)
    assert content_of(here, "/a", V3) == b"newest"
    assert os.listdir(Path(here.root, ".sector/tmp")) == []


def test_a_second_copy_of_the_same_version_changes_nothing(here: Disk) -> None:
    """The master may send a copy that is here already (its table was wrong): the record of the content that
    is visible stays, and nothing of the copy is left."""
    store(here, "/f", b"hello", V1)
    temp = here.reserve_thd("/f", 5)
    os.pwrite(temp.fd, b"hello", 0)
    with pytest.raises(errors.Conflict, match="already"):
        here.seal_thd(temp, meta_of("/f", b"hello", V1), tuple(block_crcs(temp.fd, 0, 5)))
    here.drop_temp_thd(temp)
    assert os.listdir(Path(here.root, ".sector/tmp")) == []
    here.close_thd()
    again = opened(Path(here.root))
    assert again.entries["/f"].version == V1
    assert content_of(again, "/f", V1) == b"hello"
    again.close_thd()


def test_delete_spares_newer_content_and_prunes_directories(here: Disk) -> None:
    store(here, "/x/y/z", b"1", V2)
    assert not here.delete_thd("/x/y/z", V1)
    assert here.delete_thd("/x/y/z", V2)
    assert os.listdir(Path(here.root, "files")) == []
    assert list(Path(here.root, ".sector/meta").rglob("*.json")) == []


def test_the_master_may_give_another_version(here: Disk) -> None:
    here.publish_thd(seal(here, "/a", b"x", V1), V3)
    here.close_thd()
    again = opened(Path(here.root))
    assert again.entries["/a"].version == V3
    again.close_thd()


def test_remainders_in_the_way_go_to_the_attic(here: Disk) -> None:
    """The namespace decides: a file where a directory is needed, a directory where a file goes."""
    store(here, "/p", b"file", V1)
    store(here, "/p/q", b"below", V2)
    assert content_of(here, "/p/q", V2) == b"below"
    store(here, "/p", b"file again", V3)
    assert content_of(here, "/p", V3) == b"file again"
    assert len(list(Path(here.root, ".sector/attic").iterdir())) == 2
    assert list(here.entries) == ["/p"]


def test_unknown_files_are_adopted_and_touched_ones_verified(here: Disk) -> None:
    store(here, "/known", b"known", V1)
    tree = Path(here.root, "files")
    (tree / "new").write_bytes(b"new")
    os.utime(tree / "known", ns=(1, 1))
    here.close_thd()
    again = Disk(here.root, "s1")
    catalogue = again.open_thd()
    assert [f.path for f in catalogue.adopt] == ["/new"]
    (found, record) = catalogue.verify[0]
    assert again.verify_thd(found, record)
    adopted = again.adopt_thd(catalogue.adopt[0])
    assert adopted is not None
    assert (adopted.version, adopted.owner, adopted.size) == (Version(0, 1), "admin", 3)
    assert content_of(again, "/known", V1) == b"known"
    assert again.adopt_thd(catalogue.adopt[0]) is None
    again.close_thd()


def test_changed_content_is_set_aside(here: Disk) -> None:
    store(here, "/a", b"good", V1)
    Path(here.root, "files/a").write_bytes(b"evil")
    with pytest.raises(errors.NotFound, match="changed outside"):
        here.open_read_thd("/a", V1)
    catalogue = here.rescan_thd()
    (found, record) = catalogue.verify[0]
    assert not here.verify_thd(found, record)
    assert here.entries == {}
    assert [p.read_bytes() for p in Path(here.root, ".sector/attic").glob("*/data")] == [b"evil"]


def test_bad_blocks_are_found(here: Disk) -> None:
    content = bytes(range(256)) * 4096 * 3
    store(here, "/a", content, V1)
    native = Path(here.root, "files/a")
    stamp = native.stat()
    with native.open("r+b") as file:
        file.seek((1 << 20) + 5)
        file.write(b"!")
    os.utime(native, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    fd, record = here.open_read_thd("/a", V1)
    assert here.bad_blocks_thd(record, fd, 0, record.size) == [1]
    assert here.bad_blocks_thd(record, fd, 0, 1 << 20) == []
    assert here.bad_blocks_thd(record, fd, (1 << 20) - 1, 2) == [1]
    os.close(fd)


def test_damaged_records_do_not_stop_the_slave(here: Disk) -> None:
    store(here, "/a", b"x", V1)
    here.close_thd()
    for file in Path(here.root, ".sector/meta").rglob("*.json"):
        file.write_bytes(b"{half")
    again = Disk(here.root, "s1")
    catalogue = again.open_thd()
    assert [f.path for f in catalogue.adopt] == ["/a"]
    assert any("damaged record" in text for text in again.warnings)
    again.close_thd()


def refuse_to_open(monkeypatch: pytest.MonkeyPatch, folder: str, number: int) -> None:
    """From now on the operating system does not open the directory of this name."""
    real = os.open

    def broken(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if path == folder:
            raise OSError(number, os.strerror(number), folder)
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", broken)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE])
def test_files_of_a_directory_that_cannot_be_read_are_not_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A slave does not start on half a tree, and forgets nothing of the other half."""
    first = opened(tmp_path / "d")
    store(first, "/sub/a", b"content", V1)
    with monkeypatch.context() as broken:
        refuse_to_open(broken, "sub", number)
        with pytest.raises(errors.LocalIO, match=f"sub: {os.strerror(number)}"):
            first.rescan_thd()
        first.close_thd()
        with pytest.raises(errors.LocalIO, match=f"sub: {os.strerror(number)}"):
            Disk(str(tmp_path / "d"), "s1").open_thd()
    again = opened(tmp_path / "d")
    assert again.entries["/sub/a"].version == V1
    again.close_thd()


def test_a_file_that_cannot_be_looked_at_is_not_lost(here: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a file that is gone is forgotten; a disk that does not answer says nothing."""
    store(here, "/a", b"content", V1)

    def broken(path: str) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as context:
        context.setattr(here, "_stat", broken)
        with pytest.raises(errors.LocalIO):
            here.lost_thd("/a", V1)
    assert here.entries["/a"].version == V1 and not here.lost_thd("/a", V1)
    os.unlink(os.path.join(here.root, "files", "a"))
    assert here.lost_thd("/a", V1)


def test_records_that_cannot_be_opened_now_are_not_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process without descriptors left must not take good records for damaged ones."""
    first = opened(tmp_path / "d")
    record = store(first, "/a", b"content", V1)
    file = first._record_file(record)
    first.close_thd()

    def broken(path: Any, *args: Any, **options: Any) -> Any:
        if path == file:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return open(path, *args, **options)

    with monkeypatch.context() as context:
        context.setattr(area, "open", broken, raising=False)
        with pytest.raises(errors.LocalIO, match="Too many open files"):
            Disk(str(tmp_path / "d"), "s1").open_thd()
    again = opened(tmp_path / "d")
    assert again.entries["/a"].version == V1
    again.close_thd()


def test_local_files_are_taken_over_and_put_back(here: Disk, tmp_path: Path) -> None:
    scratch = here.scratch_thd("job")
    local = os.path.join(scratch, "out")
    Path(local).write_bytes(b"result" * 300_000)
    temp, crcs, size = here.import_thd(local)
    assert not os.path.exists(local)
    assert (size, len(crcs)) == (1_800_000, 2)
    here.put_back_thd(temp, local)
    assert Path(local).read_bytes() == b"result" * 300_000
    other = Path("/dev/shm/sector-test-import")
    other.write_bytes(b"elsewhere")
    temp, _, size = here.import_thd(str(other))
    assert size == 9
    assert not other.exists()
    assert os.pread(temp.fd, 10, 0) == b"elsewhere"
    here.drop_temp_thd(temp)


def test_fallocate_says_when_the_disk_is_full(tmp_path: Path) -> None:
    """A too large reservation raises ENOSPC or EFBIG, never succeeds silently."""
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    try:
        with pytest.raises(OSError) as caught:
            space.fallocate(fd, 1 << 60)
        assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    finally:
        os.close(fd)
    assert ctypes.get_errno() in (0, errno.ENOSPC, errno.EFBIG)


def test_checksums_without_the_core_are_the_same() -> None:
    for size in (0, 1, 1023, 1024, 1025, 4096, 70_001):
        data = os.urandom(size)
        assert crc32c_tables(data) == crc32c(data)
    assert crc32c_tables(b"123456789") == 0xE3069283


def test_a_full_disk_is_said_so_when_files_are_adopted_or_looked_into(
    here: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that the scan of the tree knows: any other one would end the scans until the next start."""
    store(here, "/touched", b"same", V1)
    store(here, "/changed", b"same", V1)
    os.utime(Path(here.root, "files/touched"), (1, 1))
    Path(here.root, "files/changed").write_bytes(b"edit")
    Path(here.root, "files/new").write_bytes(b"new")
    seen = here.rescan_thd()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(here, "_write_file", full)
    with pytest.raises(errors.NoSpace):
        here.adopt_thd(seen.adopt[0])
    assert len(seen.verify) == 2
    for found, record in seen.verify:
        with pytest.raises(errors.NoSpace):
            here.verify_thd(found, record)


def test_a_tree_as_deep_as_paths_may_be(here: Disk) -> None:
    """A user may make 2,000 directories in one another; no slave that has a file there may fail to start."""
    path = "/a" * 2000 + "/f"
    again = here
    try:
        store(here, path, b"deep", V1)
        assert here.rescan_thd().gone == []
        inner = here.scratch_thd("udf")
        fd = os.open(inner, os.O_RDONLY)
        for _ in range(1500):  # deeper than paths of the system may be, and than Python's own stack
            os.mkdir("0123456789", dir_fd=fd)
            below = os.open("0123456789", os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        os.close(os.open("left", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        os.close(fd)
        here.close_thd()
        again = opened(Path(here.root))
        assert content_of(again, path, V1) == b"deep"
        assert not os.listdir(os.path.join(here.root, ".sector", "scratch"))
        assert again.delete_thd(path, V1) and os.listdir(os.path.join(here.root, "files")) == []
    finally:
        again.close_thd()
        subprocess.run(["rm", "-rf", here.root], check=True)  # whatever failed: pytest could not remove it
