"""After a power cut: a version that was current again, and then was replaced again, has its second name.

Its file is older than the removal of that name, when it was made current. The same for one that two kept."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
from test_posix_crash import Book, check, content, last_step, put, remove

from cumulus.backends.posix.store import PosixStore
from cumulus.storage.api import Entry, Taken

SMALL, LARGE = 500, 100_000
KEPT = ".cumulus/versions/k/1"


def keep(store: PosixStore, book: Book) -> Entry:
    """Give the current object its second name."""
    with book.change(KEPT, content(store, "k")):
        return store.link("b", "k", KEPT)


def kept_again(size: int, meta_size: int, store: PosixStore, book: Book) -> None:
    """What PUT, PUT, DELETE of the newer version, PUT do in a bucket with versions; and once more."""
    put(store, book, "k", 1, size, meta_size)
    for mark in (2, 3):
        keep(store, book)
        put(store, book, "k", mark, SMALL)
        old = store.open_read("b", KEPT)
        with book.change("k", content(store, KEPT)):
            entry = store.copy(old, "b", "k", old.entry.meta or b"")
        old.close()
        assert entry == store.stat("b", "k")
        remove(store, book, KEPT)
    before = store.stat("b", "k")
    assert keep(store, book).token != before.token
    put(store, book, "k", 4, SMALL)


@pytest.mark.parametrize("meta_size", [10, 5_000], ids=["short", "long"])
@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
def test_a_version_that_is_kept_again_survives_a_crash(
    tmp_path: Path, seed: int, size: int, meta_size: int
) -> None:
    """At the end, and before any call; also where some of what was not synced is on disk."""
    script, rng = partial(kept_again, size, meta_size), random.Random(seed)
    steps = last_step(tmp_path / "count", script)
    check(tmp_path / "end", steps + 1, None, script)
    for step in range(2, steps, 3):
        check(tmp_path / str(step), step, None, script)
    for number in range(30):
        check(tmp_path / f"some{number}", rng.randrange(2, steps + 2), rng, script)


def kept_twice(size: int, store: PosixStore, book: Book) -> None:
    """What two who replace an object at once do in a bucket with versions: both keep it."""
    put(store, book, "k", 1, size)
    keep(store, book)
    with pytest.raises(Taken):
        store.link("b", "k", KEPT)
    put(store, book, "k", 2, SMALL)


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
def test_a_version_that_two_wanted_to_keep_survives_a_crash(tmp_path: Path, seed: int, size: int) -> None:
    """That the second was refused says nothing of the first."""
    script, rng = partial(kept_twice, size), random.Random(seed)
    steps = last_step(tmp_path / "count", script)
    check(tmp_path / "end", steps + 1, None, script)
    for step in range(1, steps, 2):
        check(tmp_path / str(step), step, None, script)
    for number in range(20):
        check(tmp_path / f"some{number}", rng.randrange(1, steps + 2), rng, script)
