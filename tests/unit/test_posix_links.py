"""Symbolic links in the path of an adopted bucket: they lead nobody to what is another's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cumulus.backends.posix import paths
from cumulus.backends.posix.mounts import NotMounted
from cumulus.backends.posix.store import PosixStore
from cumulus.backends.posix.trusted import makers, open_directory
from cumulus.storage.api import Entry, Unavailable

NOBODY = frozenset[int]()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PosixStore]:
    """With the bucket `bobs`, and `alices`, which has adopted a directory in alice's home."""
    made = PosixStore(str(tmp_path / "store"))
    made.create_bucket("bobs")
    put(made, "bobs", "k", b"bob's")
    (tmp_path / "home/data").mkdir(parents=True)
    made.create_bucket("alices", str(tmp_path / "home/data"))
    put(made, "alices", "k", b"alice's")
    yield made
    made.close()


def put(store: PosixStore, bucket: str, name: str, body: bytes) -> Entry:
    stream = store.open_write(bucket, name, len(body))
    try:
        stream.write(memoryview(body))
        return stream.commit(b"m")
    finally:
        stream.close()


def get(store: PosixStore, bucket: str, name: str) -> bytes:
    stream = store.open_read(bucket, name)
    try:
        return stream.read_at(0, 100)
    finally:
        stream.close()


@pytest.mark.parametrize("above", [False, True])
def test_a_link_that_somebody_else_puts_in_a_buckets_place_leads_nowhere(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: bool
) -> None:
    """Nor one in the place of a directory above. The bucket is away; that of another user is as it was."""
    place = tmp_path / "home" if above else tmp_path / "home/data"
    place.rename(tmp_path / "former")
    if above:
        (tmp_path / "other").mkdir()
        (tmp_path / "other/data").symlink_to(tmp_path / "store/data/bobs")
    place.symlink_to(tmp_path / "other" if above else tmp_path / "store/data/bobs")
    monkeypatch.setattr(paths, "makers", lambda _: NOBODY)  # as if another account had made the link
    for act in (
        lambda: get(store, "alices", "k"),
        lambda: store.names("alices"),
        lambda: put(store, "alices", "k", b"alice's"),
        lambda: store.delete("alices", "k"),
        lambda: store.check_bucket("alices"),
    ):
        with pytest.raises(Unavailable, match="symbolic link"):
            act()
    assert get(store, "bobs", "k") == b"bob's" and [one.name for one in store.names("bobs")] == ["k"]
    place.unlink()
    (tmp_path / "former").rename(place)
    assert get(store, "alices", "k") == b"alice's"


def test_a_link_of_an_administrator_is_followed(store: PosixStore, tmp_path: Path) -> None:
    """Who has moved the directory to a larger disk."""
    (tmp_path / "home/data").rename(tmp_path / "larger")
    (tmp_path / "home/data").symlink_to("../larger")
    assert get(store, "alices", "k") == b"alice's"
    put(store, "alices", "new", b"new")
    assert (tmp_path / "larger/new").read_bytes() == b"new"


def test_ways_to_a_directory(tmp_path: Path) -> None:
    """Relative and whole targets, links to links; none that go round, and nothing that is no directory."""
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/file").write_bytes(b"x")
    links = {
        "one": "a",
        "two": f"{tmp_path}/one/b",
        "three": "./one/../two",
        "round": "round",
        "file": "a/file",
    }
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    trusted = makers(str(tmp_path))
    for way in ("a/b", "one/b", "two", "three", "a//b/"):
        fd = open_directory("b", f"{tmp_path}/{way}", trusted)
        assert os.path.samestat(os.fstat(fd), os.stat(tmp_path / "a/b")), way
        os.close(fd)
    for way in ("one/b", "two", "three"):
        with pytest.raises(NotMounted, match=f"account {os.geteuid()}"):
            open_directory("b", f"{tmp_path}/{way}", NOBODY)
    for way in ("round", "file", "a/file", "none"):
        with pytest.raises(OSError):
            open_directory("b", f"{tmp_path}/{way}", trusted)
    os.close(open_directory("b", f"{tmp_path}/a/b", NOBODY))
