"""ACLs, groups and bucket policies through the gateway: given, changed, revoked."""

from __future__ import annotations

import base64
import hashlib
import json
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from s3_stores import STORES
from s3_world import World

from cumulus.admin import data
from cumulus.ops.find import find


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(STORES["memory"](tmp_path))
    assert made.ask("PUT", "/bkt").status == 200
    yield made
    made.close()


def readers(world: World, path: str = "/bkt/k") -> set[str]:
    """Who may read; "" is anybody without a key."""
    return {user for user in ("alice", "bob", "carol", "") if world.ask("GET", path, user=user).status == 200}


def test_canned_acls_of_objects(world: World) -> None:
    for name, who in (
        ("private", {"alice"}),
        ("public-read", {"alice", "bob", "carol", ""}),
        ("authenticated-read", {"alice", "bob", "carol"}),
        ("bucket-owner-full-control", {"alice"}),
    ):
        world.ask("PUT", "/bkt/k", b"x", headers={"x-amz-acl": name})
        assert readers(world) == who, name
    client = world.boto()
    client.put_object_acl(Bucket="bkt", Key="k", ACL="public-read")
    assert "" in readers(world)
    client.put_object_acl(Bucket="bkt", Key="k", ACL="private")
    assert readers(world) == {"alice"}


def test_grants_to_users_addresses_and_groups(world: World) -> None:
    bob, group = world.people.users["bob"].id, "urn:cumulus:group:lab"
    world.ask("PUT", "/bkt/k", b"x", headers={"x-amz-grant-read": f'id="{bob}"'})
    assert readers(world) == {"alice", "bob"}
    world.ask("PUT", "/bkt/k", b"x", headers={"x-amz-grant-read": 'emailAddress="bob@example.org"'})
    assert readers(world) == {"alice", "bob"}
    world.ask("PUT", "/bkt/k", b"x", headers={"x-amz-grant-read": f'uri="{group}"'})
    assert readers(world) == {"alice", "carol"}
    client = world.boto()
    acl = client.get_object_acl(Bucket="bkt", Key="k")
    assert {"Type": "Group", "URI": group} in [row["Grantee"] for row in acl["Grants"]]
    acl["Grants"].append({"Grantee": {"Type": "CanonicalUser", "ID": bob}, "Permission": "READ"})
    policy = {"Owner": acl["Owner"], "Grants": acl["Grants"]}
    client.put_object_acl(Bucket="bkt", Key="k", AccessControlPolicy=policy)
    assert readers(world) == {"alice", "bob", "carol"}
    client.put_object_acl(Bucket="bkt", Key="k", AccessControlPolicy={**policy, "Grants": []})
    assert readers(world) == {"alice"}


def test_rights_on_a_bucket(world: World) -> None:
    """Listing and writing are the bucket's to give; what others write is theirs."""
    client = world.boto()
    client.put_bucket_acl(Bucket="bkt", ACL="public-read")
    assert world.ask("GET", "/bkt", user="").status == 200
    assert world.ask("PUT", "/bkt/k", b"x", user="bob").status == 403
    client.put_bucket_acl(Bucket="bkt", ACL="public-read-write")
    assert world.ask("PUT", "/bkt/k", b"x", user="bob").status == 200
    assert readers(world) == {"bob"}
    assert world.ask("DELETE", "/bkt/k").status == 204
    assert world.ask("PUT", "/bkt/free", b"x", user="").status == 200
    assert readers(world, "/bkt/free") == {"alice"}
    assert world.ask("GET", "/bkt", query="acl", user="bob").status == 403
    assert world.ask("PUT", "/bkt", query="acl", user="bob", headers={"x-amz-acl": "private"}).status == 403
    owner = client.get_bucket_acl(Bucket="bkt")["Owner"]
    assert owner == {"DisplayName": "Alice", "ID": world.people.users["alice"].id}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "MissingSecurityHeader"),
        (b"<x/>", "MalformedACLError"),
        (b"<AccessControlPolicy/>", "MalformedACLError"),
        (
            b"<AccessControlPolicy><Owner><ID>someone</ID></Owner><AccessControlList/></AccessControlPolicy>",
            "AccessDenied",
        ),
        (
            b"<AccessControlPolicy><AccessControlList><Grant><Permission>ALL</Permission></Grant>"
            b"</AccessControlList></AccessControlPolicy>",
            "MalformedACLError",
        ),
        (
            b"<AccessControlPolicy><AccessControlList><Grant><Grantee><ID>nobody</ID></Grantee>"
            b"<Permission>READ</Permission></Grant></AccessControlList></AccessControlPolicy>",
            "InvalidArgument",
        ),
        (
            b'<!DOCTYPE a [<!ENTITY b "c">]><AccessControlPolicy>&b;</AccessControlPolicy>',
            "MalformedACLError",
        ),
    ],
)
def test_wrong_acl_documents(world: World, body: bytes, code: str) -> None:
    world.ask("PUT", "/bkt/k", b"x")
    assert world.ask("PUT", "/bkt/k", body, query="acl").code == code
    assert world.ask("PUT", "/bkt", body, query="acl").code == code
    assert readers(world) == {"alice"}


