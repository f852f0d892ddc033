"""With versioning suspended a delete marker "null" takes the place of the version "null", another marker too:
what was deleted does not come back in between, and a deletion that fails takes nothing with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from s3_processes import processes
from s3_world import World
from test_s3_version_races import rows_of
from test_s3_versions_at_once import WAIT_S, agree, delete, put, scan, served, versioning

from cumulus.admin import doctor
from cumulus.backends.posix import publish as posix_publish
from cumulus.index.api import Change
from cumulus.ops import deletes, jobs, publish
from cumulus.ops.names import version_name
from cumulus.ops.rows import meta_of
from cumulus.storage.api import Entry, Missing, NoSpace, StorageError


@pytest.fixture
def worlds(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[World]]:
    monkeypatch.setattr(jobs, "SETTLE_S", 0.01)
    with processes("posix", database, tmp_path) as made:
        versioning(made, "Enabled")
        yield made


def test_a_key_that_is_deleted_twice_is_deleted_meanwhile(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One marker "null" takes the other's place in one step."""
    one, _, three = worlds
    put(one, "k", b"1")
    versioning(worlds, "Suspended")
    delete(one, "k")
    real = one.index.apply
    newest: list[str] = []

    def apply(changes: Sequence[Change]) -> None:
        real(changes)
        row = three.index.lookup("bkt", "k")
        newest.append("" if row is None else row.version)

    monkeypatch.setattr(one.index, "apply", apply)
    delete(one, "k")
    assert set(newest) == {"null"}
    assert agree(worlds, "k") is None


@pytest.mark.parametrize("null", ["marker", "body"])
def test_a_deletion_for_which_there_is_no_room_takes_no_version_null_with_it(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, null: str
) -> None:
    """Neither the marker of a deletion before it nor what is behind a newer version."""
    one, _, three = worlds
    if null == "body":
        versioning(worlds, "Suspended")
        put(one, "k", b"old null")
        versioning(worlds, "Enabled")
    newer = put(one, "k", b"1")
    versioning(worlds, "Suspended")
    if null == "marker":
        delete(one, "k")
    before = rows_of(three).keys()

    def full(*_: Any) -> Entry:
        raise NoSpace("no room")

    with monkeypatch.context() as broken:
        broken.setattr(deletes, "_store_marker", full)
        broken.setattr(one.store, "make_room", lambda: False)
        assert one.ask("DELETE", "/bkt/k").status == 507
    assert {served(world, "k") for world in worlds} == {None if null == "marker" else b"1"}
    assert rows_of(three).keys() == before
    answer = one.ask("GET", "/bkt/k", query={"versionId": "null"})
    assert (answer.status, answer.body == b"old null") == ((405, False) if null == "marker" else (200, True))
    delete(one, "k")
    assert agree(worlds, "k") is None
    markers = {version: row.marker for (_, version), row in rows_of(three).items()}
    assert markers == {"null": True, newer: False}
    assert three.index.usage("bucket", "bkt").bytes == 1


