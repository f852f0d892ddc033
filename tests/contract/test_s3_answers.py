"""What Amazon S3 answers to requests that are wrong in a way of their own; on memory alone, since no storage
is asked."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator

import pytest
from s3_wire import Answer
from s3_world import World

from cumulus.backends.memory import MemoryStore

NEVER = "0" * 32  # could be a version's id, and is none


@pytest.fixture
def world() -> Iterator[World]:
    made = World(MemoryStore())
    assert made.ask("PUT", "/bkt").status == 200
    yield made
    made.close()


def version_of(world: World, body: bytes = b"one") -> str:
    """An object in a bucket with versions."""
    world.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Enabled"})
    return world.ask("PUT", "/bkt/k", body).headers["x-amz-version-id"]


def delete_all(world: World, *pairs: tuple[str, str]) -> Answer:
    """DeleteObjects of (key, version)."""
    items = "".join(f"<Object><Key>{k}</Key><VersionId>{v}</VersionId></Object>" for k, v in pairs)
    body = f"<Delete>{items}</Delete>".encode()
    digest = base64.b64encode(hashlib.md5(body).digest()).decode()
    return world.ask("POST", "/bkt", body, query="delete", headers={"Content-MD5": digest})


@pytest.mark.parametrize("version", ["x", "Null", "\0", NEVER + "0", NEVER[1:] + "g", "../k"])
def test_a_version_id_that_can_be_none(world: World, version: str) -> None:
    """Whoever has mistyped one must not be told that the version is gone."""
    there = version_of(world)
    attributes = {"x-amz-object-attributes": "ETag"}
    for method, query in (("GET", {}), ("DELETE", {}), ("GET", {"tagging": ""}), ("GET", {"attributes": ""})):
        answer = world.ask(method, "/bkt/k", query={**query, "versionId": version}, headers=attributes)
        assert (answer.status, answer.code) == (400, "InvalidArgument")
        assert answer.leaf("Message") == "Invalid version id specified"
    assert world.ask("HEAD", "/bkt/k", query={"versionId": version}).status == 400
    if version.isprintable():
        source = {"x-amz-copy-source": f"/bkt/k?versionId={version}"}
        assert world.ask("PUT", "/bkt/copy", headers=source).code == "InvalidArgument"
    listed = world.ask("GET", "/bkt", query={"versions": "", "key-marker": "k", "version-id-marker": version})
    assert listed.code == "InvalidArgument"
    assert world.ask("GET", "/bkt/k", query={"versionId": there}).body == b"one"


def test_a_version_that_is_not_there(world: World) -> None:
    """In a deletion of many a version id that can be none is one key's error; to delete what is not there is
    none."""
    there = version_of(world)
    for version in (NEVER, "null"):
        assert world.ask("GET", "/bkt/k", query={"versionId": version}).code == "NoSuchVersion"
        assert world.ask("DELETE", "/bkt/k", query={"versionId": version}).status == 204
    gone = delete_all(world, ("k", "x"), ("k", NEVER), ("k", there))
    assert gone.status == 200
    assert (gone.leaves("Code"), gone.leaves("VersionId")) == (["NoSuchVersion"], ["x", NEVER, there])
    assert world.ask("GET", "/bkt/k", query={"versionId": there}).code == "NoSuchVersion"


def test_a_plus_in_the_name_of_a_copys_source_is_a_space(world: World) -> None:
    """As encoders of forms write it, and as Amazon's example for Java does; a plus is %2B."""
    world.ask("PUT", "/bkt/a b", b"space")
    world.ask("PUT", "/bkt/a+b", b"plus")
    for source, body in (("bkt%2Fa+b", b"space"), ("bkt/a%20b", b"space"), ("bkt/a%2Bb", b"plus")):
        assert world.ask("PUT", "/bkt/copy", headers={"x-amz-copy-source": source}).status == 200
        assert world.ask("GET", "/bkt/copy").body == body


def tagging(count: int, one: str = "<Tag><Key>{}</Key><Value>v</Value></Tag>") -> bytes:
    """A document of as many tags."""
    tags = "".join(one.format(number) for number in range(count))
    return f"<Tagging><TagSet>{tags}</TagSet></Tagging>".encode()


