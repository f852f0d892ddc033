"""A bucket changes hands by a command beside a server: nothing that was acknowledged is lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from s3_processes import processes
from s3_world import World

from cumulus.admin import data
from cumulus.backends.fsspec_store import FsspecStore
from cumulus.index.api import Put
from cumulus.ops.jobs import Done, rescan

WAIT_S = 0.5  # for the server, which is to wait for the command


def test_an_upload_is_not_lost_to_a_bucket_that_is_given(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a record is changed by writing the object again, and storage does not see to it that nothing else
    has come in its place."""
    with processes("local", database, tmp_path) as worlds:
        command, server, _ = worlds
        bob = command.people.users["bob"]
        assert server.ask("PUT", "/bkt/k", b"old").status == 200
        answers: list[int] = []
        upload = threading.Thread(target=lambda: answers.append(server.ask("PUT", "/bkt/k", b"new").status))
        real = FsspecStore._pour

        def pour(store: FsspecStore, *words: Any) -> None:
            real(store, *words)
            if store is command.store and not upload.ident:
                upload.start()
                upload.join(WAIT_S)

        monkeypatch.setattr(FsspecStore, "_pour", pour)
        assert data.give(command.index, command.store, command.site.bucket("bkt"), bob) >= 1
        upload.join()
        assert answers == [200]
        for world in worlds:
            assert world.ask("GET", "/bkt/k", user="root").body == b"new"
            page = world.boto("root").list_objects_v2(Bucket="bkt")["Contents"]
            assert [(one["Key"], one["Size"]) for one in page] == [("k", 3)]


def give(world: World) -> int:
    """The bucket to bob."""
    bucket = world.index.bucket("bkt")
    assert bucket is not None
    return data.give(world.index, world.store, bucket, world.people.users["bob"])


def listed(world: World) -> dict[str, int]:
    """Sizes by key, after a scan."""
    bucket = world.index.bucket("bkt")
    assert bucket is not None
    rescan(world.site, bucket, Done())
    page = world.boto("bob").list_objects_v2(Bucket="bkt")["Contents"]
    return {one["Key"]: one["Size"] for one in page}


def test_a_file_that_others_changed_is_listed_as_it_is_when_its_bucket_is_given(
    world: World, data: Path
) -> None:
    """The scan that follows sees that it is another one."""
    (data / "k").write_bytes(b"short")
    bucket = world.index.bucket("bkt")
    assert bucket is not None
    rescan(world.site, bucket, Done())
    (data / "k").write_bytes(b"longer by now")
    assert give(world) == 1
    assert listed(world) == {"k": 13} and world.ask("GET", "/bkt/k", user="bob").body == b"longer by now"
    assert world.index.usage("bucket", "bkt").bytes == 13


def test_an_upload_of_which_the_database_has_not_heard_yet_counts_when_its_bucket_is_given(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row comes a moment later, and must not give way to the former one's."""
    assert world.ask("PUT", "/bkt/k", b"former").status == 200
    late: list[Put] = []
    monkeypatch.setattr(world.index, "tell", late.append)
    assert world.ask("PUT", "/bkt/k", b"newer").status == 200
    monkeypatch.undo()
    assert len(late) == 1 and give(world) == 1
    world.index.apply(late)
    assert listed(world) == {"k": 5} and world.index.usage("bucket", "bkt").bytes == 5
    assert world.ask("GET", "/bkt/k", query="acl", user="bob").status == 200


def test_what_another_user_has_just_put_stays_his_when_a_bucket_is_given(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the database has not heard of it yet."""
    assert world.ask("PUT", "/bkt", query="acl", headers={"x-amz-acl": "public-read-write"}).status == 200
    assert world.ask("PUT", "/bkt/k", b"alice's").status == 200
    late: list[Put] = []
    monkeypatch.setattr(world.index, "tell", late.append)
    assert world.ask("PUT", "/bkt/k", b"carol's", user="carol").status == 200
    monkeypatch.undo()
    assert len(late) == 1 and give(world) == 0
    world.index.apply(late)
    assert world.ask("GET", "/bkt/k", user="carol").body == b"carol's"
    assert world.ask("GET", "/bkt/k", user="bob").status == 403


def test_an_unfinished_upload_goes_with_its_bucket(world: World) -> None:
    """What it becomes is the new owner's, in whose quota its parts count; that of somebody else stays his."""
    assert world.ask("PUT", "/bkt", query="acl", headers={"x-amz-acl": "public-read-write"}).status == 200
    clients = {user: world.boto(user) for user in ("alice", "bob", "carol")}
    uploads = {}
    for user in ("alice", "carol"):
        where = {"Bucket": "bkt", "Key": f"of-{user}"}
        where["UploadId"] = clients[user].create_multipart_upload(**where)["UploadId"]
        tag = clients[user].upload_part(**where, PartNumber=1, Body=b"part")["ETag"]
        uploads[user] = where | {"MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": tag}]}}
    give(world)
    page = clients["bob"].list_multipart_uploads(Bucket="bkt")["Uploads"]
    ids = {name: user.id for name, user in world.people.users.items()}
    assert {one["Key"]: one["Owner"]["ID"] for one in page} == {
        "of-alice": ids["bob"],
        "of-carol": ids["carol"],
    }
    for user, by in (("alice", "bob"), ("carol", "carol")):
        clients[by].complete_multipart_upload(**uploads[user])
    assert world.ask("GET", "/bkt/of-alice", user="bob").body == b"part"
    assert world.ask("GET", "/bkt/of-alice", user="alice").status == 403
    found = clients["bob"].list_objects(Bucket="bkt")["Contents"]
    assert {one["Key"]: one["Owner"]["ID"] for one in found} == {
        "of-alice": ids["bob"],
        "of-carol": ids["carol"],
    }
