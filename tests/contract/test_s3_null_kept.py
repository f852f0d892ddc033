"""With versioning suspended a deletion destroys the version "null" behind a newer one when it is certain, and
not before: one that is refused, fails or is killed leaves its bytes, or has taken place."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from s3_processes import processes
from s3_stores import STORES
from s3_world import World
from test_s3_version_races import rows_of, stored
from test_s3_versions_at_once import WAIT_S, agree, delete, put, scan, served, versioning

from cumulus.admin import doctor
from cumulus.errors import S3Error
from cumulus.index.api import Index
from cumulus.index.registry import make_index
from cumulus.model import ObjectMeta
from cumulus.ops import deletes, jobs, publish
from cumulus.ops.names import VERSIONS, version_name
from cumulus.ops.rows import meta_of
from cumulus.storage.api import Entry, Missing, NoSpace, StorageError

OLD, NEW = b"old null", b"1"
TAGS = b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"


@pytest.fixture
def worlds(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[World]]:
    monkeypatch.setattr(jobs, "SETTLE_S", 0.01)
    with processes("posix", database, tmp_path) as made:
        yield made


def prepare(worlds: list[World], *keys: str, null: str = "body") -> str:
    """Keys with versioning suspended; the id of the newest version of the last. `null`: what is behind that
    ("current": that is it)."""
    newest = "null"
    versioning(worlds, "Suspended")
    for key in keys:
        if null in ("body", "current"):
            put(worlds[0], key, OLD)
        elif null == "marker":
            delete(worlds[0], key)
    if null != "current":
        versioning(worlds, "Enabled")
        for key in keys:
            newest = put(worlds[0], key, NEW)
        versioning(worlds, "Suspended")
    time.sleep(worlds[-1].index.lag_s)
    return newest


def null_of(world: World, key: str) -> bytes | None:
    answer = world.ask("GET", f"/bkt/{key}", query={"versionId": "null"})
    assert answer.status in (200, 404, 405)
    return answer.body if answer.status == 200 else None


def beside(monkeypatch: pytest.MonkeyPatch, world: World, meanwhile: Callable[[], object]) -> list[bool]:
    """`meanwhile` is done, once, when a deletion by that process is about to remove the object."""
    real = world.store.delete
    began: list[bool] = []

    def remove(bucket: str, name: str, *more: Any) -> int:
        if not began and not name.startswith(VERSIONS):
            began.append(True)
            meanwhile()
        return real(bucket, name, *more)

    monkeypatch.setattr(world.store, "delete", remove)
    return began


# refused --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("key", ["k", "odd//key"])
def test_a_deletion_that_is_refused_after_all_leaves_the_version_null(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """The newest version, which it is about, is removed by its id beside it."""
    one, two, _ = worlds
    newest = prepare(worlds, key)
    etag = one.ask("HEAD", f"/bkt/{key}").headers["etag"]
    began = beside(monkeypatch, one, lambda: delete(two, key, newest))
    assert one.ask("DELETE", f"/bkt/{key}", headers={"If-Match": etag}).status == 412
    assert began and {null_of(world, key) for world in worlds} == {OLD}
    assert agree(worlds, key) == OLD and rows_of(two).keys() == {(key, "null")}


@pytest.mark.parametrize("key", ["k", "odd//key"])
@pytest.mark.parametrize("null", ["body", "current"])
def test_a_rule_that_does_not_fit_any_more_leaves_the_version_null(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, key: str, null: str
) -> None:
    """Since the object has got tags meanwhile."""
    one, two, _ = worlds
    prepare(worlds, key, null=null)

    def due(meta: ObjectMeta) -> bool:
        return not meta.tags

    def tag() -> None:
        assert two.ask("PUT", f"/bkt/{key}", TAGS, query={"tagging": ""}).status == 200

    began = beside(monkeypatch, one, tag)
    bucket = one.site.bucket("bkt")
    with pytest.raises(S3Error) as refused:
        deletes.delete_current(one.site, bucket, key, bucket.owner, due=due)
    assert began and refused.value.code == "PreconditionFailed"
    before = rows_of(two).keys()
    assert {null_of(world, key) for world in worlds} == {OLD}
    body = OLD if null == "current" else NEW
    assert {served(world, key) for world in worlds} == {body}
    scan(two)
    assert rows_of(two).keys() == before and null_of(two, key) == OLD and served(two, key) == body
    delete(one, key)
    assert agree(worlds, key) is None and null_of(two, key) is None


def test_a_deletion_that_is_refused_leaves_the_version_null_that_becomes_an_older_one(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is about that, and with versioning enabled again it is replaced beside it."""
    one, two, _ = worlds
    prepare(worlds, "k", null="current")
    etag = one.ask("HEAD", "/bkt/k").headers["etag"]

    def replace() -> None:
        versioning(worlds[1:], "Enabled")
        assert put(two, "k", NEW) != "null"

    began = beside(monkeypatch, one, replace)
    assert one.ask("DELETE", "/bkt/k", headers={"If-Match": etag}).status == 412
    assert began and null_of(two, "k") == OLD
    assert agree(worlds, "k") == NEW and len(rows_of(two)) == 2


