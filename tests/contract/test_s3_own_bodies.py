"""Where each body has a name of its own and the index alone says which one counts: what storage fails to find
for a moment is no reason to forget it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_processes import STORAGE
from s3_world import World

from cumulus.admin import data
from cumulus.auth import lifecycle
from cumulus.backends.fsspec_writer import Writer
from cumulus.index.api import Away, StillUsed
from cumulus.index.keys import stripe_of
from cumulus.ops import deletes, told
from cumulus.ops.jobs import Done, Jobs, forget_versions, rescan
from cumulus.ops.names import BODIES, PARTS
from cumulus.storage.api import Entry, NoSpace


@pytest.fixture(params=["memory"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A service over fsspec, mostly not on local files, with a bucket."""
    made = World(STORAGE[request.param](tmp_path))
    assert made.ask("PUT", "/bkt").status == 200
    yield made
    made.close()


def lose_bodies(world: World, patch: pytest.MonkeyPatch) -> None:
    """The driver says of each body, and part, that there is by now that there is no such file."""
    system = world.store.fs  # type: ignore[attr-defined]
    real, lost = system.info, [*bodies(world), *parts(world)]

    def info(path: str, **options: Any) -> Any:
        if path.endswith(tuple(lost)):
            raise FileNotFoundError(path)
        return real(path, **options)

    patch.setattr(system, "info", info)


def versioning(world: World, status: str) -> None:
    """Of the bucket."""
    world.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": status})


def parts(world: World) -> list[str]:
    """The names of all parts of uploads."""
    return [entry.name for entry in world.store.names("bkt", prefix=PARTS)]


def bodies(world: World) -> list[str]:
    """Their names."""
    return [entry.name for entry in world.store.names("bkt", prefix=BODIES)]


class Upload:
    """One to the key "k", with two parts."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.body = b"a" * 1000 + b"b" * 500
        self.id = world.boto().create_multipart_upload(Bucket="bkt", Key="k")["UploadId"]
        pieces = ((1, self.body[:1000]), (2, self.body[1000:]))
        self.etags = [self.send(number, piece) for number, piece in pieces]

    def send(self, number: int, body: bytes) -> str:
        """One part; its ETag."""
        query = {"partNumber": number, "uploadId": self.id}
        return str(self.world.ask("PUT", "/bkt/k", body, query=query).headers["etag"])

    def complete(self, headers: dict[str, str] | None = None) -> Any:
        """CompleteMultipartUpload."""
        rows = (
            f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
            for number, etag in enumerate(self.etags, 1)
        )
        body = f"<CompleteMultipartUpload>{''.join(rows)}</CompleteMultipartUpload>".encode()
        return self.world.ask("POST", "/bkt/k", body, query={"uploadId": self.id}, headers=headers)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_an_object_that_storage_does_not_find_for_a_moment_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """It is a 503 meanwhile; the sweep of the next days leaves it."""
    assert world.ask("PUT", "/bkt/k", b"x" * 10).status == 200
    with monkeypatch.context() as patch:
        lose_bodies(world, patch)
        assert world.ask(method, "/bkt/k").status == 503
    assert world.ask("GET", "/bkt").leaves("Key") == ["k"]
    assert world.ask("GET", "/bkt/k").body == b"x" * 10
    world.skew_ns = 3 * 86_400 * 10**9
    Jobs(world.site, lifecycle).run()
    world.site.empty_bin(all_of_it=True)
    world.skew_ns = 0
    assert world.ask("GET", "/bkt/k").body == b"x" * 10


def test_a_version_that_storage_does_not_find_for_a_moment_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by what looks for deletions that a crash has interrupted: here those begin in the index."""
    versioning(world, "Enabled")
    first = world.ask("PUT", "/bkt/k", b"first").headers["x-amz-version-id"]
    assert world.ask("PUT", "/bkt/k", b"second").status == 200
    bucket = world.site.bucket("bkt")
    with monkeypatch.context() as patch:
        lose_bodies(world, patch)
        assert world.ask("GET", "/bkt/k", query={"versionId": first}).status == 503
        done = Done()
        forget_versions(world.site, bucket, done)
        rescan(world.site, bucket, done)
        assert done.gone == 0
    assert world.ask("GET", "/bkt/k", query={"versionId": first}).body == b"first"
    assert world.ask("GET", "/bkt/k").body == b"second"
    assert len(world.boto().list_object_versions(Bucket="bkt")["Versions"]) == 2


