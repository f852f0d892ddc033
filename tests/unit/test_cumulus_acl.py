"""cumulus.auth.acl and cumulus.auth.decide: who may do what by ownership and access control lists."""

from __future__ import annotations

import pytest
from cumulus_signing import People

from cumulus.auth import acl
from cumulus.auth.actions import ACTIONS
from cumulus.auth.conditions import RequestContext
from cumulus.auth.decide import allows, decide
from cumulus.errors import S3Error
from cumulus.model import Acl, Bucket, Credential, Grant, Identity, ObjectMeta, User
from cumulus.rest.call import Headers

OWEN = User(id="0" * 64, name="owen")
ALICE = User(id="a" * 64, name="alice", email="alice@example.org", groups=("physics",))
BOB = User(id="b" * 64, name="bob")
ROOT = User(id="f" * 64, name="root", admin=True)
CROWD = [User(id=f"{i:064x}", name=f"u{i}") for i in range(1000, 1101)]
PEOPLE = People(*(Credential(access_key=u.name, secret="s", user=u) for u in (OWEN, ALICE, BOB, *CROWD)))
NOBODY = Identity()
CONTEXT = RequestContext(key="k")


def who(user: User | None) -> Identity:
    return Identity(user=user)


def bucket(of: str = "private", policy: str | None = None) -> Bucket:
    return Bucket(name="b", owner=OWEN.id, created_ns=0, acl=acl.canned(of, OWEN.id), policy=policy)


def thing(of: str = "private", owner: User = OWEN) -> ObjectMeta:
    return ObjectMeta(key="k", size=0, etag="", modified_ns=0, acl=acl.canned(of, owner.id, OWEN.id))


def may(user: User | None, action: str, of: Bucket, meta: ObjectMeta | None = None) -> bool:
    return allows(who(user), f"s3:{action}", of, meta, CONTEXT)


@pytest.mark.parametrize(
    ("name", "reads", "writes"),
    [
        ("private", "owen", "owen"),
        ("public-read", "owen alice nobody", "owen"),
        ("public-read-write", "owen alice nobody", "owen alice nobody"),
        ("authenticated-read", "owen alice", "owen"),
    ],
)
def test_canned_lists(name: str, reads: str, writes: str) -> None:
    """Who reads and writes under each; nobody but the owner touches the list itself."""
    for person, user in (("owen", OWEN), ("alice", ALICE), ("nobody", None)):
        found = acl.canned(name, OWEN.id)
        assert acl.acl_allows(found, who(user), "READ") is (person in reads.split())
        assert acl.acl_allows(found, who(user), "WRITE") is (person in writes.split())
        assert acl.acl_allows(found, who(user), "WRITE_ACP") is (person == "owen")
        assert acl.acl_allows(found, who(user), "READ_ACP") is (person == "owen")


def test_the_buckets_owner_in_canned_lists() -> None:
    """Of an object that Alice wrote in Owen's bucket; on his own objects nothing is added."""
    reading = acl.canned("bucket-owner-read", ALICE.id, OWEN.id)
    full = acl.canned("bucket-owner-full-control", ALICE.id, OWEN.id)
    assert acl.acl_allows(reading, who(OWEN), "READ") and not acl.acl_allows(reading, who(OWEN), "READ_ACP")
    assert acl.acl_allows(full, who(OWEN), "WRITE_ACP")
    assert acl.canned("bucket-owner-read", OWEN.id, OWEN.id) == acl.canned("private", OWEN.id)


def test_an_unknown_canned_list() -> None:
    """The error names it."""
    with pytest.raises(S3Error) as caught:
        acl.canned("log-delivery-write", OWEN.id)
    assert (caught.value.code, caught.value.fields["ArgumentValue"]) == (
        "InvalidArgument",
        "log-delivery-write",
    )


