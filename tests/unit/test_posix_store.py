"""The store on plain files beside people, other programs and other processes that use the same tree."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from posix_disk import Faulty

from cumulus.backends.posix import bodies, files, paths
from cumulus.backends.posix.files import Files
from cumulus.backends.posix.listing import Listing
from cumulus.backends.posix.locks import Locks
from cumulus.backends.posix.paths import Root
from cumulus.backends.posix.store import PosixStore
from cumulus.storage.api import (
    BadName,
    Changed,
    Entry,
    Forbidden,
    Missing,
    NoSpace,
    NotEmptyStore,
    Taken,
    Unavailable,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PosixStore]:
    """A store with a bucket."""
    made = PosixStore(str(tmp_path / "store"))
    made.create_bucket("b")
    yield made
    made.close()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The bucket's directory."""
    return tmp_path / "store/data/b"


def put(
    store: PosixStore, name: str, body: bytes = b"body", meta: bytes = b"meta", bucket: str = "b"
) -> Entry:
    """Write one object."""
    stream = store.open_write(bucket, name, len(body))
    try:
        stream.write(memoryview(body))
        return stream.commit(meta)
    finally:
        stream.close()


def listed(store: PosixStore, bucket: str = "b") -> list[str]:
    """Names only."""
    return [entry.name for entry in store.names(bucket)]


def test_an_object_is_a_plain_file_of_mode_0640(store: PosixStore, tree: Path) -> None:
    """Whatever the umask."""
    old = os.umask(0o077)
    try:
        put(store, "dir/a.txt", b"plain")
    finally:
        os.umask(old)
    path = tree / "dir/a.txt"
    assert path.read_bytes() == b"plain"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("size", [10, 100_000])
def test_an_overwrite_keeps_owner_and_mode(store: PosixStore, tree: Path, size: int) -> None:
    """As the file's owner set them."""
    put(store, "a")
    (tree / "a").chmod(0o604)
    if os.getuid() == 0:
        os.chown(tree / "a", 1234, 2345)
    put(store, "a", b"x" * size)
    status = (tree / "a").stat()
    assert stat.S_IMODE(status.st_mode) == 0o604
    if os.getuid() == 0:
        assert (status.st_uid, status.st_gid) == (1234, 2345)


def test_files_of_others_are_served_without_meta(store: PosixStore, tree: Path) -> None:
    """Made, rewritten, copied and edited from outside; a change of mode keeps what is ours."""
    (tree / "outside.txt").write_bytes(b"from outside")
    entry = store.stat("b", "outside.txt")
    assert (entry.size, entry.meta) == (12, None)
    ours = put(store, "a", b"1234")
    (tree / "a").chmod(0o600)
    assert store.stat("b", "a").meta == b"meta"
    subprocess.run(["cp", "--preserve=all", str(tree / "a"), str(tree / "copied")], check=True)
    assert store.stat("b", "copied").meta is None
    stream = store.open_read("b", "a")
    (tree / "a").write_bytes(b"4321")
    os.utime(tree / "a", ns=(0, ours.mtime_ns + 1))
    with pytest.raises(Changed):
        stream.read_at(0, 4)
    assert not stream.unchanged()
    stream.close()
    assert store.stat("b", "a").meta is None
    assert store.stat("b", "a").token != ours.token
    assert listed(store) == ["a", "copied", "outside.txt"]


def test_a_file_cut_while_it_is_read_is_noticed(store: PosixStore, tree: Path) -> None:
    """Never fewer bytes without an error."""
    put(store, "a", b"x" * 100_000)
    stream = store.open_read("b", "a")
    os.truncate(tree / "a", 10)
    with pytest.raises(Changed):
        stream.read_at(0, 100_000)
    stream.close()


