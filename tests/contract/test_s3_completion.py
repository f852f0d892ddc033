"""What else happens to an upload while it becomes an object."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from file_stores import BACKENDS
from s3_processes import STORAGE
from s3_stores import STORES
from s3_world import People, World

from cumulus.auth import lifecycle
from cumulus.backends.fsspec_writer import Writer
from cumulus.errors import S3Error
from cumulus.index.admin_api import Quota
from cumulus.index.api import StillUsed
from cumulus.index.registry import make_admin, make_index
from cumulus.ops import completion, multipart
from cumulus.ops.jobs import Jobs
from cumulus.ops.names import BODIES, PARTS
from cumulus.secrets import Keyring
from cumulus.storage.api import Unavailable

SIZE = 60_000
LIMIT = 100_000  # bytes that the bucket may have


@pytest.fixture(params=list(STORES))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A service whose bucket has a hard quota."""
    url = f"sqlite:///{tmp_path / 'cumulus.db'}"
    index = make_index(url, directory=People(), clock=lambda: made.clock())[0]
    kinds = STORES | {"example": BACKENDS["example"], "local": STORAGE["local"]}
    made = World(kinds[request.param](tmp_path), index)
    assert made.ask("PUT", "/bkt").status == 200
    admin = make_admin(url, Keyring.create(tmp_path / "key"))
    admin.set_quota(Quota(scope="bucket", name="bkt", hard_bytes=LIMIT))
    admin.close()
    index.forget()  # type: ignore[attr-defined]
    yield made
    made.close()


class Started:
    """An upload with its only part."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.id = world.boto().create_multipart_upload(Bucket="bkt", Key="k")["UploadId"]
        query = {"partNumber": 1, "uploadId": self.id}
        self.etag = world.ask("PUT", "/bkt/k", b"x" * SIZE, query=query).headers["etag"]

    def complete(self, headers: dict[str, str] | None = None) -> Any:
        """CompleteMultipartUpload."""
        row = f"<Part><PartNumber>1</PartNumber><ETag>{self.etag}</ETag></Part>"
        body = f"<CompleteMultipartUpload>{row}</CompleteMultipartUpload>".encode()
        return self.world.ask("POST", "/bkt/k", body, query={"uploadId": self.id}, headers=headers)

    def abort(self) -> Any:
        """AbortMultipartUpload."""
        return self.world.ask("DELETE", "/bkt/k", query={"uploadId": self.id})


def during(patch: pytest.MonkeyPatch, act: Callable[[], Any], *, after: bool) -> list[Any]:
    """`act` happens once, just before or after the parts are joined; what it gave."""
    real, given = multipart.join, list[Any]()

    def joined(*words: Any) -> Any:
        if not after and not given:
            given.append(act())
        made = real(*words)
        if after and not given:
            given.append(act())
        return made

    patch.setattr(multipart, "join", joined)
    return given


def used(world: World) -> tuple[int, int]:
    """Bytes of the bucket: used, and reserved."""
    found = world.index.usage("bucket", "bkt")
    return found.bytes, found.reserved_bytes


@pytest.mark.parametrize("after", [False, True])
def test_an_abort_while_it_is_completed_is_refused_and_frees_no_room(
    world: World, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Else others would take the room that the object is about to need."""
    upload = Started(world)

    def beside() -> tuple[str, str]:
        return upload.abort().code, world.ask("PUT", "/bkt/other", b"y" * (LIMIT - SIZE + 1)).code

    given = during(monkeypatch, beside, after=after)
    assert upload.complete().status == 200
    assert given == [("OperationAborted", "QuotaExceeded")]
    assert used(world) == (SIZE, 0)
    assert world.ask("PUT", "/bkt/other", b"y" * (LIMIT - SIZE)).status == 200
    assert world.ask("GET", "/bkt/k").body == b"x" * SIZE
    assert upload.abort().code == "NoSuchUpload"


def test_a_lifecycle_rule_leaves_an_upload_that_is_completed(world: World) -> None:
    """Its time is over when it is free again."""
    upload = Started(world)
    rule = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": ""}}
    rule["AbortIncompleteMultipartUpload"] = {"DaysAfterInitiation": 1}  # type: ignore[assignment]
    world.boto().put_bucket_lifecycle_configuration(Bucket="bkt", LifecycleConfiguration={"Rules": [rule]})
    world.skew_ns = 3 * 86_400 * 10**9
    assert world.index.claim_upload(upload.id, "one", 60.0)
    assert Jobs(world.site, lifecycle).run().aborted == 0
    assert world.index.claim_upload(upload.id, "one", 0.0)
    world.skew_ns += 3601 * 10**9
    assert Jobs(world.site, lifecycle).run().aborted == 1
    assert used(world) == (0, 0)


def test_a_bucket_stays_while_an_upload_to_it_is_completed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = Started(world)
    given = during(monkeypatch, lambda: world.ask("DELETE", "/bkt").code, after=False)
    assert upload.complete().status == 200
    assert given == ["OperationAborted"]