def test_an_owner_needs_no_grant() -> None:
    """Nor can a list without grants lock him out; an empty owner is nobody's."""
    assert acl.acl_allows(Acl(owner=ALICE.id), who(ALICE), "READ")
    assert not acl.acl_allows(Acl(owner=""), NOBODY, "READ")
    assert acl.canned("private", "") == Acl(owner="")


def test_grants() -> None:
    """To a user, to a group of ours, to everybody with a key; full control is everything."""
    for grantee, chosen in (
        (f"user:{ALICE.id}", True),
        ("group:physics", True),
        ("authenticated", True),
        ("all", True),
        ("group:biology", False),
        (f"user:{BOB.id}", False),
        ("robot:alice", False),
    ):
        listed = Acl(owner=OWEN.id, grants=(Grant(grantee=grantee, permission="READ"),))
        full = Acl(owner=OWEN.id, grants=(Grant(grantee=grantee, permission="FULL_CONTROL"),))
        assert acl.acl_allows(listed, who(ALICE), "READ") is chosen
        assert not acl.acl_allows(listed, who(ALICE), "WRITE")
        assert acl.acl_allows(full, who(ALICE), "WRITE_ACP") is chosen
        assert acl.acl_allows(listed, NOBODY, "READ") is (grantee == "all")


def headers(**values: str) -> Headers:
    return Headers((f"x-amz-{name.replace('_', '-')}", value) for name, value in values.items())


def test_headers() -> None:
    """All kinds of grantee, with and without quotes, one list in several headers."""
    given = headers(
        grant_read=f'id="{ALICE.id}", emailAddress="alice@example.org",uri="{acl.ALL_USERS_URI}"',
        grant_write_acp=f"id={BOB.id}",
        grant_full_control='uri="urn:cumulus:group:physics"',
    )
    found = acl.from_headers(given, PEOPLE, OWEN.id)
    assert found is not None
    assert [(grant.grantee, grant.permission) for grant in found.grants] == [
        (f"user:{ALICE.id}", "READ"),
        ("all", "READ"),
        (f"user:{BOB.id}", "WRITE_ACP"),
        ("group:physics", "FULL_CONTROL"),
    ]
    assert acl.from_headers(headers(acl="public-read"), PEOPLE, OWEN.id) == acl.canned("public-read", OWEN.id)
    assert acl.from_headers(Headers(), PEOPLE, OWEN.id) is None


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (headers(acl="private", grant_read="id=x"), "InvalidRequest"),
        (headers(acl="none"), "InvalidArgument"),
        (headers(grant_read="alice"), "InvalidArgument"),
        (headers(grant_read='id="' + "a" * 64), "InvalidArgument"),
        (headers(grant_read="id=alice"), "InvalidArgument"),
        (headers(grant_read="id=" + "c" * 64), "InvalidArgument"),
        (headers(grant_read='uri="http://example.org/group"'), "InvalidArgument"),
        (headers(grant_read='uri="urn:cumulus:group:"'), "InvalidArgument"),
        (headers(grant_read='uri="urn:cumulus:group:chess"'), "InvalidArgument"),
        (headers(grant_read='emailAddress="eve@example.org"'), "UnresolvableGrantByEmailAddress"),
        (headers(grant_read='emailAddress=""'), "UnresolvableGrantByEmailAddress"),
        (
            headers(grant_read=",".join(f"id={user.id}" for user in CROWD)),
            "MalformedACLError",
        ),
    ],
)
def test_headers_that_are_refused(given: Headers, code: str) -> None:
    """With S3's codes."""
    with pytest.raises(S3Error) as caught:
        acl.from_headers(given, PEOPLE, OWEN.id)
    assert caught.value.code == code


def test_uris_of_groups() -> None:
    """There and back; a user has none."""
    for grantee in ("all", "authenticated", "group:physics"):
        uri = acl.uri_of(grantee, PEOPLE)
        assert uri is not None
        assert acl.grantee_of_uri(uri, PEOPLE) == grantee
    assert acl.uri_of(f"user:{ALICE.id}", PEOPLE) is None


