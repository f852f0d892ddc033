"""Three processes on one tree and one index put, mark and remove versions of few keys at random, while scans
and upkeep run: what was removed is gone, from the disk too, and what was not is there."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from s3_processes import processes
from s3_world import World

from cumulus.index.api import Change, Put, Row
from cumulus.ops import deletes
from cumulus.ops.jobs import Done, forget_versions, rescan
from cumulus.ops.names import BODIES, ODD, VERSIONS
from cumulus.ops.rows import meta_of
from cumulus.storage.api import Entry, ObjectStream

KEYS = ("k", "l")
STAYS = 9  # bytes of versions that nobody removes
ROUNDS = int(os.environ.get("SECTOR_TEST_S3_VERSION_ROUNDS", "250"))  # of each of three


@pytest.fixture(params=["posix", "memory"])
def worlds(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Iterator[list[World]]:
    with processes(request.param, database, tmp_path) as made:
        s3 = made[0].boto()
        s3.put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Enabled"})
        yield made


class User:
    """One client of one process: `kept` and `gone` are versions by key and id, as it was told."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.random = world, random.Random(seed)
        self.kept: dict[tuple[str, str], bytes | None] = {}
        self.gone: set[tuple[str, str]] = set()
        self.stays: list[tuple[str, str, bytes]] = []

    def run(self, rounds: int) -> None:
        for number in range(rounds):
            self.step(self.random.choice(KEYS), b"%d" % number)

    def step(self, key: str, body: bytes) -> None:
        what = self.random.random()
        if what < 0.15:
            self.read()
            return
        if what < 0.55:
            put = what < 0.45
            if self.random.random() < 0.2:
                body = body.rjust(STAYS, b"-")
            answer = self.world.ask("PUT" if put else "DELETE", f"/bkt/{key}", body if put else b"")
            assert answer.status == (200 if put else 204), answer.body
            version = answer.headers["x-amz-version-id"]
            self.kept[key, version] = body if put else None
            if put and len(body) == STAYS:
                self.stays.append((key, version, body))
            return
        rows = self.world.index.page_versions("bkt", prefix=key, limit=20).rows
        rows = [row for row in (rows[:1] if what < 0.8 else rows[1:]) if row.size != STAYS]
        if rows:
            version = self.random.choice(rows).version
            answer = self.world.ask("DELETE", f"/bkt/{key}", query={"versionId": version})
            assert answer.status == 204, answer.body
            self.gone.add((key, version))

    def read(self) -> None:
        """A version that nobody removes is there at any moment."""
        if self.stays:
            key, version, body = self.random.choice(self.stays)
            answer = self.world.ask("GET", f"/bkt/{key}", query={"versionId": version})
            assert (answer.status, answer.body) == (200, body), (version, answer)


def upkeep(world: World, over: threading.Event) -> None:
    bucket = world.site.bucket("bkt")
    while not over.wait(0.02):
        forget_versions(world.site, bucket, Done())
        if world.store.capabilities.outside:
            rescan(world.site, bucket, Done())


def rows_of(world: World) -> dict[tuple[str, str], Row]:
    found: dict[tuple[str, str], Row] = {}
    after = version = ""
    while True:
        page = world.index.page_versions("bkt", after=after, after_version=version, limit=1000)
        found |= {(row.key, row.version): row for row in page.rows}
        if not page.truncated:
            return found
        after, version = page.next, page.next_version


def stored(world: World) -> list[str]:
    """Versions on disk, also those without a row: "KEY VERSION" each."""
    found: list[str] = []
    bucket = world.site.bucket("bkt")
    for prefix in ("", VERSIONS, BODIES, ODD):
        for entry in world.store.names("bkt", prefix=prefix, limit=100_000):
            meta = meta_of(bucket, entry)
            assert meta is not None
            found.append(f"{meta.key} {meta.version}")
    return sorted(found)