def test_an_upload_whose_parts_storage_does_not_find_for_a_moment_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not ended; that is what a client would believe."""
    upload = Upload(world)
    with monkeypatch.context() as patch:
        lose_bodies(world, patch)
        assert upload.complete().status == 503
    assert upload.complete().status == 200
    assert world.ask("GET", "/bkt/k").body == upload.body


@pytest.mark.parametrize("status", ["", "Enabled", "Suspended"])
def test_an_object_whose_body_is_lost_is_put_again_or_deleted_as_any_other(
    world: World, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """PUT, a completion, DELETE, and DELETE of the version."""
    for key in ("put", "completed", "deleted", "removed"):
        assert world.ask("PUT", f"/bkt/{key}", b"x").status == 200
    if status:
        versioning(world, status)
    client = world.boto()
    id = client.create_multipart_upload(Bucket="bkt", Key="completed")["UploadId"]
    part = {"Bucket": "bkt", "Key": "completed", "UploadId": id}
    with monkeypatch.context() as patch:
        lose_bodies(world, patch)
        etag = client.upload_part(**part, PartNumber=1, Body=b"new")["ETag"]
        assert world.ask("PUT", "/bkt/put", b"new").status == 200
        assert world.ask("PUT", "/bkt/put", b"no", headers={"If-None-Match": "*"}).status in (412, 503)
        client.complete_multipart_upload(**part, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
        assert world.ask("DELETE", "/bkt/deleted").status == 204
        assert world.ask("DELETE", "/bkt/removed", query={"versionId": "null"}).status == 204
    assert world.ask("GET", "/bkt").leaves("Key") == ["completed", "put"]
    assert [world.ask("GET", f"/bkt/{key}").body for key in ("completed", "put")] == [b"new"] * 2


class Copying:
    """What `act` does, in a thread of its own, which waits before it copies bytes of what `name` begins,
    until this is left; then its answer is in `answers`."""

    def __init__(self, world: World, patch: pytest.MonkeyPatch, name: str, act: Callable[[], Any]) -> None:
        self.answers: list[Any] = []
        self._begun, self._go = threading.Event(), threading.Event()
        real = world.store.open_read

        def open_read(bucket: str, found: str, token: bytes | None = None) -> Any:
            if found.startswith(name) and threading.current_thread() is self._thread:
                self._begun.set()
                assert self._go.wait(60)
            return real(bucket, found, token)

        patch.setattr(world.store, "open_read", open_read)
        self._thread = threading.Thread(target=lambda: self.answers.append(act()), daemon=True)

    def __enter__(self) -> Copying:
        self._thread.start()
        assert self._begun.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._go.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def beside(world: World, *acts: Callable[[], Any]) -> list[Any]:
    """Their answers, which come while something else is copied."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.extend(act() for act in acts), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "waits for what is copied"
    return answers


def same_lock(key: str) -> str:
    """Another key that shares its lock."""
    wanted = stripe_of("bkt", key)
    return next(f"x{n}" for n in itertools.count() if stripe_of("bkt", f"x{n}") == wanted)