# decisions


def test_an_owner_does_everything_in_his_bucket() -> None:
    """With his own objects."""
    assert all(allows(who(OWEN), action, bucket(), thing(), CONTEXT) for action in ACTIONS)


def test_others_do_nothing_in_a_private_bucket() -> None:
    """Neither a user nor somebody anonymous; also where there is no object."""
    for action, rule in ACTIONS.items():
        for user in (ALICE, None):
            for meta in (thing(), None):
                allowed = allows(who(user), action, bucket(), meta, CONTEXT)
                assert allowed is (rule.on == "service" and user is not None), action


def test_an_administrator_does_everything() -> None:
    """Whatever a policy says."""
    shut = '{"Statement": {"Effect": "Deny", "Principal": "*", "Action": "*", "Resource": "*"}}'
    assert all(allows(who(ROOT), action, bucket(policy=shut), thing(), CONTEXT) for action in ACTIONS)


def test_what_is_public_to_read() -> None:
    """A public bucket shows its list, a public object its bytes; one does not give the other."""
    for user in (ALICE, None):
        assert may(user, "ListBucket", bucket("public-read"))
        assert not may(user, "GetObject", bucket("public-read"), thing())
        assert may(user, "GetObject", bucket(), thing("public-read"))
        assert not may(user, "GetObjectAcl", bucket(), thing("public-read"))
        assert not may(user, "PutObject", bucket("public-read"))


def test_who_may_write_in_a_bucket_may_overwrite_and_delete() -> None:
    """But not delete versions, nor change the bucket."""
    open_bucket = bucket("public-read-write")
    for action in ("PutObject", "DeleteObject"):
        assert may(None, action, open_bucket, thing())
    for action in ("DeleteObjectVersion", "DeleteBucket", "PutBucketPolicy", "PutObjectTagging"):
        assert not may(None, action, open_bucket, thing())


def test_objects_of_others_in_ones_bucket() -> None:
    """Their owner decides who reads them; the bucket's owner may delete them all the same."""
    hers = thing(owner=ALICE)
    assert not may(OWEN, "GetObject", bucket(), hers)
    assert not may(OWEN, "GetObjectAcl", bucket(), hers)
    assert not may(OWEN, "PutObjectAcl", bucket(), hers)
    assert may(OWEN, "DeleteObject", bucket(), hers) and may(OWEN, "DeleteObjectVersion", bucket(), hers)
    assert may(ALICE, "GetObject", bucket(), hers) and may(ALICE, "PutObjectAcl", bucket(), hers)
    assert not may(ALICE, "DeleteObject", bucket(), hers)
    assert may(OWEN, "GetObject", bucket(), thing("bucket-owner-read", ALICE))


def test_uploads_belong_to_who_began_them() -> None:
    """He and the bucket's owner see and end them."""
    hers = thing(owner=ALICE)
    for action in ("AbortMultipartUpload", "ListMultipartUploadParts"):
        assert may(ALICE, action, bucket(), hers) and may(OWEN, action, bucket(), hers)
        assert not may(BOB, action, bucket("public-read-write"), hers)
        assert not may(None, action, bucket(), thing(owner=User(id="", name="")))


def test_what_is_not_there_is_told_to_who_may_list() -> None:
    """Others learn nothing about names."""
    assert may(ALICE, "GetObject", bucket("authenticated-read"))
    assert not may(None, "GetObject", bucket("authenticated-read"))
    with pytest.raises(S3Error) as caught:
        decide(NOBODY, "s3:GetObject", bucket(), None, CONTEXT)
    assert (caught.value.code, caught.value.status) == ("AccessDenied", 403)
    decide(who(ALICE), "s3:CreateBucket", None, None, CONTEXT)


def test_an_action_that_there_is_not() -> None:
    """A mistake of the program."""
    with pytest.raises(KeyError):
        allows(who(OWEN), "s3:Fly", bucket(), None, CONTEXT)
