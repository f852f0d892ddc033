"""Drivers of fsspec that rename and remove in their own ways: what was acknowledged outlives all of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec
import pytest
from botocore.exceptions import ClientError
from fsspec.implementations.memory import MemoryFileSystem
from s3_world import World

from cumulus.admin.doctor import rebuild
from cumulus.auth import lifecycle
from cumulus.backends.fsspec_record import plain_entry
from cumulus.backends.fsspec_store import FsspecStore
from cumulus.index import objects
from cumulus.model import Acl, ObjectMeta, encode_meta
from cumulus.ops.bin import Bin
from cumulus.ops.jobs import Jobs, hash_waiting
from cumulus.ops.names import BODIES, LEFT
from cumulus.rest.call import Sink
from cumulus.storage.api import LATEST_NS, Entry, Missing, StorageError, Unavailable


class OddFileSystem(MemoryFileSystem):
    """`rmdir` takes all that is in a directory, as Arrow's does (HDFS); a rename over a file does nothing and
    says nothing, as that of WebHDFS; `broken` renames fail."""

    protocol = "oddfs"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    broken = 0

    def rmdir(self, path: str) -> None:
        if not self.isdir(path):
            raise FileNotFoundError(path)
        self.rm(path, recursive=True)

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        if OddFileSystem.broken and "/.cumulus/tmp/" in path1:
            OddFileSystem.broken -= 1
            raise OSError("the name node went away")
        if not self.exists(path2):
            self.cp_file(path1, path2)
            self.rm_file(path1)


fsspec.register_implementation("oddfs", OddFileSystem, clobber=True)


@pytest.fixture
def store(tmp_path: Path) -> FsspecStore:
    """With a bucket."""
    OddFileSystem.broken = 0
    made = FsspecStore(f"oddfs://{tmp_path}")
    made.create_bucket("b")
    return made


def put(store: FsspecStore, name: str, body: bytes) -> Entry:
    """An object, whole."""
    stream = store.open_write("b", name)
    stream.write(memoryview(body))
    return stream.commit(b"meta")


def get(store: FsspecStore, name: str) -> bytes:
    """All its bytes."""
    stream = store.open_read("b", name)
    return stream.read_at(0, stream.entry.size)


def once_then(patch: pytest.MonkeyPatch, store: FsspecStore, name: str, act: Any) -> None:
    """`act` comes just after a listing for a removal, once: as another server's."""
    real, done = getattr(store.fs, name), list[bool]()

    def wrapped(path: str, *words: Any, **options: Any) -> Any:
        result = real(path, *words, **options)
        if not done and not result:
            done.append(True)
            act()
        return result

    patch.setattr(store.fs, name, wrapped)


