"""Files of ranges on plain files: parts written at their final place, by several writers, into one object."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from posix_disk import Faulty

from cumulus.backends.posix.store import PosixStore
from cumulus.storage.api import (
    ABSENT,
    Changed,
    Missing,
    NoSpace,
    Piece,
    RangeStream,
    StorageError,
    Unavailable,
)

WHOLE = ".cumulus/parts/u/slots.100000"
SIZE = 100_000


@pytest.fixture
def disk() -> Faulty:
    """The system calls of the store."""
    return Faulty()


@pytest.fixture
def store(tmp_path: Path, disk: Faulty) -> Iterator[PosixStore]:
    """A store with a bucket."""
    made = PosixStore(str(tmp_path / "store"), files=disk)
    made.create_bucket("b")
    yield made
    disk.heal()
    made.close()


def claim(store: PosixStore, place: int, size: int = SIZE) -> RangeStream:
    """The range of one part."""
    found = store.open_range("b", WHOLE, place * SIZE, size)
    assert found
    return found


def fill(store: PosixStore, place: int, mark: bytes, size: int = SIZE) -> Piece:
    """One part, durable."""
    stream = claim(store, place, size)
    try:
        for start in range(0, size, 30_000):
            stream.write(memoryview(mark * min(30_000, size - start)))
        stream.sync()
    finally:
        stream.close()
    return Piece(WHOLE, place * SIZE, size)


def beside(store: PosixStore, name: str, body: bytes) -> Piece:
    """A part with a file of its own."""
    stream = store.open_write("b", name, len(body))
    try:
        stream.write(memoryview(body))
        stream.commit(b"part")
    finally:
        stream.close()
    return Piece(name, 0, len(body))


def get(store: PosixStore, name: str = "k") -> bytes:
    """Read one object."""
    stream = store.open_read("b", name)
    try:
        return stream.read_at(0, stream.entry.size)
    finally:
        stream.close()


def inode(tmp_path: Path, name: str) -> int:
    """Of a file in the bucket."""
    return (tmp_path / "store/data/b" / name).stat().st_ino


def test_parts_at_their_place_become_the_object_without_being_copied(
    store: PosixStore, disk: Faulty, tmp_path: Path
) -> None:
    """In any order of arrival; the file is the same, the directory of parts is gone, no byte was copied."""
    last = fill(store, 2, b"c", 10)
    pieces = [fill(store, 0, b"a"), fill(store, 1, b"b"), last]
    number = inode(tmp_path, WHOLE)
    entry = store.join("b", pieces, "d/k", b"meta", base=WHOLE)
    assert entry == store.stat("b", "d/k") and (entry.size, entry.meta) == (2 * SIZE + 10, b"meta")
    assert get(store, "d/k") == b"a" * SIZE + b"b" * SIZE + b"c" * 10
    assert inode(tmp_path, "d/k") == number
    assert not (tmp_path / "store/data/b/.cumulus/parts/u").exists()
    assert disk.calls.get("copy", 0) == 0
    assert (tmp_path / "store/data/b/d/k").stat().st_mode & 0o777 == 0o640


def test_a_part_beside_is_put_into_its_place(store: PosixStore, disk: Faulty) -> None:
    """Over what an older one has left there; what is behind the end is cut off."""
    first = fill(store, 0, b"a")
    fill(store, 1, b"x")
    fill(store, 2, b"y")
    late = beside(store, ".cumulus/parts/u/2.e", b"b" * 500)
    store.join("b", [first, late], "k", b"", base=WHOLE)
    assert get(store) == b"a" * SIZE + b"b" * 500
    assert disk.calls["copy"] == 1
    assert store.stat("b", late.name).size == 500  # the floor above removes it


def test_without_a_base_pieces_are_copied_and_stay(store: PosixStore) -> None:
    """Parts of any sizes, some of a file of ranges."""
    pieces = [fill(store, 1, b"b"), beside(store, ".cumulus/parts/u/1.e", b"z" * 7), fill(store, 0, b"a", 5)]
    store.join("b", pieces, "k", b"m")
    assert get(store) == b"b" * SIZE + b"z" * 7 + b"a" * 5
    assert store.stat("b", WHOLE).size == 2 * SIZE


def test_a_range_is_one_writers(store: PosixStore, tmp_path: Path) -> None:
    """Of another process too (a second store here); other ranges are free, and this one after `close`."""
    other = PosixStore(str(tmp_path / "store"))
    mine = claim(store, 1)
    assert other.open_range("b", WHOLE, SIZE, SIZE) is None
    assert store.open_range("b", WHOLE, 2 * SIZE - 1, 10) is None
    beside = other.open_range("b", WHOLE, 0, SIZE)
    assert beside
    beside.close()
    mine.close()
    mine.close()
    again = other.open_range("b", WHOLE, SIZE, SIZE)
    assert again
    again.close()
    other.close()


def test_a_file_in_which_somebody_writes_is_copied_not_published(store: PosixStore, tmp_path: Path) -> None:
    """So a late writer never reaches the object; what it writes goes nowhere."""
    piece = fill(store, 0, b"a")
    late = claim(store, 1)
    store.join("b", [piece], "k", b"", base=WHOLE)
    assert inode(tmp_path, "k") != inode(tmp_path, WHOLE)
    late.write(memoryview(b"late"))
    late.sync()
    late.close()
    assert get(store) == b"a" * SIZE


def test_a_writer_that_comes_while_the_file_is_published_is_sent_away(store: PosixStore) -> None:
    """And one that comes afterwards begins another file."""
    piece = fill(store, 0, b"a")
    seen: list[RangeStream | None] = []
    store.join(
        "b",
        [piece],
        "k",
        b"",
        base=WHOLE,
        check=lambda: seen.append(store.open_range("b", WHOLE, SIZE, SIZE)),
    )
    assert seen == [None]
    later = claim(store, 1)
    later.write(memoryview(b"later"))
    later.close()
    assert get(store) == b"a" * SIZE


def test_what_the_check_raises_and_conditions_leave_the_parts(store: PosixStore, tmp_path: Path) -> None:
    """The parts can be joined afterwards, still without a copy."""
    beside(store, "k", b"old")
    pieces = [fill(store, 0, b"a"), fill(store, 1, b"b")]
    number = inode(tmp_path, WHOLE)

    def refuse() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        store.join("b", pieces, "k", b"", base=WHOLE, check=refuse)
    with pytest.raises(Changed):
        store.join("b", pieces, "k", b"m" * 10_000, ABSENT, base=WHOLE)
    assert get(store) == b"old"
    fill(store, 1, b"B")
    assert os.listdir(tmp_path / "store/data/b/.cumulus/meta") == []
    store.join("b", pieces, "k", b"", base=WHOLE)
    assert inode(tmp_path, "k") == number
    assert get(store) == b"a" * SIZE + b"B" * SIZE


def test_pieces_that_are_not_there_are_missing(store: PosixStore) -> None:
    """The file, one beside, and bytes that were never written."""
    with pytest.raises(Missing):
        store.join("b", [Piece(WHOLE, 0, 5)], "k", b"", base=WHOLE)
    first = fill(store, 0, b"a")
    for piece in (Piece(".cumulus/parts/u/2.e", 0, 5), Piece(WHOLE, SIZE, 5)):
        with pytest.raises(Missing):
            store.join("b", [first, piece], "k", b"", base=WHOLE)
    with pytest.raises(StorageError):
        store.join("b", [Piece(WHOLE, 5, 10)], "k", b"", base=WHOLE)
    assert store.names("b") == []
    store.join("b", [first], "k", b"", base=WHOLE)


def test_more_bytes_than_the_range_has_are_refused(store: PosixStore) -> None:
    """They would be another part's."""
    stream = claim(store, 0)
    stream.write(memoryview(b"x" * (SIZE - 1)))
    with pytest.raises(StorageError):
        stream.write(memoryview(b"xx"))
    stream.close()
    with pytest.raises(StorageError):
        stream.write(memoryview(b"x"))
    with pytest.raises(StorageError):
        stream.sync()


