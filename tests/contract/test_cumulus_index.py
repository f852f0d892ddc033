"""What every index of Cumulus promises (cumulus/index/api.py), run on each implementation."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cumulus.index.admin import SqlAdmin
from cumulus.index.admin_api import Quota
from cumulus.index.api import (
    Directory,
    Index,
    NameTaken,
    NoSuch,
    OverQuota,
    Page,
    Put,
    Remove,
    Reservation,
    Row,
    StillUsed,
    Upload,
)
from cumulus.index.registry import make_admin, make_index
from cumulus.model import Acl, Bucket, ObjectMeta, Part, User, Versioning
from cumulus.secrets import Keyring

ALICE, BOB = "a" * 64, "b" * 64
DAY_NS = 86400 * 10**9


class Bench:
    """An index with two users and one bucket `b` of alice, and a clock that stands."""

    def __init__(self, path: Path) -> None:
        self.now_ns = 10**18
        self.url = f"sqlite:///{path / 'cumulus.db'}"
        self.keyring = Keyring.create(path / "secret.key")
        self.index: Index
        self.directory: Directory
        self.index, self.directory = make_index(self.url, self.keyring, sync=False, clock=self.clock)
        self.admin: SqlAdmin = make_admin(self.url, self.keyring, self.clock)
        self.admin.add_user(User(id=ALICE, name="alice"))
        self.admin.add_user(User(id=BOB, name="bob", email="Bob@example.org"))
        self.index.add_bucket(bucket("b"))

    def clock(self) -> int:
        """The time that tests set."""
        return self.now_ns

    def fresh(self) -> None:
        """What other processes changed is seen now, as it is within a second."""
        self.directory.forget()  # type: ignore[attr-defined]
        self.index.forget()  # type: ignore[attr-defined]

    def close(self) -> None:
        """All of it."""
        self.admin.close()
        self.index.close()
        self.directory.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A database of its own for a test."""
    made = Bench(tmp_path)
    yield made
    made.close()


@pytest.fixture
def index(bench: Bench) -> Index:
    """The index of the bench."""
    return bench.index


def bucket(name: str, owner: str = ALICE, **more: object) -> Bucket:
    """A bucket without settings."""
    return Bucket(name=name, owner=owner, created_ns=1, acl=Acl(owner=owner), **more)  # type: ignore[arg-type]


def row(key: str, stamp: int = 1, size: int = 10, **more: object) -> Row:
    """A row of bucket `b`."""
    fields: dict[str, object] = {
        "bucket": "b",
        "key": key,
        "stamp": stamp,
        "size": size,
        "name": key,
        "token": b"t%d" % stamp,
        "etag": f"e{stamp}",
        "modified_ns": stamp,
        "owner": ALICE,
    }
    return Row(**(fields | more))  # type: ignore[arg-type]


def put(index: Index, *keys: str, stamp: int = 1, size: int = 10) -> None:
    """Publish objects."""
    index.apply([Put(row=row(key, stamp, size)) for key in keys])


def held(index: Index) -> tuple[int, int]:
    """(bytes, objects) of bucket b; the same must be said of its owner."""
    usage = index.usage("bucket", "b")
    owner = index.usage("user", "alice")
    assert (usage.bytes, usage.objects) == (owner.bytes, owner.objects)
    return usage.bytes, usage.objects


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
    index.set_bucket(bucket("b", region="x"))
    index.add_bucket(bucket("none"))
    assert index.bucket("b") == bucket("b", region="x")
    assert index.bucket("none") is not None
    index.drop_bucket("none")
    assert index.bucket("none") is None
    with pytest.raises(NoSuch):
        index.set_bucket(bucket("none"))
    with pytest.raises(NoSuch):
        index.drop_bucket("none")


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


def test_settings_of_a_bucket_changed_by_others_are_seen_when_answers_grow_old(bench: Bench) -> None:
    """Another process has its own index on the same database."""
    assert bench.index.bucket("b") is not None
    other, directory = make_index(bench.url, bench.keyring, sync=False)
    other.set_bucket(bucket("b", region="far"))
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