def test_too_many_grantees_are_not_looked_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ACL of 1 MB has 15,000; workers ask the head for each, which all others wait for."""
    asked: list[str] = []
    user = world.people.user
    monkeypatch.setattr(world.people, "user", lambda name: (asked.append(name), user(name))[1])
    bob = world.people.users["bob"].id
    grant = f"<Grant><Grantee><ID>{bob}</ID></Grantee><Permission>READ</Permission></Grant>"
    acl = "<AccessControlPolicy><AccessControlList>{}</AccessControlList></AccessControlPolicy>"
    body = acl.format(grant * 5000).encode()
    assert world.ask("PUT", "/bkt", body, query="acl").code == "MalformedACLError"
    header = {"x-amz-grant-read": ",".join([f"id={bob}"] * 800)}
    assert world.ask("PUT", "/bkt", query="acl", headers=header).code == "MalformedACLError"
    assert len(asked) <= 100
    assert world.ask("PUT", "/bkt", acl.format(grant * 100).encode(), query="acl").status == 200


def statement(**fields: Any) -> str:
    """A policy of one statement about everything in the bucket."""
    base = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bkt/*"}
    return json.dumps({"Version": "2012-10-17", "Statement": [{**base, **fields}]})


def test_policies(world: World) -> None:
    client = world.boto()
    world.ask("PUT", "/bkt/k", b"x")
    client.put_bucket_policy(Bucket="bkt", Policy=statement())
    assert readers(world) == {"alice", "bob", "carol", ""}
    assert client.get_bucket_policy_status(Bucket="bkt")["PolicyStatus"]["IsPublic"]
    assert json.loads(client.get_bucket_policy(Bucket="bkt")["Policy"]) == json.loads(statement())
    client.put_bucket_policy(Bucket="bkt", Policy=statement(Effect="Deny"))
    assert readers(world) == set()
    client.delete_bucket_policy(Bucket="bkt")
    assert readers(world) == {"alice"}
    with pytest.raises(ClientError, match="NoSuchBucketPolicy"):
        client.get_bucket_policy(Bucket="bkt")
    for bad in ("", "{", "[]", '{"Statement": 1}', statement(Action="s3:Fly"), "\udcff"):
        body = bad.encode("utf-8", "surrogateescape")
        assert world.ask("PUT", "/bkt", body, query="policy").code == "MalformedPolicy"
    assert world.ask("PUT", "/bkt", statement().encode(), query="policy", user="bob").status == 403


def test_tags_of_buckets(world: World) -> None:
    client = world.boto()
    tags = [{"Key": "project", "Value": "x y"}]
    client.put_bucket_tagging(Bucket="bkt", Tagging={"TagSet": tags})
    assert client.get_bucket_tagging(Bucket="bkt")["TagSet"] == tags
    client.delete_bucket_tagging(Bucket="bkt")
    assert world.ask("GET", "/bkt", query="tagging").code == "NoSuchTagSet"
    assert world.ask("PUT", "/bkt", b"<Tagging/>", query="tagging").code == "MalformedXML"


def test_the_expected_owner_is_compared(world: World) -> None:
    right, wrong = world.people.users["alice"].id, "0" * 64
    headers = {"x-amz-expected-bucket-owner": right}
    assert world.ask("PUT", "/bkt/k", b"x", headers=headers).status == 200
    headers = {"x-amz-expected-bucket-owner": wrong}
    assert world.ask("PUT", "/bkt/k", b"y", headers=headers).status == 403
    assert world.ask("GET", "/bkt/k").body == b"x"


def test_the_admin_sees_everything(world: World) -> None:
    world.ask("PUT", "/bkt/k", b"x")
    assert world.ask("GET", "/bkt/k", user="root").body == b"x"


def test_what_a_bucket_is_not_set_to(world: World) -> None:
    """Clients that ask for a configuration get the document that means none, or the error that does."""
    client = world.boto()
    assert client.get_bucket_request_payment(Bucket="bkt")["Payer"] == "BucketOwner"
    rules = client.get_bucket_ownership_controls(Bucket="bkt")["OwnershipControls"]["Rules"]
    assert rules == [{"ObjectOwnership": "ObjectWriter"}]
    for query, code in (
        ("encryption", "ServerSideEncryptionConfigurationNotFoundError"),
        ("publicAccessBlock", "NoSuchPublicAccessBlockConfiguration"),
        ("object-lock", "ObjectLockConfigurationNotFoundError"),
        ("website", "NoSuchWebsiteConfiguration"),
        ("replication", "ReplicationConfigurationNotFoundError"),
        ("inventory", "NotImplemented"),
    ):
        assert world.ask("GET", "/bkt", query=query).code == code
    assert world.ask("PUT", "/bkt", b"<x/>", query="encryption").status == 501
    enforced = b"<Rule><ObjectOwnership>BucketOwnerEnforced</ObjectOwnership></Rule>"
    body = b"<OwnershipControls>" + enforced + b"</OwnershipControls>"
    assert world.ask("PUT", "/bkt", body, query="ownershipControls").status == 501


def test_nobody_gives_away_by_an_acl_what_a_policy_denies(world: World) -> None:
    """An anonymous writer may send the ACL that an object gets anyway, and no other."""
    statements = [
        {"Effect": "Allow", "Principal": "*", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::bkt/*"},
        {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObjectAcl", "Resource": "arn:aws:s3:::bkt/*"},
    ]
    document = json.dumps({"Version": "2012-10-17", "Statement": statements})
    world.boto().put_bucket_policy(Bucket="bkt", Policy=document)
    for acl, status in (("public-read", 403), ("private", 200)):
        headers = {"x-amz-acl": acl}
        assert world.ask("PUT", "/bkt/k", b"x", user="", headers=headers).status == status, acl
        assert world.ask("POST", "/bkt/m", user="", query="uploads", headers=headers).status == status, acl
    assert "" not in readers(world)


def test_who_may_not_read_an_object_gets_none_of_its_attributes_or_tags(world: World) -> None:
    world.ask("PUT", "/bkt/k", b"x", headers={"x-amz-acl": "public-read", "x-amz-tagging": "a=b"})
    statements = [
        {"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bkt/*"}
    ]
    asked = {"query": "attributes", "headers": {"x-amz-object-attributes": "ETag"}}
    assert world.ask("GET", "/bkt/k", **asked).status == 200
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    world.boto().put_bucket_policy(Bucket="bkt", Policy=policy)
    assert world.ask("GET", "/bkt/k", **asked).status == 403
    world.boto().delete_bucket_policy(Bucket="bkt")
    assert world.ask("PUT", "/bobs", user="bob").status == 200
    copy = {"x-amz-copy-source": "/bkt/k"}
    assert world.ask("PUT", "/bobs/k", user="bob", headers=copy).status == 403
    replaced = {**copy, "x-amz-tagging-directive": "REPLACE"}
    assert world.ask("PUT", "/bobs/k", user="bob", headers=replaced).status == 200


def test_who_may_not_read_a_version_is_not_told_that_it_is_a_delete_marker(world: World) -> None:
    """ "null" is a version whose name everybody knows: what was deleted would be told from what never was."""
    suspended = b"<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>"
    assert world.ask("PUT", "/bkt", suspended, query="versioning").status == 200
    world.ask("PUT", "/bkt/gone", b"x")
    assert world.ask("DELETE", "/bkt/gone").headers["x-amz-delete-marker"] == "true"
    for user in ("bob", ""):
        for method, query in (("GET", ""), ("HEAD", ""), ("GET", "acl&"), ("GET", "tagging&")):
            for key in ("gone", "never"):
                answer = world.ask(method, f"/bkt/{key}", user=user, query=f"{query}versionId=null")
                assert (answer.status, answer.headers.get("x-amz-delete-marker")) == (403, None), (key, query)
    assert world.ask("PUT", "/bobs", user="bob").status == 200
    for key in ("gone", "never"):
        copy = {"x-amz-copy-source": f"/bkt/{key}?versionId=null"}
        assert world.ask("PUT", "/bobs/k", user="bob", headers=copy).status == 403, key
    assert world.ask("GET", "/bkt/gone", query="versionId=null").status == 405
    world.boto().put_bucket_policy(Bucket="bkt", Policy=statement(Action="s3:GetObjectVersion"))
    assert world.ask("GET", "/bkt/gone", user="bob", query="versionId=null").status == 405
    assert world.ask("PUT", "/bobs/k", user="bob", headers=copy).status == 403
    copy = {"x-amz-copy-source": "/bkt/gone?versionId=null"}
    assert world.ask("PUT", "/bobs/k", user="bob", headers=copy).code == "InvalidRequest"


def test_a_copy_onto_itself_takes_no_private_object_that_came_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bob may write in the bucket and read what was there when he began; not what alice puts then."""
    world.ask("PUT", "/shared", headers={"x-amz-acl": "public-read-write"})
    world.ask("PUT", "/shared/k", b"for all", headers={"x-amz-acl": "public-read"})
    real, done = world.store.set_meta, list[int]()

    def late(*words: Any) -> Any:
        if not done:
            done.append(world.ask("PUT", "/shared/k", b"private").status)
        return real(*words)

    monkeypatch.setattr(world.store, "set_meta", late)
    copy = {"x-amz-copy-source": "/shared/k", "x-amz-metadata-directive": "REPLACE"}
    answer = world.ask("PUT", "/shared/k", user="bob", headers=copy)
    assert (done, answer.status, answer.code) == ([200], 403, "AccessDenied")
    assert world.ask("GET", "/shared/k", user="bob").status == 403
    assert world.ask("GET", "/shared/k").body == b"private"