def test_an_upload_whose_server_died_while_it_completed_is_free_a_minute_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To be completed; and it says so until then."""
    monkeypatch.setattr(completion, "PATIENCE_S", 0.05)
    upload = Started(world)
    assert world.index.claim_upload(upload.id, "who died", completion.LIFE_S)
    assert upload.complete().code == upload.abort().code == "OperationAborted"
    assert used(world) == (0, SIZE)
    world.skew_ns += int((completion.LIFE_S + 1) * 1e9)
    assert upload.complete().status == 200
    assert used(world) == (SIZE, 0)


def test_an_upload_whose_completion_failed_is_free_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "PATIENCE_S", 0.0)
    upload = Started(world)
    right, upload.etag = upload.etag, '"wrong"'
    assert upload.complete().code == "InvalidPart"
    upload.etag = right
    assert upload.complete().status == 200
    assert used(world) == (SIZE, 0)


def test_a_part_that_is_sent_again_while_it_is_completed_is_another_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upload is there as before: it was called ended."""
    upload = Started(world)
    query = {"partNumber": 1, "uploadId": upload.id}
    given = during(monkeypatch, lambda: world.ask("PUT", "/bkt/k", b"y" * 1000, query=query), after=False)
    answer = upload.complete()
    assert (answer.status, answer.code) == (400, "InvalidPart")
    upload.etag = given[0].headers["etag"]
    assert upload.complete().status == 200
    assert world.ask("GET", "/bkt/k").body == b"y" * 1000
    assert used(world) == (1000, 0)


def test_a_second_completion_waits_for_the_first_and_says_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload, answers = Started(world), list[Any]()
    second = threading.Thread(target=lambda: answers.append(upload.complete()))
    during(monkeypatch, second.start, after=False)
    answers.append(upload.complete())
    second.join(20)
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].body == answers[1].body
    assert used(world) == (SIZE, 0)