def test_links_pipes_and_names_that_are_no_text_are_left_alone(
    store: PosixStore, tree: Path, tmp_path: Path
) -> None:
    """Not read, not written through, not listed, not removed."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/file").write_text("x")
    (tree / "link").symlink_to(tmp_path / "secret")
    (tree / "way").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tree / "pipe")
    Path(os.fsdecode(os.fsencode(tree) + b"/\xff\xfe")).write_text("x")
    put(store, "good")
    assert listed(store) == ["good"]
    for name in ("link", "pipe", "way/file", "way", "link/x"):
        with pytest.raises(Missing):
            store.open_read("b", name)
        with pytest.raises(Missing):
            store.delete("b", name)
        with pytest.raises(Taken):
            put(store, name)
    assert (tmp_path / "secret").read_text() == "secret"
    assert os.listdir(tmp_path / "elsewhere") == ["file"]
    store.delete("b", "good")
    with pytest.raises(NotEmptyStore):
        store.delete_bucket("b")


def test_only_directories_of_ours_are_pruned(store: PosixStore, tree: Path) -> None:
    """Those of people stay, with and without extended attributes."""
    (tree / "theirs").mkdir()
    put(store, "theirs/ours/x/a")
    store.delete("b", "theirs/ours/x/a")
    assert (tree / "theirs").is_dir()
    assert not (tree / "theirs/ours").exists()


def test_removals_at_once_leave_no_directory_behind(store: PosixStore, tree: Path) -> None:
    """Each thread sees the directories of the others still there now and then; the last removes them. As
    `rclone purge` does before it removes the bucket."""
    names = ["t/sub/small", "t/large", "t/sub/more"]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(500):
            for name in names:
                put(store, name)
            ready = threading.Barrier(len(names))

            def remove(name: str, ready: threading.Barrier = ready) -> None:
                ready.wait(10)
                store.delete("b", name)

            threads = [threading.Thread(target=remove, args=(name,)) for name in names]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            assert os.listdir(tree) == [".cumulus"]
    finally:
        sys.setswitchinterval(before)
    store.delete_bucket("b")


def test_a_directory_filled_and_emptied_while_it_is_removed_goes(tmp_path: Path) -> None:
    """The removal of `t` finds a new object in it; whoever removes that one meets the lock and leaves `t` to
    the first."""

    class Filled(Files):
        times = 0

        def remove_dir(self, directory: int, name: str) -> None:
            self.times += name == "t"
            if name == "t" and self.times == 1:
                put(store, "t/late")
                with pytest.raises(OSError, match="not empty"):
                    super().remove_dir(directory, name)
                store.delete("b", "t/late")
                raise OSError(errno.ENOTEMPTY, "not empty")
            super().remove_dir(directory, name)

    files = Filled()
    store = PosixStore(str(tmp_path / "store"), fsync=False, files=files)
    store.create_bucket("b")
    put(store, "t/first")
    store.delete("b", "t/first")
    assert not (tmp_path / "store/data/b/t").exists()
    assert files.times == 2
    store.close()


def test_empty_directories_of_ours_do_not_keep_a_bucket(store: PosixStore, tree: Path) -> None:
    """Left by a process that ended before it could remove them; one of people does keep it."""

    class Ended(Files):
        def remove_dir(self, directory: int, name: str) -> None:
            raise OSError(errno.EINTR, "ended here")

    ended = PosixStore(str(tree.parent.parent), files=Ended())
    for name in ("a/b/c/one", "a/two", "theirs/ours/three"):
        put(ended, name)
        ended.delete("b", name)
    ended.close()
    (tree / "theirs/people").mkdir()
    assert (tree / "a/b/c").is_dir()
    assert listed(store) == []
    with pytest.raises(NotEmptyStore):
        store.delete_bucket("b")
    assert os.listdir(tree / "theirs") == ["people"]
    (tree / "theirs/people").rmdir()
    store.delete_bucket("b")
    assert not tree.exists()


def test_the_store_has_names_that_are_no_keys(store: PosixStore) -> None:
    """Its drafts and sidecars cannot be reached."""
    for name in (".cumulus", ".cumulus/tmp/x", ".cumulus/meta/x"):
        with pytest.raises(BadName):
            store.open_read("b", name)
        with pytest.raises(BadName):
            put(store, name)
    assert store.names("b", prefix=".cumulus/") == []


def test_an_existing_directory_becomes_a_bucket(store: PosixStore, tmp_path: Path) -> None:
    """And is left as it was, without what is ours, when the bucket goes."""
    theirs = tmp_path / "theirs"
    (theirs / "sub").mkdir(parents=True)
    (theirs / "sub/file").write_text("text")
    store.create_bucket("adopted", str(theirs))
    store.create_bucket("adopted", str(theirs))
    assert listed(store, "adopted") == ["sub/file"]
    put(store, "new", bucket="adopted")
    assert (theirs / "new").read_bytes() == b"body"
    again = PosixStore(str(tmp_path / "store"))
    assert listed(again, "adopted") == ["new", "sub/file"]
    with pytest.raises(NotEmptyStore):
        store.delete_bucket("adopted")
    store.delete("adopted", "new")
    store.delete("adopted", "sub/file")
    store.delete_bucket("adopted")
    assert os.listdir(theirs) == ["sub"]
    with pytest.raises(Missing):
        again.names("adopted")
    again.close()


def test_directories_of_two_buckets_do_not_lie_within_each_other(tmp_path: Path) -> None:
    """Who removes one would remove what is the other's."""
    store = PosixStore(str(tmp_path / "store"))
    (tmp_path / "x/a/b").mkdir(parents=True)
    (tmp_path / "x/ab").mkdir()
    store.create_bucket("one", str(tmp_path / "x/a"))
    for path in ("x", "x/a", "x/a/b"):
        with pytest.raises(BadName, match="of bucket 'one'"):
            store.create_bucket("other", str(tmp_path / path))
    store.create_bucket("beside", str(tmp_path / "x/ab"))
    store.close()


