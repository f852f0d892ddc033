"""What belongs to an object is changed while others replace or remove the object: what is old is not put on
what is new, nothing comes back, and nobody's change is lost. Two gateways over one storage and one index."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from s3_stores import STORES
from s3_world import World

PUBLIC = {"x-amz-acl": "public-read"}


class Pair(NamedTuple):
    """Two servers, and `meet`: what the second does while the first changes a record."""

    one: World
    two: World
    meet: Callable[[Callable[[], Any]], None]


@pytest.fixture(params=["before", "after"])
def when(request: pytest.FixtureRequest) -> str:
    """The second comes just before storage has the new record, or just after."""
    return str(request.param)


@pytest.fixture(params=sorted(STORES))
def pair(request: pytest.FixtureRequest, tmp_path: Path, when: str) -> Iterator[Pair]:
    store = STORES[request.param](tmp_path)
    one = World(store)
    two = World(store, one.index)
    assert one.ask("PUT", "/bkt").status == 200
    patch = pytest.MonkeyPatch()

    def meet(act: Callable[[], Any]) -> None:
        done = list[bool]()
        name = "set_meta" if store.capabilities.atomic_replace else "copy"
        real = getattr(store, name)

        def wrapped(*words: Any, **options: Any) -> Any:
            if done:
                return real(*words, **options)
            done.append(True)
            if when == "before":
                act()
                return real(*words, **options)
            result = real(*words, **options)
            act()
            return result

        patch.setattr(store, name, wrapped)

    yield Pair(one, two, meet)
    patch.undo()
    two.gateway.close()
    one.close()


def put(world: World, body: bytes, user: str = "alice", **headers: str) -> str:
    """The version made."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = world.ask("PUT", "/bkt/k", body, user=user, headers=given)
    assert answer.status == 200, answer.body
    return answer.headers.get("x-amz-version-id", "")


def tag(world: World, value: str, **which: str) -> int:
    """Status of setting the tag "t"."""
    body = f"<Tagging><TagSet><Tag><Key>t</Key><Value>{value}</Value></Tag></TagSet></Tagging>".encode()
    return world.ask("PUT", "/bkt/k", body, query={"tagging": "", **which}).status


def tagged(world: World, **which: str) -> str:
    """The tag's value, "" for none."""
    text = world.ask("GET", "/bkt/k", query={"tagging": "", **which}).body
    return text.partition(b"<Value>")[2].partition(b"<")[0].decode()


def used(world: World) -> tuple[int, int]:
    """Bytes and objects of the bucket by the ledger."""
    found = world.index.usage("bucket", "bkt")
    return found.bytes, found.objects


def test_an_object_that_came_meanwhile_keeps_its_owner(pair: Pair) -> None:
    """PutObjectAcl by one who may change both."""
    put(pair.one, b"alice's")
    grants = {"x-amz-grant-write": f"id={pair.one.people.user('bob').id}"}  # type: ignore[union-attr]
    assert pair.one.ask("PUT", "/bkt", query="acl", headers=grants).status == 200
    full = f"id={pair.one.people.user('alice').id}"  # type: ignore[union-attr]
    pair.meet(lambda: put(pair.two, b"bob's", "bob", x_amz_grant_full_control=full))
    assert pair.one.ask("PUT", "/bkt/k", query="acl", headers=PUBLIC).status == 200
    assert pair.one.ask("GET", "/bkt/k", user="bob").body == b"bob's"
    acl = pair.one.ask("GET", "/bkt/k", query="acl", user="bob").body
    owner = acl.partition(b"<Owner>")[2].partition(b"</Owner>")[0]
    assert b"<DisplayName>Bob</DisplayName>" in owner


def test_an_object_that_came_meanwhile_keeps_all_that_is_its_own(pair: Pair) -> None:
    """Bytes, headers and length; the ledger has one object."""
    put(pair.one, b"old" * 1000, content_type="text/old", x_amz_meta_of="old")
    pair.meet(lambda: put(pair.two, b"new", content_type="text/new", x_amz_meta_of="new"))
    assert tag(pair.one, "1") == 200
    answer = pair.two.ask("GET", "/bkt/k")
    assert (answer.body, answer.headers["content-type"]) == (b"new", "text/new")
    assert answer.headers["x-amz-meta-of"] == "new"
    assert b"<Size>3</Size>" in pair.one.ask("GET", "/bkt").body
    assert used(pair.one) == (3, 1)


def test_an_object_that_went_meanwhile_does_not_come_back(pair: Pair) -> None:
    """Neither in storage nor in listings nor in the ledger."""
    put(pair.one, b"old")
    pair.meet(lambda: pair.two.ask("DELETE", "/bkt/k"))
    status = tag(pair.one, "1")
    assert status in (200, 404)  # before the removal, or after it
    assert pair.one.ask("GET", "/bkt/k").status == 404
    assert b"<Key>" not in pair.one.ask("GET", "/bkt").body
    assert used(pair.one) == (0, 0)
    assert pair.one.ask("DELETE", "/bkt").status == 204


