"""Bodies that were replaced or deleted, where each has a name of its own: a server that ends leaves them to
the readers of others, they are no objects that the index has lost, and they go in their time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_world import World

from cumulus.admin import data
from cumulus.admin.doctor import rebuild
from cumulus.auth import lifecycle
from cumulus.backends.registry import make_store
from cumulus.ops.jobs import Jobs
from cumulus.ops.names import BODIES, LEFT
from cumulus.rest.call import Reply
from cumulus.storage.api import FileStore

HOUR_NS = 3601 * 10**9


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """One that cannot replace a file."""
    return make_store(f"fsspec:memory://{tmp_path.name}")


@pytest.fixture
def other(store: FileStore) -> Iterator[World]:
    """A server that goes on, with a bucket."""
    made = World(store)
    assert made.ask("PUT", "/bkt").status == 200
    Jobs(made.site, lifecycle).run()
    yield made
    made.close()


def reading(world: World) -> tuple[object, Reply]:
    """A download that has begun."""
    call, reply = world.open("GET", "/bkt/k")
    assert isinstance(reply, Reply) and reply.status == 200
    return call, reply


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_server_that_ends_leaves_bodies_to_the_readers_of_others(
    method: str, store: FileStore, other: World
) -> None:
    """It has just replaced or removed what they read; whoever clears up later removes it, and does not
    take it for an object that was lost."""
    ending = World(store, other.index)
    other.ask("PUT", "/bkt/k", b"old")
    call, reply = reading(other)
    ending.ask(method, "/bkt/k", b"new" if method == "PUT" else b"")
    ending.gateway.close()
    assert other.read(call, reply).body == b"old"  # type: ignore[arg-type]
    third = World(store, other.index)  # begins now
    jobs = Jobs(third.site, lifecycle)
    jobs.run()
    assert len(store.names("bkt", prefix=BODIES)) == 1 + (method == "PUT")
    third.skew_ns = HOUR_NS
    assert jobs.run().swept == 1
    third.skew_ns = 0
    assert len(store.names("bkt", prefix=BODIES)) == (method == "PUT")
    assert store.names("bkt", prefix=LEFT) == []
    assert third.ask("GET", "/bkt/k").status == (200 if method == "PUT" else 404)
    third.gateway.close()


def test_a_bucket_goes_with_what_was_left_in_it(store: FileStore, other: World) -> None:
    """At once, also for a server that has begun since."""
    ending = World(store, other.index)
    for user in ("first", "second"):
        ending.ask("PUT", "/bkt/k", user.encode())
    ending.ask("DELETE", "/bkt/k")
    ending.gateway.close()
    assert store.names("bkt", prefix=LEFT)
    third = World(store, other.index)
    Jobs(third.site, lifecycle).run()
    assert third.ask("DELETE", "/bkt").status == 204
    assert third.ask("PUT", "/bkt").status == 200
    assert store.names("bkt", prefix=".cumulus/") == []
    third.gateway.close()


def test_a_rebuild_brings_nothing_back_that_was_deleted(store: FileStore, other: World) -> None:
    other.ask("PUT", "/bkt/kept", b"kept")
    ending = World(store, other.index)
    ending.ask("PUT", "/bkt/k", b"gone")
    ending.ask("DELETE", "/bkt/k")
    ending.gateway.close()
    rebuild(other.index, store, other.site.bucket("bkt"))
    assert other.ask("GET", "/bkt/k").status == 404
    assert [one["Key"] for one in other.boto().list_objects_v2(Bucket="bkt")["Contents"]] == ["kept"]


def test_what_a_restored_database_names_stays(store: FileStore, other: World) -> None:
    """It is from before the body was replaced."""
    other.ask("PUT", "/bkt/k", b"old")
    row = other.index.lookup("bkt", "k")
    assert row is not None
    other.site.discard("bkt", row.name, row.size)
    other.gateway.close()
    third = World(store, other.index)
    third.skew_ns = HOUR_NS
    Jobs(third.site, lifecycle).run()
    third.skew_ns = 0
    assert third.ask("GET", "/bkt/k").body == b"old"
    assert store.names("bkt", prefix=LEFT) == []
    third.gateway.close()


def test_the_only_server_removes_them_when_it_ends(store: FileStore, other: World) -> None:
    alone = World(store, other.index)
    alone.site.alone = True
    alone.ask("PUT", "/bkt/k", b"old")
    alone.ask("DELETE", "/bkt/k")
    alone.gateway.close()
    assert store.names("bkt", prefix=".cumulus/") == []


def test_objects_that_change_hands_leave_their_readers_in_peace(store: FileStore, other: World) -> None:
    """`bucket chown`, `user remove --give-to`: the body is not written over."""
    other.ask("PUT", "/bkt/k", b"body", headers={"x-amz-meta-a": "1"})
    call, reply = reading(other)
    bob = other.people.users["bob"]
    assert data.give(other.index, store, other.site.bucket("bkt"), bob) == 1
    assert other.read(call, reply).body == b"body"  # type: ignore[arg-type]
    found = other.ask("GET", "/bkt/k", user="bob")
    assert (found.body, found.headers["x-amz-meta-a"]) == (b"body", "1")
    assert bob.id.encode() in other.ask("GET", "/bkt/k", user="bob", query="acl").body
    assert other.index.usage("bucket", "bkt").bytes == 4
    jobs = Jobs(other.site, lifecycle)
    other.skew_ns = HOUR_NS
    assert jobs.run().swept == 1
    other.skew_ns = 0
    assert len(store.names("bkt", prefix=BODIES)) == 1