def run_all(calls: list[Callable[[], None]]) -> None:
    """Each in a thread of its own."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


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


# the ledger -------------------------------------------------------------------------------------------
def quota(bench: Bench, **limits: object) -> None:
    """Set and seen."""
    fields: dict[str, object] = {"scope": "user", "name": "alice"}
    bench.admin.set_quota(Quota(**(fields | limits)))  # type: ignore[arg-type]
    bench.fresh()


def test_reservation_becomes_used_bytes_or_is_given_back(bench: Bench) -> None:
    """And the refusal says what is used, reserved and allowed."""
    index = bench.index
    quota(bench, hard_bytes=100)
    first = index.reserve("b", 60)
    second = index.reserve("b", 30)
    with pytest.raises(OverQuota) as refused:
        index.reserve("b", 20)
    bad = refused.value
    assert (bad.scope, bad.name, bad.what) == ("user", "alice", "bytes")
    assert (bad.used, bad.reserved, bad.limit) == (0, 90, 100)
    index.apply([Put(row=row("k", 1, 60), reservation=first)])
    usage = index.usage("user", ALICE)
    assert (usage.bytes, usage.reserved_bytes, usage.objects, usage.reserved_objects) == (60, 30, 1, 1)
    index.release(second)
    index.release(second)
    index.release(first)
    index.release(index.reserve("b", 40))
    with pytest.raises(OverQuota):
        index.reserve("b", 41)


def test_reservation_grows(bench: Bench) -> None:
    """Chunked uploads say their size as they come; what was held stays held after a refusal."""
    index = bench.index
    quota(bench, hard_bytes=100)
    one = index.reserve("b", 0)
    index.grow(one, 70)
    assert one.bytes == 70
    with pytest.raises(OverQuota):
        index.grow(one, 31)
    assert index.usage("bucket", "b").reserved_bytes == 70
    index.grow(one, 30)
    index.release(one)
    index.grow(one, 10**6)
    assert index.usage("bucket", "b").reserved_bytes == 0 and one.bytes == 100


def test_objects_are_limited_too(bench: Bench) -> None:
    """In number."""
    quota(bench, scope="bucket", name="b", hard_objects=2)
    put(bench.index, "a", "b")
    with pytest.raises(OverQuota) as refused:
        bench.index.reserve("b", 0)
    assert (refused.value.scope, refused.value.what, refused.value.limit) == ("bucket", "objects", 2)
    bench.index.apply([Remove(bucket="b", key="a", stamp=5)])
    assert bench.index.reserve("b", 10**12).bytes == 10**12


def test_group_counts_all_buckets_of_its_members(bench: Bench) -> None:
    """And follows those who join and leave, and buckets that change hands."""
    bench.admin.add_group("lab")
    bench.admin.join("lab", "alice")
    bench.admin.join("lab", "bob")
    quota(bench, scope="group", name="lab", hard_bytes=100)
    index = bench.index
    index.add_bucket(bucket("bobs", BOB))
    put(index, "k", size=60)
    index.apply([Put(row=row("k", 1, 30, bucket="bobs"))])
    assert index.usage("group", "lab").bytes == 90
    with pytest.raises(OverQuota) as refused:
        index.reserve("bobs", 11)
    assert (refused.value.scope, refused.value.name, refused.value.used) == ("group", "lab", 90)
    bench.admin.leave("lab", "bob")
    bench.fresh()
    index.release(index.reserve("bobs", 1000))
    index.release(index.reserve("b", 40))
    index.set_bucket(bucket("bobs"))
    with pytest.raises(OverQuota):
        index.reserve("b", 11)
    assert index.usage("user", "bob").bytes == 0 and index.usage("user", "alice").bytes == 90


def test_soft_limit_is_refused_after_its_grace(bench: Bench) -> None:
    """And no longer when the user has made room."""
    quota(bench, soft_bytes=50, grace_s=7 * 86400)
    index = bench.index
    put(index, "k", size=60)
    assert index.usage("user", "alice").over_soft_since_ns == bench.now_ns
    bench.now_ns += 7 * DAY_NS
    index.release(index.reserve("b", 10))
    bench.now_ns += 1
    with pytest.raises(OverQuota) as refused:
        index.reserve("b", 10)
    assert refused.value.limit == 50 and refused.value.used == 60
    index.apply([Remove(bucket="b", key="k", stamp=5)])
    assert index.usage("user", "alice").over_soft_since_ns == 0
    index.release(index.reserve("b", 10**9))


def test_unknown_names_have_no_usage(index: Index) -> None:
    """One error for all kinds."""
    for scope in ("user", "group", "bucket"):
        with pytest.raises(NoSuch):
            index.usage(scope, "nobody")  # type: ignore[arg-type]
    with pytest.raises(NoSuch):
        index.reserve("nowhere", 1)


def test_sixty_four_writers_never_overshoot_and_leak_nothing(bench: Bench) -> None:
    """Uploads, overwrites, parts, aborts and removals against one quota: at every moment used and reserved
    bytes are within it, and at the end nothing is reserved."""
    index, limit = bench.index, 50_000
    quota(bench, hard_bytes=limit)
    stamp = itertools.count(100)
    over: list[int] = []
    refused = itertools.count()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            usage = index.usage("user", "alice")
            if usage.bytes > limit:
                over.append(usage.bytes)
            done.wait(0.02)

    def writer(number: int) -> None:
        rng = random.Random(number)
        for turn in range(6):
            size = rng.randint(500, 4000)
            try:
                mine = index.reserve("b", 0)
                try:
                    index.grow(mine, size)
                except OverQuota:
                    index.release(mine)
                    raise
            except OverQuota:
                next(refused)
                index.apply([Remove(bucket="b", key=f"k{rng.randint(0, 40)}", stamp=next(stamp))])
                continue
            finish(index, mine, f"k{rng.randint(0, 40)}", f"u{number}-{turn}", size, stamp, rng)

    watcher = threading.Thread(target=watch)
    watcher.start()
    run_all([lambda number=number: writer(number) for number in range(64)])
    done.set()
    watcher.join()
    usage = index.usage("user", "alice")
    rows = index.page("b").rows
    assert not over and next(refused) > 0
    assert (usage.reserved_bytes, usage.reserved_objects) == (0, 0)
    assert usage.bytes == sum(one.size for one in rows) and usage.objects == len(rows)
    index.release(index.reserve("b", limit - usage.bytes))
    with pytest.raises(OverQuota):
        index.reserve("b", limit - usage.bytes + 1)


def finish(
    index: Index,
    mine: Reservation,
    key: str,
    id: str,
    size: int,
    stamp: Iterator[int],
    rng: random.Random,
) -> None:
    """End an upload in one of four ways."""
    how = rng.choice(["put", "put", "abort", "parts", "parts aborted"])
    published = Put(row=row(key, next(stamp), size))
    if how == "put":
        index.apply([Put(row=published.row, reservation=mine)])
    elif how == "abort":
        index.release(mine)
    else:
        index.add_upload(upload(id, key))
        index.put_part(id, Part(number=1, size=size, etag="e"), mine)
        index.drop_upload(id, published if how == "parts" else None)


# uploads ----------------------------------------------------------------------------------------------
def upload(id: str, key: str = "big", created_ns: int = 1) -> Upload:
    """An upload to bucket `b`."""
    meta = ObjectMeta(key=key, size=0, etag="", modified_ns=0, acl=Acl(owner=ALICE))
    return Upload(
        id=id,
        bucket="b",
        key=key,
        owner=ALICE,
        initiator=BOB,
        created_ns=created_ns,
        meta=meta,
        algorithm="CRC32",
    )


def part(number: int, size: int) -> Part:
    """A part."""
    return Part(number=number, size=size, etag=f"p{number}", checksums={"crc32": "x"})


def test_upload_holds_its_parts_and_becomes_an_object(bench: Bench) -> None:
    """The bytes of its parts are held in the quota until it ends; a part is replaced by its number."""
    index = bench.index
    quota(bench, hard_bytes=100)
    index.add_upload(upload("u"))
    assert index.put_part("u", part(2, 40), index.reserve("b", 40, 0)) == 0
    assert index.put_part("u", part(1, 50), index.reserve("b", 50, 0)) == 0
    assert index.put_part("u", part(2, 10), index.reserve("b", 10, 0)) == 40
    usage = index.usage("user", "alice")
    assert (usage.bytes, usage.reserved_bytes, usage.objects) == (0, 60, 0)
    with pytest.raises(OverQuota):
        index.reserve("b", 41)
    assert index.parts("u") == [part(1, 50), part(2, 10)]
    assert index.parts("u", after=1) == [part(2, 10)] and index.parts("u", limit=1) == [part(1, 50)]
    assert index.drop_upload("u", Put(row=row("big", 1, 60)))
    usage = index.usage("user", "alice")
    assert (usage.bytes, usage.reserved_bytes, usage.objects) == (60, 0, 1)
    assert not index.drop_upload("u", Put(row=row("big", 9, 1000)))
    assert held(index) == (60, 1) and index.parts("u") == []


def test_upload_that_ended_takes_no_part(index: Index) -> None:
    """And its reservation is the caller's to release."""
    mine = index.reserve("b", 5)
    with pytest.raises(NoSuch):
        index.put_part("gone", part(1, 5), mine)
    assert index.usage("bucket", "b").reserved_bytes == 5
    index.release(mine)
    assert index.usage("bucket", "b").reserved_bytes == 0
    index.add_upload(upload("u"))
    with pytest.raises(NameTaken):
        index.add_upload(upload("u"))
    assert index.upload("b", "big", "u") == upload("u")
    assert index.upload("b", "other", "u") is None and index.upload("b", "big", "none") is None


def test_uploads_are_listed_by_key_and_age(index: Index) -> None:
    """Page by page, also when the one where a page ended has gone."""
    made = [("x", "b", 2), ("y", "b", 1), ("z", "a", 3), ("w", "bc", 1), ("v", "é", 1)]
    for id, key, created in made:
        index.add_upload(upload(id, key, created))
    assert [one.id for one in index.uploads("b")] == ["z", "y", "x", "w", "v"]
    assert [one.id for one in index.uploads("b", prefix="b")] == ["y", "x", "w"]
    assert [one.id for one in index.uploads("b", limit=2)] == ["z", "y"]
    assert [one.id for one in index.uploads("b", after="b", after_id="y")] == ["x", "w", "v"]
    assert [one.id for one in index.uploads("b", after="b")] == ["w", "v"]
    assert index.drop_upload("y")
    assert [one.id for one in index.uploads("b", after="b", after_id="y")] == ["x", "w", "v"]