def test_two_changes_of_one_object_both_hold(pair: Pair) -> None:
    """Tags by one server, rights by the other."""
    put(pair.one, b"body")
    pair.meet(lambda: pair.two.ask("PUT", "/bkt/k", query="acl", headers=PUBLIC))
    assert tag(pair.one, "1") == 200
    assert tagged(pair.two) == "1"
    assert pair.two.ask("GET", "/bkt/k", user="").body == b"body"
    assert used(pair.one) == (4, 1)


def test_a_copy_onto_itself_of_what_went_meanwhile_brings_nothing_back(pair: Pair) -> None:
    """Other headers for an object that is no more."""
    put(pair.one, b"old")
    pair.meet(lambda: pair.two.ask("DELETE", "/bkt/k"))
    headers = {"x-amz-copy-source": "/bkt/k", "x-amz-metadata-directive": "REPLACE", "x-amz-meta-of": "copy"}
    assert pair.one.ask("PUT", "/bkt/k", headers=headers).status in (200, 404)
    assert pair.one.ask("GET", "/bkt/k").status == 404
    assert used(pair.one) == (0, 0)


def test_each_version_has_its_own_tags(pair: Pair) -> None:
    """One that is tagged while it is replaced; the other one has none."""
    versioning = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    assert pair.one.ask("PUT", "/bkt", versioning, query="versioning").status == 200
    pair.two.index.bucket("bkt")
    first, made = put(pair.one, b"one"), list[str]()
    pair.meet(lambda: made.append(put(pair.two, b"two")))
    assert tag(pair.one, "1", versionId=first) == 200
    assert (tagged(pair.two, versionId=first), tagged(pair.two, versionId=made[0])) == ("1", "")
    for version, body in ((first, b"one"), (made[0], b"two")):
        assert pair.two.ask("GET", "/bkt/k", query={"versionId": version}).body == body
    assert pair.two.ask("GET", "/bkt/k").body == b"two"
    assert used(pair.one) == (6, 2)


def test_a_version_that_went_meanwhile_does_not_come_back(pair: Pair) -> None:
    """It was removed by its id."""
    versioning = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    assert pair.one.ask("PUT", "/bkt", versioning, query="versioning").status == 200
    first, second = put(pair.one, b"one"), put(pair.one, b"two")
    pair.meet(lambda: pair.two.ask("DELETE", "/bkt/k", query={"versionId": second}))
    assert tag(pair.one, "1", versionId=second) in (200, 404)
    assert pair.two.ask("GET", "/bkt/k", query={"versionId": second}).status == 404
    assert pair.two.ask("GET", "/bkt/k").body == b"one"
    assert pair.two.ask("GET", "/bkt/k", query={"versionId": first}).body == b"one"
    assert used(pair.one) == (3, 1)


def test_a_copy_onto_itself_never_mixes_two_objects(pair: Pair) -> None:
    """What is copied is one object, with all that belongs to it; of another one that came meanwhile neither
    the bytes alone nor the rest. The checksum that was asked for is made of those bytes."""
    put(pair.one, b"old", content_type="text/old", content_encoding="gzip", x_amz_meta_of="old")
    pair.meet(lambda: put(pair.two, b"new", content_type="text/new", x_amz_meta_of="new"))
    headers = {
        "x-amz-copy-source": "/bkt/k",
        "x-amz-tagging-directive": "REPLACE",
        "x-amz-tagging": "t=1",
        "x-amz-checksum-algorithm": "SHA256",
    }
    answer = pair.one.ask("PUT", "/bkt/k", headers=headers)
    assert answer.status == 200, answer.body
    sums = {base64.b64encode(hashlib.sha256(body).digest()).decode() for body in (b"old", b"new")}
    assert answer.leaf("ChecksumSHA256") in sums
    now = pair.two.ask("GET", "/bkt/k", headers={"x-amz-checksum-mode": "ENABLED"})
    assert (now.body, now.headers["x-amz-meta-of"]) == (b"new", "new")
    assert (now.headers["content-type"], now.headers.get("content-encoding")) == ("text/new", None)
    if tagged(pair.two):  # the copy came last
        assert now.headers["x-amz-checksum-sha256"] == answer.leaf("ChecksumSHA256")
        assert now.headers["etag"].strip('"') == hashlib.md5(b"new").hexdigest()


@pytest.mark.parametrize("change", ["tag", "untag", "rights", "copy"])
def test_who_changes_an_object_that_went_meanwhile_is_told_so(pair: Pair, change: str) -> None:
    """And not that there is no such bucket, which clients take for the end of all of it."""
    put(pair.one, b"old")
    pair.meet(lambda: pair.two.ask("DELETE", "/bkt/k"))
    if change == "tag":
        body = b"<Tagging><TagSet/></Tagging>"
        answer = pair.one.ask("PUT", "/bkt/k", body, query="tagging")
    elif change == "untag":
        answer = pair.one.ask("DELETE", "/bkt/k", query="tagging")
    elif change == "rights":
        answer = pair.one.ask("PUT", "/bkt/k", query="acl", headers=PUBLIC)
    else:
        headers = {"x-amz-copy-source": "/bkt/k", "x-amz-metadata-directive": "REPLACE"}
        answer = pair.one.ask("PUT", "/bkt/k", headers=headers)
    assert (answer.status == 404 and answer.code == "NoSuchKey") or answer.status in (200, 204), answer.body
