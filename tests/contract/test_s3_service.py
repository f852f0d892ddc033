"""The service as a whole: quotas, failing storage and database, wrong requests, many at once."""

from __future__ import annotations

import base64
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from s3_stores import STORES
from s3_world import HOST, SECOND, World

from cumulus.backends.memory import MemoryStore
from cumulus.index.api import Away, IndexFailure, OverQuota, Reservation
from cumulus.rest.call import Headers, Sink
from cumulus.storage import api as storage


@pytest.fixture
def world() -> Iterator[World]:
    made = World(MemoryStore())
    assert made.ask("PUT", "/bkt").status == 200
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[World]:
    """One for the tests that change nothing."""
    made = World(MemoryStore())
    made.ask("PUT", "/bkt")
    yield made
    made.close()


# quotas --------------------------------------------------------------------------------------------------
class Limited:
    """An index whose bucket holds `limit` bytes, as reservations see it; the rest is the real one's."""

    def __init__(self, index: Any, limit: int) -> None:
        self._index, self._limit, self.held = index, limit, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def _check(self, size: int) -> None:
        used = self._index.usage("bucket", "bkt").bytes
        if used + self.held + size > self._limit:
            raise OverQuota("user", "alice", "bytes", used, self.held, self._limit)
        self.held += size

    def reserve(self, bucket: str, size: int, objects: int = 1) -> Reservation:
        self._check(size)
        return Reservation(id=0, bucket=bucket, bytes=size, objects=objects)

    def grow(self, reservation: Reservation, size: int) -> None:
        self._check(size)
        reservation.bytes += size

    def release(self, reservation: Reservation) -> None:
        self.held -= reservation.bytes
        reservation.bytes = 0


def test_a_quota_is_asked_for_before_the_body(world: World) -> None:
    """Refused with the figures, without a sink; what was there stays; a body that grows is cut off."""
    world.ask("PUT", "/bkt/k", b"x" * 600)
    limited = Limited(world.index, 1000)
    world.site.index = limited
    call, answer = world.open("PUT", "/bkt/k", b"y" * 500)
    assert not isinstance(answer, Sink)
    refusal = world.read(call, answer)
    assert (refusal.status, refusal.code) == (403, "QuotaExceeded")
    assert refusal.leaf("Message") == (
        "Quota of alice reached: 0.6 kB used + 0 kB being written, limit 1 kB."
    )
    assert (refusal.leaf("Used"), refusal.leaf("Limit"), refusal.leaf("Requested")) == ("600", "1000", "500")
    call, sink = world.open("PUT", "/bkt/k", b"y" * 500, headers={"x-amz-decoded-content-length": "0"})
    call.length, call.chunked = None, True
    sink = world.gateway.start(call)
    assert isinstance(sink, Sink)
    assert world.read(call, world.feed(sink, b"y" * 500)).code == "QuotaExceeded"
    assert limited.held == 0
    assert world.ask("GET", "/bkt/k").body == b"x" * 600


