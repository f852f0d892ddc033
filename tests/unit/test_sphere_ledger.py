"""The ledger of a slave's buckets on a disk that fills, and with ranges that changed."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sector.slave.spe_buckets import BucketStore
from sector.sphere.shuffle import Entry


def deliver(store: BucketStore, segment: int, first: int, contents: list[bytes]) -> bool:
    """A run with these buckets arrives."""
    name, fd = store.new_run_thd(segment, first, sum(map(len, contents)))
    with open(fd, "wb") as file:
        file.write(b"".join(contents))
    try:
        return store.commit_thd(Entry(segment, first, [len(c) for c in contents], name))
    except OSError:
        store.drop_run_thd(name)
        raise


def bucket(store: BucketStore, number: int, segments: int, folder: Path) -> bytes:
    """The sealed content of a bucket."""
    store.seal_thd(number, segments, str(folder / "sealed"))
    return (folder / "sealed").read_bytes()


@contextmanager
def files_of(most: int) -> Iterator[None]:
    """No file may become longer: the kernel takes a part of the write that crosses the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    """The run is refused, a later one with room counts, and a restart finds each exactly once: half a line in
    the middle made the ledger unreadable, and the job could not end."""
    store = BucketStore(str(tmp_path / "stage"))
    assert deliver(store, 0, 0, [b"a0", b"b0"])
    size = (tmp_path / "stage/ledger").stat().st_size
    with files_of(size + 7), pytest.raises(OSError, match="too large"):
        deliver(store, 1, 0, [b"a1", b"b1"])
    assert store.missing_thd(1, 0, 1) == [(0, 1)]
    assert deliver(store, 1, 0, [b"a1", b"b1"])
    assert deliver(store, 2, 0, [b"a2", b"b2"])
    for again in (store, BucketStore(str(tmp_path / "stage"))):
        assert bucket(again, 0, 3, tmp_path) == b"a0a1a2"
        assert bucket(again, 1, 3, tmp_path) == b"b0b1b2"
        again.close_thd()


def test_a_run_that_is_partly_here_counts_where_it_is_not(tmp_path: Path) -> None:
    """A slave that was given up, with its buckets, comes back when those of another one are spread anew: what
    it has of a segment counts once, whichever range it is offered."""
    store = BucketStore(str(tmp_path / "stage"))
    assert deliver(store, 0, 2, [b"c", b"d"])
    assert deliver(store, 0, 0, [b"a", b"bb", b"C", b"D", b"eee"])
    assert not deliver(store, 0, 1, [b"X", b"Y"])
    for again in (store, BucketStore(str(tmp_path / "stage"))):
        found = [bucket(again, number, 1, tmp_path) for number in range(5)]
        assert found == [b"a", b"bb", b"c", b"d", b"eee"]
        again.close_thd()
