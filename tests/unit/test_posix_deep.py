"""Directories that others have made within each other, deeper than any key: nothing ends because of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cumulus.backends.posix.copied import look
from cumulus.backends.posix.store import PosixStore
from cumulus.storage.api import NotEmptyStore

DEPTH = 2000  # more than the interpreter's stack


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PosixStore]:
    """With the bucket `b`, in which such directories are."""
    made = PosixStore(str(tmp_path / "store"))
    made.create_bucket("b")
    top = tmp_path / "store/data/b"
    here = os.open(top, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    yield made
    made.close()
    _fill_up(top)


def _fill_up(top: Path) -> None:
    """From above: what lies in a directory goes beside it first."""
    for number in range(DEPTH):
        (top / "d").rename(top / f"above{number}")
        if (top / f"above{number}/d").exists():
            (top / f"above{number}/d").rename(top / "d")
        (top / f"above{number}").rmdir()
        if not (top / "d").exists():
            return


def test_a_service_begins_beside_deep_directories(store: PosixStore, tmp_path: Path) -> None:
    """It looks whether records are of a copied tree, and takes them over if told so."""
    assert look(str(tmp_path / "store")).copied == []
    assert store.take_over("b").given == 0


def test_a_bucket_with_deep_directories_is_told_to_have_them(store: PosixStore) -> None:
    """They are no objects, and somebody has to remove them by hand."""
    assert store.names("b") == [] and list(store.walk("b")) == []
    store.remove_hollow("b")
    with pytest.raises(NotEmptyStore, match="which is not an object of it"):
        store.delete_bucket("b")