@pytest.mark.parametrize("null", ["body", "marker", "none"])
def test_what_could_not_be_deleted_has_its_name_again(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, null: str
) -> None:
    one, two, _ = worlds
    prepare(worlds, "k", null=null)
    before = rows_of(two).keys()

    def full(*_: Any) -> Entry:
        raise NoSpace("no room")

    with monkeypatch.context() as broken:
        broken.setattr(deletes, "_store_marker", full)
        broken.setattr(one.store, "make_room", lambda: False)
        assert one.ask("DELETE", "/bkt/k").status == 507
    assert one.store.stat("bkt", "k").size == 1
    assert null_of(two, "k") == (OLD if null == "body" else None)
    scan(two)
    assert rows_of(two).keys() == before and served(two, "k") == NEW
    delete(one, "k")
    assert agree(worlds, "k") is None


@pytest.mark.parametrize("key", ["k", "odd//key"])
def test_a_deletion_beside_one_that_fails_holds(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """It comes between the loss of the object's name and the error."""
    one, two, _ = worlds
    prepare(worlds, key)
    real, failed = deletes._store_marker, []

    def store_marker(*words: Any) -> Entry:
        if not failed:
            failed.append(True)
            delete(two, key)
            raise StorageError("the disk")
        return real(*words)

    monkeypatch.setattr(deletes, "_store_marker", store_marker)
    assert one.ask("DELETE", f"/bkt/{key}").status >= 500
    assert failed and agree(worlds, key) is None


def test_a_deletion_that_fails_leaves_the_version_null_that_is_just_made_current(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the removal of the newest version, which has copied it, and takes the older name away at last."""
    one, two, _ = worlds
    newest, null = prepare(worlds, "k"), version_name("k", "null")
    held, go_on = threading.Event(), threading.Event()
    real = two.store.delete

    def remove(bucket: str, name: str, *more: Any) -> int:
        if name == null:
            held.set()
            assert go_on.wait(WAIT_S)
        return real(bucket, name, *more)

    monkeypatch.setattr(two.store, "delete", remove)
    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as broken:
        removing = pool.submit(delete, two, "k", newest)
        assert held.wait(WAIT_S)

        def fails(*_: Any) -> Entry:
            go_on.set()
            removing.result()
            raise StorageError("the disk")

        broken.setattr(deletes, "_store_marker", fails)
        assert one.ask("DELETE", "/bkt/k").status >= 500
    assert removing.done() and null_of(two, "k") == OLD
    assert agree(worlds, "k") == OLD
    delete(one, "k")
    assert agree(worlds, "k") is None


def test_a_deletion_takes_no_older_version_for_the_copy_of_what_it_has_found(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version "null" becomes one after it was found, with versioning enabled again."""
    one, two, _ = worlds
    prepare(worlds, "k", null="current")
    real, began = deletes.null_aside, []

    def aside(*words: Any) -> Entry | None:
        if not began:
            began.append(True)
            versioning(worlds[1:], "Enabled")
            put(two, "k", NEW)
        return real(*words)

    monkeypatch.setattr(deletes, "null_aside", aside)
    etag = one.ask("HEAD", "/bkt/k").headers["etag"]
    assert one.ask("DELETE", "/bkt/k", headers={"If-Match": etag}).status == 412
    assert began and null_of(two, "k") == OLD
    assert agree(worlds, "k") == NEW and len(rows_of(two)) == 2


@pytest.mark.parametrize("null", ["marker", "none"])
def test_the_marker_null_before_one_that_is_taken_back_is_there_again(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, null: str
) -> None:
    """Of a deletion that storage refuses."""
    one, two, _ = worlds
    prepare(worlds, "k", null=null)
    name, real = version_name("k", "null"), one.store.delete
    bucket = one.site.bucket("bkt")

    def marker() -> ObjectMeta | None:
        try:
            return meta_of(bucket, one.store.stat("bkt", name))
        except Missing:
            return None

    def refused(bucket: str, name: str, *more: Any) -> int:
        if name == "k":
            raise StorageError("the disk")
        return real(bucket, name, *more)

    before = marker()
    assert (before is not None) == (null == "marker")
    with monkeypatch.context() as broken:
        broken.setattr(one.store, "delete", refused)
        assert one.ask("DELETE", "/bkt/k").status >= 500
    assert marker() == before
    scan(two)
    assert served(two, "k") == NEW and marker() == before
    delete(one, "k")
    assert agree(worlds, "k") is None


@pytest.mark.parametrize("key", ["k", "odd//key"])
def test_what_is_put_beside_a_deletion_that_takes_its_marker_back_outlives_a_rebuild(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """It has seen the marker "null" before the one of the deletion, which is refused since it has come."""
    one, two, three = worlds
    prepare(worlds, key, null="marker")
    etag = one.ask("HEAD", f"/bkt/{key}").headers["etag"]
    seen, go_on = threading.Event(), threading.Event()
    place = publish._place

    def held(*words: Any) -> Entry:
        seen.set()
        assert go_on.wait(WAIT_S)
        return place(*words)

    monkeypatch.setattr(publish, "_place", held)
    with ThreadPoolExecutor(1) as pool:
        putting = pool.submit(put, two, key, b"brand new")
        assert seen.wait(WAIT_S)

        def end() -> None:
            go_on.set()
            putting.result()

        began = beside(monkeypatch, one, end)
        assert one.ask("DELETE", f"/bkt/{key}", headers={"If-Match": etag}).status == 412
    assert began and {served(world, key) for world in worlds} == {b"brand new"}
    for lost in (False, True):
        index = make_index("sqlite://", directory=one.people)[0] if lost else three.index
        bucket = two.site.bucket("bkt")
        if lost:
            index.add_bucket(bucket)
        doctor.rebuild(index, two.store, bucket)
        assert rows_in(index, key)["null"] == (False, True)
        if lost:
            index.close()
    assert agree(worlds, key) == b"brand new"


# beside others --------------------------------------------------------------------------------------------
def test_a_version_null_that_becomes_current_while_a_marker_replaces_it_is_deleted(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who makes it current, since the newest version is removed by its id, has opened it before, and tells
    the index after."""
    one, two, _ = worlds
    newest = prepare(worlds, "k")
    opened, stored_it = threading.Event(), threading.Event()
    store_marker, copy_body = deletes._store_marker, two.store.copy
    with ThreadPoolExecutor(1) as pool:
        removing: list[Any] = []

        def copy(*words: Any, **more: Any) -> Entry:
            opened.set()
            assert stored_it.wait(WAIT_S)
            return copy_body(*words, **more)

        def store(*words: Any) -> Entry:
            if removing:
                return store_marker(*words)
            removing.append(pool.submit(delete, two, "k", newest))
            assert opened.wait(WAIT_S)
            marker = store_marker(*words)
            stored_it.set()
            removing[0].result()
            return marker

        monkeypatch.setattr(two.store, "copy", copy)
        monkeypatch.setattr(deletes, "_store_marker", store)
        delete(one, "k")
    assert agree(worlds, "k") is None
    assert {name: row.marker for name, row in rows_of(two).items()} == {("k", "null"): True}


@pytest.mark.parametrize("key", ["k", "odd//key"])
@pytest.mark.parametrize("condition", [False, True])
def test_what_is_put_while_a_deletion_is_under_way_stays_if_it_is_told(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, condition: bool, key: str
) -> None:
    """It replaces the version "null" before the marker could."""
    one, two, _ = worlds
    prepare(worlds, key)
    etag = one.ask("HEAD", f"/bkt/{key}").headers["etag"]
    real, began = deletes._store_marker, []

    def store_marker(*words: Any) -> Entry:
        if not began:
            began.append(True)
            put(two, key, b"brand new")
        return real(*words)

    monkeypatch.setattr(deletes, "_store_marker", store_marker)
    delete(one, key, **({"If-Match": etag} if condition else {}))
    assert began and agree(worlds, key) == b"brand new"


@pytest.mark.parametrize("key", ["k", "odd//key"])
@pytest.mark.parametrize("change", ["removal", "tags"])
def test_a_deletion_holds_beside_a_change_of_the_version_null(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, key: str, change: str
) -> None:
    """Which its marker was to replace: when the object has lost its name."""
    one, two, _ = worlds
    prepare(worlds, key)
    etag = one.ask("HEAD", f"/bkt/{key}").headers["etag"]
    real, began = deletes._store_marker, []

    def store_marker(*words: Any) -> Entry:
        if not began:
            began.append(True)
            if change == "removal":
                delete(two, key, "null")
            else:
                query = {"tagging": "", "versionId": "null"}
                assert two.ask("PUT", f"/bkt/{key}", TAGS, query=query).status == 200
        return real(*words)

    monkeypatch.setattr(deletes, "_store_marker", store_marker)
    delete(one, key, **{"If-Match": etag})
    assert began and agree(worlds, key) is None


def test_a_scan_beside_a_deletion_destroys_no_version_null(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes longer than a scan waits, and fails."""
    one, two, _ = worlds
    prepare(worlds, "k")

    def slow(*_: Any) -> Entry:
        scan(two)
        assert null_of(two, "k") == OLD and served(two, "k") == NEW
        raise StorageError("the disk")

    with monkeypatch.context() as broken:
        broken.setattr(deletes, "_store_marker", slow)
        assert one.ask("DELETE", "/bkt/k").status >= 500
    assert null_of(two, "k") == OLD and one.store.stat("bkt", "k").size == 1
    assert len(rows_of(two)) == 2
    scan(two)
    assert null_of(two, "k") == OLD and served(two, "k") == NEW


# killed ---------------------------------------------------------------------------------------------------
def killed(monkeypatch: pytest.MonkeyPatch, world: World, key: str, at: int) -> bool:
    """A deletion by a process that is killed before its change of that number in storage or index, from 0;
    False: it has no more than that."""
    count = itertools.count()

    def step(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **more: Any) -> Any:
            if next(count) >= at:
                raise KeyboardInterrupt
            return real(*words, **more)

        return call

    with monkeypatch.context() as killing:
        for place, name in (
            (world.store, "delete"),
            (world.store, "link"),
            (deletes, "_store_marker"),
            (world.index, "apply"),
        ):
            killing.setattr(place, name, step(getattr(place, name)))
        try:
            delete(world, key)
        except KeyboardInterrupt:
            return True
    return False


def name_is(world: World, name: str) -> str:
    """What storage has there."""
    try:
        meta = meta_of(world.site.bucket("bkt"), world.store.stat("bkt", name))
    except Missing:
        return ""
    assert meta is not None
    return "marker" if meta.marker else "body"


def rows_in(index: Index, key: str) -> dict[str, tuple[bool, bool]]:
    rows = index.page_versions("bkt", prefix=key, limit=9).rows
    return {row.version: (row.marker, row.latest) for row in rows}


@pytest.mark.parametrize("by", ["scan", "rebuild", "lost"])
@pytest.mark.parametrize("null", ["body", "marker", "none", "current"])
def test_a_killed_deletion_has_taken_place_or_leaves_the_version_null(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, null: str, by: str
) -> None:
    """At whichever step; a scan, a rebuild of the index and one of a lost index come to the same."""
    one, two, three = worlds
    keys = [f"k{number:02}" for number in range(12)]
    prepare(worlds, *keys, null=null)
    bucket = two.site.bucket("bkt")
    body = OLD if null == "current" else NEW
    for steps, key in enumerate(keys):
        if not killed(monkeypatch, one, key, steps):
            assert steps >= 3
            break
        own, aside = name_is(one, key), name_is(one, version_name(key, "null"))
        gone = not own and aside != "body"
        if null == "body":  # before anybody has looked
            assert gone or null_of(three, key) == OLD, steps
        if not gone:
            assert {served(world, key) for world in worlds} == {body}, steps
        if by == "lost":
            index = make_index("sqlite://", directory=one.people)[0]
            index.add_bucket(bucket)
            doctor.rebuild(index, two.store, bucket)
            rows = rows_in(index, key)
            index.close()
            assert [marker for marker, latest in rows.values() if latest] == [gone], steps
            if null in ("body", "current"):
                assert rows["null"] == (gone, gone or null == "current"), steps
            continue
        if by == "scan":
            scan(two)
        else:
            doctor.rebuild(two.index, two.store, bucket)
        for _ in range(2):
            assert {served(world, key) for world in worlds} == {None if gone else body}, steps
            for version, (marker, _) in rows_in(three.index, key).items():
                answer = three.ask("GET", f"/bkt/{key}", query={"versionId": version})
                assert answer.status == (405 if marker else 200), (steps, version)
            if null in ("body", "current"):
                assert null_of(three, key) == (None if gone else OLD), steps
            scan(two)
    for key in keys:  # as if that had not been
        put(two, key, b"another")
        assert served(three, key) == b"another"
        delete(one, key)
        assert served(three, key) is None
    scan(two)
    assert stored(two) == sorted(f"{key} {version}" for key, version in rows_of(two))


@pytest.mark.parametrize("null", ["current", "none"])
def test_an_upload_takes_away_the_marker_of_a_deletion_that_was_killed(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, null: str
) -> None:
    one, two, _ = worlds
    prepare(worlds, "k", null=null)
    steps = 0
    while name_is(one, version_name("k", "null")) != "marker":
        assert killed(monkeypatch, one, "k", steps)
        steps += 1
    assert served(two, "k") is not None
    put(two, "k", b"22")
    assert agree(worlds, "k") == b"22"


# other storage --------------------------------------------------------------------------------------------
@pytest.fixture(params=["posix", "memory", "fsspec"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """With the version "null" of "k" behind a newer one, and versioning suspended."""
    made = World(STORES[request.param](tmp_path))
    assert made.ask("PUT", "/bkt").status == 200
    prepare([made], "k")
    yield made
    made.close()


@pytest.mark.parametrize("fails", ["marker", "object"])
def test_a_deletion_that_storage_refuses_leaves_the_version_null(
    world: World, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    before = rows_of(world).keys()
    real = world.store.delete

    def refused(*words: Any, **more: Any) -> Any:
        raise StorageError("the disk")

    def remove(bucket: str, name: str, *more: Any) -> int:
        return refused() if name == "k" else real(bucket, name, *more)

    with monkeypatch.context() as broken:
        if fails == "marker":
            broken.setattr(deletes, "_store_marker", refused)
        elif world.site.atomic:
            broken.setattr(world.store, "delete", remove)
        else:
            broken.setattr(world.site.told, "apply", refused)
        assert world.ask("DELETE", "/bkt/k").status >= 500
    assert (served(world, "k"), null_of(world, "k")) == (NEW, OLD)
    assert rows_of(world).keys() == before
    delete(world, "k")
    assert (served(world, "k"), null_of(world, "k")) == (None, None)
    assert world.index.usage("bucket", "bkt").bytes == len(NEW)


def test_a_rebuild_after_a_killed_deletion_says_what_reads_have(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version "null" is there, or it is a marker. Of a deletion that was acknowledged it knows also when
    all of the index is lost, and the body of that version waits for its last readers."""
    steps = 0
    while null_of(world, "k") is not None and killed(monkeypatch, world, "k", steps):
        steps += 1
        before = (served(world, "k"), null_of(world, "k"))
        assert before[0] == NEW
        doctor.rebuild(world.index, world.store, world.site.bucket("bkt"))
        after = (served(world, "k"), null_of(world, "k"))
        assert after == (before if before[1] == OLD else (None, None)), steps
    assert steps >= 2
    delete(world, "k")
    assert (served(world, "k"), null_of(world, "k")) == (None, None)
    index = make_index("sqlite://", directory=world.people)[0]
    bucket = world.site.bucket("bkt")
    index.add_bucket(bucket)
    doctor.rebuild(index, world.store, bucket)
    assert rows_in(index, "k")["null"] == (True, True) and len(rows_in(index, "k")) == 2
    index.close()
