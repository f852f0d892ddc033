"""One suite for all backends of Cumulus: what the docstrings of cumulus/storage/api.py promise of objects."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from file_stores import ease, get, listed, put, store

from cumulus.storage.api import (
    ABSENT,
    BadName,
    Changed,
    Entry,
    FileStore,
    IfToken,
    Missing,
    NoBucket,
    NotEmptyStore,
    StorageError,
    Taken,
)

__all__ = ["ease", "store"]  # the fixtures


# buckets


def test_a_bucket_may_be_made_twice_and_is_empty(store: FileStore) -> None:
    """No error when it is there already, and nothing in it is lost."""
    put(store, "a")
    store.create_bucket("b")
    assert listed(store) == ["a"]


@pytest.mark.parametrize("bucket", ["", ".", "..", ".cumulus", "a/b", "x" * 256, "a\0b"])
def test_impossible_buckets_are_refused(store: FileStore, bucket: str) -> None:
    """A bucket is one directory."""
    with pytest.raises(BadName):
        store.create_bucket(bucket)


def test_a_bucket_goes_only_when_it_is_empty(store: FileStore) -> None:
    """What has an internal name keeps it as well: above it may be an object. A write that has begun does
    not."""
    put(store, "dir/a")
    put(store, ".cumulus/odd/1")
    put(store, ".cumulus/versions/1/2")
    late = store.open_write("b", "dir/late", 5)
    late.write(memoryview(b"bytes"))
    for name in ("dir/a", ".cumulus/odd/1", ".cumulus/versions/1/2"):
        with pytest.raises(NotEmptyStore):
            store.delete_bucket("b")
        assert get(store, name) == b"x"
        store.delete("b", name)
    store.delete_bucket("b")
    with pytest.raises(Missing):
        store.names("b")
    with pytest.raises(Missing):
        store.delete_bucket("b")
    with pytest.raises(Missing):
        late.commit(b"m")
    late.close()
    store.create_bucket("b")
    assert listed(store) == []
    assert listed(store, prefix=".cumulus/odd/") == []


def test_nothing_is_found_in_a_bucket_that_is_not_there(store: FileStore) -> None:
    """Each method says so, and not only that the name is not there: it might be."""
    source = put(store, "a")
    stream = store.open_read("b", "a")
    for call in (
        lambda: store.names("none"),
        lambda: store.stat("none", "a"),
        lambda: store.delete("none", "a"),
        lambda: store.set_meta("none", "a", b"", source.token),
        lambda: store.open_read("none", "a"),
        lambda: store.open_write("none", "a"),
        lambda: store.copy(stream, "none", "a", b""),
        lambda: store.concat("none", ["a"], "c", b""),
    ):
        with pytest.raises(NoBucket):
            call()
    stream.close()


# one object


@pytest.mark.parametrize("size", [0, 1, 4096, 65536, 65537, 1_000_000])
def test_what_is_written_is_read(store: FileStore, size: int) -> None:
    """Bytes, meta, size, and the same entry from commit, stat, names and the open stream."""
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    entry = put(store, "dir/a.bin", body, b"meta of it")
    assert (entry.name, entry.size, entry.meta) == ("dir/a.bin", size, b"meta of it")
    assert get(store, "dir/a.bin") == body
    assert store.stat("b", "dir/a.bin") == entry
    assert store.names("b") == [entry]
    stream = store.open_read("b", "dir/a.bin", entry.token)
    assert stream.entry == entry
    stream.close()


def test_parts_of_an_object_are_read(store: FileStore) -> None:
    """Fewer bytes only at the end."""
    put(store, "a", b"0123456789")
    stream = store.open_read("b", "a")
    assert stream.read_at(3, 4) == b"3456"
    assert stream.read_at(8, 100) == b"89"
    assert stream.read_at(10, 5) == b""
    stream.close()
    stream.close()


def test_a_sendable_descriptor_holds_the_object(store: FileStore) -> None:
    """What sendfile would send is the object."""
    import os

    put(store, "a", b"0123456789")
    stream = store.open_read("b", "a")
    sendable = stream.sendable()
    if sendable is not None:
        fd, offset = sendable
        assert os.pread(fd, stream.entry.size, offset) == b"0123456789"
    stream.close()


def test_nobody_sees_a_write_before_its_commit(store: FileStore) -> None:
    """Neither the name nor the bytes."""
    stream = store.open_write("b", "new/a")
    stream.write(memoryview(b"x" * 200_000))
    assert listed(store) == []
    with pytest.raises(Missing):
        store.stat("b", "new/a")
    stream.commit(b"")
    stream.close()
    assert listed(store) == ["new/a"]


@pytest.mark.parametrize("size", [100, 300_000])
def test_an_aborted_write_leaves_the_old_object(store: FileStore, size: int) -> None:
    """And abort and close may be called again."""
    before = put(store, "a", b"old")
    stream = store.open_write("b", "a")
    stream.write(memoryview(b"x" * size))
    stream.abort()
    stream.abort()
    stream.close()
    assert store.stat("b", "a") == before
    assert get(store, "a") == b"old"


@pytest.mark.parametrize("size", [100, 300_000])
@pytest.mark.parametrize("meta", [b"m", b"m" * 20_000])
def test_a_refused_commit_can_be_made_again_under_another_name(
    store: FileStore, size: int, meta: bytes
) -> None:
    """After `Changed` and `Taken`; the name given at opening stays as it was."""
    put(store, "a", b"old")
    stream = store.open_write("b", "a", size)
    stream.write(memoryview(b"x" * size))
    with pytest.raises(Changed):
        stream.commit(meta, ABSENT)
    with pytest.raises(Taken):
        stream.commit(meta, None, "a/b")
    with pytest.raises(BadName):
        stream.commit(meta, None, "../b")
    entry = stream.commit(meta, ABSENT, ".cumulus/odd/1")
    stream.close()
    assert store.stat("b", ".cumulus/odd/1") == entry
    assert (entry.size, entry.meta) == (size, meta)
    assert get(store, ".cumulus/odd/1") == b"x" * size
    assert get(store, "a") == b"old"


def test_closing_an_uncommitted_write_aborts_it(store: FileStore) -> None:
    """Nothing appears."""
    stream = store.open_write("b", "a")
    stream.write(memoryview(b"x"))
    stream.close()
    stream.close()
    assert listed(store) == []
    with pytest.raises(StorageError):
        stream.commit(b"")


def test_a_stream_does_what_it_was_opened_for(store: FileStore) -> None:
    """Reading streams do not write and the other way round."""
    put(store, "a")
    reader, writer = store.open_read("b", "a"), store.open_write("b", "a")
    with pytest.raises(StorageError):
        reader.write(memoryview(b"x"))
    with pytest.raises(StorageError):
        reader.commit(b"")
    with pytest.raises(StorageError):
        writer.read_at(0, 1)
    reader.abort()
    writer.close()
    with pytest.raises(StorageError):
        writer.write(memoryview(b"x"))


def test_replacing_changes_token_and_raises_the_stamp(store: FileStore) -> None:
    """Also with the same bytes."""
    entries = [put(store, "a", b"same", b"same") for _ in range(5)]
    assert len({entry.token for entry in entries}) == 5
    stamps = [entry.stamp for entry in entries]
    assert stamps == sorted(set(stamps))


def test_readers_finish_on_the_version_they_opened(store: FileStore) -> None:
    """A replacement or removal does not touch what is open, where the backend replaces atomically."""
    if not store.capabilities.atomic_replace:
        return
    put(store, "a", b"old" * 50_000)
    stream = store.open_read("b", "a")
    put(store, "a", b"new")
    assert stream.read_at(0, 200_000) == b"old" * 50_000
    assert stream.unchanged()
    store.delete("b", "a")
    assert stream.read_at(3, 3) == b"old"
    stream.close()


def test_open_read_with_a_token_is_for_that_version(store: FileStore) -> None:
    """Another version is `Changed`, none is `Missing`."""
    old = put(store, "a", b"1")
    put(store, "a", b"2")
    with pytest.raises(Changed):
        store.open_read("b", "a", old.token)
    with pytest.raises(Missing):
        store.open_read("b", "c", old.token)


# conditions


def test_commit_checks_the_token(store: FileStore) -> None:
    """A refused commit changes nothing; the right token and ABSENT pass."""
    first = put(store, "a", b"1", if_token=ABSENT)
    with pytest.raises(Changed):
        put(store, "a", b"2", if_token=ABSENT)
    second = put(store, "a", b"2", if_token=first.token)
    with pytest.raises(Changed):
        put(store, "a", b"3", if_token=first.token)
    with pytest.raises(Changed):
        put(store, "c", b"3", if_token=first.token)
    assert listed(store) == ["a"]
    assert store.stat("b", "a") == second
    assert get(store, "a") == b"2"


@pytest.mark.parametrize("size", [100, 100_000])
@pytest.mark.parametrize("there", [False, True])
def test_of_eight_commits_with_one_token_one_wins(store: FileStore, there: bool, size: int) -> None:
    """For ABSENT and for a token; what is there afterwards is the winner's."""
    condition: IfToken = put(store, "a", b"old").token if there else ABSENT
    barrier = threading.Barrier(8)

    def race(number: int) -> Entry | None:
        barrier.wait(20)
        try:
            return put(store, "a", bytes([number]) * size, b"%d" % number, condition)
        except Changed:
            return None

    with ThreadPoolExecutor(8) as pool:
        won = [entry for entry in pool.map(race, range(8)) if entry]
    assert len(won) == 1
    assert store.stat("b", "a") == won[0]
    assert get(store, "a") == bytes([int(won[0].meta or b"")]) * size


