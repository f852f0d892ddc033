"""What every backend of Cumulus promises of small objects that are published together (`put_all`), and of
names that are removed together (`delete_all`)."""

from __future__ import annotations

from file_stores import ease, get, listed, put, store

from cumulus.storage.api import BadName, Changed, Entry, FileStore, Missing, Whole

__all__ = ["ease", "store"]  # the fixtures


def whole(name: str, body: bytes = b"x", bucket: str = "b") -> Whole:
    """One of them."""
    return Whole(bucket, name, memoryview(body), b"meta of " + name.encode())


def test_each_has_its_bytes_its_record_and_its_entry(store: FileStore) -> None:
    """Also in directories that are not there yet, and where something is replaced."""
    put(store, "old", b"old bytes")
    names = ["a", "dir/b", "dir/deep/c", "empty", "old"]
    bodies = {name: name.encode() * 100 if name != "empty" else b"" for name in names}
    found = store.put_all([whole(name, body) for name, body in bodies.items()])
    for name, entry in zip(names, found, strict=True):
        assert isinstance(entry, Entry)
        assert entry == store.stat("b", name)
        assert (entry.size, entry.meta) == (len(bodies[name]), b"meta of " + name.encode())
        assert get(store, name) == bodies[name]
    assert listed(store) == names


def test_what_fails_does_not_touch_the_others(store: FileStore) -> None:
    """An impossible name, a bucket that is not there."""
    wholes = [whole("a"), whole("../b"), whole("c", bucket="none"), whole("d", bucket="none"), whole("e")]
    first, bad, away, too, last = store.put_all(wholes)
    assert isinstance(first, Entry) and isinstance(last, Entry)
    assert isinstance(bad, BadName)
    assert isinstance(away, Missing) and isinstance(too, Missing)
    assert listed(store) == ["a", "e"]


def test_stamps_grow_under_a_name(store: FileStore) -> None:
    """As with objects that are published alone."""
    stamps = []
    for _ in range(3):
        (entry,) = store.put_all([whole("a")])
        assert isinstance(entry, Entry)
        stamps += [entry.stamp, put(store, "a").stamp]
    assert stamps == sorted(set(stamps))


def test_nothing_is_nothing(store: FileStore) -> None:
    assert store.put_all([]) == []


def test_what_is_removed_together_is_what_it_was(store: FileStore) -> None:
    """What was replaced meanwhile stays, what is not there or cannot be is said of that one; later stamps are
    those of what comes later."""
    tokens = {name: put(store, name).token for name in ("a", "dir/b", "dir/c", "kept")}
    replaced = put(store, "dir/c", b"newer")
    names = [("a", tokens["a"]), ("dir/b", tokens["dir/b"]), ("dir/c", tokens["dir/c"])]
    first, second, changed, absent, bad = store.delete_all(
        "b", [*names, ("none", tokens["a"]), ("../x", tokens["a"])]
    )
    assert isinstance(first, int) and isinstance(second, int)
    assert isinstance(changed, Changed) and isinstance(absent, Missing) and isinstance(bad, BadName)
    assert listed(store) == ["dir/c", "kept"]
    assert get(store, "dir/c") == b"newer" and store.stat("b", "dir/c") == replaced
    assert put(store, "a").stamp > first
    assert store.delete_all("b", []) == []
