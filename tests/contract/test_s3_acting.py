"""In whose name storage is used: that of who asks; the bucket's owner for somebody anonymous; nobody's when
there is none; the service's own for work in the background."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from s3_world import World

from cumulus.backends.memory import MemoryStore
from cumulus.storage.api import FileStore, Forbidden


class Below(MemoryStore):
    """Storage that knows users: it notes who does what, and refuses those in `refused`."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = msgspec.structs.replace(self.capabilities, users=True)
        self.names_used: list[str] = []
        self.refused: set[str] = set()

    def for_user(self, user: str) -> FileStore:
        self.names_used.append(user)
        return _As(self, user)


class _As:
    """The store in the name of a user."""

    def __init__(self, store: Below, user: str) -> None:
        self._store = store
        self._user = user

    def __getattr__(self, name: str) -> Any:
        if self._user in self._store.refused and name not in ("capabilities", "mark"):
            raise Forbidden(f"{self._user} may not")
        return getattr(self._store, name)


@pytest.fixture
def world() -> Iterator[World]:
    """alice has a bucket with a public object."""
    made = World(Below())
    assert made.ask("PUT", "/bucket").status == 200
    assert made.ask("PUT", "/bucket/k", b"x" * 10, headers={"x-amz-acl": "public-read"}).status == 200
    yield made
    made.close()


def used(world: World) -> set[str]:
    """By whom, since the last question."""
    store = world.store
    assert isinstance(store, Below)
    found = set(store.names_used)
    store.names_used.clear()
    return found


def test_storage_is_used_by_who_asks(world: World) -> None:
    """Reading and writing, small and in parts; whatever the bucket is whose."""
    assert used(world) == {"alice"}
    assert world.ask("GET", "/bucket/k", user="bob").body == b"x" * 10
    assert used(world) == {"bob"}
    assert world.ask("PUT", "/bucket/large", b"y" * 300_000).status == 200
    assert world.ask("DELETE", "/bucket/large").status == 204
    assert used(world) == {"alice"}
    assert world.ask("DELETE", "/bucket/k", user="root").status == 204
    assert used(world) == {"root"}


def test_somebody_anonymous_acts_as_the_buckets_owner(world: World) -> None:
    """And as nobody when the owner is gone, whom storage may refuse."""
    used(world)
    assert world.ask("GET", "/bucket/k", user="").status == 200
    assert used(world) == {"alice"}
    del world.people.users["alice"]
    store = world.store
    assert isinstance(store, Below)
    store.refused.add("")
    assert world.ask("GET", "/bucket/k", user="").code == "AccessDenied"
    assert used(world) == {""}


def test_what_storage_refuses_is_access_denied(world: World) -> None:
    """Also a bucket, which then is not there."""
    store = world.store
    assert isinstance(store, Below)
    store.refused.add("bob")
    assert world.ask("GET", "/bucket/k", user="bob").code == "AccessDenied"
    assert world.ask("PUT", "/bobs", user="bob").code == "AccessDenied"
    assert world.ask("HEAD", "/bobs", user="bob").status == 404
    store.refused.clear()
    assert world.ask("PUT", "/bobs", user="bob").status == 200


def test_all_share_one_site(world: World) -> None:
    """Locks, queues and the wish to end; work in the background is the service's own."""
    used(world)
    acting = world.site.acting("bob")
    assert acting is not world.site and acting.lock("bucket", "k") is world.site.lock("bucket", "k")
    world.site.remove("bucket", "k")
    assert used(world) == {"bob"}
    world.site.stopping = True
    assert acting.stopping
    world.site.stopping = False
    assert not acting.stopping


def test_other_storage_knows_no_users() -> None:
    """Then there is one site for all."""
    made = World(MemoryStore())
    assert made.site.acting("bob") is made.site
    made.close()