def test_four_writers_and_eight_readers_never_meet_in_the_middle(store: FileStore, ease: int) -> None:
    """Body, size and meta of each read are those of one write; stamps never go back for one reader."""
    if not store.capabilities.atomic_replace:
        return
    sizes = (100, 5_000, 80_000, 300_000)
    writes = 8 // ease

    def write(number: int) -> None:
        for turn in range(writes):
            mark = number * writes + turn + 1
            put(store, "a", bytes([mark]) * sizes[(number + turn) % 4], bytes([mark]))

    put(store, "a", b"\0" * 10, b"\0")
    stop = threading.Event()

    def read(_: int) -> int:
        count, stamp = 0, 0
        while not stop.is_set() or count == 0:
            stream = store.open_read("b", "a")
            body = stream.read_at(0, stream.entry.size)
            assert stream.unchanged()
            stream.close()
            assert len(body) == stream.entry.size
            assert set(body) == set(stream.entry.meta or b"")
            assert stream.entry.stamp >= stamp
            stamp = stream.entry.stamp
            count += 1
        return count

    with ThreadPoolExecutor(12) as pool:
        readers = [pool.submit(read, number) for number in range(8)]
        writers = [pool.submit(write, number) for number in range(4)]
        for writer in writers:
            writer.result(60)
        stop.set()
        assert all(reader.result(60) for reader in readers)