def test_directories_that_cannot_be_adopted_are_refused(store: PosixStore, tmp_path: Path) -> None:
    """Relative, missing, our own, one around ours; and a name that has another directory."""
    (tmp_path / "other").mkdir()
    for path in ("relative", str(tmp_path / "none"), str(tmp_path / "store/data/b"), str(tmp_path), "/"):
        with pytest.raises(BadName):
            store.create_bucket("c", path)
    with pytest.raises(Taken):
        store.create_bucket("b", str(tmp_path / "other"))


def test_sweeping_takes_what_dead_writers_left(store: PosixStore, tree: Path) -> None:
    """Drafts that nobody holds and sidecars that fit nothing."""
    put(store, "a", meta=b"m" * 10_000)
    os.replace(tree / "a", tree / "moved")
    (tree / ".cumulus/tmp/0123").write_text("left")
    live = store.open_write("b", "c", 2_000_000)
    assert store.sweep(3600) == 0
    assert store.sweep(-5) == 2
    live.write(memoryview(b"x"))
    live.commit(b"")
    live.close()
    assert listed(store) == ["c", "moved"]
    assert os.listdir(tree / ".cumulus/tmp") == []


@pytest.mark.parametrize("name", [b".Trash-0", b"caf\xe9"])
def test_a_directory_that_can_be_no_bucket_keeps_nothing_from_being_swept(
    store: PosixStore, tree: Path, name: bytes
) -> None:
    """As a desktop makes it where it has removed something."""
    (tree.parent / os.fsdecode(name)).mkdir()
    (tree / ".cumulus/tmp/0123").write_text("left")
    assert store.sweep(-5) == 1
    assert os.listdir(tree.parent / os.fsdecode(name)) == []


def test_what_we_may_not_read_is_listed_without_meta_and_forbidden(store: PosixStore, tree: Path) -> None:
    """Seen as a user without rights (root takes the identity of one)."""
    put(store, "a")
    (tree / "a").chmod(0)
    tree.chmod(0o755)
    root = Root("b", str(tree), Files(), Locks(str(tree.parent / "gate")).gate("b"))
    if os.getuid() == 0:
        os.seteuid(65534)
    try:
        assert [(entry.name, entry.meta) for entry in Listing().names(root, "", "", 10)] == [("a", None)]
        with pytest.raises(Forbidden), paths.open_parent(root, ["a"]) as parent:
            bodies.open_body(parent, "a", "a")
    finally:
        if os.getuid() == 0:
            os.seteuid(0)


RACE = """
import sys
from cumulus.backends.posix import bodies, files, paths
from cumulus.backends.posix.files import Files
from cumulus.backends.posix.listing import Listing
from cumulus.backends.posix.paths import Root
from cumulus.backends.posix.store import PosixStore
from cumulus.storage.api import ABSENT, Changed
store = PosixStore(sys.argv[1])
won = 0
print("ready", flush=True)
sys.stdin.readline()
for number in range(40):
    stream = store.open_write("b", f"k{number}")
    stream.write(memoryview(sys.argv[2].encode()))
    try:
        stream.commit(sys.argv[2].encode(), ABSENT)
        won += 1
    except Changed:
        pass
    stream.close()
store.close()
print(won, flush=True)
"""


