"""What every index of Cumulus promises of buckets, objects and listings (cumulus/index/api.py), run on each
implementation."""

from __future__ import annotations

import itertools
import random
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from cumulus_bench import BOB, Bench, bucket, held, postgres_database, put, row, run_all, upload

from cumulus.index.api import Index, NameTaken, NoSuch, Page, Put, Remove, StillUsed
from cumulus.index.registry import make_index
from cumulus.model import Versioning
from cumulus.ops.rows import marker_row


@pytest.fixture(scope="module", params=["sqlite", "remote", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    """SQLite as the head has it, or as a worker does; PostgreSQL."""
    if request.param == "postgresql":
        postgres_database()
    return str(request.param)


@pytest.fixture
def bench(kind: str, tmp_path: Path) -> Iterator[Bench]:
    """A database of its own for a test."""
    made = Bench(tmp_path, kind)
    yield made
    made.close()


@pytest.fixture
def index(bench: Bench) -> Index:
    """The index of the bench."""
    return bench.index


# buckets ----------------------------------------------------------------------------------------------
def test_bucket_is_kept_with_all_its_settings(index: Index) -> None:
    """And a name is given once."""
    made = bucket("data", versioning=Versioning.ENABLED, cors="<x/>", tags={"a": "ü"}, path="/srv/x")
    index.add_bucket(made)
    assert index.bucket("data") == made
    assert [one.name for one in index.buckets()] == ["b", "data"]
    with pytest.raises(NameTaken, match="data"):
        index.add_bucket(bucket("data", BOB))
    assert index.buckets(BOB) == []


def test_changed_bucket_is_seen_at_once_through_the_same_index(index: Index) -> None:
    """`bucket` may keep answers for a second, but not over a change of its own."""
    assert index.bucket("b") is not None and index.bucket("none") is None
    index.set_bucket(bucket("b", region="x"), ["region"])
    index.add_bucket(bucket("none"))
    assert index.bucket("b") == bucket("b", region="x")
    assert index.bucket("none") is not None
    index.drop_bucket("none")
    assert index.bucket("none") is None
    with pytest.raises(NoSuch):
        index.set_bucket(bucket("none"), ["region"])
    with pytest.raises(NoSuch):
        index.drop_bucket("none")


def test_settings_changed_at_the_same_time_are_all_kept(index: Index) -> None:
    """Whoever changes one has read the others some time before."""
    old = index.bucket("b")
    assert old is not None
    index.set_bucket(msgspec.structs.replace(old, versioning=Versioning.ENABLED), ["versioning"])
    index.set_bucket(msgspec.structs.replace(old, tags={"a": "b"}, cors="<x/>"), ["tags", "cors"])
    new = index.bucket("b")
    assert new is not None
    assert (new.versioning, new.tags, new.cors) == (Versioning.ENABLED, {"a": "b"}, "<x/>")
    assert index.buckets(old.owner) == [new]
    index.set_bucket(msgspec.structs.replace(old, owner=BOB), ["owner"])
    assert [one.cors for one in index.buckets(BOB)] == ["<x/>"]


def test_a_list_of_buckets_without_what_their_owners_have_set(index: Index) -> None:
    """Any user may set megabytes for each of a thousand: a list of his took a gigabyte of the head."""
    documents = {"policy": "{}", "principals": {"user:x": "y"}, "lifecycle": "x" * 1_000_000}
    names = [f"n{number:02}" for number in range(20)]
    for name in names:
        index.add_bucket(bucket(name, BOB, region="r", tags={"a": "b"}, cors="<x/>", **documents))
    tracemalloc.start()
    try:
        found = index.brief_buckets(BOB)
        assert tracemalloc.get_traced_memory()[1] < 19_000_000
    finally:
        tracemalloc.stop()
    assert found == [bucket(name, BOB, region="r", tags={"a": "b"}) for name in names]
    assert [one.name for one in index.brief_buckets()] == ["b", *names]
    assert index.brief_buckets("nobody") == []


def test_bucket_in_use_does_not_go(index: Index) -> None:
    """Objects, delete markers and uploads hold it."""
    put(index, "k")
    with pytest.raises(StillUsed, match="objects"):
        index.drop_bucket("b")
    index.apply([Put(row=row("k", 2, 0, version="v", marker=True))])
    with pytest.raises(StillUsed, match="versions"):
        index.drop_bucket("b")
    index.apply([Remove(bucket="b", key="k", version="v", stamp=3)])
    index.add_upload(upload("u"))
    with pytest.raises(StillUsed, match="uploads"):
        index.drop_bucket("b")
    assert index.drop_upload("u")
    index.drop_bucket("b")
    assert index.bucket("b") is None


def test_what_is_told_of_a_bucket_that_has_gone_is_left_out(index: Index) -> None:
    """A new one of its name has none of it, and its ledger begins at 0."""
    index.drop_bucket("b")
    with pytest.raises(NoSuch, match="b"):
        index.apply([Put(row=row("late", 1, 10))])
    with pytest.raises(NoSuch):
        index.apply_soon([Put(row=row("late", 1, 10))])
    index.add_bucket(bucket("c"))
    index.apply([Put(row=row("late", 1, 10)), Put(row=row("k", 1, 7, bucket="c"))])
    index.apply([Put(row=row(f"late-{number:02d}", 1, 10)) for number in range(30)])
    index.apply([Remove(bucket="b", key="late", stamp=2)])
    index.sync()
    index.add_bucket(bucket("b"))
    assert index.page("b").rows == [] and index.lookup("b", "late") is None
    assert index.usage("bucket", "c").bytes == 7
    put(index, "late", stamp=3, size=5)
    usage = index.usage("bucket", "b")
    assert (usage.bytes, usage.objects) == (5, 1)
    index.apply([Remove(bucket="b", key="late", stamp=4)])
    assert index.usage("bucket", "b").bytes == 0


def test_settings_of_a_bucket_changed_by_others_are_seen_when_answers_grow_old(bench: Bench) -> None:
    """Another process has its own index on the same database."""
    assert bench.index.bucket("b") is not None
    other, directory = make_index(bench.url, bench.keyring, sync=False)
    other.set_bucket(bucket("b", region="far"), ["region"])
    other.close()
    directory.close()
    bench.fresh()
    found = bench.index.bucket("b")
    assert found is not None and found.region == "far"


# objects ----------------------------------------------------------------------------------------------
def test_row_comes_back_as_it_was(index: Index) -> None:
    """With a name in storage that differs from the key, checksums and all."""
    made = row("a//b", name=".cumulus/odd/ff", checksum="CRC32", checksum_type="FULL_OBJECT", token=b"\0\xff")
    index.apply([Put(row=made)])
    assert index.lookup("b", "a//b") == made
    assert index.lookup("b", "a//b", "null") == made
    assert index.lookup("b", "a//b", "other") is None
    assert index.lookup("b", "a/b") is None


def test_larger_stamp_wins_in_any_order(index: Index) -> None:
    """Two writers of one name tell the index in the wrong order."""
    put(index, "k", stamp=5, size=50)
    put(index, "k", stamp=4, size=40)
    found = index.lookup("b", "k")
    assert found is not None and found.stamp == 5
    assert held(index) == (50, 1)
    put(index, "k", stamp=6, size=1)
    assert held(index) == (1, 1)


def test_same_stamp_again_changes_the_row_and_counts_once(index: Index) -> None:
    """Recovery tells again what may be known."""
    put(index, "k", stamp=5, size=50)
    index.apply([Put(row=row("k", 5, 50, token=b"new"))])
    found = index.lookup("b", "k")
    assert found is not None and found.token == b"new" and held(index) == (50, 1)


def test_late_row_does_not_come_back_after_a_removal(index: Index) -> None:
    """A removal leaves its stamp, known object or not."""
    put(index, "k", stamp=5)
    index.apply([Remove(bucket="b", key="k", stamp=7), Remove(bucket="b", key="never", stamp=7)])
    put(index, "k", "never", stamp=6)
    assert index.lookup("b", "k") is None and index.lookup("b", "never") is None
    assert held(index) == (0, 0)
    put(index, "k", "never", stamp=8)
    assert index.lookup("b", "k") is not None and index.lookup("b", "never") is not None


def test_removal_leaves_what_is_newer(index: Index) -> None:
    """The removal was of the object before."""
    put(index, "k", stamp=5)
    index.apply([Remove(bucket="b", key="k", stamp=4)])
    assert index.lookup("b", "k") is not None and held(index) == (10, 1)


def version(key: str, stamp: int, size: int = 10, marker: bool = False) -> Put:
    """A version with an id of its own; the former current one is kept."""
    made = row(key, stamp, 0 if marker else size, version=f"v{stamp}", marker=marker)
    return Put(row=made, keep=True)


def stamps(index: Index, key: str = "") -> list[tuple[int, bool]]:
    """(stamp, latest) of all versions that are listed."""
    return [(one.stamp, one.latest) for one in index.page_versions("b", prefix=key).rows]


@pytest.mark.parametrize("order", list(itertools.permutations([1, 2, 3])))
def test_versions_stand_in_order_however_they_arrive(index: Index, order: tuple[int, ...]) -> None:
    """And all are counted."""
    for stamp in order:
        index.apply([version("k", stamp)])
    assert stamps(index) == [(3, True), (2, False), (1, False)]
    current = index.lookup("b", "k")
    assert current is not None and current.version == "v3"
    old = index.lookup("b", "k", "v1")
    assert old is not None and old.stamp == 1 and not old.latest
    assert held(index) == (30, 3)


def test_delete_marker_hides_the_key_and_its_removal_shows_it_again(index: Index) -> None:
    """Also when older versions go first."""
    index.apply([version("k", 1), version("k", 2), version("k", 3, marker=True)])
    current = index.lookup("b", "k")
    assert current is not None and current.marker and current.latest
    assert index.page("b").rows == []
    assert held(index) == (20, 2)
    index.apply([Remove(bucket="b", key="k", version="v2", stamp=9)])
    assert stamps(index) == [(3, True), (1, False)]
    index.apply([Remove(bucket="b", key="k", version="v3", stamp=9)])
    current = index.lookup("b", "k")
    assert current is not None and current.version == "v1" and current.latest and not current.marker
    assert held(index) == (10, 1)


def test_a_delete_marker_as_deletions_make_it_is_kept(index: Index) -> None:
    """It has neither name nor token nor ETag."""
    there = index.bucket("b")
    assert there is not None
    made = marker_row(there, "k", "v2", 2, 5, there.owner)
    index.apply([version("k", 1), Put(row=made, keep=True)])
    assert index.lookup("b", "k") == made
    assert stamps(index) == [(2, True), (1, False)]


def test_current_version_removed_gives_way_to_the_one_before(index: Index) -> None:
    """By its id."""
    index.apply([version("k", 1), version("k", 2)])
    index.apply([Remove(bucket="b", key="k", version="v2", stamp=2)])
    current = index.lookup("b", "k")
    assert current is not None and current.version == "v1" and stamps(index) == [(1, True)]


def test_null_version_is_replaced_among_kept_ones(index: Index) -> None:
    """As in a bucket whose versioning is suspended: "null" exists once."""
    index.apply([Put(row=row("k", 1)), version("k", 2), Put(row=row("k", 3, 7), keep=True)])
    assert [(one.version, one.stamp) for one in index.page_versions("b").rows] == [("null", 3), ("v2", 2)]
    assert held(index) == (17, 2)


def test_version_that_is_not_kept_goes(index: Index) -> None:
    """`keep` False: storage has replaced the former one, whatever its id, marker or not."""
    index.apply([version("k", 1)])
    index.apply([Put(row=row("k", 2))])
    assert stamps(index) == [(2, True)]
    index.apply([version("m", 1, marker=True)])
    index.apply([Put(row=row("m", 2))])
    assert stamps(index, "m") == [(2, True)] and held(index) == (20, 2)


def test_one_failing_change_fails_its_caller_only(index: Index) -> None:
    """32 threads at once, one with a key that is no text."""
    errors: list[BaseException] = []
    start = threading.Barrier(32)

    def work(number: int) -> None:
        start.wait()
        key = "\udc80" if number == 7 else f"k{number:02}"
        try:
            index.apply([Put(row=row(f"pre{number:02}")), Put(row=row(key))])
        except ValueError as bad:
            errors.append(bad)

    run_all([lambda number=number: work(number) for number in range(32)])
    assert len(errors) == 1 and index.lookup("b", "pre07") is None
    assert len(index.page("b").rows) == 62 and held(index) == (620, 62)


# listings ---------------------------------------------------------------------------------------------
def walk(turn: Callable[[str], Page]) -> tuple[list[str], int]:
    """All names of a listing page by page (prefixes marked by "*"), and how many pages."""
    names, after, pages = [], "", 0
    while True:
        page = turn(after)
        pages += 1
        names += sorted([one.key for one in page.rows] + [f"{one}*" for one in page.prefixes])
        if not page.truncated:
            assert page.next == ""
            return names, pages
        after = page.next


def expected(keys: list[str], prefix: str, delimiter: str) -> list[str]:
    """The same from a plain list."""
    found = []
    for key in sorted(keys, key=str.encode):
        if key.startswith(prefix):
            at = key.find(delimiter, len(prefix)) if delimiter else -1
            found.append(f"{key[: at + len(delimiter)]}*" if at >= 0 else key)
    return list(dict.fromkeys(found))


def test_order_is_that_of_utf8_bytes(index: Index) -> None:
    """Not that of UTF-16 or of a locale."""
    keys = ["a", "B", "é", "z", "a/b", "a.b", "\U0001f600", "\uffee", "a\x01", "Ω"]
    put(index, *keys)
    assert [one.key for one in index.page("b").rows] == sorted(keys, key=str.encode)


@pytest.mark.parametrize("limit", [1, 2, 7, 1000])
def test_pages_give_each_name_once(index: Index, limit: int, rng: random.Random) -> None:
    """With prefixes, delimiters of one and more characters, for both kinds of listing."""
    keys = sorted({"".join(rng.choices("ab/é-", k=rng.randint(1, 6))) for _ in range(250)})
    put(index, *keys)
    for prefix, delimiter in [
        ("", ""),
        ("", "/"),
        ("a", "/"),
        ("a/", "/"),
        ("b", "é-"),
        ("é", ""),
        ("x", "/"),
    ]:

        def turn(after: str, prefix: str = prefix, delimiter: str = delimiter) -> Page:
            return index.page("b", prefix=prefix, after=after, delimiter=delimiter, limit=limit)

        wanted = expected(keys, prefix, delimiter)
        names, pages = walk(turn)
        assert sorted(names) == sorted(wanted)
        assert pages == max(1, -(-len(wanted) // limit))
        if limit == 1:
            assert names == wanted

        def versions(after: str, prefix: str = prefix, delimiter: str = delimiter) -> Page:
            return index.page_versions("b", prefix=prefix, after=after, delimiter=delimiter, limit=limit)

        assert sorted(walk(versions)[0]) == sorted(wanted)
        page, after = index.page("b", limit=0), ""
        while not after or page.truncated:  # what a listing shows is the same
            page = turn(after)
            lines = index.lines("b", prefix=prefix, after=after, delimiter=delimiter, limit=limit)
            assert (lines.prefixes, lines.truncated, lines.next) == (page.prefixes, page.truncated, page.next)
            assert lines.lines == [
                (row.key, row.etag, row.size, row.modified_ns, row.owner, row.checksum, row.checksum_type)
                for row in page.rows
            ]
            after = page.next or "-"


def test_versions_go_on_where_a_page_ended(index: Index) -> None:
    """Also between two versions of a key, and after the version where it ended has gone."""
    index.apply([version(key, stamp) for stamp in range(1, 6) for key in ("a", "b", "c")])
    seen, after, after_version = [], "", ""
    while True:
        page = index.page_versions("b", after=after, after_version=after_version, limit=4)
        seen += [(one.key, one.stamp, one.latest) for one in page.rows]
        if not page.truncated:
            break
        after, after_version = page.next, page.next_version
    assert seen == [(key, stamp, stamp == 5) for key in "abc" for stamp in (5, 4, 3, 2, 1)]
    first = index.page_versions("b", limit=2)
    index.apply([Remove(bucket="b", key=one.key, version=one.version, stamp=9) for one in first.rows])
    rest = index.page_versions("b", after=first.next, after_version=first.next_version, limit=2)
    assert [(one.key, one.stamp, one.latest) for one in rest.rows] == [("a", 3, True), ("a", 2, False)]


def timed(stamp: int, of: int = 0) -> Put:
    """A version of "k" with the id of that made at `of`."""
    made = row("k", stamp, version=f"{(1 << 64) - 1 - (of or stamp):016x}{'0' * 16}")
    return Put(row=made, keep=True)


@pytest.mark.parametrize("gone", [[4], [5, 4], [4, 3]])
def test_versions_go_on_behind_one_that_is_gone(index: Index, gone: list[int]) -> None:
    """None of those before it comes again."""
    index.apply([timed(stamp) for stamp in range(1, 6)])
    first = index.page_versions("b", limit=2)
    for stamp in gone:
        index.apply([Remove(bucket="b", key="k", version=timed(stamp).row.version, stamp=9)])
    rest = index.page_versions("b", after=first.next, after_version=first.next_version)
    left = [stamp for stamp in (3, 2, 1) if stamp not in gone]
    assert [one.stamp for one in rest.rows] == left
    assert [one.latest for one in rest.rows] == [5 in gone, *[False] * (len(left) - 1)]


def test_a_version_that_has_become_current_again_is_not_missed(index: Index) -> None:
    """It has a later stamp than those that are gone, by which it would be one of them."""
    index.apply([timed(stamp) for stamp in range(1, 6)])
    first = index.page_versions("b", limit=2)
    for stamp in (5, 4):
        index.apply([Remove(bucket="b", key="k", version=timed(stamp).row.version, stamp=9)])
    index.apply([timed(10, of=3)])
    rest = index.page_versions("b", after=first.next, after_version=first.next_version)
    assert [(one.stamp, one.latest) for one in rest.rows] == [(10, True), (2, False), (1, False)]


def test_after_a_key_in_the_middle(index: Index) -> None:
    """`after` need not exist, may lie before the prefix or behind it; limit 0 is an empty page."""
    put(index, "a/1", "a/2", "b/1", "c")
    assert [one.key for one in index.page("b", after="a/1x").rows] == ["a/2", "b/1", "c"]
    assert [one.key for one in index.page("b", prefix="b", after="a").rows] == ["b/1"]
    assert index.page("b", prefix="a", after="b").rows == []
    assert index.page("b", delimiter="/", after="a/").prefixes == ["b/"]
    empty = index.page("b", limit=0)
    assert empty.rows == [] and not empty.truncated
    assert index.page_versions("b", limit=0).rows == []


def test_current_objects_of_many_keys_are_found_at_once(index: Index) -> None:
    """In the order of the keys, each key's own; what is not there, or is a delete marker, is None."""
    keys = [f"k{number:03d}" for number in range(150)]
    index.apply([Put(row=row(key, 1, 10)) for key in keys if key != "k007"])
    asked = [*keys[::-1], "none", "k001"]
    found = index.committed_all("b", asked)
    assert [one.key if one else "" for one in found] == [
        key if key not in ("k007", "none") else "" for key in asked
    ]
    assert found[-1] == index.lookup("b", "k001")
    assert index.committed_all("b", []) == []
