"""Who may not any more finishes no upload that was begun before: rights are judged again at its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from s3_stores import STORES
from s3_world import SECOND, World
from test_s3_forms import form, signed

from cumulus.model import Credential
from cumulus.rest.again import AGAIN_NS
from cumulus.rest.call import Sink

BODY = b"x" * 100_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The owner alice lets the group lab, which is carol, write into bucket bkt."""
    made = World(STORES["posix"](tmp_path))
    assert made.ask("PUT", "/bkt").status == 200
    statement = {
        "Effect": "Allow",
        "Principal": {"AWS": "arn:aws:iam:::group/lab"},
        "Action": ["s3:PutObject", "s3:GetObject"],
        "Resource": "arn:aws:s3:::bkt/*",
    }
    assert (
        made.ask("PUT", "/bkt", json.dumps({"Statement": statement}).encode(), query="policy").status == 204
    )
    yield made
    made.close()


def change(world: World, **fields: Any) -> None:
    """Of carol, by an administrator."""
    world.people.users["carol"] = msgspec.structs.replace(world.people.users["carol"], **fields)


def drop_policy(world: World) -> None:
    assert world.ask("DELETE", "/bkt", query="policy").status == 204


ENDS: dict[str, tuple[Callable[[World], Any], str]] = {
    "removed": (lambda world: world.people.users.pop("carol"), "InvalidAccessKeyId"),
    "another person has the key": (lambda world: change(world, id="f" * 64), "InvalidAccessKeyId"),
    "disabled": (lambda world: change(world, disabled=True), "AccessDenied"),
    "out of the group": (lambda world: change(world, groups=()), "AccessDenied"),
    "policy": (drop_policy, "AccessDenied"),
}


def begun(world: World, after_ns: int, **options: Any) -> Sink:
    """An upload whose body is there, all but its end."""
    _, sink = world.open("PUT", "/bkt/k", BODY, user="carol", **options)
    assert isinstance(sink, Sink) and sink.write(memoryview(BODY)) is None
    world.skew_ns += after_ns
    return sink


@pytest.mark.parametrize("how", ENDS)
def test_an_upload_by_who_may_not_any_more_is_refused(world: World, how: str) -> None:
    """Nothing is published, and nothing of it is left."""
    sink = begun(world, AGAIN_NS + 1)
    end, code = ENDS[how]
    end(world)
    answer = sink.finish()
    assert answer.status == 403 and f"<Code>{code}</Code>".encode() in bytes(answer.body)  # type: ignore[arg-type]
    assert world.ask("GET", "/bkt/k").code == "NoSuchKey"
    assert world.index.usage("bucket", "bkt").reserved_bytes == 0


def test_an_upload_goes_on_whose_key_expires_or_that_is_quick(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key was good when it began, as in S3; within a second nobody asks again."""
    former, until = world.people.credential, world.clock() + 60 * SECOND

    def expiring(access_key: str) -> Credential | None:
        found = former(access_key)
        return found and msgspec.structs.replace(found, expires_ns=until)

    monkeypatch.setattr(world.people, "credential", expiring)
    assert begun(world, 600 * SECOND).finish().status == 200
    assert world.ask("GET", "/bkt/k", user="carol").code == "ExpiredToken"
    world.skew_ns = 0
    sink = begun(world, AGAIN_NS // 10)
    change(world, groups=())
    assert sink.finish().status == 200


def test_a_form_by_who_may_not_any_more_is_refused(world: World) -> None:
    """Its fields say who sends it."""
    body = form(signed(world, "k"), BODY)
    kind = {"Content-Type": "multipart/form-data; boundary=XX"}
    _, sink = world.open("POST", "/bkt", body, user="", headers=kind)
    assert isinstance(sink, Sink) and sink.write(memoryview(body)) is None
    world.skew_ns += AGAIN_NS + 1
    alice = world.people.users.pop("alice")
    answer = sink.finish()
    assert answer.status == 403 and b"InvalidAccessKeyId" in bytes(answer.body)  # type: ignore[arg-type]
    world.people.users["alice"] = alice
    assert world.ask("GET", "/bkt/k").code == "NoSuchKey"
