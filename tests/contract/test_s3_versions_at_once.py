"""Two processes change the versions of one key at the same moments, each stopped where the other comes
between: what reads find, what listings have, and what a scan leaves, is the same."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from s3_processes import processes
from s3_world import World
from test_s3_version_races import rows_of, stored

from cumulus.backends.posix.publish import SMALL, Publisher
from cumulus.index.api import Away, Change, Put, Remove
from cumulus.index.postgres import FRESH_S
from cumulus.ops import current, deletes, jobs, publish
from cumulus.ops.jobs import Done, forget_versions, rescan
from cumulus.ops.names import VERSIONS
from cumulus.ops.rows import meta_of
from cumulus.storage.api import Entry, Missing, StorageError

WAIT_S = 20.0
ROUNDS = int(os.environ.get("SECTOR_TEST_S3_VERSION_ROUNDS", "250")) // 5


@pytest.fixture
def worlds(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[World]]:
    monkeypatch.setattr(jobs, "SETTLE_S", 0.01)
    with processes("posix", database, tmp_path) as made:
        versioning(made, "Enabled")
        yield made


def versioning(worlds: list[World], status: str) -> None:
    worlds[0].boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": status})


def put(world: World, key: str, body: bytes) -> str:
    answer = world.ask("PUT", f"/bkt/{key}", body)
    assert answer.status == 200, answer.body
    return str(answer.headers.get("x-amz-version-id", "null"))


def delete(world: World, key: str, version: str | None = None, **headers: str) -> str:
    query = {} if version is None else {"versionId": version}
    answer = world.ask("DELETE", f"/bkt/{key}", query=query, headers=headers)
    assert answer.status == 204, answer.body
    return str(answer.headers["x-amz-version-id"])


def scan(world: World) -> None:
    bucket = world.site.bucket("bkt")
    rescan(world.site, bucket, Done())
    forget_versions(world.site, bucket, Done())


def served(world: World, key: str) -> bytes | None:
    answer = world.ask("GET", f"/bkt/{key}")
    assert answer.status in (200, 404)
    return answer.body if answer.status == 200 else None


def agree(worlds: list[World], key: str) -> bytes | None:
    """What is current: by all processes, listings and rows, also after a scan, which changes no version."""
    before = None
    for number in range(2):
        bodies = {served(world, key) for world in worlds}
        assert len(bodies) == 1
        body = bodies.pop()
        listed = [row.key for row in worlds[2].index.page("bkt", prefix=key, limit=9).rows]
        assert (key in listed) == (body is not None)
        rows = {name: (row.marker, row.latest) for name, row in rows_of(worlds[2]).items()}
        assert rows == before or not number
        before = rows
        for (name, version), (marker, _) in rows.items():
            answer = worlds[2].ask("GET", f"/bkt/{name}", query={"versionId": version})
            assert answer.status == (405 if marker else 200), (name, version)
        scan(worlds[2])
    assert stored(worlds[2]) == sorted(f"{name} {version}" for name, version in rows_of(worlds[2]))
    return body


# a version becomes current again --------------------------------------------------------------------------
@pytest.mark.parametrize("newest", ["object", "marker"])
def test_a_scan_takes_no_version_that_becomes_current_for_one_that_was_removed(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, newest: str
) -> None:
    """A large body is copied for longer than a scan waits."""
    one, two, three = worlds
    put(one, "k", b"1")
    version = put(one, "k", b"22") if newest == "object" else delete(one, "k")
    real = one.store.copy
    lists: list[list[str]] = []

    def copy(*words: Any, **more: Any) -> Entry:
        scan(three)
        assert served(two, "k") == b"1"
        lists.append([row.key for row in two.index.page("bkt", limit=9).rows])
        return real(*words, **more)

    monkeypatch.setattr(one.store, "copy", copy)
    delete(one, "k", version)
    assert lists == [["k"]]
    assert agree(worlds, "k") == b"1"
    row = three.index.lookup("bkt", "k")
    assert row is not None and row.name == "k" and len(rows_of(three)) == 1


@pytest.mark.parametrize("then", ["PUT", "DELETE", "removal", "from outside"])
def test_a_version_that_a_crash_left_under_its_older_name_is_current(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, then: str
) -> None:
    one, two, three = worlds
    oldest = put(one, "k", b"0")
    older = put(one, "k", b"1")
    newest = put(one, "k", b"22")

    def copy(*words: Any, **more: Any) -> Entry:
        raise StorageError("no disk any more")

    with monkeypatch.context() as broken:
        broken.setattr(one.store, "copy", copy)
        assert one.ask("DELETE", "/bkt/k", query={"versionId": newest}).status >= 500
    row = three.index.lookup("bkt", "k")
    assert row is not None and row.name.startswith(VERSIONS) and row.version == older
    assert agree(worlds, "k") == b"1"
    if then == "PUT":
        put(two, "k", b"333")
        assert agree(worlds, "k") == b"333"
    elif then == "DELETE":
        delete(two, "k")
        assert agree(worlds, "k") is None
    elif then == "removal":
        delete(two, "k", older)
        assert agree(worlds, "k") == b"0" and one.store.stat("bkt", "k").size == 1
    else:
        (tmp_path / "store" / "data" / "bkt" / "k").write_bytes(b"4444")
        scan(three)
        assert served(two, "k") == b"4444"
    assert one.ask("GET", "/bkt/k", query={"versionId": oldest}).body == b"0"


def held(
    monkeypatch: pytest.MonkeyPatch,
    world: World,
    is_it: Callable[[Change], bool],
    meanwhile: Callable[[], None],
) -> None:
    """`meanwhile` is done, once, before the index hears of that change by the process of `world`."""
    real = world.site.told.tell
    began: list[bool] = []

    def tell(call: Callable[[], None], changes: Sequence[Change]) -> None:
        if not began and any(is_it(change) for change in changes):
            began.append(True)
            meanwhile()
        real(call, changes)

    monkeypatch.setattr(world.site.told, "tell", tell)


def becomes_current(change: Change) -> bool:
    return isinstance(change, Put) and not change.row.name.startswith(VERSIONS)


@pytest.mark.parametrize("first", ["object", "marker"])
@pytest.mark.parametrize("second", ["object", "marker"])
def test_when_the_two_newest_are_removed_at_once_the_third_becomes_current(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    """Who removes the second finds that it is not the newest, until the newest has gone."""
    one, two, _ = worlds
    put(one, "k", b"third")
    older = put(one, "k", b"1") if second == "object" else delete(one, "k")
    newest = put(one, "k", b"22") if first == "object" else delete(one, "k")
    held(monkeypatch, one, lambda change: isinstance(change, Remove), lambda: void(delete(two, "k", newest)))
    delete(one, "k", older)
    assert agree(worlds, "k") == b"third"
    assert one.store.stat("bkt", "k").size == 5


def void(_: object) -> None:
    """Of what is only to be done."""


def test_a_deletion_hides_nothing_any_more_when_its_marker_has_been_removed(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = worlds
    put(one, "k", b"1")
    delete(one, "k")
    real = deletes._cover
    began: list[bool] = []

    def cover(*words: Any, **more: Any) -> None:
        if not began:
            began.append(True)
            for (_, version), row in rows_of(three).items():
                if row.marker:
                    delete(two, "k", version)
            assert served(two, "k") == b"1"
        real(*words, **more)

    monkeypatch.setattr(deletes, "_cover", cover)
    delete(one, "k")
    assert began and agree(worlds, "k") == b"1"
    assert one.store.stat("bkt", "k").size == 1


def test_a_marker_that_is_removed_while_it_is_given_a_later_place_stays_removed(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who removes it has looked it up before that."""
    one, _, three = worlds
    put(one, "k", b"1")
    marker = delete(one, "k")
    row = three.index.lookup("bkt", "k", marker)
    assert row is not None and row.marker
    later = Put(row=msgspec.structs.replace(row, stamp=row.stamp + 2), keep=True)
    held(monkeypatch, one, lambda change: isinstance(change, Remove), lambda: three.index.apply([later]))
    delete(one, "k", marker)
    assert agree(worlds, "k") == b"1"