def test_a_claim_lives_on_as_long_as_the_work(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than one claim."""
    monkeypatch.setattr(completion, "LIFE_S", 0.3)
    monkeypatch.setattr(completion, "RENEW_S", 0.02)
    monkeypatch.setattr(completion, "SPARE_S", 0.0)
    upload = Started(world)
    claims = list[float]()
    real = world.index.claim_upload
    renewed = threading.Event()

    def claim(id: str, claimant: str, life_s: float) -> bool:
        done = real(id, claimant, life_s)
        claims.append(life_s)
        world.skew_ns += int(0.1e9)
        if len(claims) > 10:
            renewed.set()
        return done

    monkeypatch.setattr(world.index, "claim_upload", claim)
    given = during(monkeypatch, lambda: renewed.wait(20) and upload.abort().code, after=True)
    assert upload.complete().status == 200
    assert given == ["OperationAborted"]


def test_who_has_lost_its_claim_publishes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database was away for longer than that; others have ended the upload and used its room."""
    monkeypatch.setattr(completion, "SPARE_S", completion.LIFE_S + 1)  # asks again before it publishes
    upload = Started(world)

    def beside() -> list[int]:
        world.skew_ns += int((completion.LIFE_S + 1) * 1e9)
        return [upload.abort().status, world.ask("PUT", "/bkt/other", b"y" * LIMIT).status]

    given = during(monkeypatch, beside, after=False)
    assert upload.complete().status in (404, 409)
    assert given == [[204, 200]]
    assert world.ask("GET", "/bkt/k").code == "NoSuchKey"
    assert used(world) == (LIMIT, 0)


def lost_claim(world: World, upload: Started) -> list[int]:
    """The claim ends by itself, since the database was away for who completes; over another server the client
    gives up, and puts something else."""
    world.skew_ns += int((completion.LIFE_S + 1) * 1e9)
    done = [upload.abort().status, world.ask("PUT", "/bkt/k", b"newer").status]
    world.skew_ns = 0
    return done


@pytest.mark.parametrize("world", ["example", "fsspec", "local"], indirect=True)
def test_who_has_lost_its_claim_while_the_parts_were_copied_publishes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may take hours: it asks when the bytes are in place."""
    monkeypatch.setattr(completion, "SPARE_S", completion.LIFE_S + 1)  # asks again before it publishes
    upload, real, given = Started(world), world.store.open_read, list[list[int]]()

    def open_read(bucket: str, name: str, token: bytes | None = None) -> Any:
        opened = real(bucket, name, token)
        if name.startswith(PARTS) and not given:
            given.append(lost_claim(world, upload))
        return opened

    monkeypatch.setattr(world.store, "open_read", open_read)
    assert upload.complete().status in (404, 409)
    assert given == [[204, 200]]
    assert world.ask("GET", "/bkt/k").body == b"newer"
    assert used(world) == (5, 0)


@pytest.mark.parametrize("claimed", [False, True])
@pytest.mark.parametrize("world", ["fsspec"], indirect=True)
def test_who_has_lost_its_claim_since_it_asked_puts_no_row_over_a_newer_one(
    world: World, monkeypatch: pytest.MonkeyPatch, claimed: bool
) -> None:
    """Where the row alone says what counts. `claimed`: by another completion, which still goes on."""
    upload, real, given = Started(world), Writer.commit, list[Any]()

    def commit(writer: Writer, *words: Any) -> Any:
        if not given:
            given.append(None)
            given[0] = lost_claim(world, upload) if not claimed else steal()
        return real(writer, *words)

    def steal() -> list[int]:
        world.skew_ns += int((completion.LIFE_S + 1) * 1e9)
        assert world.index.claim_upload(upload.id, "another", 10 * completion.LIFE_S)
        world.skew_ns = 0
        return [204, world.ask("PUT", "/bkt/k", b"newer").status]

    monkeypatch.setattr(Writer, "commit", commit)
    assert upload.complete().code == ("OperationAborted" if claimed else "NoSuchUpload")
    assert given == [[204, 200]]
    assert world.ask("GET", "/bkt/k").body == b"newer"
    assert used(world) == (5, SIZE * claimed)
    assert len(world.store.names("bkt", prefix=BODIES)) == 1


def test_an_upload_is_ended_by_who_claims_it_alone(world: World) -> None:
    """Also by what ends uploads in the background."""
    upload = Started(world)
    assert world.index.claim_upload(upload.id, "one", 60.0)
    with pytest.raises(StillUsed, match="being completed"):
        world.index.drop_upload(upload.id)
    with pytest.raises(S3Error, match="being completed"):
        multipart.abort(world.site, multipart.get(world.site, world.site.bucket("bkt"), "k", upload.id))
    assert world.index.drop_upload(upload.id, None, "one")


@pytest.mark.parametrize(
    ("versions", "condition"), [(False, ""), (True, ""), (False, "If-None-Match"), (True, "If-Match")]
)
@pytest.mark.parametrize("world", ["posix"], indirect=True)
def test_a_completion_that_ended_between_storage_and_index_is_told_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch, versions: bool, condition: str
) -> None:
    """The disk fails when the object has its name. Who asks again is told that it is done, on the condition
    that held for the first time, too: then it is listed and counted at once, and is still there as a version
    when another takes its place."""
    client = world.boto()
    headers = {"If-None-Match": "*"} if condition == "If-None-Match" else {}
    if versions:
        client.put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Enabled"})
        first = client.put_object(Bucket="bkt", Key="k", Body=b"first")
        headers = {"If-Match": first["ETag"]} if condition else {}
    started = Started(world)
    for name in ("join", "concat"):
        real = getattr(world.store, name)

        def fail(*arguments: Any, real: Any = real, **options: Any) -> Any:
            real(*arguments, **options)
            raise Unavailable("the directory cannot be synced")

        monkeypatch.setattr(world.site.store, name, fail)
    assert started.complete(headers).status == 503
    monkeypatch.undo()
    answer = started.complete(headers)
    assert answer.status == 200, answer.body
    assert [one["Size"] for one in client.list_objects_v2(Bucket="bkt")["Contents"]] == [SIZE]
    assert used(world) == (SIZE + 5 * versions, 0)
    assert client.list_multipart_uploads(Bucket="bkt").get("Uploads", []) == []
    if versions:
        client.put_object(Bucket="bkt", Key="k", Body=b"last")
        sizes = [one["Size"] for one in client.list_object_versions(Bucket="bkt")["Versions"]]
        assert sizes == [4, SIZE, 5]


@pytest.mark.parametrize("again", [1, 2])
@pytest.mark.parametrize("world", ["posix"], indirect=True)
def test_a_part_sent_after_the_others_have_become_an_object_makes_none_with_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: World, again: int
) -> None:
    """The parts lay in a file that has the object's name now, though its completion failed: a part that is
    sent again lies in a new file, which has nothing of the others."""
    world.index.drop_bucket("bkt")
    world.ask("PUT", "/free")
    client = world.boto()
    id = client.create_multipart_upload(Bucket="free", Key="k")["UploadId"]
    size = 2 << 20

    def send(number: int, mark: bytes) -> dict[str, Any]:
        made = client.upload_part(Bucket="free", Key="k", UploadId=id, PartNumber=number, Body=mark * size)
        return {"PartNumber": number, "ETag": made["ETag"]}

    parts = [send(1, b"a"), send(2, b"b")]
    real = world.site.store.join

    def fail(*arguments: Any, **options: Any) -> Any:
        real(*arguments, **options)
        raise Unavailable("the directory cannot be synced")

    monkeypatch.setattr(world.site.store, "join", fail)
    told = {"Bucket": "free", "Key": "k", "UploadId": id}
    with pytest.raises(ClientError):
        client.complete_multipart_upload(**told, MultipartUpload={"Parts": parts})
    monkeypatch.undo()
    parts[again - 1] = send(again, b"c")
    with pytest.raises(ClientError) as refused:
        client.complete_multipart_upload(**told, MultipartUpload={"Parts": parts})
    assert refused.value.response["Error"]["Code"] in ("InvalidPart", "NoSuchUpload")
    body = client.get_object(Bucket="free", Key="k")["Body"].read()
    assert body == b"a" * size + b"b" * size
