"""What every index of Cumulus promises of quotas and uploads (cumulus/index/api.py), run on each
implementation."""

from __future__ import annotations

import itertools
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cumulus_bench import (
    ALICE,
    BOB,
    DAY_NS,
    Bench,
    bucket,
    held,
    part,
    postgres_database,
    put,
    row,
    run_all,
    upload,
)

from cumulus.index import uploads
from cumulus.index.admin_api import Quota
from cumulus.index.api import Index, NameTaken, NoSuch, OverQuota, Put, Remove, Reservation, StillUsed
from cumulus.model import Part


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


# the ledger -------------------------------------------------------------------------------------------
def quota(bench: Bench, **limits: object) -> None:
    """Set and seen."""
    fields: dict[str, object] = {"scope": "user", "name": "alice"}
    bench.admin.set_quota(Quota(**(fields | limits)))  # type: ignore[arg-type]
    bench.fresh()


def test_room_for_many_is_reserved_one_by_one_in_their_order(bench: Bench) -> None:
    """What does not fit, or has no bucket, is said of that one; the others are held as if asked for alone."""
    index = bench.index
    quota(bench, hard_bytes=100)
    first, large, none, last = index.reserve_all([("b", 60), ("b", 50), ("no-bucket", 1), ("b", 40)])
    assert isinstance(first, Reservation) and isinstance(last, Reservation)
    assert isinstance(large, OverQuota) and isinstance(none, NoSuch)
    assert (large.scope, large.name, large.used, large.reserved, large.limit) == ("user", "alice", 0, 60, 100)
    assert index.usage("user", ALICE).reserved_bytes == 100
    index.apply([Put(row=row("k", 1, 60), reservation=first)])
    index.release(last)
    usage = index.usage("user", ALICE)
    assert (usage.bytes, usage.reserved_bytes, usage.reserved_objects) == (60, 0, 0)
    assert index.reserve_all([]) == []


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
    index.set_bucket(bucket("bobs"), ["owner"])
    with pytest.raises(OverQuota):
        index.reserve("b", 11)
    assert index.usage("user", "bob").bytes == 0 and index.usage("user", "alice").bytes == 90


@pytest.mark.parametrize("away", [False, True])
def test_a_raised_soft_limit_has_its_grace_from_the_beginning(bench: Bench, away: bool) -> None:
    """Whoever was late under the former one, or under one that was taken away, is not late at once."""
    index = bench.index
    quota(bench, soft_bytes=50, grace_s=86400, hard_objects=100)
    put(index, "a", size=60)
    bench.now_ns += 2 * DAY_NS
    with pytest.raises(OverQuota):
        index.reserve("b", 1)
    if away:
        quota(bench, hard_objects=100)
    quota(bench, soft_bytes=70, grace_s=86400, hard_objects=100)
    assert index.usage("user", "alice").over_soft_since_ns == 0
    put(index, "b", size=20)
    assert index.usage("user", "alice").over_soft_since_ns == bench.now_ns
    quota(bench, soft_bytes=60, grace_s=86400, hard_objects=100)  # a lower one goes on counting
    bench.now_ns += 2 * DAY_NS
    with pytest.raises(OverQuota):
        index.reserve("b", 1)


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


def test_the_grace_follows_a_bucket_to_its_new_owner(bench: Bench) -> None:
    """Who has given his bucket away is no longer over his limit: the next time its grace begins anew. That of
    who has got it begins with that, not with his next write."""
    index = bench.index
    quota(bench, soft_bytes=50, grace_s=86400)
    quota(bench, name="bob", soft_bytes=50, grace_s=86400)
    put(index, "k", size=60)
    bench.now_ns += 2 * DAY_NS
    index.set_bucket(bucket("b", BOB), ["owner"])
    bench.fresh()
    assert index.usage("user", "alice").over_soft_since_ns == 0
    assert index.usage("user", "bob").over_soft_since_ns == bench.now_ns
    index.add_bucket(bucket("second"))
    index.apply([Put(row=row("k", bucket="second", size=60))])
    assert index.usage("user", "alice").over_soft_since_ns == bench.now_ns
    index.release(index.reserve("second", 1))
    bench.now_ns += 2 * DAY_NS
    for name in ("b", "second"):
        with pytest.raises(OverQuota):
            index.reserve(name, 1)