def test_processes_exclude_one_another(store: PosixStore, tmp_path: Path) -> None:
    """Of several that put a name only if it is free, one does; and its bytes are there."""
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(tmp_path / "store"), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    for racer in racers:
        assert racer.stdout and racer.stdout.readline() == "ready\n"
    won = [int(racer.communicate("go\n", timeout=60)[0]) for racer in racers]
    assert sum(won) == 40
    counts = [sum(entry.meta == str(number).encode() for entry in store.names("b")) for number in range(3)]
    assert counts == won


class OtherBoot(Faulty):
    """The same machine after a power cut."""

    def boot(self) -> str:
        return "another run"


def crashed(store: PosixStore, tmp_path: Path) -> Path:
    """A copy of the store as it is now, journals included, whose files are all old enough to be judged."""
    subprocess.run(["cp", "-a", str(tmp_path / "store"), str(tmp_path / "copy")], check=True)
    return tmp_path / "copy"


def test_what_was_recovered_is_told_until_the_floor_above_has_it(store: PosixStore, tmp_path: Path) -> None:
    """A second crash between the two loses nothing."""
    put(store, "a")
    copy = crashed(store, tmp_path)
    for _ in range(2):
        again = PosixStore(str(copy), files=OtherBoot())
        assert [entry.name for _, entry in again.recover()] == ["a"]
        again.close()
    again = PosixStore(str(copy), files=OtherBoot())
    assert [entry.name for _, entry in again.recover()] == ["a"]
    again.recovered()
    again.close()
    assert os.listdir(copy / "journal") == []


def test_what_others_put_after_us_survives_recovery(store: PosixStore, tmp_path: Path) -> None:
    """A file newer than the journal's record stays, for puts and for removals; a lost one comes back."""
    for name in ("replaced", "lost", "removed"):
        put(store, name, name.encode())
    store.delete("b", "removed")
    copy = crashed(store, tmp_path)
    (copy / "data/b/lost").unlink()
    for name in ("replaced", "removed"):
        (copy / "data/b" / name).unlink(missing_ok=True)
        (copy / "data/b" / name).write_text("theirs")
    again = PosixStore(str(copy), files=OtherBoot())
    told = {entry.name: entry.meta for _, entry in again.recover()}
    assert told == {"lost": b"meta", "replaced": None, "removed": None}
    assert (copy / "data/b/replaced").read_text() == "theirs"
    assert (copy / "data/b/removed").read_text() == "theirs"
    assert (copy / "data/b/lost").read_text() == "lost"
    again.close()


def test_a_process_that_died_leaves_nothing_to_replay(store: PosixStore, tmp_path: Path) -> None:
    """In the same run of the machine: what others removed since stays removed."""
    put(store, "a")
    put(store, "c")
    copy = crashed(store, tmp_path)
    (copy / "data/b/a").unlink()
    again = PosixStore(str(copy))
    assert [entry.name for _, entry in again.recover()] == ["c"]
    assert listed(again) == ["c"]
    again.recovered()
    assert os.listdir(copy / "journal") == []
    again.close()


def test_a_removal_stays_while_an_older_journal_could_undo_it(store: PosixStore, tmp_path: Path) -> None:
    """One process put it, another removed it and has checkpointed since; then the power is cut."""
    other = PosixStore(str(tmp_path / "store"))
    put(store, "a")
    other.delete("b", "a")
    other.close()
    copy = crashed(store, tmp_path)
    again = PosixStore(str(copy), files=OtherBoot())
    assert list(again.recover()) == []
    assert listed(again) == []
    again.recovered()
    assert os.listdir(copy / "journal") == []
    again.close()


def test_a_removal_during_a_recovery_is_not_undone(store: PosixStore, tmp_path: Path) -> None:
    """Another server removes a name after the journals have been read and before it is replayed."""
    put(store, "a")
    (journal,) = (tmp_path / "store/journal").iterdir()
    shutil.copy(journal, journal.with_name("dead.journal"))

    class Meanwhile(Faulty):
        def boot(self) -> str:
            with contextlib.suppress(Missing):
                store.delete("b", "a")
            return "another run"

    again = PosixStore(str(tmp_path / "store"), files=Meanwhile())
    remover = threading.Thread(target=lambda: list(again.recover()))
    remover.start()
    remover.join(30)
    assert listed(again) == []
    again.close()