def test_versions_of_three_processes_are_as_they_were_told(worlds: list[World], seed: int) -> None:
    users = [User(world, seed * 3 + number) for number, world in enumerate(worlds)]
    over = threading.Event()
    with ThreadPoolExecutor(4) as pool:
        beside = pool.submit(upkeep, worlds[2], over)
        try:
            for done in [pool.submit(user.run, ROUNDS) for user in users]:
                done.result()
        finally:
            over.set()
        beside.result()
    world = worlds[0]
    for one in worlds:
        one.site.empty_bin(all_of_it=True)
    kept = {name: body for user in users for name, body in user.kept.items()}
    gone = {name for user in users for name in user.gone}
    rows = rows_of(world)
    assert not [rows[name] for name in rows if name in gone], "removed"
    assert not [rows[name] for name in rows if name not in kept], "made by nobody"
    assert not [name for name in kept if name not in gone and name not in rows], "lost"
    bodies = [f"{key} {version}" for (key, version), row in rows.items() if not row.marker]
    markers = [f"{key} {version}" for (key, version), row in rows.items() if row.marker]
    assert stored(world) == sorted(bodies + markers)
    for (key, version), row in rows.items():
        if not row.marker:
            answer = world.ask("GET", f"/bkt/{key}", query={"versionId": version})
            assert answer.body == kept[key, version]
    for key in KEYS:
        mine = [row for (name, _), row in rows.items() if name == key]
        newest = max(mine, key=lambda row: row.stamp, default=None)
        assert [row for row in mine if row.latest] == ([newest] if newest else [])
        answer = world.ask("GET", f"/bkt/{key}")
        if newest is None or newest.marker:
            assert answer.status == 404
        else:
            assert answer.body == kept[key, newest.version]
            if world.store.capabilities.outside:  # who reads the directory finds it as well
                assert world.store.stat("bkt", key).token == newest.token


def nobody_tells(world: World, monkeypatch: pytest.MonkeyPatch, key: str, body: bytes) -> str:
    """A version whose process stops for long, or is killed, when it is in its place; its id."""
    with monkeypatch.context() as stopped:
        stopped.setattr(world.site.told, "apply", lambda changes: None)
        stopped.setattr(world.site.told, "tell", lambda call, changes: None)
        return str(world.ask("PUT", f"/bkt/{key}", body).headers["x-amz-version-id"])


def is_gone(worlds: list[World], key: str, version: str) -> None:
    """For all processes, and after a scan; nothing is left on the disk but what rows name."""
    world = worlds[2]
    bucket = world.site.bucket("bkt")
    forget_versions(world.site, bucket, Done())
    rescan(world.site, bucket, Done())
    for one in worlds:
        one.site.empty_bin(all_of_it=True)
        assert one.ask("GET", f"/bkt/{key}", query={"versionId": version}).status == 404
    rows = rows_of(world)
    assert (key, version) not in rows
    assert stored(world) == sorted(f"{key} {version}" for key, version in rows)


@pytest.mark.parametrize("worlds", ["posix"], indirect=True)
@pytest.mark.parametrize("key", ["k", "odd//key"])
@pytest.mark.parametrize("act", ["PUT", "DELETE"])
def test_a_version_that_is_removed_while_it_is_replaced_stays_gone(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, key: str, act: str
) -> None:
    """The index hears of it from who replaces it, under the name that it gets as an older version; it has
    that of the key too until it is replaced. Removed between the two, it came back, and for good."""
    one, two, three = worlds
    assert one.ask("PUT", f"/bkt/{key}", b"0").status == 200
    version = nobody_tells(one, monkeypatch, key, b"1")
    removed: list[int] = []
    real = two.index.apply

    def apply(changes: Sequence[Change]) -> None:
        real(changes)
        if not removed and any(isinstance(put, Put) and put.row.version == version for put in changes):
            removed.append(three.ask("DELETE", f"/bkt/{key}", query={"versionId": version}).status)

    monkeypatch.setattr(two.index, "apply", apply)
    answer = two.ask(act, f"/bkt/{key}", b"22" if act == "PUT" else b"")
    assert answer.status in (200, 204) and removed == [204]
    is_gone(worlds, key, version)
    assert two.ask("GET", f"/bkt/{key}").status == (200 if act == "PUT" else 404)