# what is put beside a deletion ----------------------------------------------------------------------------
@pytest.mark.parametrize("condition", [False, True])
def test_a_deletion_leaves_what_is_put_after_what_it_is_about(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, condition: bool
) -> None:
    """What is current has only its name as an older version when it looks: with a condition, that is what it
    deletes, and what is put then is not. Without one the one may come before the other."""
    one, two, three = worlds
    put(one, "k", b"1")
    newest = put(one, "k", b"22")

    def copy(*words: Any, **more: Any) -> Entry:
        raise StorageError("no disk any more")

    with monkeypatch.context() as broken:
        broken.setattr(one.store, "copy", copy)
        assert one.ask("DELETE", "/bkt/k", query={"versionId": newest}).status >= 500
    etag = one.ask("HEAD", "/bkt/k").headers["etag"]
    real = deletes._store_marker

    def store_marker(*words: Any) -> Entry:
        stamp = real(*words)
        put(two, "k", b"brand new")
        return stamp

    with monkeypatch.context() as deleting:
        deleting.setattr(deletes, "_store_marker", store_marker)
        deleting.setattr(two.site, "clock", lambda now=one.site.clock(): now)  # it began before the deletion
        delete(three, "k", **({"If-Match": etag} if condition else {}))
    assert agree(worlds, "k") == (b"brand new" if condition else None)