def test_an_upload_has_another_owner_and_keeps_its_parts(index: Index) -> None:
    """One that has ended does not come back."""
    index.add_upload(upload("u"))
    index.put_part("u", part(1, 10), None)
    given = msgspec.structs.replace(upload("u"), owner=BOB)
    index.set_upload(given)
    assert index.upload("b", "big", "u") == given and index.uploads("b") == [given]
    assert [one.number for one in index.parts("u")] == [1]
    index.drop_upload("u")
    index.set_upload(given)
    assert index.uploads("b") == []


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


def test_upload_that_ended_takes_no_part(bench: Bench) -> None:
    """And its reservation is the caller's to release."""
    index = bench.index
    quota(bench, hard_bytes=100)
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


def test_a_claimed_upload_is_ended_by_its_claimant_until_the_claim_ends(bench: Bench) -> None:
    """Who claims it again makes that longer, or ends it."""
    index = bench.index
    with pytest.raises(NoSuch):
        index.claim_upload("u", "one", 60.0)
    index.add_upload(upload("u"))
    index.put_part("u", part(1, 60), None)
    assert index.claim_upload("u", "one", 60.0) and index.claim_upload("u", "one", 60.0)
    assert not index.claim_upload("u", "two", 60.0)
    for claimant in ("", "two"):
        with pytest.raises(StillUsed, match="u is being completed"):
            index.drop_upload("u", Put(row=row("big", 1, 60)), claimant)
    with pytest.raises(StillUsed):
        index.drop_bucket("b")
    assert index.usage("bucket", "b").reserved_bytes == 60 and index.lookup("b", "big") is None
    assert index.claim_upload("u", "one", 0.0) and index.claim_upload("u", "two", 0.01)
    end = time.monotonic() + 10
    while not index.claim_upload("u", "three", 60.0):  # the time of the database
        assert time.monotonic() < end
        bench.now_ns += 10**6
    assert index.drop_upload("u", Put(row=row("big", 1, 60)), "three")
    assert not index.drop_upload("u", None, "three")
    assert held(index) == (60, 1) and index.usage("bucket", "b").reserved_bytes == 0


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
    assert [one.id for one in index.uploads("b", prefix="b", after="a", after_id="none")] == ["y", "x", "w"]
    assert [one.id for one in index.uploads("b", prefix="b", after="b", after_id="x")] == ["w"]
    assert index.uploads("b", prefix="b", after="c") == []
    assert index.drop_upload("y")
    assert [one.id for one in index.uploads("b", after="b", after_id="y")] == ["x", "w", "v"]


@pytest.mark.parametrize("same", [True, False])
def test_a_page_of_uploads_costs_no_more_behind_many(tmp_path: Path, same: bool) -> None:
    """Of one key or of many; in steps of SQLite's machine."""
    bench = Bench(tmp_path)
    for n in range(2000):
        bench.index.add_upload(upload(f"u{n:04}", "k" if same else f"k{n:04}", n))
    connection, steps = sqlite3.connect(tmp_path / "cumulus.db"), 0

    def count() -> int:
        nonlocal steps
        steps += 10
        return 0

    connection.set_progress_handler(count, 10)
    key = "k" if same else "k1900"
    for prefix in ("", "k"):
        for after_id in ("u1900",) if same else ("u1900", ""):
            found = uploads.page(connection.execute, "b", prefix, key, after_id, 5)
            assert [one.id for one in found] == [f"u{n}" for n in range(1901, 1906)]
    connection.close()
    bench.close()
    assert steps < 1000