@pytest.mark.parametrize("kind", ["completion", "copy"])
@pytest.mark.parametrize("world", ["memory", "local"], indirect=True)
def test_other_keys_do_not_wait_while_gigabytes_are_copied(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Those that share the lock of the key that it becomes; nor does that key itself."""
    other = same_lock("k")
    if kind == "copy":
        assert world.ask("PUT", "/bkt/source", b"source").status == 200
        copying = Copying(
            world,
            monkeypatch,
            BODIES if world.site.atomic is False else "source",
            lambda: world.ask("PUT", "/bkt/k", headers={"x-amz-copy-source": "/bkt/source"}),
        )
    else:
        upload = Upload(world)
        copying = Copying(world, monkeypatch, PARTS, upload.complete)
    with copying:
        ask = world.ask
        statuses = beside(
            world,
            lambda: ask("PUT", f"/bkt/{other}", b"other").status,
            lambda: ask("PUT", "/bkt/k", b"k").status,
            lambda: ask("DELETE", f"/bkt/{other}").status,
        )
        assert statuses == [200, 200, 204]
        assert world.ask("GET", "/bkt/k").body == b"k"
    assert copying.answers[0].status == 200
    assert world.ask("GET", "/bkt/k").body == (b"source" if kind == "copy" else upload.body)
    rows = world.ask("GET", "/bkt").leaves("Key")
    assert rows == (["k", "source"] if kind == "copy" else ["k"])


def test_other_keys_do_not_wait_for_an_object_that_is_given(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its bucket, by a command: its bytes are copied for that; what is put meanwhile is given, too."""
    assert world.ask("PUT", "/bkt/k", b"old").status == 200
    bob, bucket = world.people.users["bob"], world.site.bucket("bkt")
    act = lambda: data.give(world.index, world.store, bucket, bob)  # noqa: E731
    with Copying(world, monkeypatch, BODIES, act):
        statuses = beside(
            world,
            lambda: world.ask("PUT", f"/bkt/{same_lock('k')}", b"other").status,
            lambda: world.ask("PUT", "/bkt/k", b"newer").status,
        )
        assert statuses == [200, 200]
    assert world.ask("GET", "/bkt/k", user="bob").body == b"newer"
    assert world.ask("GET", "/bkt/k").status == 403
    world.skew_ns = 3600 * 10**9
    Jobs(world.site, lifecycle).run()
    world.site.empty_bin(all_of_it=True)
    assert len(bodies(world)) == 2


@pytest.mark.parametrize("versions", [False, True])
def test_a_condition_holds_when_the_object_comes_not_when_its_copying_begins(
    world: World, monkeypatch: pytest.MonkeyPatch, versions: bool
) -> None:
    """What is refused leaves nothing, and the upload goes on."""
    if versions:
        versioning(world, "Enabled")
    upload = Upload(world)
    with Copying(world, monkeypatch, PARTS, lambda: upload.complete({"If-None-Match": "*"})) as copying:
        assert beside(world, lambda: world.ask("PUT", "/bkt/k", b"newer").status) == [200]
    assert copying.answers[0].status == 412
    assert world.ask("GET", "/bkt/k").body == b"newer"
    assert len(bodies(world)) == 1
    assert upload.complete().status == 200
    assert world.ask("GET", "/bkt/k").body == upload.body


def test_a_condition_that_cannot_hold_is_refused_before_anything_is_copied(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = Upload(world)
    assert world.ask("PUT", "/bkt/k", b"first").status == 200
    monkeypatch.setattr(world.store, "concat", None)
    assert upload.complete({"If-None-Match": "*"}).status == 412
    monkeypatch.undo()
    assert upload.complete().status == 200


@pytest.mark.parametrize("ask", ["lookup", "gone_at", "drop_upload"])
@pytest.mark.parametrize(
    ("world", "status"), [("memory", ""), ("memory", "Suspended"), ("local", "")], indirect=["world"]
)
def test_a_completion_that_the_database_stops_at_its_end_can_be_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch, ask: str, status: str
) -> None:
    """It is away when the bytes are in place, for one question: the parts are still there."""
    if status:
        assert world.ask("PUT", "/bkt/k", b"old").status == 200
        versioning(world, status)
    monkeypatch.setattr(told, "PATIENCE_S", 0.0)
    upload = Upload(world)
    real, joined, left = getattr(world.index, ask), list[str](), [1]

    def away(*words: Any, **options: Any) -> Any:
        if joined and left:
            left.pop()
            raise Away("no database")
        return real(*words, **options)

    commit = Writer.commit

    def noted(writer: Writer, meta: bytes, if_token: Any = None, name: str = "") -> Any:
        joined.append(name)
        return commit(writer, meta, if_token, name)

    monkeypatch.setattr(world.index, ask, away)
    monkeypatch.setattr(Writer, "commit", noted)
    asked = not world.site.atomic and ask != "drop_upload"  # else before the bytes are in place, or again
    assert upload.complete().status == (503 if asked else 200)
    assert upload.complete().status == 200
    assert world.ask("GET", "/bkt/k").body == upload.body
    assert world.ask("GET", "/bkt").leaves("Key") == ["k"]
    assert parts(world) == []
    usage = world.index.usage("bucket", "bkt")
    assert (usage.bytes, usage.objects, usage.reserved_bytes) == (len(upload.body), 1, 0)
    world.site.empty_bin(all_of_it=True)
    assert len(bodies(world)) == (not world.site.atomic)


@pytest.mark.parametrize("world", ["memory", "local"], indirect=True)
def test_a_completion_whose_server_dies_before_the_index_knows_can_be_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of an upload goes before."""
    upload = Upload(world)

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(world.index, "drop_upload", killed)
        with pytest.raises(Killed):
            upload.complete()
    assert upload.complete().status == 200
    assert world.ask("GET", "/bkt/k").body == upload.body
    assert parts(world) == []


class Killed(BaseException):
    """Ends the process at this point."""


def test_bodies_that_are_lost_do_not_hold_up_what_is_behind_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an older database was put back: rows of what has expired since stand side by side."""
    rule = b"<Rule><Status>Enabled</Status><Filter/><Expiration><Days>1</Days></Expiration></Rule>"
    document = b"<LifecycleConfiguration>" + rule + b"</LifecycleConfiguration>"
    for number in range(25):
        assert world.ask("PUT", f"/bkt/a{number:02}", b"x").status == 200
    lose_bodies(world, monkeypatch)
    assert world.ask("PUT", "/bkt/z", b"x").status == 200
    assert world.ask("PUT", "/bkt", document, query={"lifecycle": ""}).status == 200
    world.skew_ns = 3 * 86_400 * 10**9
    Jobs(world.site, lifecycle).run()
    world.skew_ns = 0
    assert len(world.ask("GET", "/bkt").leaves("Key")) == 25
    assert world.ask("GET", "/bkt/z").status == 404


def test_a_completion_tells_how_large_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage chooses its blocks by that."""
    told: list[int | None] = []
    real = world.store.concat
    monkeypatch.setattr(
        world.store, "concat", lambda *words, **more: told.append(more["size"]) or real(*words, **more)
    )
    upload = Upload(world)
    assert upload.complete().status == 200
    assert told == [len(world.ask("GET", "/bkt/k").body)] and told[0]


def test_a_completion_that_is_refused_takes_no_version_null_with_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions are suspended, and another completion has claimed the upload since this one asked."""
    assert world.ask("PUT", "/bkt/k", b"null").status == 200
    versioning(world, "Enabled")
    assert world.ask("PUT", "/bkt/k", b"newer").status == 200
    versioning(world, "Suspended")
    upload = Upload(world)
    with monkeypatch.context() as patch:

        def lost(*_: Any) -> bool:
            raise StillUsed("another has the claim")

        patch.setattr(world.index, "drop_upload", lost)
        assert upload.complete().status == 409
    assert world.ask("GET", "/bkt/k", query={"versionId": "null"}).body == b"null"
    assert world.ask("GET", "/bkt/k").body == b"newer"
    assert upload.complete().status == 200
    assert world.ask("GET", "/bkt/k", query={"versionId": "null"}).body == upload.body
    found = world.index.usage("bucket", "bkt")
    assert (found.objects, found.bytes) == (2, len(upload.body) + 5)


@pytest.mark.parametrize("null", ["marker", "body"])
def test_a_marker_null_replaces_the_version_null_in_one_step(
    world: World, monkeypatch: pytest.MonkeyPatch, null: str
) -> None:
    """What was deleted before stays deleted, and a body behind a newer version is there, until then."""
    if null == "body":
        assert world.ask("PUT", "/bkt/k", b"null").status == 200
    versioning(world, "Enabled")
    assert world.ask("PUT", "/bkt/k", b"newer").status == 200
    versioning(world, "Suspended")
    if null == "marker":
        assert world.ask("DELETE", "/bkt/k").status == 204

    def seen() -> list[object]:
        return [world.ask("GET", "/bkt/k", query=query).status for query in ({}, {"versionId": "null"})]

    before, real = seen(), deletes._store_marker
    assert before == ([404, 405] if null == "marker" else [200, 200])
    during: list[list[object]] = []

    def store_marker(*words: Any) -> Entry:
        during.append(seen())
        if len(during) == 1:
            raise NoSpace("no room")
        return real(*words)

    monkeypatch.setattr(deletes, "_store_marker", store_marker)
    monkeypatch.setattr(world.store, "make_room", lambda: False)
    assert world.ask("DELETE", "/bkt/k").status == 507 and seen() == before
    assert world.ask("DELETE", "/bkt/k").status == 204 and seen() == [404, 405]
    assert during == [before, before]
    world.site.alone = True
    world.gateway.close()
    found = world.index.usage("bucket", "bkt")
    assert (found.objects, found.bytes, len(bodies(world))) == (1, 5, 1)