# what is below fails ---------------------------------------------------------------------------------------
class Failing(MemoryStore):
    """Storage in which a step fails when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.where = ""

    def _fail(self, where: str) -> None:
        if self.error is not None and self.where == where:
            raise self.error

    def publish(self, *args: Any, **options: Any) -> storage.Entry:
        self._fail("commit")
        return super().publish(*args, **options)

    def open_write(self, *args: Any, **options: Any) -> storage.ObjectStream:
        self._fail("open")
        return super().open_write(*args, **options)

    def open_read(self, *args: Any, **options: Any) -> storage.ObjectStream:
        self._fail("read")
        return super().open_read(*args, **options)


FAILURES: list[tuple[Exception, int, str]] = [
    (storage.NoSpace("full"), 507, "StorageFull"),
    (storage.Unavailable("away"), 503, "ServiceUnavailable"),
    (storage.ReadOnly("read-only"), 405, "ReadOnlyStorage"),
    (storage.Forbidden("EACCES"), 403, "AccessDenied"),
    (storage.BadName("bad"), 400, "InvalidURI"),
    (Away("database away"), 503, "ServiceUnavailable"),
    (IndexFailure("broken"), 500, "InternalError"),
    (RuntimeError("a secret detail"), 500, "InternalError"),
]


def test_failures_below_are_s3_errors_and_lose_nothing(caplog: pytest.LogCaptureFixture) -> None:
    store = Failing()
    world = World(store)
    world.ask("PUT", "/bkt")
    world.ask("PUT", "/bkt/k", b"old")
    for where in ("open", "commit"):
        for error, status, code in FAILURES:
            store.error, store.where = error, where
            caplog.clear()
            answer = world.ask("PUT", "/bkt/k", b"new")
            assert (answer.status, answer.code) == (status, code), (where, error)
            assert "Traceback" not in answer.body.decode() and "secret" not in answer.body.decode()
            assert ("retry-after" in answer.headers) == (status == 503)
            assert (status == 500) == any(record.exc_info is not None for record in caplog.records)
            store.error = None
            assert world.ask("GET", "/bkt/k").body == b"old"
    assert world.index.usage("bucket", "bkt").reserved_bytes == 0
    world.close()


def test_reading_fails_with_the_right_error() -> None:
    store = Failing()
    world = World(store)
    world.ask("PUT", "/bkt")
    world.ask("PUT", "/bkt/k", b"x")
    store.error, store.where = storage.Unavailable("away"), "read"
    assert world.ask("GET", "/bkt/k").code == "ServiceUnavailable"
    source = {"x-amz-copy-source": "/bkt/k"}
    assert world.ask("PUT", "/bkt/c", headers=source).code == "ServiceUnavailable"
    store.error = storage.Forbidden("EACCES")
    assert world.ask("GET", "/bkt/k").code == "AccessDenied"
    world.close()


# wrong requests --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/bkt/%zz", "InvalidURI"),
        ("GET", "/bkt/%ff", "InvalidURI"),
        ("GET", "/bkt/%c0%ae", "InvalidURI"),
        ("GET", "/bkt/" + "k" * 1025, "KeyTooLongError"),
        ("GET", "//k", "InvalidURI"),
        ("GET", "/bkt?prefix=%zz", "InvalidURI"),
        ("GET", "/bkt?" + "&".join(f"a{n}=1" for n in range(101)), "InvalidRequest"),
        ("PATCH", "/bkt/k", "MethodNotAllowed"),
        ("DELETE", "/", "MethodNotAllowed"),
        ("POST", "/", "MethodNotAllowed"),
        ("GET", "/bkt?uploads=&max-uploads=x", "InvalidArgument"),
        ("GET", "/BKT/k", "NoSuchBucket"),
        ("GET", "/../etc/passwd", "NoSuchBucket"),
        ("GET", "/bkt%2Fk", "NoSuchBucket"),
    ],
)
def test_wrong_targets(shared: World, method: str, path: str, code: str) -> None:
    assert shared.ask(method, path, raw=True).code == code


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<Delete>",
        b"<Delete/>",
        b"<Delete><Object/></Delete>",
        b"<Delete><Object><Key></Key></Object></Delete>",
        b"<Delete><Object><Key>k</Key><Size>x</Size></Object></Delete>",
        b'<!DOCTYPE d [<!ENTITY e SYSTEM "file:///etc/passwd">]><Delete><Object><Key>&e;</Key></Object></Delete>',
        b"<Delete>" + b"<a>" * 50 + b"</a>" * 50 + b"</Delete>",
        b"<Delete>" + b"<Object><Key>k</Key></Object>" * 1001 + b"</Delete>",
        b"<?xml version='1.0' encoding='nonsense'?><Delete/>",
        b"\x00\x01",
    ],
)
def test_wrong_documents(shared: World, body: bytes) -> None:
    shared.ask("PUT", "/bkt/k", b"x")
    md5 = base64.b64encode(hashlib.md5(body).digest()).decode()
    answer = shared.ask("POST", "/bkt", body, query="delete", headers={"Content-MD5": md5})
    assert answer.code == "MalformedXML"
    assert shared.ask("GET", "/bkt/k").body == b"x"


def test_documents_without_a_digest_or_too_long_are_refused(world: World) -> None:
    body = b"<Delete><Object><Key>k</Key></Object></Delete>"
    named = {"x-amz-checksum-algorithm": "CRC32"}  # says nothing of the body
    assert world.ask("POST", "/bkt", body, query="delete", headers=named).code == "InvalidRequest"
    assert world.ask("POST", "/bkt", body, query="delete").code == "InvalidRequest"
    long = b"<VersioningConfiguration>" + b" " * (3 << 20)
    assert world.ask("PUT", "/bkt", long, query="versioning").code == "MaxMessageLengthExceeded"
    slow = b"<VersioningConfiguration>" + b" " * (3 << 19)
    assert world.ask("PUT", "/bkt", slow, query="versioning").code == "MaxMessageLengthExceeded"


def test_lengths_that_do_not_fit(world: World) -> None:
    """Too little, too much, and nothing said about it."""
    call, sink = world.open("PUT", "/bkt/k", b"12345", headers={"x-amz-content-sha256": "UNSIGNED-PAYLOAD"})
    assert world.read(call, world.feed(sink, b"123")).code == "IncompleteBody"
    call, sink = world.open("PUT", "/bkt/k", b"12345", headers={"x-amz-content-sha256": "UNSIGNED-PAYLOAD"})
    assert world.read(call, world.feed(sink, b"1234567")).code == "IncompleteBody"
    call, opened = world.open("PUT", "/bkt/k", b"")
    assert isinstance(opened, Sink)
    opened.abort()
    call.length = None
    answer = world.gateway.start(call)
    assert not isinstance(answer, Sink) and answer.status == 411
    assert world.ask("GET", "/bkt/k").status == 404
    assert world.index.usage("bucket", "bkt").reserved_objects == 0


def test_too_large_objects_are_refused_before_and_while_they_come() -> None:
    world = World(MemoryStore(), max_object=1000)
    world.ask("PUT", "/bkt")
    call, answer = world.open("PUT", "/bkt/k", b"x" * 1001)
    assert not isinstance(answer, Sink) and world.read(call, answer).code == "EntityTooLarge"
    call.length, call.chunked = None, True
    sink = world.gateway.start(call)
    assert world.read(call, world.feed(sink, b"x" * 1001)).code == "EntityTooLarge"
    world.close()


def test_refused_signatures_write_nothing(world: World) -> None:
    """A wrong signature, an old request, an unknown key: 403 before any body is taken."""
    call, opened = world.open("PUT", "/bkt/k", b"x", headers={"Expect": "100-continue"})
    assert isinstance(opened, Sink)
    opened.abort()
    signed = call.headers.get("authorization")
    wrong = signed[:-1] + ("0" if signed[-1] != "0" else "1")
    call.headers = Headers(
        (name, wrong if name == "authorization" else value) for name, value in call.headers.pairs
    )
    answer = world.gateway.start(call)
    assert not isinstance(answer, Sink) and answer.status == 403
    call, opened = world.open("PUT", "/bkt/k", b"x")
    assert isinstance(opened, Sink)
    opened.abort()
    world.skew_ns = 20 * 60 * SECOND
    answer = world.gateway.start(call)
    assert not isinstance(answer, Sink) and world.read(call, answer).code == "RequestTimeTooSkewed"
    world.skew_ns = 0
    assert world.ask("GET", "/bkt/k").status == 404


def test_virtual_host_style() -> None:
    world = World(MemoryStore(), domain="S3.test")
    assert world.ask("PUT", "/", headers={"Host": f"bkt.{HOST}"}).status == 200
    assert world.ask("PUT", "/a/b", b"x", headers={"Host": f"bkt.{HOST}:8080"}).status == 200
    assert world.ask("GET", "/bkt/a/b").body == b"x"
    assert world.ask("GET", "/", headers={"Host": f"bkt.{HOST}"}).leaves("Key") == ["a/b"]
    assert world.ask("GET", "/", headers={"Host": HOST}).leaves("Name") == ["bkt"]
    world.close()


def test_keys_in_the_notes_and_no_secret_anywhere(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        answer = world.ask("PUT", "/bkt/k", b"x")
        broken = world.ask("GET", "/bkt/none")
    assert answer.notes == {
        "bucket": "bkt",
        "key": "k",
        "operation": "PutObject",
        "user": "alice",
        "key_id": "ALICE",
    }
    assert broken.notes["error"] == "NoSuchKey"
    assert "secret of alice" not in caplog.text + repr(answer) + repr(
        world.site.directory.credential("ALICE")
    )


# many at once ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", list(STORES))
def test_nobody_reads_a_torn_object(kind: str, tmp_path: Path) -> None:
    """Four writers and eight readers of one key: each body read is one that somebody wrote, whole."""
    world = World(STORES[kind](tmp_path))
    world.ask("PUT", "/bkt")
    bodies = [bytes([65 + n]) * 70_000 for n in range(4)]
    world.ask("PUT", "/bkt/k", bodies[0])
    read: list[bytes] = []
    failures: list[str] = []

    def repeat(times: int, act: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            for _ in range(times):
                act()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def write(body: bytes) -> None:
        answer = world.ask("PUT", "/bkt/k", body)
        if answer.status != 200:
            failures.append(answer.code)

    def look() -> None:
        answer = world.ask("GET", "/bkt/k")
        read.append(answer.body)
        if answer.status != 200:
            failures.append(answer.code)

    threads = [repeat(12, lambda body=body: write(body)) for body in bodies]  # type: ignore[misc]
    threads += [repeat(12, look) for _ in range(8)]
    for thread in threads:
        thread.join()
    assert failures == [] and set(read) <= set(bodies)
    row = world.index.lookup("bkt", "k")
    assert row is not None and f'"{row.etag}"' == world.ask("HEAD", "/bkt/k").headers["etag"]
    assert world.index.usage("bucket", "bkt").bytes == 70_000
    world.close()


@pytest.mark.parametrize("kind", list(STORES))
def test_of_many_conditional_writers_one_wins(kind: str, tmp_path: Path) -> None:
    world = World(STORES[kind](tmp_path))
    world.ask("PUT", "/bkt")
    codes: list[int] = []
    barrier = threading.Barrier(6)

    def run(number: int) -> None:
        barrier.wait()
        body = str(number).encode()
        codes.append(world.ask("PUT", "/bkt/k", body, headers={"If-None-Match": "*"}).status)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [200, 412, 412, 412, 412, 412]
    world.close()


KEYS = ["a", "a/b", "a/b/c", "a/", "a//b", "b", "b/../c", "z" * 300]
STEPS = st.tuples(
    st.sampled_from(["put", "put", "delete", "get", "copy"]), st.sampled_from(KEYS), st.sampled_from(KEYS)
)


@settings(max_examples=12)
@given(st.lists(STEPS, min_size=10, max_size=40))
def test_one_bucket_against_a_dictionary(steps: list[tuple[str, str, str]]) -> None:
    """Operations on keys that are in each other's way: as in a dictionary, listing and ledger too."""
    world = World(MemoryStore())
    try:
        world.ask("PUT", "/bkt")
        model: dict[str, bytes] = {}
        for number, (what, key, other) in enumerate(steps):
            _step(world, model, what, key, other, str(number).encode())
        listed = world.ask("GET", "/bkt", query="encoding-type=url").leaves("Key")
        assert listed == [quote(key) for key in sorted(model, key=str.encode)]
        usage = world.index.usage("bucket", "bkt")
        assert (usage.bytes, usage.objects) == (sum(map(len, model.values())), len(model))
    finally:
        world.close()