@pytest.mark.parametrize("worlds", ["posix"], indirect=True)
@pytest.mark.parametrize("key", ["k", "odd//key"])
def test_a_version_that_is_removed_while_it_becomes_current_stays_gone(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Of the names that it has then the index knows that of an older version alone."""
    one, two, three = worlds
    older = nobody_tells(one, monkeypatch, key, b"1")
    newer = two.ask("PUT", f"/bkt/{key}", b"22").headers["x-amz-version-id"]
    row = three.index.lookup("bkt", key, older)
    assert row is not None and row.name.startswith(VERSIONS)
    removed: list[int] = []
    real = two.store.copy

    def copy(source: ObjectStream, bucket: str, name: str, *rest: Any) -> Entry:
        entry = real(source, bucket, name, *rest)
        removed.append(three.ask("DELETE", f"/bkt/{key}", query={"versionId": older}).status)
        return entry

    monkeypatch.setattr(two.store, "copy", copy)
    assert two.ask("DELETE", f"/bkt/{key}", query={"versionId": newer}).status == 204 and removed == [204]
    is_gone(worlds, key, older)
    assert two.ask("GET", f"/bkt/{key}").status == 404


@pytest.mark.parametrize("worlds", ["posix"], indirect=True)
@pytest.mark.parametrize("key", ["k", "odd//key"])
@pytest.mark.parametrize("when", ["before", "beside"])
def test_a_deletion_covers_what_another_process_makes_current(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, key: str, when: str
) -> None:
    """The newest version has just gone, so that who deletes the key finds nothing there; the one before it
    comes back before the marker is stored, or after it. It was served, while the marker was listed."""
    one, two, three = worlds
    older = one.ask("PUT", f"/bkt/{key}", b"1").headers["x-amz-version-id"]
    newer = one.ask("PUT", f"/bkt/{key}", b"22").headers["x-amz-version-id"]
    found_nothing, go_on = threading.Event(), threading.Event()
    store_marker, copy_body = deletes._store_marker, one.store.copy
    markers: list[str] = []

    def delete() -> None:
        answer = two.ask("DELETE", f"/bkt/{key}")
        markers.append(answer.headers["x-amz-version-id"])

    def held(*words: Any) -> Entry:
        found_nothing.set()
        assert go_on.wait(20)
        return store_marker(*words)

    deleting = threading.Thread(target=delete)

    def copy(*words: Any, **more: Any) -> Entry:
        if when == "before":
            go_on.set()
        deleting.start()
        assert found_nothing.wait(20)
        if when == "before":
            deleting.join()
        return copy_body(*words, **more)

    monkeypatch.setattr(deletes, "_store_marker", held)
    monkeypatch.setattr(one.store, "copy", copy)
    assert one.ask("DELETE", f"/bkt/{key}", query={"versionId": newer}).status == 204
    go_on.set()
    deleting.join()
    for world in worlds:
        assert world.ask("GET", f"/bkt/{key}").status == 404
        assert world.ask("GET", f"/bkt/{key}", query={"versionId": older}).body == b"1"
    rows = rows_of(three)
    assert {version: (row.marker, row.latest) for (_, version), row in rows.items()} == {
        older: (False, False),
        markers[0]: (True, True),
    }
    bucket = three.site.bucket("bkt")
    rescan(three.site, bucket, Done())
    assert rows_of(three).keys() == rows.keys()
    assert stored(three) == sorted(f"{key} {version}" for key, version in rows)


def test_of_writers_with_the_same_condition_one_wins(worlds: list[World]) -> None:
    """In three processes at once: `If-None-Match: *` for a new key, then `If-Match` with its ETag, then a
    removal with that of the winner beside two more."""

    def together(key: str, headers: dict[str, str], *, removed: bool = False) -> list[int]:
        begin = threading.Barrier(3)

        def ask(number: int) -> int:
            begin.wait()
            method = "DELETE" if removed and not number else "PUT"
            body = b"" if method == "DELETE" else os.urandom(8)
            return worlds[number].ask(method, f"/bkt/{key}", body, headers=headers).status

        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(ask, range(3)))

    for number in range(20):
        key = f"c{number}"
        assert sorted(together(key, {"If-None-Match": "*"})) == [200, 412, 412]
        for removed in (False, True):
            etag = worlds[0].ask("HEAD", f"/bkt/{key}").headers["etag"]
            won = together(key, {"If-Match": etag}, removed=removed)
            assert sum(status in (200, 204) for status in won) == 1, won