# removal


def test_a_removed_name_is_gone_and_its_stamp_is_later(store: FileStore) -> None:
    """A name made again is later than its removal."""
    old = put(store, "x/y/a")
    removed = store.delete("b", "x/y/a")
    assert removed > old.stamp
    assert listed(store) == []
    for gone in (lambda: store.stat("b", "x/y/a"), lambda: store.delete("b", "x/y/a")):
        with pytest.raises(Missing):
            gone()
    assert put(store, "x/y/a").stamp > removed


def test_removal_checks_the_token(store: FileStore) -> None:
    """`Changed`, and it stays."""
    old = put(store, "a", b"1")
    new = put(store, "a", b"2")
    with pytest.raises(Changed):
        store.delete("b", "a", old.token)
    assert get(store, "a") == b"2"
    store.delete("b", "a", new.token)
    assert listed(store) == []


def test_directories_that_a_removal_empties_do_not_stand_in_the_way(store: FileStore) -> None:
    """An object may have the name that was a directory of ours."""
    put(store, "x/y/a")
    put(store, "x/b")
    store.delete("b", "x/y/a")
    put(store, "x/y")
    store.delete("b", "x/b")
    store.delete("b", "x/y")
    put(store, "x")
    assert listed(store) == ["x"]


# meta


def test_meta_changes_alone(store: FileStore) -> None:
    """Token and stamp change, bytes and modification time do not."""
    old = put(store, "a", b"body", b"1")
    new = store.set_meta("b", "a", b"2", old.token)
    assert (new.meta, new.size, new.mtime_ns) == (b"2", 4, old.mtime_ns)
    assert new.token != old.token
    assert new.stamp > old.stamp
    assert store.stat("b", "a") == new
    assert get(store, "a") == b"body"
    with pytest.raises(Changed):
        store.set_meta("b", "a", b"3", old.token)
    with pytest.raises(Missing):
        store.set_meta("b", "c", b"3", old.token)
    assert put(store, "a", b"body", b"4").stamp > new.stamp


@pytest.mark.parametrize("size", [0, 100, 3_000, 60_000, 1_500_000])
def test_meta_of_any_size_is_kept(store: FileStore, size: int) -> None:
    """At commit and when replaced, longer by shorter and the other way round."""
    first = put(store, "a", b"body", b"m" * size)
    assert store.stat("b", "a").meta == b"m" * size
    second = store.set_meta("b", "a", b"s", first.token)
    third = store.set_meta("b", "a", b"n" * size, second.token)
    assert store.stat("b", "a") == third
    assert store.names("b") == [third]
    assert third.meta == b"n" * size


def test_a_store_says_whether_it_has_buckets(store: FileStore) -> None:
    """By which a database that is missing is known to be lost."""
    assert store.has_buckets()
    store.delete_bucket("b")
    assert not store.has_buckets()