@pytest.mark.parametrize("all_names", [False, True])
@pytest.mark.parametrize("null", ["marker", "body"])
def test_a_deletion_that_storage_refuses_leaves_what_its_marker_would_have_replaced(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, null: str, all_names: bool
) -> None:
    """`all_names`: its marker cannot be taken back either."""
    one, _, three = worlds
    versioning(worlds, "Suspended")
    if null == "body":
        put(one, "k", b"old null")
    else:
        delete(one, "k")
    versioning(worlds, "Enabled")
    newer = put(one, "k", b"1")
    versioning(worlds, "Suspended")
    before = rows_of(three).keys()
    assert before == {("k", newer), ("k", "null")}
    real = one.store.delete

    def refused(bucket: str, name: str, *more: Any) -> int:
        if name == "k" or all_names:
            raise StorageError("the disk")
        return real(bucket, name, *more)

    with monkeypatch.context() as broken:
        broken.setattr(one.store, "delete", refused)
        assert one.ask("DELETE", "/bkt/k").status >= 500
    assert rows_of(three).keys() == before
    assert {served(world, "k") for world in worlds} == {b"1"}
    answer = three.ask("GET", "/bkt/k", query={"versionId": "null"})
    assert (answer.status, answer.body == b"old null") == ((405, False) if null == "marker" else (200, True))
    delete(one, "k")
    assert agree(worlds, "k") is None


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("by", ["scan", "rebuild"])
def test_a_deletion_that_is_killed_leaves_no_version_without_a_body(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, older: bool, by: str
) -> None:
    """At the moment when its marker was stored in the place of version "null", of which the index still has a
    body; `older`: there is one behind that."""
    one, two, three = worlds
    if older:
        put(one, "k", b"v0")
    versioning(worlds, "Suspended")
    put(one, "k", b"old null")
    versioning(worlds, "Enabled")
    newer = put(one, "k", b"1")
    versioning(worlds, "Suspended")

    real = deletes._store_marker

    def killed(*words: Any) -> Entry:
        real(*words)
        raise KeyboardInterrupt

    with monkeypatch.context() as killing:
        killing.setattr(deletes, "_store_marker", killed)
        with pytest.raises(KeyboardInterrupt):
            one.ask("DELETE", "/bkt/k")
    if by == "scan":
        scan(two)
    else:
        doctor.rebuild(two.index, two.store, two.site.bucket("bkt"))
    assert three.index.lookup("bkt", "k", "null") is None or three.index.lookup("bkt", "k", "null").marker
    for _, version in rows_of(three):
        answer = three.ask("GET", "/bkt/k", query={"versionId": version})
        assert answer.status in (200, 405), version
    if by == "rebuild":
        return
    delete(two, "k", newer)
    scan(two)
    assert {served(world, "k") for world in worlds} == {None}  # the deletion has taken place
    assert [row.key for row in three.index.page("bkt", limit=9).rows] == []
    row = three.index.lookup("bkt", "k", "null")
    assert row is not None and row.marker and row.latest


@pytest.mark.parametrize("behind_ns", [0, 5 * 10**7])
def test_an_upload_over_a_marker_null_leaves_the_marker_of_a_deletion_that_comes_after_it(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, behind_ns: int
) -> None:
    """It has not told the index when the deletion finds it; a scan took the marker out and undid that.
    `behind_ns`: the clock of the server that deletes."""
    one, two, _ = worlds
    put(one, "k", b"1")
    versioning(worlds, "Suspended")
    delete(one, "k")
    stored_it, go_on = threading.Event(), threading.Event()
    store_marker, drop_aside = deletes._store_marker, publish._drop_aside

    def held_marker(*words: Any) -> Entry:
        clock = SimpleNamespace(time_ns=lambda: time.time_ns() - behind_ns, monotonic=time.monotonic)
        with monkeypatch.context() as behind:
            behind.setattr(posix_publish, "time", clock)
            stamp = store_marker(*words)
        stored_it.set()
        assert go_on.wait(WAIT_S)
        return stamp

    monkeypatch.setattr(deletes, "_store_marker", held_marker)
    with ThreadPoolExecutor(1) as pool:
        deleting: list[Any] = []

        def drop(*words: Any) -> None:
            if not deleting:
                deleting.append(pool.submit(delete, two, "k"))
                assert stored_it.wait(WAIT_S)
            drop_aside(*words)

        monkeypatch.setattr(publish, "_drop_aside", drop)
        put(one, "k", b"22")
        go_on.set()
        deleting[0].result()
    assert agree(worlds, "k") is None
    stored = one.store.stat("bkt", version_name("k", "null"))
    meta = meta_of(one.site.bucket("bkt"), stored)
    assert meta is not None and meta.marker


def test_tags_that_a_version_null_gets_while_it_is_replaced_do_not_keep_its_body(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, _ = worlds
    versioning(worlds, "Suspended")
    put(one, "k", b"old null")
    versioning(worlds, "Enabled")
    put(one, "k", b"1")
    versioning(worlds, "Suspended")
    real = publish._drop_aside
    tags = b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
    tagged: list[int] = []

    def drop(*words: Any) -> None:
        if not tagged:
            answer = two.ask("PUT", "/bkt/k", tags, query={"tagging": "", "versionId": "null"})
            tagged.append(answer.status)
        real(*words)

    monkeypatch.setattr(publish, "_drop_aside", drop)
    put(one, "k", b"new null")
    assert tagged == [200]
    assert agree(worlds, "k") == b"new null"
    with pytest.raises(Missing):
        one.store.stat("bkt", version_name("k", "null"))