def set_policy(world: World, *statements: dict[str, Any]) -> None:
    """Of bkt."""
    whole = [{"Principal": "*", "Resource": "arn:aws:s3:::bkt/*", **one} for one in statements]
    policy = json.dumps({"Version": "2012-10-17", "Statement": whole}).encode()
    assert world.ask("PUT", "/bkt", policy, query="policy").status == 204


@pytest.mark.parametrize("effect", ["Allow", "Deny"])
def test_a_policy_judges_parts_and_completion_by_what_began_the_upload(world: World, effect: str) -> None:
    """Only that request says which ACL and class the object gets; no client sends it again with the parts."""
    world.ask("PUT", "/bkt/public", b"y", headers={"x-amz-acl": "public-read"})
    acl = {"s3:x-amz-acl": "bucket-owner-full-control"}
    if effect == "Allow":
        set_policy(world, {"Effect": "Allow", "Action": "s3:PutObject", "Condition": {"StringEquals": acl}})
    else:
        deny = {"Effect": "Deny", "Action": "s3:PutObject", "Condition": {"StringNotEquals": acl}}
        set_policy(world, {"Effect": "Allow", "Action": ["s3:PutObject", "s3:GetObject"]}, deny)
    bob = world.boto("bob")
    with pytest.raises(ClientError, match="AccessDenied"):
        bob.create_multipart_upload(Bucket="bkt", Key="k")
    made = bob.create_multipart_upload(Bucket="bkt", Key="k", ACL="bucket-owner-full-control")
    whose = {"Bucket": "bkt", "Key": "k", "UploadId": made["UploadId"]}
    part = bob.upload_part(**whose, PartNumber=1, Body=b"x")
    bob.upload_part_copy(**whose, PartNumber=2, CopySource="bkt/public")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    done = bob.complete_multipart_upload(**whose, MultipartUpload=parts)
    assert bob.complete_multipart_upload(**whose, MultipartUpload=parts)["ETag"] == done["ETag"]
    assert world.boto().get_object(Bucket="bkt", Key="k")["Body"].read() == b"x"
    # nothing of that is the copy's
    world.ask("PUT", "/bkt/copy", user="root", headers={"x-amz-copy-source": "/bkt/k"})
    assert find(world.site, world.site.bucket("bkt"), "copy").meta.asked == {}