def test_too_many_tags(world: World) -> None:
    """The code by which Terraform and others tell it from a tag that is wrong."""
    world.ask("PUT", "/bkt/k", b"x")
    for path, most, what in (("/bkt/k", 10, "Object tags"), ("/bkt", 50, "Bucket tag count")):
        assert world.ask("PUT", path, tagging(most), query="tagging").status in (200, 204)
        refused = world.ask("PUT", path, tagging(most + 1), query="tagging")
        assert (refused.status, refused.code) == (400, "BadRequest")
        assert refused.leaf("Message") == f"{what} cannot be greater than {most}"
        assert len(world.ask("GET", path, query="tagging").leaves("Key")) == most
    header = {"x-amz-tagging": "&".join(f"{number}=v" for number in range(11))}
    assert world.ask("PUT", "/bkt/other", b"x", headers=header).code == "BadRequest"


@pytest.mark.parametrize("one", ["<Tag><Key>k</Key></Tag>", "<Tag><Value>v</Value></Tag>", "<Tag/>"])
def test_a_tag_without_a_key_or_a_value(world: World, one: str) -> None:
    """It is not one with an empty value."""
    world.ask("PUT", "/bkt/k", b"x")
    for path in ("/bkt/k", "/bkt"):
        assert world.ask("PUT", path, tagging(1, one), query="tagging").code == "MalformedXML"
    empty = tagging(1, "<Tag><Key>k</Key><Value/></Tag>")
    assert world.ask("PUT", "/bkt/k", empty, query="tagging").status == 200


def test_a_copied_range_that_is_not_all_there(world: World) -> None:
    """For GET that is 416, for UploadPartCopy 400."""
    world.ask("PUT", "/bkt/from", b"0123456789")
    upload = world.ask("POST", "/bkt/k", query="uploads").leaf("UploadId")
    for asked in ("bytes=0-10", "bytes=10-12"):
        source = {"x-amz-copy-source": "bkt/from", "x-amz-copy-source-range": asked}
        refused = world.ask("PUT", "/bkt/k", query=f"partNumber=1&uploadId={upload}", headers=source)
        assert (refused.status, refused.code) == (400, "InvalidArgument")
        assert refused.leaf("Message") == "Range specified is not valid for source object of size: 10"
    assert world.ask("GET", "/bkt/k", query=f"uploadId={upload}").leaves("PartNumber") == []


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/bkt?x", "max-keys"),
        ("/bkt?list-type=2", "max-keys"),
        ("/bkt?versions", "max-keys"),
        ("/bkt?uploads", "max-uploads"),
        ("/bkt/k?uploadId=", "max-parts"),
        ("/bkt/k?uploadId=", "part-number-marker"),
    ],
)
def test_numbers_of_listings(world: World, path: str, name: str) -> None:
    """Up to 2^31 - 1, of which a page takes what it can; what is no such number and what is below are told
    apart."""
    where, _, query = path.partition("?")
    if query == "uploadId=":
        query += world.ask("POST", "/bkt/k", query="uploads").leaf("UploadId")
    assert world.ask("GET", where, query=f"{query}&{name}=2147483647").status == 200
    for wrong in ("2147483648", "1" * 30, "ten", "1.5", "%2B1"):
        refused = world.ask("GET", where, query=f"{query}&{name}={wrong}")
        assert (refused.status, refused.code) == (400, "InvalidArgument")
        assert refused.leaf("Message") == f"Provided {name} not an integer or within integer range"
    refused = world.ask("GET", where, query=f"{query}&{name}=-1")
    assert refused.leaf("Message") == f"Argument {name} must be an integer between 0 and 2147483647"


def test_markers_of_uploads(world: World) -> None:
    """Without a key's marker that of an upload says nothing; one that has ended since the last page is none
    the less a marker."""
    upload = world.ask("POST", "/bkt/k", query="uploads").leaf("UploadId")
    alone = world.ask("GET", "/bkt", query="uploads&upload-id-marker=any")
    assert (alone.leaves("UploadId"), alone.leaf("UploadIdMarker")) == ([upload], "")
    refused = world.ask("GET", "/bkt", query="uploads&key-marker=k&upload-id-marker=any")
    assert (refused.code, refused.leaf("Message")) == ("InvalidArgument", "Invalid uploadId marker")
    for marker, left in ((upload, []), (NEVER, [upload])):
        behind = world.ask("GET", "/bkt", query=f"uploads&key-marker=k&upload-id-marker={marker}")
        assert behind.leaves("UploadId") == left


def test_a_buckets_region_is_told_to_everybody(world: World) -> None:
    """Clients look for it with HeadBucket, unsigned or with the key of whoever they are."""
    for user in ("alice", "bob", ""):
        answer = world.ask("HEAD", "/bkt", user=user)
        assert answer.status == (200 if user == "alice" else 403)
        assert answer.headers["x-amz-bucket-region"] == "us-east-1"
    assert "x-amz-bucket-region" not in world.ask("HEAD", "/none", user="bob").headers
    assert "x-amz-bucket-region" not in world.ask("HEAD", "/bkt/k", user="bob").headers