def test_a_journal_waits_for_a_bucket_that_is_not_mounted(store: PosixStore, tmp_path: Path) -> None:
    """What it holds is written when the directory is back."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    store.create_bucket("adopted", str(theirs))
    put(store, "a", bucket="adopted")
    copy = crashed(store, tmp_path)
    (theirs / "a").unlink()
    theirs.rename(tmp_path / "away")
    again = PosixStore(str(copy), files=OtherBoot())
    assert list(again.recover()) == []
    again.recovered()
    assert len(os.listdir(copy / "journal")) == 1
    (tmp_path / "away").rename(theirs)
    assert [(bucket, entry.name) for bucket, entry in again.recover()] == [("adopted", "a")]
    assert (theirs / "a").read_bytes() == b"body"
    again.recovered()
    again.recovered()
    assert os.listdir(copy / "journal") == []
    again.close()


def test_without_fsync_nothing_is_synced(tmp_path: Path) -> None:
    """And what a dead process was doing is still told."""
    disk = Faulty()
    store = PosixStore(str(tmp_path / "store"), fsync=False, files=disk)
    store.create_bucket("b")
    before = disk.calls["sync"]
    for size in (10, 100_000):
        put(store, f"a{size}", b"x" * size)
    store.delete("b", "a10")
    assert disk.calls["sync"] == before
    assert "sync_data" not in disk.calls
    copy = crashed(store, tmp_path)
    again = PosixStore(str(copy))
    assert [entry.name for _, entry in again.recover()] == ["a100000"]
    again.close()
    store.close()
    assert "sync_all" not in disk.calls


@pytest.mark.parametrize(("size", "syncs"), [(100, 0), (100_000, 5)])
def test_a_second_name_costs_no_more_syncs_than_it_must(tmp_path: Path, size: int, syncs: int) -> None:
    """A small object's is one record in the journal; of a large one, whose bytes are on disk, the directories
    are synced."""
    disk = Faulty()
    store = PosixStore(str(tmp_path / "store"), files=disk)
    store.create_bucket("b")
    put(store, "k", b"x" * size)
    before = disk.calls["sync"], disk.calls["sync_data"]
    store.link("b", "k", ".cumulus/versions/1/2/k")
    made = disk.calls["sync"] - before[0], disk.calls["sync_data"] - before[1]
    assert made == (syncs, 0 if syncs else 1)
    disk.fail("link", errno.EIO)
    with pytest.raises(Unavailable):
        store.link("b", "k", ".cumulus/versions/1/2/other")
    disk.heal()
    put(store, "k", b"new")
    again = store
    if size < 1000:
        copy = crashed(store, tmp_path)
        for name in ("k", ".cumulus/versions/1/2/k"):
            (copy / "data/b" / name).unlink()
        again = PosixStore(str(copy), files=OtherBoot())
        list(again.recover())
    stream = again.open_read("b", ".cumulus/versions/1/2/k")
    assert stream.read_at(0, size) == b"x" * size and stream.entry.meta == b"meta"
    stream.close()
    with pytest.raises(Missing):
        again.stat("b", ".cumulus/versions/1/2/other")
    again.close()
    store.close()


def test_more_room_than_there_is_is_not_asked_of_the_system(
    store: PosixStore, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel would take all that is free before it refuses, and other uploads would find a full disk.
    What was there stays."""
    put(store, "n")
    asked: list[str] = []
    monkeypatch.setattr(files, "_call", lambda name, *_: asked.append(name))
    room = os.statvfs(tree)
    with pytest.raises(NoSpace):
        store.open_write("b", "n", room.f_bfree * room.f_frsize + (1 << 40))
    assert "fallocate64" not in asked
    assert (tree / "n").read_bytes() == b"body"
    fits = store.open_write("b", "fits", 8 << 20)
    fits.write(memoryview(bytes(8 << 20)))
    fits.commit(b"meta")
    fits.close()
    assert "fallocate64" in asked
