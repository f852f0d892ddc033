"""What is kept of documents that owners of buckets write is bounded by their size, not by their number alone,
and a long one is never read in the thread of the HTTP floor."""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_world import World

from cumulus.auth.lifecycle import parse_lifecycle
from cumulus.backends.posix.store import PosixStore
from cumulus.index import cache
from cumulus.index.cache import Fresh
from cumulus.kept import SHORT, Kept
from cumulus.model import Acl, Bucket, written
from cumulus.rest.call import Call, Download, Headers, Reply


class Reader:
    """Reads documents, and remembers which."""

    def __init__(self) -> None:
        self.read: list[tuple[str, ...]] = []
        self.threads: set[int] = set()

    def __call__(self, *texts: str) -> int:
        self.read.append(texts)
        self.threads.add(threading.get_ident())
        if texts[0].startswith("bad"):
            raise ValueError(texts[0])
        return len(texts[0])


def test_a_document_is_read_once_and_the_oldest_makes_room() -> None:
    read = Reader()
    kept = Kept(read, 100)
    first, second, third = "1" * 40, "2" * 40, "3" * 40
    for text in (first, second, first, third, first):
        assert kept(text) == 40
    assert read.read == [(first,), (second,), (third,)]
    assert kept(second) == 40
    assert read.read[-1] == (second,)


def test_one_that_is_larger_than_all_room_is_kept_alone() -> None:
    read = Reader()
    kept = Kept(read, 100)
    for text in ("1" * 40, "2" * 200, "2" * 200, "1" * 40, "1" * 40):
        kept(text)
    assert len(read.read) == 3


def test_a_document_that_is_refused_is_read_again() -> None:
    read = Reader()
    kept = Kept(read, 100)
    for _ in range(2):
        with pytest.raises(ValueError):
            kept("bad")
    assert len(read.read) == 2


def test_what_is_short_or_has_been_read_is_quick() -> None:
    kept = Kept(Reader())
    assert kept.quick("x" * SHORT)
    assert not kept.quick("x" * SHORT, "bucket")
    kept("x" * SHORT, "bucket")
    assert kept.quick("x" * SHORT, "bucket")


def bucket(name: str, document: str) -> Bucket:
    return Bucket(name=name, owner="alice", created_ns=0, acl=Acl(owner="alice"), lifecycle=document)


def test_buckets_with_long_documents_do_not_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_WEIGHT", 1000)
    fresh: Fresh[str, Bucket | None] = Fresh(60, weigh=written)
    asked = []

    def ask(name: str) -> Bucket:
        asked.append(name)
        return bucket(name, "x" * 300)

    for name in ("a", "b", "c", "a", "b", "c"):
        fresh.get(name, ask)
    assert asked == ["a", "b", "c"]
    fresh.drop("b")
    fresh.get("d", ask)  # there is room for it
    assert [name for name in "abcd" if fresh.peek(name)] == ["a", "c", "d"]
    fresh.keep("d", bucket("d", "x" * 350))  # in its own place
    assert [name for name in "abcd" if fresh.peek(name)] == ["a", "c", "d"]
    fresh.get("e", ask)  # there is none
    assert [name for name in "abcde" if fresh.peek(name)] == ["e"]


def test_long_questions_do_not_fill_memory() -> None:
    """The name of a grantee in an ACL may be a million characters long."""
    fresh: Fresh[str | tuple[str, str], None] = Fresh(60, keep_none=True)
    asked = []
    tracemalloc.start()
    try:
        for number in range(64):
            for long in (f"{number}" * 100_000, ("id", f"{number}" * 100_000)):
                fresh.get(long, lambda key: asked.append(len(key)))
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    for short in ("x" * 500, "x" * 500):
        fresh.get(short, lambda key: asked.append(len(key)))
    assert len(asked) == 2 * 64 + 1


RULE = (
    "<Rule><ID>{}</ID><Status>Enabled</Status><Prefix>{}/</Prefix>"
    "<Expiration><Days>{}</Days></Expiration></Rule>"
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(PosixStore(str(tmp_path / "store")))
    made.ask("PUT", "/bucket")
    made.ask("PUT", "/bucket/17/object", b"x" * 4096)
    yield made
    made.close()


def test_a_long_lifecycle_is_read_in_a_thread_before_an_object_is_given_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = "".join(RULE.format(number, number, number + 1) for number in range(900))
    document = f"<LifecycleConfiguration>{rules}</LifecycleConfiguration>".encode()
    assert world.ask("PUT", "/bucket", document, query="lifecycle").status == 200
    monkeypatch.setattr(
        parse_lifecycle, "_answers", type(parse_lifecycle._answers)()
    )  # as after others' turns
    world.site.index.bucket("bucket")

    def start() -> Reply:
        headers = Headers(world.signed("alice", "GET", "/bucket/17/object", b"", {}))
        call = Call("R", "GET", "/bucket/17/object", headers, "192.0.2.1", False, world.clock())
        answer = world.gateway.start_now(call)
        if callable(answer):
            threaded.append(True)
            answer = answer()
        assert isinstance(answer, Reply) and isinstance(answer.body, Download)
        answer.body.stream.close()
        return answer

    threaded: list[bool] = []
    for _ in range(2):
        answer = start()
        assert answer.status == 200
        assert 'rule-id="17"' in dict(answer.headers)["x-amz-expiration"]
        assert len(threaded) == 1


@pytest.mark.parametrize(
    ("resources", "at_once"),
    [
        (["arn:aws:s3:::bucket/17/*"], True),
        ([f"arn:aws:s3:::bucket/{i}/*" for i in range(40)], True),
        ([f"arn:aws:s3:::bucket/{i}/*" for i in range(200)], False),
        (["arn:aws:s3:::bucket/17/*", "arn:aws:s3:::bucket/*${aws:Referer}*"], False),
        (["arn:aws:s3:::bucket/17/*", "arn:aws:s3:::bucket/" + "*k" * 80], False),
    ],
)
def test_a_policy_that_takes_long_is_evaluated_in_a_thread(
    world: World, resources: list[str], at_once: bool
) -> None:
    """However often it has been read: all connections of a process wait for its one other thread."""
    one = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": resources}
    document = json.dumps({"Statement": [one]}).encode()
    assert world.ask("PUT", "/bucket", document, query="policy").status == 204
    for _ in range(2):
        assert world.ask("GET", "/bucket/17/object", user="").status == 200
    headers = Headers(world.signed("", "GET", "/bucket/17/object", b"", {}))
    call = Call("R", "GET", "/bucket/17/object", headers, "192.0.2.1", False, world.clock())
    answer = world.gateway.start_now(call)
    assert isinstance(answer, Reply) is at_once
    answer = answer() if callable(answer) else answer
    assert isinstance(answer, Reply) and isinstance(answer.body, Download) and answer.status == 200
    answer.body.stream.close()