def test_a_copy_with_a_body(world: World) -> None:
    """Whoever sends bytes means them to be stored: neither they nor the source's are, instead of one of
    them."""
    world.ask("PUT", "/bkt/from", b"source")
    world.ask("PUT", "/bkt/k", b"old")
    source = {"x-amz-copy-source": "bkt/from"}
    upload = world.ask("POST", "/bkt/k", query="uploads").leaf("UploadId")
    for query in ("", f"partNumber=1&uploadId={upload}"):
        refused = world.ask("PUT", "/bkt/k", b"new", query=query, headers=source)
        assert (refused.status, refused.code) == (400, "InvalidRequest")
        assert world.ask("PUT", "/bkt/other", headers=source).status == 200
    assert world.ask("GET", "/bkt/k").body == b"old"
    assert world.ask("GET", "/bkt/k", query=f"uploadId={upload}").leaves("PartNumber") == []


def test_a_key_to_decrypt_what_is_not_encrypted(world: World) -> None:
    """Who sends one believes that the object is."""
    world.ask("PUT", "/bkt/k", b"plain")
    key = {
        "x-amz-server-side-encryption-customer-algorithm": "AES256",
        "x-amz-server-side-encryption-customer-key": base64.b64encode(b"k" * 32).decode(),
        "x-amz-object-attributes": "ETag",
    }
    for query in ("", "attributes"):
        refused = world.ask("GET", "/bkt/k", query=query, headers=key)
        assert (refused.status, refused.code) == (400, "InvalidRequest")
    assert world.ask("HEAD", "/bkt/k", headers=key).status == 400


def test_attributes_of_an_object_without_saying_which(world: World) -> None:
    world.ask("PUT", "/bkt/k", b"x")
    for names, code in (("", "InvalidRequest"), (" , ", "InvalidRequest"), ("Age", "InvalidArgument")):
        asked = {"x-amz-object-attributes": names}
        assert world.ask("GET", "/bkt/k", query="attributes", headers=asked).code == code
    assert world.ask("GET", "/bkt/k", query="attributes").code == "InvalidRequest"


def test_a_wrong_md5_sum_is_told(world: World) -> None:
    """The sum that was sent, and the one of what came."""
    sent, came = (base64.b64encode(hashlib.md5(body).digest()).decode() for body in (b"sent", b"came"))
    refused = world.ask("PUT", "/bkt/k", b"came", headers={"Content-MD5": sent})
    assert (refused.code, refused.leaf("ExpectedDigest")) == ("BadDigest", sent)
    assert refused.leaf("CalculatedDigest") == came
    refused = world.ask("PUT", "/bkt/k", b"came", headers={"Content-MD5": "none"})
    assert (refused.code, refused.leaf("Content-MD5")) == ("InvalidDigest", "none")


OF_BUCKETS = ["accelerate", "cors", "inventory", "lifecycle", "location", "logging", "notification", "policy"]
OF_BUCKETS += ["replication", "requestPayment", "versioning", "versions", "website"]


@pytest.mark.parametrize("name", OF_BUCKETS)
def test_a_sub_resource_of_buckets_asked_of_a_key(world: World, name: str) -> None:
    """Whoever sends a bucket's policy to a key does not want it stored as the object, and whoever deletes it
    there does not want the object deleted."""
    world.ask("PUT", "/bkt/k", b"body")
    for method, body in (("PUT", b"<Document/>"), ("DELETE", b""), ("GET", b"")):
        refused = world.ask(method, "/bkt/k", body, query=name)
        assert (refused.status, refused.code) == (400, "InvalidRequest")
        assert refused.leaf("Message") == f"There is no such thing as the ?{name} sub-resource for a key"
    assert world.ask("HEAD", "/bkt/k", query=name).status == 400
    assert world.ask("GET", "/bkt/k", query="metrics&x-id=GetObject").body == b"body"


def test_an_upload_without_its_key(world: World) -> None:
    """A client that has lost the key must not remove the bucket."""
    for method in ("GET", "POST", "DELETE", "PUT"):
        refused = world.ask(method, "/bkt", query="uploadId=x")
        assert (refused.status, refused.code) == (400, "InvalidRequest")
        assert refused.leaf("Message") == "A key must be specified"
    assert world.ask("HEAD", "/bkt").status == 200