def _step(world: World, model: dict[str, bytes], what: str, key: str, other: str, body: bytes) -> None:
    if what == "put":
        model[key] = body
        assert world.ask("PUT", f"/bkt/{key}", body).status == 200
    elif what == "delete":
        model.pop(key, None)
        assert world.ask("DELETE", f"/bkt/{key}").status == 204
    elif what == "get":
        answer = world.ask("GET", f"/bkt/{key}")
        assert (answer.body if answer.status == 200 else None) == model.get(key)
    elif key != other:
        source = {"x-amz-copy-source": "/bkt/" + quote(key)}
        answer = world.ask("PUT", f"/bkt/{other}", headers=source)
        assert (answer.status == 200) == (key in model)
        if key in model:
            model[other] = model[key]


def test_a_page_may_read_why_its_signature_is_refused(world: World) -> None:
    """The browser shows it only an answer with the headers of CORS."""
    page = "https://page.example"
    rules = [{"AllowedMethods": ["GET", "PUT"], "AllowedOrigins": [page], "ExposeHeaders": ["ETag"]}]
    world.boto().put_bucket_cors(Bucket="bkt", CORSConfiguration={"CORSRules": rules})
    query = "X-Amz-Algorithm=AWS4-HMAC-SHA256"
    for path, wanted in (("/bkt/k", page), ("/none/k", None)):
        for method in ("GET", "PUT"):
            for user, more in (("nobody", {}), ("", {"query": query})):
                answer = world.ask(method, path, b"", user=user, headers={"Origin": page}, **more)
                assert (
                    answer.status in (400, 403)
                    and answer.headers.get("access-control-allow-origin") == wanted
                )
        other = world.ask("GET", path, user="nobody", headers={"Origin": "https://else.example"})
        assert other.code == "InvalidAccessKeyId" and "access-control-allow-origin" not in other.headers
    answer = world.ask("GET", "/bkt/k", user="nobody", headers={"Origin": page})
    assert (answer.code, answer.headers["access-control-expose-headers"]) == ("InvalidAccessKeyId", "ETag")


def test_a_bucket_is_made_with_its_tags(world: World) -> None:
    """Those in the document of CreateBucket; wrong ones make none."""
    tags = [{"Key": "team", "Value": "climate"}, {"Key": "empty", "Value": ""}]
    world.boto().create_bucket(Bucket="tagged", CreateBucketConfiguration={"Tags": tags})
    assert world.boto().get_bucket_tagging(Bucket="tagged")["TagSet"] == tags
    twice = "<Tag><Key>a</Key><Value>1</Value></Tag>" * 2
    body = f"<CreateBucketConfiguration><Tags>{twice}</Tags></CreateBucketConfiguration>".encode()
    assert world.ask("PUT", "/wrong", body).code == "InvalidTag"
    assert world.ask("HEAD", "/wrong").status == 404