@pytest.mark.parametrize("status", ["Enabled", "Suspended"])
def test_what_is_put_while_a_marker_is_stored_is_listed_if_it_is_served(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """It is made after the marker, and is in its place before."""
    one, two, _ = worlds
    versioning(worlds, status)
    real = deletes._store_marker

    def store_marker(*words: Any) -> Entry:
        put(two, "k", b"1")
        return real(*words)

    monkeypatch.setattr(deletes, "_store_marker", store_marker)
    delete(one, "k")
    assert agree(worlds, "k") == b"1"


@pytest.mark.parametrize("status", ["Enabled", "Suspended"])
def test_a_large_body_that_is_synced_while_its_key_is_deleted_is_listed_if_it_is_served(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """It has its stamp before, and its name after."""
    one, two, _ = worlds
    versioning(worlds, status)
    real = Publisher._settle
    began: list[bool] = []

    def settle(*words: Any) -> int:
        stamp = real(*words)
        if not began:
            began.append(True)
            delete(two, "k")
        return stamp

    monkeypatch.setattr(Publisher, "_settle", settle)
    body = b"x" * (SMALL + 1)
    put(one, "k", body)
    assert began and agree(worlds, "k") == body


@pytest.mark.parametrize("ahead_ns", [0, 10**10])
def test_what_is_removed_by_its_id_while_it_becomes_the_newest_stays_removed(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, ahead_ns: int
) -> None:
    """The index has a marker above it, since the key was deleted just before it got its name; `ahead_ns`: by
    a clock that is so much ahead."""
    one, two, three = worlds
    real, real_read = Publisher._settle, current._is_read
    deleted: list[str] = []
    removed: list[str] = []

    def settle(*words: Any) -> int:
        stamp = real(*words)
        if not deleted:
            deleted.append(delete(two, "k"))
            row = three.index.lookup("bkt", "k")
            assert row is not None and row.marker
            later = msgspec.structs.replace(row, stamp=row.stamp + ahead_ns)
            three.index.apply([Put(row=later, keep=True)])
        return stamp

    def is_read(*words: Any) -> bool:
        there = real_read(*words)
        if there and not removed:
            removed.append(words[3].version)
            delete(two, "k", removed[0])
        return there

    monkeypatch.setattr(Publisher, "_settle", settle)
    monkeypatch.setattr(current, "_is_read", is_read)
    put(one, "k", b"x" * (SMALL + 1))
    assert removed and rows_of(three).keys() == {("k", deleted[0])}
    assert agree(worlds, "k") is None


@pytest.mark.parametrize("status", ["Enabled", "Suspended"])
@pytest.mark.parametrize("size", [5, SMALL + 1])
def test_puts_beside_deletions_are_served_and_listed_or_neither(
    worlds: list[World], status: str, size: int
) -> None:
    one, two, three = worlds
    versioning(worlds, status)
    keys = [f"k{number}" for number in range(24)]
    with ThreadPoolExecutor(2) as pool:
        for number, key in enumerate(keys):
            acts = [(put, (one, key, b"x" * size)), (delete, (two, key))]
            for done in [pool.submit(act, *words) for act, words in acts[:: 1 if number % 2 else -1]]:
                done.result()
    listed = {row.key for row in three.index.page("bkt", limit=99).rows}
    assert listed == {key for key in keys if served(three, key) is not None}
    versions = rows_of(three)
    scan(three)
    assert rows_of(three).keys() == versions.keys()
    assert listed == {row.key for row in three.index.page("bkt", limit=99).rows}


@pytest.mark.parametrize("key", ["odd//key", "a"])
def test_a_deletion_of_a_key_that_only_the_index_leads_to_holds(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Acknowledged when who makes an older version current has just looked for markers; with a directory of
    the key's name in the way, too."""
    one, two, _ = worlds
    if key == "a":
        put(one, "a/b", b"in the way")
    put(one, key, b"1")
    newest = put(one, key, b"22")
    stored_it, go_on = threading.Event(), threading.Event()
    store_marker, copy_body = deletes._store_marker, one.store.copy

    def held_marker(*words: Any) -> Entry:
        stamp = store_marker(*words)
        stored_it.set()
        assert go_on.wait(WAIT_S)
        return stamp

    monkeypatch.setattr(deletes, "_store_marker", held_marker)
    with ThreadPoolExecutor(1) as pool:
        deleting: list[Any] = []

        def copy(*words: Any, **more: Any) -> Entry:
            if not deleting:
                deleting.append(pool.submit(delete, two, key))
            assert stored_it.wait(WAIT_S)
            return copy_body(*words, **more)

        def acknowledged() -> None:
            go_on.set()
            deleting[0].result()

        monkeypatch.setattr(one.store, "copy", copy)
        held(monkeypatch, one, becomes_current, acknowledged)
        delete(one, key, newest)
    assert deleting and agree(worlds, key) is None
    put(two, key, b"333")
    assert agree(worlds, key) == b"333"


# the version "null" ---------------------------------------------------------------------------------------
def test_a_rule_for_an_older_version_takes_nothing_that_is_put_under_its_id(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Body and row; it has its stamp from before the removal."""
    one, two, three = worlds
    versioning(worlds, "Suspended")
    put(one, "k", b"old null")
    versioning(worlds, "Enabled")
    put(one, "k", b"between")
    versioning(worlds, "Suspended")
    judged = one.index.lookup("bkt", "k", "null")
    assert judged is not None
    placed, go_on = threading.Event(), threading.Event()
    real = publish.drop_null

    def drop_null(site: Any, *words: Any) -> list[Change]:
        if site is two.site:
            placed.set()
            assert go_on.wait(WAIT_S)
        return real(site, *words)

    monkeypatch.setattr(publish, "drop_null", drop_null)
    with ThreadPoolExecutor(1) as pool:
        real_body = deletes._remove_body
        putting: list[Any] = []

        def remove_body(*words: Any, **more: Any) -> int:
            if not putting:
                putting.append(pool.submit(put, two, "k", b"new null"))
                assert placed.wait(WAIT_S)
            return real_body(*words, **more)

        def told() -> None:
            go_on.set()
            putting[0].result()

        monkeypatch.setattr(deletes, "_remove_body", remove_body)
        held(monkeypatch, one, lambda change: isinstance(change, Remove), told)
        deletes.delete_version(one.site, one.site.bucket("bkt"), "k", "null", older=True, judged=judged)
    assert agree(worlds, "k") == b"new null"
    assert ("k", "null") in rows_of(three)


def test_the_version_null_that_is_removed_before_the_index_hears_of_it_stays_removed(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = worlds
    older = put(one, "k", b"1")
    delete(one, "k")
    versioning(worlds, "Suspended")
    real = one.site.told.tell

    def tell(call: Callable[[], None], changes: Sequence[Change]) -> None:
        delete(two, "k", "null")
        real(call, changes)

    with monkeypatch.context() as putting:
        putting.setattr(one.site.told, "tell", tell)
        put(one, "k", b"22")
    newest = three.index.lookup("bkt", "k")
    assert newest is not None and newest.marker
    assert agree(worlds, "k") is None
    rows = rows_of(three)
    assert ("k", "null") not in rows and ("k", older) in rows


def test_what_is_put_over_a_marker_null_does_not_bring_an_older_version_back_meanwhile(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _, three = worlds
    put(one, "k", b"1")
    versioning(worlds, "Suspended")
    delete(one, "k")
    real = one.index.apply
    current: list[str] = []

    def apply(changes: Sequence[Change]) -> None:
        real(changes)
        row = three.index.lookup("bkt", "k")
        current.append("" if row is None else row.version)

    monkeypatch.setattr(one.index, "apply", apply)
    put(one, "k", b"22")
    assert set(current) == {"null"}
    assert agree(worlds, "k") == b"22"


def test_with_versioning_suspended_what_is_served_is_listed_and_has_its_file(
    worlds: list[World], seed: int
) -> None:
    """Three processes put, delete and remove versions of a key at random, the version "null" too; of each key
    only a few times, so that nothing that comes later mends it."""
    chance = random.Random(seed)

    def act(world: World, key: str, *numbers: int) -> None:
        for number in numbers:
            step(world, key, random.Random(number))

    def step(world: World, key: str, choice: random.Random) -> None:
        what = choice.random()
        rows = world.index.page_versions("bkt", prefix=key, limit=9).rows
        if what < 0.35:
            put(world, key, b"x" * choice.choice((3, SMALL + 1)))
        elif what < 0.6:
            delete(world, key)
        elif what < 0.75 or not rows:
            delete(world, key, "null")
        else:
            delete(world, key, choice.choice(rows).version)

    keys = [f"k{number:03}" for number in range(ROUNDS)]
    for key in keys:
        act(worlds[0], key, chance.getrandbits(32))
    versioning(worlds, "Suspended")
    time.sleep(FRESH_S)
    bucket = worlds[0].site.bucket("bkt")
    for key in keys:
        act(worlds[0], key, chance.getrandbits(32))
        numbers = [[chance.getrandbits(32) for _ in range(2)] for _ in worlds]
        with ThreadPoolExecutor(len(worlds)) as pool:
            for done in [
                pool.submit(act, one, key, *some) for one, some in zip(worlds, numbers, strict=True)
            ]:
                done.result()
        row = worlds[2].index.lookup("bkt", key)
        try:
            meta = meta_of(bucket, worlds[2].store.stat("bkt", key))
        except Missing:
            meta = None
        listed = None if row is None or row.marker else (row.version, row.modified_ns)
        assert listed == (None if meta is None else (meta.version, meta.modified_ns)), key
        for one in worlds[2].index.page_versions("bkt", prefix=key, limit=20).rows:
            answer = worlds[2].ask("GET", f"/bkt/{key}", query={"versionId": one.version})
            assert answer.status == (405 if one.marker else 200), (key, one.version)
    before = rows_of(worlds[2]).keys()
    scan(worlds[2])
    assert rows_of(worlds[2]).keys() == before


def test_a_deletion_holds_beside_the_removal_of_an_older_version(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which made current again what the deletion had just put aside: it was acknowledged and undone."""
    one, two, _ = worlds
    older = put(one, "k", b"1")
    put(one, "k", b"22")
    held(monkeypatch, one, is_marker, lambda: void(delete(two, "k", older)))
    delete(one, "k")
    assert agree(worlds, "k") is None


def is_marker(change: Change) -> bool:
    return isinstance(change, Put) and change.row.marker


@pytest.mark.parametrize("what", ["page_versions", "apply"])
def test_a_removal_waits_for_a_database_that_is_away_for_a_moment(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Its body has gone by then; a scan took the version before it for one that others had removed."""
    one = worlds[0]
    put(one, "k", b"1")
    newest = put(one, "k", b"22")
    remove, ask = one.store.delete, getattr(one.index, what)
    away: list[int] = []

    def gone(*words: Any, **more: Any) -> int:
        stamp = int(remove(*words, **more))
        away.append(1)
        monkeypatch.setattr(one.store, "delete", remove)
        return stamp

    def broken(*words: Any, **more: Any) -> Any:
        if away:
            away.clear()
            raise Away("the connection has ended")
        return ask(*words, **more)

    monkeypatch.setattr(one.store, "delete", gone)
    monkeypatch.setattr(one.index, what, broken)
    delete(one, "k", newest)
    assert agree(worlds, "k") == b"1"
