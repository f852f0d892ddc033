"""Pages of versions: what goes between two of them, the last one of a page above all, changes nothing of what
the next page begins with."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_stores import STORES
from s3_world import SECOND, World

from cumulus.auth import lifecycle
from cumulus.index import listing
from cumulus.index.api import Put, Row
from cumulus.ops import jobs
from cumulus.ops.jobs import Jobs

DAY = 24 * 3600 * SECOND


@pytest.fixture(params=["posix", "memory", "fsspec"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(STORES[request.param](tmp_path))
    made.boto().create_bucket(Bucket="bkt")
    made.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Enabled"})
    yield made
    made.close()


def put(world: World, key: str, count: int) -> list[str]:
    """Versions, the newest first."""
    client = world.boto()
    made = [client.put_object(Bucket="bkt", Key=key, Body=b"x" * n)["VersionId"] for n in range(count)]
    return made[::-1]


@pytest.mark.parametrize("page", [2, 3, 4, 5, 7])
def test_rules_keep_the_newest_versions_wherever_a_page_ends(
    world: World, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """Those that a rule keeps were removed where a page of rows ended within the versions of their key."""
    monkeypatch.setattr(jobs, "PAGE", page)
    there = {key: put(world, key, 6) for key in ("a", "b", "c")}
    keep = {"NoncurrentDays": 1, "NewerNoncurrentVersions": 2}
    rule = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": ""}, "NoncurrentVersionExpiration": keep}
    world.boto().put_bucket_lifecycle_configuration(Bucket="bkt", LifecycleConfiguration={"Rules": [rule]})
    world.skew_ns = 3 * DAY
    done = Jobs(world.site, lifecycle).run()
    world.skew_ns = 0
    found: dict[str, list[str]] = {}
    for one in world.boto().list_object_versions(Bucket="bkt")["Versions"]:
        found.setdefault(one["Key"], []).append(one["VersionId"])
    assert found == {key: ids[:3] for key, ids in there.items()}
    assert done.expired == 9


@pytest.mark.parametrize("gone", [0, 1])
def test_a_listing_goes_on_where_it_ended_though_that_version_is_gone(world: World, gone: int) -> None:
    """Or the one before it. As those do who remove what they have listed, but for the newest of each key."""
    there = {key: put(world, key, 5) for key in ("a", "b")}
    client = world.boto()
    seen: list[tuple[str, str]] = []
    place: dict[str, str] = {}
    while True:
        page = client.list_object_versions(Bucket="bkt", MaxKeys=3, **place)
        some = [(one["Key"], one["VersionId"]) for one in page["Versions"]]
        seen += some
        if not page["IsTruncated"]:
            break
        key, version = some[-1 - gone]
        client.delete_object(Bucket="bkt", Key=key, VersionId=version)
        place = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}
    assert seen == [(key, version) for key, ids in there.items() for version in ids]


def test_a_listing_begins_behind_a_version_that_is_named(world: World) -> None:
    """By who makes markers from the ids that a listing shows; one that is gone lets its key begin anew."""
    ids = put(world, "a", 4)
    client = world.boto()

    def behind(version: str) -> list[str]:
        page = client.list_object_versions(Bucket="bkt", KeyMarker="a", VersionIdMarker=version)
        return [one["VersionId"] for one in page.get("Versions", [])]

    assert behind(ids[1]) == ids[2:]
    client.delete_object(Bucket="bkt", Key="a", VersionId=ids[1])
    assert behind(ids[1]) == [ids[0], *ids[2:]]
    for bad in ("x", f"{ids[0]}-", f"{ids[0]}-xyz", f"{ids[0]}-{'1' * 17}", f"-{ids[0]}"):
        query = {"versions": "", "key-marker": "a", "version-id-marker": bad}
        assert world.ask("GET", "/bkt", query=query).code == "InvalidArgument", bad


@pytest.mark.parametrize("world", ["memory"], indirect=True)
def test_a_page_within_very_many_versions_reads_what_it_shows(world: World) -> None:
    """Each page read all that were newer: a million versions of one key took hours, and the last pages
    seconds each."""
    owner = world.people.users["alice"].id
    common = {"bucket": "bkt", "key": "k", "name": "k", "token": b"t", "size": 1, "etag": "e", "owner": owner}
    rows = [Row(version=f"{9999 - n:016x}{0:016x}", stamp=n, modified_ns=n, **common) for n in range(1, 3001)]
    for at in range(0, len(rows), 500):
        world.index.apply([Put(row=row, keep=True) for row in rows[at : at + 500]])
    read = 0

    class Cursor:
        def __init__(self, cursor: Any) -> None:
            self._cursor = cursor
            self.close = cursor.close
            self.fetchone = cursor.fetchone

        def __iter__(self) -> Iterator[Any]:
            nonlocal read
            for values in self._cursor:
                read += 1
                yield values

    found: list[Row] = []
    place = {"after": "", "after_version": ""}
    with sqlite3.connect(f"file:{database(world)}?mode=ro", uri=True) as connection:
        for _ in range(30):
            page = listing.page_versions(
                lambda *asked: Cursor(connection.execute(*asked)),
                "bkt",
                prefix="",
                delimiter="",
                limit=100,
                **place,
            )
            found += page.rows
            place = {"after": page.next, "after_version": page.next_version}
    connection.close()
    assert [row.stamp for row in found] == list(range(3000, 0, -1))
    assert [row.latest for row in found].count(True) == 1 and not page.truncated
    assert read < 3500


def database(world: World) -> str:
    """The file of the index."""
    return str(world.index._readers._path)  # type: ignore[attr-defined]