def test_a_removal_beside_a_put_in_its_directory(store: FsspecStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory was seen to be empty, and is not when it is removed."""
    put(store, "dir/a", b"old")
    once_then(monkeypatch, store, "ls", lambda: put(store, "dir/b", b"new"))
    store.delete("b", "dir/a")
    assert get(store, "dir/b") == b"new"


def test_a_put_whose_directory_goes_while_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was there when it should be made, and is not when that is looked at: another server removed it."""
    store = FsspecStore(f"file://{tmp_path}/files")
    store.create_bucket("b")
    put(store, "dir/a", b"old")
    real, gone = os.mkdir, list[str]()

    def mkdir(path: str, *words: Any, **options: Any) -> None:
        try:
            real(path, *words, **options)
        except FileExistsError:
            if path.endswith("/dir") and not gone:
                gone.append(path)
                store.delete("b", "dir/a")
            raise

    monkeypatch.setattr(os, "mkdir", mkdir)
    put(store, "dir/b", b"new")
    assert gone and not (Path(gone[0]) / "a").exists()
    assert get(store, "dir/b") == b"new"


def test_a_bucket_made_again_while_the_former_one_goes(
    store: FsspecStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another server, with an object; the removal comes to its end afterwards."""
    other = FsspecStore(store.fs.unstrip_protocol(store._root))

    def again() -> None:
        other.create_bucket("b")
        put(other, "k", b"new")

    once_then(monkeypatch, store, "ls", again)  # that of the drafts
    with pytest.raises(StorageError):
        store.delete_bucket("b")
    assert get(store, "k") == b"new"
    assert [entry.name for entry in store.names("b")] == ["k"]


def test_an_empty_bucket_goes_though_its_directories_stay(store: FsspecStore) -> None:
    """And can be made again."""
    put(store, "dir/a", b"1")
    store.delete("b", "dir/a")
    store.delete_bucket("b")
    with pytest.raises(Missing):
        store.names("b")
    store.create_bucket("b")
    assert store.names("b") == []


def test_an_object_outlives_a_rename_that_fails(store: FsspecStore) -> None:
    """Its record was to be replaced."""
    first = put(store, "dir/a", b"body")
    OddFileSystem.broken = 1
    with pytest.raises(StorageError, match="name node"):
        store.set_meta("b", "dir/a", b"new", first.token)
    assert (store.stat("b", "dir/a"), get(store, "dir/a")) == (first, b"body")
    assert store.set_meta("b", "dir/a", b"new", first.token).meta == b"new"
    assert (store.stat("b", "dir/a").meta, get(store, "dir/a")) == (b"new", b"body")
    assert store.names("b", prefix=".cumulus/") == []


def test_an_object_outlives_a_server_that_dies_while_it_is_replaced(
    store: FsspecStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the next start it is said to be away, not gone."""
    first = put(store, "dir/a", b"body")
    OddFileSystem.broken = 1
    monkeypatch.setattr(FsspecStore, "_put_back", lambda *_: None)
    with pytest.raises(StorageError):
        store.set_meta("b", "dir/a", b"new", first.token)
    with pytest.raises(Unavailable, match="being replaced"):
        store.stat("b", "dir/a")
    monkeypatch.undo()
    again = FsspecStore(store.fs.unstrip_protocol(store._root))
    assert list(again.recover()) == []
    assert (again.stat("b", "dir/a"), get(again, "dir/a")) == (first, b"body")
    assert again.names("b", prefix=".cumulus/") == []


def test_an_acl_that_cannot_be_changed_leaves_the_object(store: FsspecStore) -> None:
    """As a user sees it."""
    world = World(store)
    s3 = world.boto()
    s3.create_bucket(Bucket="bkt")
    s3.put_object(Bucket="bkt", Key="k", Body=b"body")
    OddFileSystem.broken = 1
    answer = world.ask("PUT", "/bkt/k", query="acl", headers={"x-amz-acl": "public-read"})
    assert answer.status >= 500
    assert s3.get_object(Bucket="bkt", Key="k")["Body"].read() == b"body"
    assert world.ask("PUT", "/bkt/k", query="acl", headers={"x-amz-acl": "public-read"}).status == 200
    assert s3.get_object(Bucket="bkt", Key="k")["Body"].read() == b"body"
    world.close()


def test_objects_outlive_a_file_system_that_is_away(
    store: FsspecStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk is not mounted, so all of it looks empty; the index keeps what it knows."""
    world = World(store)
    s3 = world.boto()
    s3.create_bucket(Bucket="bkt")
    for key in ("a", "b"):
        s3.put_object(Bucket="bkt", Key=key, Body=b"body of " + key.encode())
    with monkeypatch.context() as patch:
        patch.setattr(OddFileSystem, "store", {})
        patch.setattr(OddFileSystem, "pseudo_dirs", [""])
        for method in ("GET", "HEAD", "DELETE"):
            assert world.ask(method, "/bkt/a").status >= 400, method
    assert [one["Key"] for one in s3.list_objects_v2(Bucket="bkt")["Contents"]] == ["a", "b"]
    assert s3.get_object(Bucket="bkt", Key="a")["Body"].read() == b"body of a"
    world.close()


def test_objects_outlive_an_index_that_was_lost(store: FsspecStore) -> None:
    """Of an index that was made anew nothing is cleared away that it cannot know, also days and starts later,
    and not by DeleteBucket; a rebuild brings all back, and leftovers go as ever."""
    former = World(store)
    former.boto().create_bucket(Bucket="bkt")
    for key in ("a", "b"):
        former.boto().put_object(Bucket="bkt", Key=key, Body=b"body of " + key.encode())
    former.gateway.close()
    world = World(store)
    s3 = world.boto()
    s3.create_bucket(Bucket="bkt")
    Jobs(world.site, lifecycle).run()  # its first start
    s3.put_object(Bucket="bkt", Key="c", Body=b"new")
    for days in (2, 4):
        world.skew_ns = days * 86400 * 10**9
        Jobs(world.site, lifecycle).run()
    world.skew_ns = 0
    s3.delete_object(Bucket="bkt", Key="c")
    with pytest.raises(ClientError, match="doctor --rebuild"):
        s3.delete_bucket(Bucket="bkt")
    assert rebuild(world.index, store, world.site.bucket("bkt")) == (3, 0)
    for key in ("a", "b"):
        assert s3.get_object(Bucket="bkt", Key=key)["Body"].read() == b"body of " + key.encode()
        s3.delete_object(Bucket="bkt", Key=key)
    s3.delete_object(Bucket="bkt", Key="c")
    s3.delete_bucket(Bucket="bkt")
    world.close()


def test_what_goes_before_the_first_look_is_in_no_doubt(store: FsspecStore) -> None:
    """Requests are answered a second before work in the background begins; a body that was replaced or
    deleted then waits for its readers, without a row."""
    world = World(store)
    jobs = Jobs(world.site, lifecycle)
    s3 = world.boto()
    s3.create_bucket(Bucket="bkt")
    s3.put_object(Bucket="bkt", Key="k", Body=b"short-lived")
    s3.delete_object(Bucket="bkt", Key="k")
    assert len(store.names("bkt", prefix=BODIES)) == 1
    jobs.run()
    s3.delete_bucket(Bucket="bkt")
    world.close()


def test_what_another_server_has_just_removed_is_not_in_doubt_for_good(store: FsspecStore) -> None:
    """It waits for its readers there. A server that starts meanwhile, or takes over the work in the
    background, cannot know that; when it has gone, the bucket can go."""
    other = World(store)
    s3 = other.boto()
    s3.create_bucket(Bucket="bkt")
    s3.put_object(Bucket="bkt", Key="k", Body=b"the newest")
    world = World(store, other.index)
    jobs = Jobs(world.site, lifecycle)
    s3.delete_object(Bucket="bkt", Key="k")
    jobs.run()
    with pytest.raises(ClientError, match="doctor --rebuild"):
        s3.delete_bucket(Bucket="bkt")
    assert other.site.empty_bin(all_of_it=True) == 1
    world.skew_ns = 3601 * 10**9
    jobs.run()
    s3.delete_bucket(Bucket="bkt")
    world.gateway.close()
    other.close()


def test_what_a_crash_left_goes_after_a_day(store: FsspecStore) -> None:
    """A body that was stored while the service ran, and of which the index never heard."""
    world = World(store)
    world.boto().create_bucket(Bucket="bkt")
    jobs = Jobs(world.site, lifecycle)
    jobs.run()
    stream = store.open_write("bkt", f"{BODIES}left")
    meta = ObjectMeta(key="k", size=1, etag="", modified_ns=1, acl=Acl(owner=""))
    stream.write(memoryview(b"x"))
    stream.commit(encode_meta(meta))
    world.skew_ns = 2 * 86400 * 10**9
    assert jobs.run().swept == 1
    assert len(store.names("bkt", prefix=BODIES)) == 1  # it might have been replaced just now
    world.skew_ns += 601 * 10**9
    jobs.run()
    assert store.names("bkt", prefix=BODIES) == []
    world.close()


def test_a_sweep_leaves_old_bodies_to_their_readers(store: FsspecStore) -> None:
    """An object of last week was replaced, by another worker, while it is read, and the hourly sweep runs."""
    world = World(store)
    world.boto().create_bucket(Bucket="bkt")
    jobs = Jobs(world.site, lifecycle)
    jobs.run()
    world.ask("PUT", "/bkt/k", b"old")
    call, reply = world.open("GET", "/bkt/k")
    world.ask("PUT", "/bkt/k", b"new")
    world.site.bin = Bin(world.site.bin._clock)  # the other worker has it in its own
    world.skew_ns = 7 * 86400 * 10**9
    assert jobs.run().swept == 1
    assert not isinstance(reply, Sink) and world.read(call, reply).body == b"old"
    world.skew_ns += 3600 * 10**9
    jobs.run()
    world.skew_ns = 0
    assert len(store.names("bkt", prefix=BODIES)) == 1
    assert world.ask("GET", "/bkt/k").body == b"new"
    world.close()


def test_what_was_deleted_is_not_listed_again_by_a_rebuild_beside_a_server(store: FsspecStore) -> None:
    """Its body waits for its last readers, with its record; only the server knows that nothing names it. So
    it is also after the server was killed."""
    world = World(store)
    world.boto().create_bucket(Bucket="bkt")
    now = [5.0]
    world.site.bin = Bin(lambda: now[0])
    for key in ("kept", "deleted"):
        assert world.ask("PUT", f"/bkt/{key}", b"body").status == 200
    assert world.ask("DELETE", "/bkt/deleted").status == 204
    now[0] += 30
    hash_waiting(world.site)
    world.skew_ns += 600 * 10**9  # longer than the index remembers what was removed
    world.index._writer.do(objects.forget)
    assert rebuild(world.index, store, world.site.bucket("bkt")) == (1, 0)
    page = world.boto().list_objects_v2(Bucket="bkt")["Contents"]
    assert [one["Key"] for one in page] == ["kept"]
    notes = store.names("bkt", prefix=LEFT)
    hash_waiting(world.site)
    assert len(notes) == 1 and store.names("bkt", prefix=LEFT) == notes, "one word of each"
    world.close()


def test_a_clock_that_is_set_ahead_does_not_empty_the_bin() -> None:
    """It keeps bodies for as long as a slow reader needs, by a clock of its own, and each once."""
    now = [5.0]
    bin = Bin(lambda: now[0])
    assert bin.put("b", "small", 10) and bin.put("b", "large", 3_600_000_000)
    assert not bin.put("b", "small", 10)
    assert bin.take() is None
    now[0] += 600
    assert bin.take() == ("b", "small")
    assert bin.take() is None
    now[0] += 3000
    assert bin.take() == ("b", "large") and len(bin) == 0
    assert bin.put("b", "small", 10) and bin.take(all_of_it=True) == ("b", "small")


def test_what_a_change_of_tags_has_replaced_is_not_in_doubt(store: FsspecStore) -> None:
    """The service ends just after it; the next one knows which body counts, and the bucket can go."""
    former = World(store)
    former.boto().create_bucket(Bucket="bkt")
    former.boto().put_object(Bucket="bkt", Key="k", Body=b"body")
    former.boto().put_object_tagging(Bucket="bkt", Key="k", Tagging={"TagSet": [{"Key": "a", "Value": "1"}]})
    assert len(store.names("bkt", prefix=BODIES)) == 2
    world = World(store, former.index)
    Jobs(world.site, lifecycle).run()
    s3 = world.boto()
    s3.delete_object(Bucket="bkt", Key="k")
    s3.delete_bucket(Bucket="bkt")
    world.gateway.close()
    former.close()


class TerseFileSystem(MemoryFileSystem):
    """Short listings have bare names, and one error is all that is told of what cannot be done, as with the
    driver of FTP."""

    protocol = "tersefs"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        found = super().ls(path, detail=True, **kwargs)
        return found if detail else sorted(one["name"].rpartition("/")[2] for one in found)

    def _rm(self, path: str) -> None:
        if not self.isfile(path):
            raise RuntimeError("550 No such file or directory.")
        super()._rm(path)


fsspec.register_implementation("tersefs", TerseFileSystem, clobber=True)


def test_a_driver_that_tells_little(tmp_path: Path) -> None:
    """A bucket goes with what a dead server had begun in it; what somebody else has removed is gone, not
    away; and a lost database is not made anew beside its buckets."""
    store = FsspecStore(f"tersefs://{tmp_path}")
    world = World(store)
    s3 = world.boto()
    s3.create_bucket(Bucket="bkt")
    assert store.has_buckets()
    dead = store.open_write("bkt", f"{BODIES}left")
    dead.write(memoryview(b"half"))
    dead.file.close()  # type: ignore[attr-defined]
    s3.put_object(Bucket="bkt", Key="k", Body=b"1")
    s3.delete_object(Bucket="bkt", Key="k")
    store.create_bucket("b")
    entry = put(store, "gone", b"1")
    other = FsspecStore(f"tersefs://{tmp_path}")
    real = store._found

    def found(*words: Any) -> Any:
        there = real(*words)
        other.delete("b", "gone")
        return there

    store._found = found  # type: ignore[method-assign]
    with pytest.raises(Missing):
        store.delete("b", "gone", entry.token)
    del store._found  # type: ignore[method-assign]
    s3.delete_bucket(Bucket="bkt")
    with pytest.raises(Missing):
        store.names("bkt")
    world.close()


@pytest.mark.parametrize(("mtime", "kept"), [(15e9, LATEST_NS), (-15e9, -LATEST_NS), (1.5, 15 * 10**8)])
def test_times_of_files_are_those_that_an_index_keeps(mtime: float, kept: int) -> None:
    entry = plain_entry("k", 1, mtime)
    assert (entry.mtime_ns, entry.stamp) == (kept, kept)
    assert plain_entry("k", 1, float("inf")).mtime_ns == 0


@pytest.mark.parametrize("size", [0, 3, 70_000])
def test_a_name_that_is_taken_at_the_last_moment_costs_no_upload(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process puts n/m between the look whether n is free and the rename."""
    world = World(FsspecStore(f"file://{tmp_path}/s"))
    assert world.ask("PUT", "/bkt").status == 200
    assert world.ask("PUT", "/bkt/n/m", b"in the way").status == 200
    monkeypatch.setattr(world.store, "_check_free", lambda *_: None)
    body, headers = bytes(range(256)) * 300, {"x-amz-meta-a": "b"}
    assert world.ask("PUT", "/bkt/n", body[:size], headers=headers).status == 200
    got = world.ask("GET", "/bkt/n")
    assert (got.body, got.headers["x-amz-meta-a"]) == (body[:size], "b")
    assert not list((tmp_path / "s").rglob(".cumulus/tmp/*"))
    world.close()
