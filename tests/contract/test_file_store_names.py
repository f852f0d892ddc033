"""The same suite: copies, names, upkeep."""

from __future__ import annotations

from collections.abc import Callable

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
    Taken,
)

__all__ = ["ease", "store"]  # the fixtures


# copies


@pytest.mark.parametrize("size", [10, 200_000])
def test_a_copy_has_the_bytes_and_its_own_meta(store: FileStore, size: int) -> None:
    """The token is checked as at commit."""
    store.create_bucket("c")
    put(store, "a", b"z" * size, b"1")
    stream = store.open_read("b", "a")
    entry = store.copy(stream, "c", "d/e", b"2", ABSENT)
    with pytest.raises(Changed):
        store.copy(stream, "c", "d/e", b"3", ABSENT)
    stream.close()
    assert store.stat("c", "d/e") == entry
    assert (entry.size, entry.meta) == (size, b"2")
    copied = store.open_read("c", "d/e")
    assert copied.read_at(0, size + 1) == b"z" * size
    copied.close()


def test_an_object_may_be_copied_over_itself(store: FileStore) -> None:
    """With new meta."""
    old = put(store, "a", b"z" * 100_000, b"1")
    stream = store.open_read("b", "a")
    new = store.copy(stream, "b", "a", b"2", old.token)
    stream.close()
    assert get(store, "a") == b"z" * 100_000
    assert store.stat("b", "a") == new
    assert new.meta == b"2"


def test_a_copy_is_asked_for_before_anybody_sees_it(store: FileStore) -> None:
    """And is none when that raises something."""
    put(store, "a", b"bytes")
    asked: list[list[str]] = []

    def check() -> None:
        asked.append(listed(store))
        if len(asked) == 2:
            raise BrokenPipeError

    stream = store.open_read("b", "a")
    store.copy(stream, "b", "one", b"", check=check)
    with pytest.raises(BrokenPipeError):
        store.copy(stream, "b", "two", b"", check=check)
    stream.close()
    assert asked == [["a"], ["a", "one"]] and listed(store) == ["a", "one"]


@pytest.mark.parametrize("meta", [b"m", b"m" * 20_000])
def test_a_second_name_outlives_the_first(store: FileStore, meta: bytes) -> None:
    """Link, then replace: the version stays whole under its own name."""
    put(store, "a", b"one", meta)
    if not store.capabilities.hardlink:
        with pytest.raises(BadName):
            store.link("b", "a", ".cumulus/versions/a/1")
        return
    linked = store.link("b", "a", ".cumulus/versions/a/1")
    assert (linked.name, linked.size, linked.meta) == (".cumulus/versions/a/1", 3, meta)
    put(store, "a", b"two!", b"n", linked.token)
    assert get(store, ".cumulus/versions/a/1") == b"one"
    assert store.stat("b", ".cumulus/versions/a/1").meta == meta
    assert get(store, "a") == b"two!"
    with pytest.raises(Taken):
        store.link("b", "a", ".cumulus/versions/a/1")
    with pytest.raises(Missing):
        store.link("b", "none", ".cumulus/versions/none/1")
    store.delete("b", "a")
    assert get(store, ".cumulus/versions/a/1") == b"one"


@pytest.mark.parametrize("size", [10, 150_000])
def test_parts_are_joined_and_stay(store: FileStore, size: int) -> None:
    """In the order given; a name that was there is replaced in one step. The index does not know of it yet:
    the parts may be needed."""
    put(store, "a", b"old")
    parts = [f".cumulus/parts/u/{number}" for number in (2, 1, 10)]
    for number, part in enumerate(parts):
        put(store, part, b"%d" % number * size)
    entry = store.concat("b", parts, "a", b"joined")
    assert entry == store.stat("b", "a")
    assert get(store, "a") == b"0" * size + b"1" * size + b"2" * size
    assert listed(store, prefix=".cumulus/parts/") == sorted(parts)
    assert [get(store, part) for part in parts] == [b"%d" % number * size for number in range(3)]


