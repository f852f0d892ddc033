"""A process is killed between storage and index: listings and quotas follow, on every kind of storage that
replaces files, though what it had done was told to nobody."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from s3_world import World

from cumulus.auth import lifecycle
from cumulus.backends.registry import make_store
from cumulus.ops.jobs import Jobs
from cumulus.storage.api import FileStore

STORAGE: dict[str, Callable[[Path], FileStore]] = {
    "local": lambda path: make_store(f"fsspec:file://{path}/store"),
    "posix": lambda path: make_store(f"posix:{path}/store"),
}
KEYS = ["plain", "dir/plain", "odd//key"]
LARGE = 100_000  # bytes: such a body is in no journal of plain files


class Killed(BaseException):
    """Nothing of the process goes on."""


def killed(world: World, patch: pytest.MonkeyPatch, method: str, key: str, body: bytes = b"") -> None:
    """A request whose process ends before it can tell the index."""

    def end(*_: object) -> None:
        raise Killed

    with patch.context() as inside:
        for name in ("apply", "apply_soon", "tell", "tell_all"):
            inside.setattr(world.index, name, end)
        with pytest.raises(Killed):
            world.ask(method, f"/bkt/{key}", body)


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("key", KEYS)
def test_what_a_killed_process_had_stored_is_listed_and_counted(
    storage: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New, over another object, and gone; and whatever comes afterwards is as ever."""
    world = World(STORAGE[storage](tmp_path))
    world.ask("PUT", "/bkt")
    jobs = Jobs(world.site, lifecycle)
    jobs.run()

    def check(body: bytes | None) -> None:
        page = world.boto().list_objects_v2(Bucket="bkt").get("Contents", [])
        used = world.index.usage("bucket", "bkt")
        got = world.ask("GET", f"/bkt/{key}")
        if body is None:
            assert (got.status, page, used.bytes, used.objects) == (404, [], 0, 0)
            return
        assert got.body == body
        assert [(one["Key"], one["Size"], one["ETag"]) for one in page] == [
            (key, len(body), got.headers["etag"])
        ]
        assert (used.bytes, used.objects) == (len(body), 1)

    bodies = [bytes([number]) * (LARGE + number) for number in range(3)]
    for body in bodies[:2]:
        killed(world, monkeypatch, "PUT", key, body)
        jobs.process_died()
        world.skew_ns += 61 * 10**9
        jobs.run()
        check(body)
    killed(world, monkeypatch, "DELETE", key)
    jobs.process_died()
    world.skew_ns += 61 * 10**9
    jobs.run()
    check(None)
    assert world.ask("PUT", f"/bkt/{key}", bodies[2]).status == 200
    check(bodies[2])
    assert world.ask("DELETE", f"/bkt/{key}").status == 204
    check(None)
    world.close()
