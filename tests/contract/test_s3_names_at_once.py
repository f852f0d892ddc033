"""`n/m` beside `n`, put by two processes while `n` goes: one of them finds its name taken and puts the object
under one of ours, the other one has it by then. What came last counts, for everybody and for good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from s3_processes import processes
from s3_world import World

from cumulus.ops.jobs import Done, rescan, take_in_odd
from cumulus.storage.api import Taken


def when_taken(world: World, patch: pytest.MonkeyPatch, act: Any) -> list[bool]:
    """`act` is done by another process just after this one has found a name taken; whether it was."""
    done: list[bool] = []
    real_put, kind = type(world.store).put_all, type(world.store)
    real_write = kind.open_write

    def put_all(store: Any, wholes: Any) -> Any:
        found = real_put(store, wholes)
        if store is world.store and not done and any(isinstance(one, Taken) for one in found):
            done.append(True)
            act()
        return found

    def open_write(store: Any, *words: Any) -> Any:
        stream = real_write(store, *words)
        commit = stream.commit

        def late(*words: Any, **options: Any) -> Any:
            try:
                return commit(*words, **options)
            except Taken:
                if store is world.store and not done:
                    done.append(True)
                    act()
                raise

        stream.commit = late
        return stream

    patch.setattr(kind, "put_all", put_all)
    patch.setattr(kind, "open_write", open_write)
    return done


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize(("key", "beside"), [("n/m", "n"), ("n", "n/m")])
def test_what_came_last_counts(
    size: int, key: str, beside: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with processes("posix", database, tmp_path) as worlds:
        one, two, three = worlds
        first, last, later = (letter * size for letter in (b"a", b"b", b"c"))
        assert two.ask("PUT", f"/bkt/{beside}", b"in the way").status == 200

        def other() -> None:
            assert two.ask("DELETE", f"/bkt/{beside}").status == 204
            assert two.ask("PUT", f"/bkt/{key}", first).status == 200

        done = when_taken(one, monkeypatch, other)
        assert one.ask("PUT", f"/bkt/{key}", last).status == 200
        assert done
        for body in (last, later):
            for _ in range(2):
                for world in worlds:
                    got = world.ask("GET", f"/bkt/{key}")
                    assert got.body == body
                    page = world.boto().list_objects_v2(Bucket="bkt")["Contents"]
                    assert [(o["Key"], o["ETag"]) for o in page] == [(key, got.headers["etag"])]
                assert three.index.usage("bucket", "bkt").bytes == size
                rescan(three.site, three.site.bucket("bkt"), Done())
            if body is last:
                assert three.ask("PUT", f"/bkt/{key}", later).status == 200
        assert three.ask("DELETE", f"/bkt/{key}").status == 204
        rescan(three.site, three.site.bucket("bkt"), Done())
        for world in worlds:
            assert world.ask("GET", f"/bkt/{key}").status == 404
        assert three.ask("DELETE", "/bkt").status == 204


@pytest.mark.parametrize("size", [10, 100_000])
def test_what_lost_does_not_come_back_when_the_key_is_deleted(
    size: int, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has its body under the odd name and has not told the index; until it does another puts the key
    under its own name, which is free again. Only the latter is known then."""
    with processes("posix", database, tmp_path) as worlds:
        one, two, three = worlds
        assert two.ask("PUT", "/bkt/n/m", b"in the way").status == 200
        real, done = one.site.told.tell, list[int]()

        def late(*words: Any) -> None:
            if not done:
                done.append(two.ask("DELETE", "/bkt/n/m").status)
                done.append(two.ask("PUT", "/bkt/n", b"b" * size).status)
            real(*words)

        monkeypatch.setattr(one.site.told, "tell", late)
        assert one.ask("PUT", "/bkt/n", b"a" * size).status == 200
        assert done == [204, 200]
        for world in worlds:
            assert world.ask("GET", "/bkt/n").body == b"b" * size
        assert three.ask("DELETE", "/bkt/n").status == 204
        for world in worlds:
            take_in_odd(world.site, world.site.bucket("bkt"), Done())
            assert world.ask("GET", "/bkt/n").status == 404
            assert not world.ask("GET", "/bkt").leaves("Key")
        assert three.ask("DELETE", "/bkt").status == 204