@pytest.mark.parametrize("call", ["create", "make_dir", "reserve"])
def test_a_range_that_cannot_be_opened_leaves_nothing_held(
    store: PosixStore, disk: Faulty, call: str
) -> None:
    """Space is reserved for large ones when they begin."""
    store.names("b")
    held = len(os.listdir("/proc/self/fd"))
    disk.fail(call, errno.ENOSPC)
    with pytest.raises(NoSpace):
        store.open_range("b", WHOLE, 0, 2 << 20)
    disk.heal()
    assert len(os.listdir("/proc/self/fd")) == held
    claim(store, 0).close()


@pytest.mark.parametrize("call", ["write", "sync_data", "sync"])
def test_a_part_that_cannot_be_kept_says_so(store: PosixStore, disk: Faulty, call: str) -> None:
    """And can be sent again."""
    disk.fail(call, errno.EIO)
    with pytest.raises(Unavailable):
        fill(store, 0, b"x")
    disk.heal()
    piece = fill(store, 0, b"a")
    store.join("b", [piece], "k", b"", base=WHOLE)
    assert get(store) == b"a" * SIZE


@pytest.mark.parametrize(
    "call", ["copy", "truncate", "set_times", "set_xattr", "sync", "sync_data", "rename"]
)
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_join_that_fails_leaves_the_parts(store: PosixStore, disk: Faulty, call: str, number: int) -> None:
    """And what was under the name; a second attempt makes the object."""
    beside(store, "k", b"old")
    pieces = [fill(store, 0, b"a"), beside(store, ".cumulus/parts/u/2.e", b"b" * 9)]
    fill(store, 2, b"x", 5)
    disk.fail(call, number)
    error: StorageError | None = None
    try:
        store.join("b", pieces, "k", b"meta", base=WHOLE)
    except StorageError as raised:
        error = raised
    disk.heal()
    if error:
        assert get(store) == b"old"
        store.join("b", pieces, "k", b"meta", base=WHOLE)
    else:
        assert (call, number) == ("set_xattr", errno.ENOSPC)  # then the record has a file of its own
    assert get(store) == b"a" * SIZE + b"b" * 9
    assert store.stat("b", "k").meta == b"meta"


def test_directories_are_synced_once_for_a_file(store: PosixStore, disk: Faulty) -> None:
    """Each part after the first costs one sync."""
    fill(store, 0, b"a")
    before = disk.calls["sync"], disk.calls["sync_data"]
    fill(store, 1, b"b")
    assert (disk.calls["sync"], disk.calls["sync_data"]) == (before[0], before[1] + 1)


def test_without_fsync_nothing_is_synced(tmp_path: Path, disk: Faulty) -> None:
    """As the setting says."""
    made = PosixStore(str(tmp_path / "store"), files=disk, fsync=False)
    made.create_bucket("b")
    disk.calls.clear()
    made.join("b", [fill(made, 0, b"a")], "k", b"", base=WHOLE)
    assert (disk.calls.get("sync", 0), disk.calls.get("sync_data", 0)) == (0, 0)
    made.close()