def test_a_policy_has_objects_written_once(world: World) -> None:
    """Whoever uploads has to ask that nothing be replaced, in whatever way he does; parts need not. What a
    form or a part says of it counts for nothing."""
    once = {"Null": {"s3:if-none-match": "true"}, "Bool": {"s3:ObjectCreationOperation": "true"}}
    deny = {"Effect": "Deny", "Action": "s3:PutObject", "Condition": once}
    set_policy(world, {"Effect": "Allow", "Action": ["s3:PutObject", "s3:GetObject"]}, deny)
    for user in ("alice", "bob"):
        client, key = world.boto(user), f"of {user}"
        with pytest.raises(ClientError, match="AccessDenied"):
            client.put_object(Bucket="bkt", Key=key, Body=b"x")
        client.put_object(Bucket="bkt", Key=key, Body=b"x", IfNoneMatch="*")
        copy = {"Bucket": "bkt", "CopySource": f"bkt/{key}"}
        with pytest.raises(ClientError, match="AccessDenied"):
            client.copy_object(**copy, Key=f"copy {key}")
        whose = {"Bucket": "bkt", "Key": f"large {key}"}
        whose["UploadId"] = client.create_multipart_upload(**whose)["UploadId"]
        part = client.upload_part(**whose, PartNumber=1, Body=b"y" * 10)
        client.upload_part_copy(**whose, PartNumber=2, CopySource=f"bkt/{key}")
        parts = {"MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}}
        with pytest.raises(ClientError, match="AccessDenied"):
            client.complete_multipart_upload(**whose, **parts)
        client.complete_multipart_upload(**whose, **parts, IfNoneMatch="*")
        for again in (key, f"large {key}"):
            with pytest.raises(ClientError, match="PreconditionFailed"):
                client.put_object(Bucket="bkt", Key=again, Body=b"z", IfNoneMatch="*")
        assert client.get_object(Bucket="bkt", Key=key)["Body"].read() == b"x"
    empty = world.ask("PUT", "/bkt/k", b"x", user="bob", headers={"If-None-Match": ""})
    assert (empty.status, world.ask("HEAD", "/bkt/k").status) == (501, 404)


def test_a_part_says_nothing_of_the_object_to_a_policy(world: World) -> None:
    """A header that nothing looks at there would say what pleases the client."""
    begun = world.ask("POST", "/bkt/k", query="uploads", headers={"x-amz-acl": "public-read"})
    allowed = {"StringEquals": {"s3:x-amz-acl": "private"}}
    set_policy(world, {"Effect": "Allow", "Action": "s3:PutObject", "Condition": allowed})
    query, headers = f"partNumber=1&uploadId={begun.leaf('UploadId')}", {"x-amz-acl": "private"}
    assert world.ask("PUT", "/bkt/k", b"x", user="bob", query=query, headers=headers).status == 403
    assert world.ask("PUT", "/bkt/k", b"x", query=query, headers=headers).status == 200


@pytest.mark.parametrize(
    "source",
    [
        "bkt/se cret/k",
        "/bkt/se%20cret/k",
        "%2Fbkt/se cret/k",
        "bkt/%73e+cret%2Fk",
        "/bkt/se+cret/k?versionId=null",
    ],
)
def test_a_policy_knows_a_copys_source_however_it_is_written(world: World, source: str) -> None:
    assert world.ask("PUT", "/bkt/se cret/k", b"x").status == 200
    condition = {"StringLike": {"s3:x-amz-copy-source": "bkt/se cret/*"}}
    set_policy(world, {"Effect": "Deny", "Action": "s3:PutObject", "Condition": condition})
    assert world.ask("PUT", "/bkt/copy", headers={"x-amz-copy-source": source}).status == 403
    assert world.ask("PUT", "/bkt/k", b"x").status == 200
    assert world.ask("PUT", "/bkt/copy", headers={"x-amz-copy-source": "/bkt/k"}).status == 200


def test_a_policy_knows_which_version_is_meant(world: World) -> None:
    """Of each key of many, and of a copy's source; not the one that the query names besides."""
    client = world.boto()
    client.put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Enabled"})
    one, two = (client.put_object(Bucket="bkt", Key="k", Body=body)["VersionId"] for body in (b"1", b"2"))
    allowed = {"Effect": "Allow", "Condition": {"StringEquals": {"s3:VersionId": one}}}
    set_policy(world, {**allowed, "Action": ["s3:DeleteObjectVersion", "s3:GetObjectVersion"]})
    assert world.ask("PUT", "/bobs", user="bob").status == 200
    for version, status in ((two, 403), (one, 200)):
        source = {"x-amz-copy-source": f"/bkt/k?versionId={version}"}
        assert world.ask("PUT", "/bobs/k", user="bob", headers=source).status == status
        assert world.ask("GET", "/bkt/k", user="bob", query=f"versionId={version}").status == status
    for version, left in ((two, {one, two}), (one, {two})):
        body = f"<Delete><Object><Key>k</Key><VersionId>{version}</VersionId></Object></Delete>".encode()
        digest = base64.b64encode(hashlib.md5(body).digest()).decode()
        world.ask(
            "POST", "/bkt", body, user="bob", query=f"delete&versionId={one}", headers={"Content-MD5": digest}
        )
        versions = client.list_object_versions(Bucket="bkt")["Versions"]
        assert {row["VersionId"] for row in versions} == left


@pytest.mark.parametrize(
    ("operator", "keys"), [("StringLike", "*"), ("StringLikeIfExists", "${s3:prefix}*")]
)  # fmt: skip
def test_a_parameter_of_a_listing_opens_no_object(world: World, operator: str, keys: str) -> None:
    """Who may list and read below his prefix reads nothing else by naming that prefix with a GET."""
    world.ask("PUT", "/bkt/home/carol/k", b"secret")
    world.ask("PUT", "/bkt/home/bob/k", b"his own")
    set_policy(world, {
        "Effect": "Allow",
        "Principal": {"AWS": ["bob"]},
        "Action": ["s3:ListBucket", "s3:GetObject"],
        "Resource": ["arn:aws:s3:::bkt", f"arn:aws:s3:::bkt/{keys}"],
        "Condition": {operator: {"s3:prefix": "home/bob/*"}},
    })  # fmt: skip
    mine = {"prefix": "home/bob/"}
    assert world.ask("GET", "/bkt", user="bob", query=mine).status == 200
    assert world.ask("GET", "/bkt", user="bob", query={"prefix": "home/carol/"}).status == 403
    for method, key in (("GET", "home/carol/k"), ("HEAD", "home/carol/k"), ("GET", "home/bob/k")):
        assert world.ask(method, f"/bkt/{key}", user="bob", query=mine).status == 403
    if operator == "StringLikeIfExists":
        return
    # nor does it tell him which keys there are
    assert world.ask("GET", "/bkt/home/carol/none", user="bob", query=mine).status == 403
    source = {"x-amz-copy-source": "/bkt/home/carol/none"}
    assert world.ask("PUT", "/bobs", user="bob").status == 200
    assert world.ask("PUT", "/bobs/k", user="bob", query=mine, headers=source).status == 403


def test_a_header_of_an_upload_opens_nothing_else(world: World) -> None:
    """A policy that gives everything to those who send a header gives uploads, and not reading or itself."""
    world.ask("PUT", "/bkt/k", b"secret")
    for header, value in (("x-amz-acl", "private"), ("x-amz-copy-source", "bkt/k")):
        set_policy(world, {
            "Effect": "Allow",
            "Action": "s3:*",
            "Resource": ["arn:aws:s3:::bkt", "arn:aws:s3:::bkt/*"],
            "Condition": {"StringEquals": {f"s3:{header}": value}},
        })  # fmt: skip
        sent = {header: value}
        for method, path, query in (
            ("GET", "/bkt/k", ""),
            ("DELETE", "/bkt/k", ""),
            ("GET", "/bkt", ""),
            ("DELETE", "/bkt", "policy"),
            ("PUT", "/bkt", "policy"),
        ):
            answer = world.ask(method, path, user="bob", query=query, headers=sent)
            assert answer.status in (400, 403), (header, method, path)
    assert world.ask("GET", "/bkt/k").body == b"secret"


@pytest.mark.parametrize(
    ("action", "key"),
    [
        ("s3:GetObject", "s3:prefix"),
        ("s3:PutObject*", "s3:max-keys"),
        ("s3:GetObject", "s3:VersionId"),
        (["s3:ListBucket", "s3:GetObject*"], "s3:x-amz-acl"),
        ("s3:DeleteObject", "s3:x-amz-copy-source"),
        ("s3:DeleteObject", "s3:ExistingObjectTag/keep"),
        (["s3:PutObject", "s3:DeleteObjectVersion", "s3:ListBucket"], "s3:ExistingObjectTag/keep"),
    ],
)
def test_a_condition_on_what_no_such_request_has_is_refused(world: World, action: Any, key: str) -> None:
    """As Amazon S3 does: it would allow nothing, or deny all."""
    kind = "NumericEquals" if key == "s3:max-keys" else "StringEquals"
    one = {"Effect": "Deny", "Principal": "*", "Action": action, "Condition": {kind: {key: "1"}}}
    one["Resource"] = ["arn:aws:s3:::bkt", "arn:aws:s3:::bkt/*"]
    text = json.dumps({"Version": "2012-10-17", "Statement": [one]})
    answer = world.ask("PUT", "/bkt", text.encode(), query="policy")
    assert (answer.status, answer.code) == (400, "MalformedPolicy")
    assert "Conditions do not apply to combination of actions" in answer.leaf("Message")


@pytest.mark.parametrize(
    "asked",
    [
        {"If-Match": '"5ebe2294ecd0e0f08eab7690d2a6ee69"'},
        {"If-Match": '"00000000000000000000000000000000"'},
        {"If-Unmodified-Since": "Sun, 01 Jan 2012 00:00:00 GMT"},
        {"x-amz-if-match-size": "5"},
    ],
)
def test_who_may_only_write_learns_nothing_of_an_object_by_conditions(
    world: World, asked: dict[str, str]
) -> None:
    """Neither its ETag, the sum of its content, nor its size or time: he needs the right to read, as in S3.
    Whether there is one he may ask."""
    world.ask("PUT", "/bkt", query="acl", headers={"x-amz-acl": "public-read-write"})
    world.ask("PUT", "/bkt/k", b"secret")
    world.ask("PUT", "/bkt/bobs", b"x", user="bob")
    started = world.ask("POST", "/bkt/k", user="bob", query="uploads").leaf("UploadId")
    part = world.ask("PUT", "/bkt/k", b"p", user="bob", query=f"partNumber=1&uploadId={started}")
    etag = part.headers["etag"]
    parts = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
    parts += "</CompleteMultipartUpload>"
    copy = {"x-amz-copy-source": "/bkt/bobs"}
    for method, query, body, more in (
        ("PUT", "", b"mine", {}),
        ("PUT", "", b"x" * 100_000, {}),
        ("PUT", "", b"", copy),
        ("POST", f"uploadId={started}", parts.encode(), {}),
        ("DELETE", "", b"", {}),
        ("DELETE", "versionId=null", b"", {}),
    ):
        answer = world.ask(method, "/bkt/k", body, user="bob", query=query, headers={**asked, **more})
        assert (answer.status, answer.code) == (403, "AccessDenied"), (method, query, more)
    for inner in ("<ETag>5ebe2294ecd0e0f08eab7690d2a6ee69</ETag>", "<Size>5</Size>"):
        document = f"<Delete><Object><Key>k</Key>{inner}</Object></Delete>".encode()
        digest = base64.b64encode(hashlib.md5(document).digest()).decode()
        answer = world.ask(
            "POST", "/bkt", document, user="bob", query="delete", headers={"Content-MD5": digest}
        )
        assert answer.leaf("Code") == "AccessDenied"
    assert world.ask("GET", "/bkt/k").body == b"secret"
    assert world.ask("PUT", "/bkt/k", b"x", user="bob", headers={"If-None-Match": "*"}).status == 412
    # his own he may compare
    assert world.ask("PUT", "/bkt/bobs", b"y", user="bob", headers={"If-Match": '"0"'}).status == 412
    assert world.ask("DELETE", "/bkt/bobs", user="bob", headers={"x-amz-if-match-size": "1"}).status == 204
    assert world.ask("DELETE", "/bkt/k", user="bob", headers={"If-Match": "*"}).status == 204


def test_what_clients_send_makes_no_large_patterns(world: World) -> None:
    """A variable in a policy, which any user may set for a bucket of his own, took 100 ms of the server and a
    megabyte of its memory for good with each request that had another long header."""
    condition = {"StringLike": {"aws:UserAgent": "a*${aws:Referer}?*z"}}
    set_policy(
        world,
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bkt/${aws:UserAgent}*"},
        {"Effect": "Deny", "Action": "s3:GetObject", "Condition": condition},
    )
    world.ask("PUT", "/bkt/k", b"x")
    began_s = time.process_time()
    tracemalloc.start()
    try:
        for number in range(60):
            headers = {"User-Agent": f"a{number}" + "x" * 50_000, "Referer": f"{number}" + "x" * 50_000}
            assert world.ask("GET", "/bkt/k", user="bob", headers=headers).status == 403
        assert tracemalloc.get_traced_memory()[0] < 10_000_000
    finally:
        tracemalloc.stop()
    assert time.process_time() - began_s < 6
    fits = {"User-Agent": "k" * 3000}
    assert world.ask("GET", "/bkt/" + "k" * 900, user="bob", headers=fits).status == 403
    assert world.ask("GET", "/bkt/k", user="bob", headers={"User-Agent": "k"}).status == 200


def test_a_bucket_that_was_given_away_is_no_longer_its_former_owners(world: World) -> None:
    """Nor are the objects in it that were his: his own grants go along, those to others stay."""
    carol = world.people.users["carol"].id
    world.ask("PUT", "/bkt/k", b"x")
    world.ask("PUT", "/bkt/k", query="acl", headers={
        "x-amz-grant-full-control": f'id="{world.people.users["alice"].id}"',
        "x-amz-grant-read": f'id="{carol}"',
    })  # fmt: skip
    world.ask("PUT", "/bkt/own", b"x")
    bucket = world.index.bucket("bkt")
    assert bucket is not None and readers(world) == {"alice", "carol"}
    assert data.give(world.index, world.store, bucket, world.people.users["bob"]) == 2
    assert readers(world) == {"bob", "carol"} and readers(world, "/bkt/own") == {"bob"}
    for ask in (("PUT", "/bkt/new"), ("GET", "/bkt"), ("DELETE", "/bkt/k")):
        assert world.ask(*ask).status == 403, ask
    assert world.ask("PUT", "/bkt/k", query="acl", headers={"x-amz-acl": "public-read"}).status == 403
    assert world.ask("GET", "/bkt", query="acl", user="bob").body.count(b"FULL_CONTROL") == 1
