"""With versioning suspended a delete marker "null" takes the place of the version "null", another marker too:
what was deleted does not come back in between, and a deletion that fails takes nothing with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from s3_processes import processes
from s3_world import World
from test_s3_version_races import rows_of
from test_s3_versions_at_once import WAIT_S, agree, delete, put, served, versioning

from cumulus.index.api import Change
from cumulus.ops import deletes, jobs, publish
from cumulus.storage.api import NoSpace, StorageError


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

    def full(*_: Any) -> int:
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


@pytest.mark.parametrize("null", ["marker", "body"])
def test_a_deletion_that_storage_refuses_leaves_no_row_of_what_its_marker_has_replaced(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, null: str
) -> None:
    one, _, three = worlds
    versioning(worlds, "Suspended")
    if null == "body":
        put(one, "k", b"old null")
    else:
        delete(one, "k")
    versioning(worlds, "Enabled")
    newer = put(one, "k", b"1")
    versioning(worlds, "Suspended")
    real = one.store.delete

    def refused(bucket: str, name: str, *more: Any) -> int:
        if name == "k":
            raise StorageError("the disk")
        return real(bucket, name, *more)

    with monkeypatch.context() as broken:
        broken.setattr(one.store, "delete", refused)
        assert one.ask("DELETE", "/bkt/k").status >= 500
    assert rows_of(three).keys() == {("k", newer)}
    assert {served(world, "k") for world in worlds} == {b"1"}
    delete(one, "k")
    assert agree(worlds, "k") is None


def test_an_upload_over_a_marker_null_leaves_the_marker_of_a_deletion_that_comes_after_it(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not told the index when the deletion finds it; a scan took the marker out and undid that."""
    one, two, _ = worlds
    put(one, "k", b"1")
    versioning(worlds, "Suspended")
    delete(one, "k")
    stored_it, go_on = threading.Event(), threading.Event()
    store_marker, drop_null = deletes._store_marker, publish.drop_null

    def held_marker(*words: Any) -> int:
        stamp = store_marker(*words)
        stored_it.set()
        assert go_on.wait(WAIT_S)
        return stamp

    monkeypatch.setattr(deletes, "_store_marker", held_marker)
    with ThreadPoolExecutor(1) as pool:
        deleting: list[Any] = []

        def drop(*words: Any) -> list[Change]:
            if not deleting:
                deleting.append(pool.submit(delete, two, "k"))
                assert stored_it.wait(WAIT_S)
            return drop_null(*words)

        monkeypatch.setattr(publish, "drop_null", drop)
        put(one, "k", b"22")
        go_on.set()
        deleting[0].result()
    assert agree(worlds, "k") is None