def test_two_sub_resources_at_once(world: World) -> None:
    world.ask("PUT", "/bkt/k", b"body")
    for path, query, names in (
        ("/bkt", "versioning&acl", "acl, versioning"),
        ("/bkt", "uploads&policy&cors", "cors, policy, uploads"),
        ("/bkt/k", "tagging&acl", "acl, tagging"),
    ):
        for method in ("GET", "PUT", "DELETE"):
            refused = world.ask(method, path, query=query)
            assert (refused.status, refused.code) == (400, "InvalidArgument")
            assert refused.leaf("Message") == f"Conflicting query string parameters: {names}"
    assert world.ask("GET", "/bkt/k").body == b"body"


def test_names_of_storage_classes(world: World) -> None:
    """Those that are read at once; an archive would not be one here."""
    for name in ("STANDARD", "STANDARD_IA", "GLACIER_IR", "INTELLIGENT_TIERING"):
        assert world.ask("PUT", "/bkt/k", b"x", headers={"x-amz-storage-class": name}).status == 200
    for name in ("GLACIER", "DEEP_ARCHIVE", "standard"):
        refused = world.ask("PUT", "/bkt/k", b"x", headers={"x-amz-storage-class": name})
        assert (refused.status, refused.code) == (400, "InvalidStorageClass")


def test_when_an_upload_is_aborted(world: World) -> None:
    """By the lifecycle rule that covers its key, as the replies that begin and show it say."""
    client = world.boto()
    end = {"DaysAfterInitiation": 3}
    rule = {"ID": "old uploads", "Filter": {"Prefix": "tmp/"}, "AbortIncompleteMultipartUpload": end}
    wanted = {"Rules": [{**rule, "Status": "Enabled"}]}
    client.put_bucket_lifecycle_configuration(Bucket="bkt", LifecycleConfiguration=wanted)
    made = client.create_multipart_upload(Bucket="bkt", Key="tmp/k")
    shown = client.list_parts(Bucket="bkt", Key="tmp/k", UploadId=made["UploadId"])
    for answer in (made, shown):
        assert answer["AbortRuleId"] == "old uploads"
        assert answer["AbortDate"] == made["AbortDate"]
    days = (made["AbortDate"].timestamp() - world.clock() / 1e9) / 86400
    assert 2.99 < days <= 4 and made["AbortDate"].strftime("%H:%M:%S") == "00:00:00"
    assert "AbortDate" not in client.create_multipart_upload(Bucket="bkt", Key="k")


@pytest.mark.parametrize(
    ("actions", "resources", "taken"),
    [
        (["s3:ListBucket"], ["bkt/*"], False),
        (["s3:GetObject"], ["bkt"], False),
        (["s3:GetObject", "s3:ListBucket"], ["bkt/*"], False),
        (["s3:GetObject", "s3:ListBucket"], ["bkt/*", "bkt"], True),
        (["s3:GetObject", "s3:ListBucket"], ["bkt*"], True),
        (["s3:*"], ["bkt/public/*"], True),
        (["s3:List*"], ["bkt/*"], True),
        (["*"], ["bkt"], True),
    ],
)
def test_a_policy_whose_actions_fit_none_of_its_resources(
    world: World, actions: list[str], resources: list[str], taken: bool
) -> None:
    """Else it is there and allows nothing, and nobody sees why."""
    named = [f"arn:aws:s3:::{resource}" for resource in resources]
    statement = {"Effect": "Allow", "Principal": "*", "Action": actions, "Resource": named}
    body = json.dumps({"Version": "2012-10-17", "Statement": [statement]}).encode()
    answer = world.ask("PUT", "/bkt", body, query="policy")
    assert (answer.status, answer.code) == ((204, "") if taken else (400, "MalformedPolicy"))
    assert taken or "Action does not apply to any resource(s) in statement" in answer.leaf("Message")
    assert world.ask("GET", "/bkt", query="policy").status == (200 if taken else 404)


@pytest.mark.parametrize("algorithm", ["", "CRC32"])
def test_parts_among_an_objects_attributes(world: World, algorithm: str) -> None:
    """Where they have no checksums their number is all."""
    client = world.boto(request_checksum_calculation="when_required")
    extra = {"ChecksumAlgorithm": algorithm} if algorithm else {}
    upload = client.create_multipart_upload(Bucket="bkt", Key="k", **extra)["UploadId"]
    parts = []
    for number in (1, 2):
        made = client.upload_part(
            Bucket="bkt", Key="k", UploadId=upload, PartNumber=number, Body=b"x", **extra
        )
        sums = {name: made[name] for name in ("ETag", "ChecksumCRC32") if name in made}
        parts.append({"PartNumber": number, **sums})
    client.complete_multipart_upload(Bucket="bkt", Key="k", UploadId=upload, MultipartUpload={"Parts": parts})
    asked = {"x-amz-object-attributes": "ObjectParts", "x-amz-max-parts": "5000"}
    shown = world.ask("GET", "/bkt/k", query="attributes", headers=asked)
    assert shown.leaf("PartsCount") == "2"
    assert shown.leaves("PartNumber") == (["1", "2"] if algorithm else [])
    assert shown.leaves("MaxParts") == (["1000"] if algorithm else [])