def test_a_join_of_parts_is_asked_for_before_anybody_sees_it(store: FileStore) -> None:
    """When their bytes have been read; it is none when that raises something."""
    parts = [".cumulus/parts/u/1", ".cumulus/parts/u/2"]
    for part in parts:
        put(store, part, part.encode())

    def check() -> None:
        assert listed(store) == []
        store.delete("b", parts[0])
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        store.concat("b", parts, "a", b"", check=check)
    assert listed(store) == [] and listed(store, prefix=".cumulus/parts/") == parts[1:]
    put(store, parts[0], b"again")
    store.concat("b", parts, "a", b"", check=lambda: store.delete("b", parts[0]))
    assert get(store, "a") == b"again" + parts[1].encode()


def test_a_failed_join_leaves_all_parts(store: FileStore) -> None:
    """A condition that does not hold, or a part that is not there."""
    put(store, "a", b"old")
    parts = [".cumulus/parts/u/1", ".cumulus/parts/u/2"]
    for part in parts:
        put(store, part, part.encode())
    with pytest.raises(Changed):
        store.concat("b", parts, "a", b"", ABSENT)
    with pytest.raises(Missing):
        store.concat("b", [*parts, ".cumulus/parts/u/3"], "a", b"")
    assert listed(store, prefix=".cumulus/parts/") == parts
    assert get(store, parts[1]) == parts[1].encode()
    assert get(store, "a") == b"old"


# names


def test_names_come_in_the_order_of_their_bytes(store: FileStore) -> None:
    """Of whole paths: "a-b" < "a.c" < "a/d" < "a0"; and of UTF-8, where U+FF5E precedes U+1F600."""
    names = ["a-b", "a.c", "a/d", "a/d.e", "a0", "a/f/g", "a/é", "b", "ｚ～", "😀", "Z", "a/f-"]
    names += [".cumulus-", ".cumulus0", ".cumulus1/a"]  # just beside what is internal
    for name in [*names, ".cumulus/odd/a"]:
        put(store, name)
    expected = sorted(names, key=str.encode)
    assert listed(store) == expected
    for place, after in enumerate(expected):
        assert listed(store, after=after) == expected[place + 1 :]
        assert listed(store, after=after, limit=2) == expected[place + 1 : place + 3]
    assert listed(store, after="a/") == [name for name in expected if name.encode() > b"a/"]
    assert listed(store, after="a/f0") == [name for name in expected if name.encode() > b"a/f0"]


def test_names_with_a_prefix(store: FileStore) -> None:
    """A prefix may end anywhere; `after` may lie before, within and behind it."""
    for name in ("a/b/c", "a/b/d", "a/bb", "a/c", "b"):
        put(store, name)
    assert listed(store, prefix="a/b") == ["a/b/c", "a/b/d", "a/bb"]
    assert listed(store, prefix="a/b/") == ["a/b/c", "a/b/d"]
    assert listed(store, prefix="a/b", after="0") == ["a/b/c", "a/b/d", "a/bb"]
    assert listed(store, prefix="a/b", after="a/b/c") == ["a/b/d", "a/bb"]
    assert listed(store, prefix="a/b", after="a/c") == []
    assert listed(store, prefix="a/b/c/") == []
    assert listed(store, prefix="x") == []
    assert listed(store, limit=0) == []


def test_internal_names_are_listed_only_when_asked_for(store: FileStore) -> None:
    """By their first segment; the same word further down is an ordinary one."""
    for name in (".cumulus/odd/1", ".cumulus/versions/2", ".cumulus.txt", ".a", "x/.cumulus/y"):
        put(store, name)
    assert listed(store) == [".a", ".cumulus.txt", "x/.cumulus/y"]
    assert listed(store, prefix=".") == [".a", ".cumulus.txt"]
    assert listed(store, prefix=".cumulus") == [".cumulus.txt"]
    assert listed(store, prefix=".cumulus/odd/") == [".cumulus/odd/1"]
    assert listed(store, limit=2, after=".a") == [".cumulus.txt", "x/.cumulus/y"]