def test_an_acl_that_is_none(world: World) -> None:
    """It has a code of its own."""
    world.ask("PUT", "/bkt/k", b"x")
    for path in ("/bkt", "/bkt/k"):
        for body in (b"<A><B>", b"no XML", b"<Other/>", b"<AccessControlPolicy/>"):
            refused = world.ask("PUT", path, body, query="acl")
            assert (refused.status, refused.code) == (400, "MalformedACLError")


def test_a_copys_source_where_nothing_is_copied(world: World) -> None:
    world.ask("PUT", "/bkt/k", b"body")
    upload = world.ask("POST", "/bkt/m", query="uploads").leaf("UploadId")
    source = {"x-amz-copy-source": "bkt/k"}
    for method, path, query in (
        ("GET", "/bkt/k", ""),
        ("DELETE", "/bkt/k", ""),
        ("DELETE", "/bkt", ""),
        ("POST", "/bkt/m", f"uploadId={upload}"),
    ):
        refused = world.ask(method, path, query=query, headers=source)
        assert (refused.status, refused.code) == (400, "InvalidArgument")
    assert world.ask("GET", "/bkt/k").body == b"body"


def test_a_trailer_that_is_no_checksum(world: World) -> None:
    """It would be read and forgotten."""
    head = {
        "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "x-amz-decoded-content-length": "1",
        "x-amz-trailer": "x-amz-meta-late",
        "content-encoding": "aws-chunked",
    }
    body = b"1\r\nx\r\n0\r\nx-amz-meta-late:1\r\n\r\n"
    refused = world.ask("PUT", "/bkt/k", body, headers=head)
    assert (refused.status, refused.code) == (400, "InvalidRequest")
    assert world.ask("GET", "/bkt/k").status == 404


def test_a_refused_head_says_why_in_headers(world: World) -> None:
    """As GET does in its document; without these a client with minio-go says "Access Denied" to who has
    mistyped the secret, and that a key is missing to who has mistyped the bucket."""
    world.ask("PUT", "/bkt/k", b"x")
    wrong = {"Authorization": "AWS4-HMAC-SHA256 Credential=nobody/20260101/us-east-1/s3/aws4_request"}
    for path, user, headers in (("/bkt/no", "alice", {}), ("/no/k", "alice", {}), ("/bkt/k", "", wrong)):
        head, get = (world.ask(method, path, user=user, headers=headers) for method in ("HEAD", "GET"))
        assert head.status == get.status and not head.body
        assert head.headers["x-minio-error-code"] == get.code
        assert head.headers["x-minio-error-desc"] == f'"{get.leaf("Message")}"'


def test_a_refused_head_repeats_nothing_that_ends_a_line(world: World) -> None:
    """The region is the client's word."""
    query = {
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": "ALICE/20260101/x\r\nSet-Cookie: a=b\r\n\x85/s3/aws4_request",
        "X-Amz-Date": "20260101T000000Z",
        "X-Amz-Expires": "60",
        "X-Amz-SignedHeaders": "host",
        "X-Amz-Signature": "0" * 64,
    }
    answer = world.ask("HEAD", "/bkt/k", user="", query=query)
    assert "the region 'x??Set-Cookie: a=b????' is wrong" in answer.headers["x-minio-error-desc"]


def test_the_server_as_such_is_asked_what_it_takes(world: World) -> None:
    """As load balancers do (RFC 9110, section 9.3.7); nobody has to sign it, and nothing else has that
    name."""
    answer = world.ask("OPTIONS", "*", user="", raw=True, headers={"Host": "balancer"})
    assert (answer.status, answer.body) == (200, b"")
    assert {"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"} == set(answer.headers["allow"].split(", "))
    assert world.ask("GET", "*", user="", raw=True).code == "InvalidURI"
    assert world.ask("OPTIONS", "/", user="").code == "BadRequest"


def test_who_listens_for_events_is_told_that_there_are_none(world: World) -> None:
    """A listing in its place is no answer to MinIO's clients: they ask again at once, for ever."""
    answer = world.ask("GET", "/bkt", query={"prefix": "", "suffix": "", "events": "s3:ObjectCreated:*"})
    assert (answer.status, answer.code) == (501, "NotImplemented")