def test_many_names_come_in_pages(store: FileStore, ease: int) -> None:
    """Each once, in order."""
    names = sorted(f"d{number % 7}/f{number}" for number in range(80 // ease))
    for name in names:
        put(store, name)
    seen: list[str] = []
    while page := listed(store, after=seen[-1] if seen else "", limit=13):
        assert len(page) <= 13
        seen += page
    assert seen == names


@pytest.mark.parametrize("name", ["", "/a", "/", "a//b", "a/./b", "../a", "a/..", "x" * 256, "a\0", "\udc80"])
def test_impossible_names_are_refused_by_all(store: FileStore, name: str) -> None:
    """`BadName`, and nothing is made."""
    entry = put(store, "good")
    stream = store.open_read("b", "good")
    for call in (
        lambda: store.stat("b", name),
        lambda: store.delete("b", name),
        lambda: store.set_meta("b", name, b"", entry.token),
        lambda: store.open_read("b", name),
        lambda: store.open_write("b", name),
        lambda: store.copy(stream, "b", name, b""),
        lambda: store.concat("b", [], name, b""),
    ):
        with pytest.raises(BadName):
            call()
    stream.close()
    assert listed(store) == ["good"]


def test_a_name_with_a_slash_at_its_end_is_an_empty_directory_or_refused(store: FileStore) -> None:
    """Nothing but a record, beside what is in the directory; a body with bytes is `BadName` everywhere."""
    entry = put(store, "good")
    stream = store.open_read("b", "good")
    calls: list[Callable[[], object]] = [
        lambda: store.open_write("b", "a/"),
        lambda: store.copy(stream, "b", "a/", b""),
        lambda: store.concat("b", [], "a/", b""),
    ]
    if not store.capabilities.directories:
        calls += [
            lambda: store.stat("b", "a/"),
            lambda: store.delete("b", "a/"),
            lambda: store.set_meta("b", "a/", b"", entry.token),
            lambda: store.open_read("b", "a/"),
        ]
    for call in calls:
        with pytest.raises(BadName):
            call()
    stream.close()
    assert listed(store) == ["good"]


def directory(store: FileStore, meta: bytes = b"m", if_token: IfToken = None) -> Entry:
    """`d/` published."""
    stream = store.open_write("b", "other", 0)
    try:
        return stream.commit(meta, if_token, "d/")
    finally:
        stream.close()


def test_directories_are_names_where_they_can_be(store: FileStore) -> None:
    """With conditions, and kept apart from what is in them."""
    if not store.capabilities.directories:
        return  # they are refused: the test above
    first = directory(store, b"one", ABSENT)
    put(store, "d/x")
    assert store.stat("b", "d/") == first and first.meta == b"one" and first.size == 0
    with pytest.raises(Changed):
        directory(store, b"two", ABSENT)
    second = directory(store, b"two", first.token)
    assert second.stamp > first.stamp and second.token != first.token
    with pytest.raises(Changed):
        store.set_meta("b", "d/", b"three", first.token)
    third = store.set_meta("b", "d/", b"three", second.token)
    assert listed(store) == ["d/", "d/x"] and listed(store, after="d/") == ["d/x"]
    assert listed(store, prefix="d/", limit=1) == ["d/"] and listed(store, prefix="d/x") == ["d/x"]
    with pytest.raises(Changed):
        store.open_read("b", "d/", second.token)
    stream = store.open_read("b", "d/", third.token)
    assert stream.read_at(0, 10) == b"" and stream.entry.meta == b"three"
    copied = store.copy(stream, "b", "e/", b"copy")
    assert store.copy(stream, "b", "file", b"copy").size == 0 and copied.meta == b"copy"
    stream.close()
    with pytest.raises(Changed):
        store.delete("b", "d/", second.token)
    assert store.delete("b", "d/", third.token) > third.stamp
    with pytest.raises(Missing):
        store.delete("b", "d/")
    with pytest.raises(Missing):
        store.set_meta("b", "d/", b"x", third.token)
    assert listed(store) == ["d/x", "e/", "file"]


@pytest.mark.parametrize("name", ["é" * 127, "x" * 255, "ä\nb\t", "%2e", "a b+c", "\\", "'; DROP TABLE"])
def test_strange_but_possible_names_are_kept(store: FileStore, name: str) -> None:
    """Byte for byte."""
    put(store, name)
    put(store, f"d/{name}/e")
    assert listed(store) == sorted([name, f"d/{name}/e"], key=str.encode)
    assert get(store, name) == b"x"


def test_a_name_is_not_a_file_and_a_directory(store: FileStore) -> None:
    """First come stays; the other is `Taken`, and nothing has changed."""
    put(store, "n")
    put(store, "d/e/f")
    for name in ("n/m", "n/m/o", "d", "d/e"):
        for size in (10, 100_000):
            with pytest.raises(Taken):
                put(store, name, b"y" * size)
        with pytest.raises(Missing):
            store.stat("b", name)
        with pytest.raises(Missing):
            store.open_read("b", name)
        with pytest.raises(Missing):
            store.delete("b", name)
    assert listed(store) == ["d/e/f", "n"]


# upkeep


def test_sweeping_leaves_what_is_there_and_what_is_being_written(store: FileStore) -> None:
    """A write in progress that is younger than the limit is not harmed."""
    put(store, "a", b"x" * 100_000)
    stream = store.open_write("b", "c")
    stream.write(memoryview(b"y" * 100_000))
    store.sweep(3600)
    stream.commit(b"")
    assert listed(store) == ["a", "c"]
    assert get(store, "c") == b"y" * 100_000


# one pass over all


def test_a_pass_gives_the_names_that_pages_give(store: FileStore) -> None:
    """In lots of the size that is asked for."""
    names = ["a", "d-1", "d/e/f", "d/g", "d0", "\u00e9", "\U0001f600"]
    for name in names:
        put(store, name)
    put(store, ".cumulus/odd/1")
    assert [name for lot in store.walk("b", 3) for name in lot] == names == listed(store)
    assert [len(lot) for lot in store.walk("b", 3)] == [3, 3, 1]
    with pytest.raises(Missing):
        list(store.walk("none"))


def test_only_what_has_changed_is_looked_at(store: FileStore) -> None:
    """By its token; what is gone is told, too."""
    known = {name: put(store, name).token for name in ("a", "d/b", "d/c", "gone")}
    entry = put(store, "d/b", b"other")
    store.delete("b", "gone")
    found = store.look("b", ["a", "d/b", "d/c", "gone", "none/x"], known)
    assert found == {"d/b": entry, "gone": None, "none/x": None}
    assert store.look("b", ["a"], {}) == {"a": store.stat("b", "a")}


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_entries_are_what_names_gives(store: FileStore, limit: int) -> None:
    """With a prefix and without one, also internal ones, while some go."""
    for name in ("a", "b/1", "b/2", "b0", ".cumulus/parts/u/1", ".cumulus/parts/u/2"):
        put(store, name)
    for prefix in ("", "b", "b/", ".cumulus/parts/", "nothing"):
        pages = list(store.entries("b", prefix, limit))
        assert all(0 < len(page) <= limit for page in pages)
        assert [entry for page in pages for entry in page] == store.names("b", prefix=prefix)
    seen = []
    for page in store.entries("b", limit=limit):
        seen += [entry.name for entry in page]
        for entry in page:
            store.delete("b", entry.name)
    assert seen == ["a", "b/1", "b/2", "b0"] and store.names("b") == []
    with pytest.raises(NoBucket):
        list(store.entries("none"))
