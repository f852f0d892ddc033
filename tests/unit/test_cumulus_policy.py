"""cumulus.auth.policy and conditions: what a bucket policy may say, and what it then means."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from cumulus_signing import MAY, call
from hypothesis import example, given
from hypothesis import strategies as st
from test_cumulus_acl import ALICE, BOB, OWEN, bucket, thing, who

from cumulus.auth.conditions import RequestContext, context_of, like, make
from cumulus.auth.decide import allows
from cumulus.auth.policy import parse_policy
from cumulus.errors import S3Error
from cumulus.model import Bucket, ObjectMeta, User

ANY: dict[str, Any] = {
    "Effect": "Allow",
    "Principal": "*",
    "Action": "s3:GetObject",
    "Resource": "arn:aws:s3:::b/*",
}


def policy(*statements: dict[str, Any]) -> str:
    """Each statement changes the first one above where it says something."""
    return json.dumps({"Version": "2012-10-17", "Statement": [{**ANY, **changes} for changes in statements]})


def may(
    text: str,
    user: User | None = None,
    action: str = "GetObject",
    meta: ObjectMeta | None = None,
    **context: Any,
) -> bool:
    context.setdefault("key", "k")
    around = RequestContext(**{"peer": "192.0.2.7", "now_ns": MAY, **context})
    return allows(who(user), f"s3:{action}", bucket(policy=text), meta or thing(), around)


def when(operator: str, key: str, *values: Any) -> str:
    return policy({"Condition": {operator: {key: list(values) if len(values) != 1 else values[0]}}})


# who, what


@pytest.mark.parametrize(
    ("principal", "named"),
    [
        ("*", "alice bob nobody"),
        ({"AWS": "*"}, "alice bob nobody"),
        ({"AWS": "arn:aws:iam:::user/alice"}, "alice"),
        ({"AWS": ["arn:aws:iam::123456789012:user/staff/bob", "alice"]}, "alice bob"),
        ({"AWS": "arn:aws:iam:::group/physics"}, "alice"),
        ({"AWS": ALICE.id}, "alice"),
        ({"CanonicalUser": BOB.id}, "bob"),
    ],
)
def test_principals(principal: Any, named: str) -> None:
    """By name, group and id; a star is everybody, also without a key."""
    text = policy({"Principal": principal})
    for name, user in (("alice", ALICE), ("bob", BOB), ("nobody", None)):
        assert may(text, user) is (name in named.split())


def test_deny_wins_over_everything() -> None:
    """Over an Allow, an ACL and the owner; who is left out of it by NotPrincipal is not denied."""
    text = policy({}, {"Effect": "Deny"})
    assert not may(text, ALICE) and not may(text, OWEN) and not may(text, ALICE, meta=thing("public-read"))
    but_alice = policy({}, {"Effect": "Deny", "Principal": None, "NotPrincipal": {"AWS": "alice"}})
    but_alice = but_alice.replace('"Principal": null, ', "")
    assert may(but_alice, ALICE) and not may(but_alice, BOB) and not may(but_alice)


def test_an_owner_keeps_his_policy() -> None:
    """Though it denies him everything; nobody else does."""
    text = policy({"Effect": "Deny", "Action": "*", "Resource": ["arn:aws:s3:::b", "arn:aws:s3:::b/*"]})
    for action in ("GetBucketPolicy", "PutBucketPolicy", "DeleteBucketPolicy"):
        assert may(text, OWEN, action) and not may(text, ALICE, action)
    assert not may(text, OWEN, "ListBucket")


def test_allow_counts_for_the_bucket_owners_objects() -> None:
    """An object of somebody else is his to give; Deny counts for all."""
    assert not may(policy({}), BOB, meta=thing(owner=ALICE))
    assert not may(policy({"Effect": "Deny"}), ALICE, meta=thing(owner=ALICE))


@pytest.mark.parametrize(
    ("action", "allowed"),
    [("s3:*", "GetObject PutObject"), ("*", "GetObject PutObject"), ("s3:getobject", "GetObject"),
     ("s3:Get*", "GetObject"), ("s3:?utObject", "PutObject"),
     (["s3:PutObject", "s3:DeleteObject"], "PutObject")],
)  # fmt: skip
def test_actions(action: Any, allowed: str) -> None:
    """With wildcards and without case; NotAction is all others."""
    text = policy({"Action": action})
    inverse = text.replace('"Action"', '"NotAction"')
    for name in ("GetObject", "PutObject"):
        assert may(text, None, name) is (name in allowed.split())
        assert may(inverse, None, name) is (name not in allowed.split())


@pytest.mark.parametrize(
    ("resource", "keys"),
    [
        ("b/*", "a/x a/b/x X*"),
        ("b/a/*", "a/x a/b/x"),
        ("b/a/?", "a/x"),
        ("*", "a/x a/b/x X*"),
        ("b*", "a/x a/b/x X*"),
        ("b/${aws:username}*", "a/x a/b/x"),
        ("b/X${*}", "X*"),
    ],
)
def test_resources(resource: str, keys: str) -> None:
    """Patterns of keys, with the user's name in them; NotResource is all others."""
    text = policy({"Resource": f"arn:aws:s3:::{resource}"})
    user = User(id="9" * 64, name="a")
    for key in ("a/x", "a/b/x", "X*", "Xy"):
        expected = key in keys.split() or (key == "Xy" and "X*" in keys and "${*}" not in resource)
        assert may(text, user, key=key) is expected
        assert may(text.replace('"Resource"', '"NotResource"'), user, key=key) is not expected


def test_a_name_with_a_star_is_no_pattern() -> None:
    """Variables are filled in as letters; without a value (nobody has a name) nothing fits."""
    text = policy({"Resource": "arn:aws:s3:::b/${aws:username}"})
    assert may(text, User(id="9" * 64, name="*"), key="*")
    assert not may(text, User(id="9" * 64, name="*"), key="secret")
    assert not may(text, None, key="")


def test_bucket_and_objects_are_different_resources() -> None:
    """b/* does not give the list of b."""
    assert not may(policy({"Action": "s3:*"}), ALICE, "ListBucket", key="")
    assert may(policy({"Action": "s3:*", "Resource": "arn:aws:s3:::b"}), ALICE, "ListBucket", key="")


# conditions


@pytest.mark.parametrize(
    ("operator", "key", "value", "context", "holds"),
    [
        ("IpAddress", "aws:SourceIp", "192.0.2.0/24", {}, True),
        ("IpAddress", "aws:SourceIp", "198.51.100.0/24", {}, False),
        ("IpAddress", "aws:SourceIp", "192.0.2.7", {"peer": "::ffff:192.0.2.7"}, True),
        ("IpAddress", "aws:SourceIp", "2001:db8::/32", {"peer": "2001:db8::1"}, True),
        ("IpAddress", "aws:SourceIp", "192.0.2.0/24", {"peer": "unix"}, False),
        ("IpAddress", "aws:SourceIp", "192.0.2.0/24", {"peer": ""}, False),
        ("NotIpAddress", "aws:SourceIp", "192.0.2.0/24", {}, False),
        ("NotIpAddress", "aws:SourceIp", "198.51.100.0/24", {}, True),
        ("Bool", "aws:SecureTransport", True, {"secure": True}, True),
        ("Bool", "aws:SecureTransport", "true", {}, False),
        ("Bool", "aws:SecureTransport", "false", {}, True),
        ("StringEquals", "s3:prefix", "a", {"values": {"s3:prefix": "a"}}, True),
        ("StringEquals", "s3:prefix", "a*", {"values": {"s3:prefix": "ab"}}, False),
        ("StringEquals", "s3:prefix", "a*", {"values": {"s3:prefix": "a*"}}, True),
        ("StringEquals", "s3:prefix", "a", {}, False),
        ("StringEquals", "s3:prefix", "", {"values": {"s3:prefix": ""}}, True),
        ("StringEqualsIfExists", "s3:prefix", "a", {}, True),
        ("StringEqualsIfExists", "s3:prefix", "a", {"values": {"s3:prefix": "b"}}, False),
        ("StringNotEquals", "s3:prefix", "a", {}, True),
        ("StringNotEquals", "s3:prefix", "a", {"values": {"s3:prefix": "a"}}, False),
        ("StringEqualsIgnoreCase", "s3:prefix", "A", {"values": {"s3:prefix": "a"}}, True),
        ("StringNotEqualsIgnoreCase", "s3:prefix", "A", {"values": {"s3:prefix": "a"}}, False),
        ("StringLike", "s3:prefix", "a/*/c?", {"values": {"s3:prefix": "a/b/cd"}}, True),
        ("StringLike", "s3:prefix", "a/*", {"values": {"s3:prefix": "b/a/"}}, False),
        ("StringNotLike", "s3:prefix", "a/*", {"values": {"s3:prefix": "a/b"}}, False),
        ("NumericLessThanEquals", "s3:max-keys", 10, {"values": {"s3:max-keys": "10"}}, True),
        ("NumericLessThan", "s3:max-keys", "10", {"values": {"s3:max-keys": "10"}}, False),
        ("NumericGreaterThan", "s3:max-keys", "9", {"values": {"s3:max-keys": "10"}}, True),
        ("NumericNotEquals", "s3:max-keys", "9", {"values": {"s3:max-keys": "10"}}, True),
        ("NumericEquals", "s3:max-keys", "9", {"values": {"s3:max-keys": "nine"}}, False),
        ("DateLessThan", "aws:CurrentTime", "2013-05-24T00:00:01Z", {}, True),
        ("DateLessThan", "aws:CurrentTime", "2013-05-24T00:00:00Z", {}, False),
        ("DateGreaterThanEquals", "aws:CurrentTime", "2013-05-24", {}, True),
        ("DateGreaterThan", "aws:EpochTime", "1369353599", {}, True),
        ("NumericLessThan", "aws:EpochTime", 1369353600, {}, False),
        ("StringLike", "aws:UserAgent", "*curl*", {"values": {"aws:useragent": "curl/8"}}, True),
        ("StringEquals", "s3:x-amz-acl", "private", {"values": {"s3:x-amz-acl": "private"}}, True),
        ("Null", "aws:username", True, {}, True),
        ("Null", "s3:prefix", "false", {}, False),
    ],
)
def test_conditions(operator: str, key: str, value: Any, context: dict[str, Any], holds: bool) -> None:
    """Each operator and key, of an anonymous request."""
    assert may(when(operator, key, value), **context) is holds


def test_several_values_and_several_conditions() -> None:
    """One of the values, all of the conditions; of a negated operator none of the values."""
    either = when("StringEquals", "s3:prefix", "a", "b")
    neither = when("StringNotEquals", "s3:prefix", "a", "b")
    for prefix, among in (("a", True), ("b", True), ("c", False)):
        assert may(either, values={"s3:prefix": prefix}) is among
        assert may(neither, values={"s3:prefix": prefix}) is not among
    both = policy(
        {"Condition": {"StringEquals": {"s3:prefix": "a"}, "Bool": {"aws:SecureTransport": "true"}}}
    )
    assert may(both, values={"s3:prefix": "a"}, secure=True)
    assert not may(both, values={"s3:prefix": "a"})


def test_names_ids_and_tags() -> None:
    """Of who asks and of the object; names of tags have case."""
    assert may(when("StringEquals", "aws:username", "alice"), ALICE)
    assert not may(when("StringEquals", "aws:username", "alice"))
    assert may(when("StringEquals", "AWS:UserID", ALICE.id), ALICE)
    text = when("StringEquals", "s3:ExistingObjectTag/Level", "open")
    tagged = ObjectMeta(key="k", size=0, etag="", modified_ns=0, acl=thing().acl, tags={"Level": "open"})
    assert may(text, meta=tagged) and not may(text)
    assert not may(text.replace("/Level", "/level"), meta=tagged)
    home = when("StringLike", "s3:prefix", "home/${aws:username}/*")
    assert may(home, ALICE, values={"s3:prefix": "home/alice/x"})
    assert not may(home, BOB, values={"s3:prefix": "home/alice/x"})
    exact = when("StringEquals", "s3:prefix", "*${aws:username}")
    assert may(exact, ALICE, values={"s3:prefix": "*alice"}) and not may(exact, values={"s3:prefix": "*"})


def test_context_of_a_request() -> None:
    """Parameters and headers under their condition keys."""
    request = call("GET", "/b?prefix=a", {"X-Amz-Acl": "private", "User-Agent": "x"})
    context = context_of(request, {"prefix": "a", "max-keys": "5", "other": "z"}, "k")
    assert context == RequestContext(
        "192.0.2.1", False, MAY, "k",
        {"s3:prefix": "a", "s3:max-keys": "5", "s3:x-amz-acl": "private", "aws:useragent": "x"},
    )  # fmt: skip


def test_public() -> None:
    """What GetBucketPolicyStatus says: everybody, unless addresses or names narrow it."""
    assert parse_policy(policy({}), "b").public
    assert parse_policy(when("Bool", "aws:SecureTransport", "true"), "b").public
    assert parse_policy(when("IpAddress", "aws:SourceIp", "0.0.0.0/0"), "b").public
    assert not parse_policy(when("IpAddress", "aws:SourceIp", "192.0.2.0/24"), "b").public
    assert not parse_policy(policy({"Principal": {"AWS": "alice"}}), "b").public
    assert not parse_policy(policy({"Effect": "Deny"}), "b").public


# what is refused


def refusal(text: str) -> str:
    with pytest.raises(S3Error) as caught:
        parse_policy(text, "b")
    assert (caught.value.code, caught.value.status) == ("MalformedPolicy", 400)
    return caught.value.message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "invalid Json"),
        ("{" * 5000, "invalid Json"),
        ("[" * 5000, "invalid Json"),
        ("[]", "not a JSON object"),
        (" " * 20481, "larger than 20480 bytes"),
        ('{"Version": "2020-01-01", "Statement": []}', "Version: must be 2012-10-17"),
        ('{"Version": "2012-10-17"}', "Statement: Missing"),
        ('{"Statement": []}', "Statement: Missing"),
        ('{"Statement": ["x"]}', "Statement[0]: not an object"),
        ('{"Statement": {}, "Statements": {}}', "policy: Unknown field Statements"),
        ('{"Statement": {"Effect": "Allow", "Effect": "Deny"}}', "a name is there twice"),
    ],
)
def test_documents_that_are_refused(text: str, says: str) -> None:
    """The message says where."""
    assert says in refusal(text)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"Effect": "allow"}, "Statement[0].Effect"),
        ({"Sid": 1}, "Statement[0].Sid"),
        ({"Resources": "x"}, "Statement[0]: Unknown field Resources"),
        ({"Principal": "alice"}, "Statement[0].Principal: Invalid principal"),
        ({"Principal": {}}, "Statement[0].Principal"),
        ({"Principal": {"Service": "x"}}, "Unknown field Service"),
        (
            {"Principal": {"AWS": "arn:aws:iam::1:role/x"}},
            "Invalid principal in policy: arn:aws:iam::1:role/x",
        ),
        ({"Principal": {"AWS": "ali*"}}, "Invalid principal"),
        ({"Principal": {"AWS": []}}, "Statement[0].Principal"),
        ({"NotPrincipal": "*"}, "has both Principal and NotPrincipal"),
        ({"Action": "s3:Fly"}, "Statement[0].Action: Policy has invalid action: s3:Fly"),
        ({"Action": "ec2:*"}, "invalid action"),
        ({"Action": ["s3:GetObject", 1]}, "Statement[0].Action: must be a string or a list of strings"),
        ({"NotAction": "s3:*"}, "has both Action and NotAction"),
        ({"Resource": "arn:aws:s3:::other/*"}, "Statement[0].Resource: Policy has invalid resource"),
        ({"Resource": "b/*"}, "needs arn:aws:s3:::b or arn:aws:s3:::b/*"),
        ({"Resource": "arn:aws:s3:::bb"}, "is not in this bucket"),
        ({"Resource": "arn:aws:s3:::b/${aws:TokenIssueTime}"}, "unknown variable aws:tokenissuetime"),
        ({"Resource": []}, "Statement[0].Resource"),
        ({"Condition": []}, "Statement[0].Condition: must be an object"),
        ({"Condition": {"Bool": {}}}, "Statement[0].Condition.Bool"),
        ({"Condition": {"Bool": {"aws:SecureTransport": []}}}, "has no value"),
        ({"Condition": {"Bool": {"aws:SecureTransport": "maybe"}}}, "cannot be a value of Bool"),
        ({"Condition": {"Bool": {"aws:SecureTransport": None}}}, "must be a string, a number or a truth"),
        ({"Condition": {"Matches": {"s3:prefix": "x"}}}, "unknown operator 'Matches'"),
        ({"Condition": {"ForAnyValue:StringEquals": {"s3:prefix": "x"}}}, "unknown operator"),
        ({"Condition": {"NullIfExists": {"s3:prefix": "true"}}}, "unknown operator"),
        ({"Condition": {"StringEquals": {"aws:Moon": "full"}}}, "unknown key 'aws:Moon'"),
        ({"Condition": {"StringEquals": {"s3:ExistingObjectTag/": "full"}}}, "unknown key"),
        ({"Condition": {"StringEquals": {"s3:prefix": "${aws:Moon}"}}}, "unknown variable 'aws:moon'"),
        ({"Condition": {"IpAddress": {"aws:SourceIp": "192.0.2.0/33"}}}, "Condition.IpAddress.aws:SourceIp"),
        ({"Condition": {"NumericEquals": {"s3:max-keys": "1e3"}}}, "cannot be a value of NumericEquals"),
        ({"Condition": {"DateLessThan": {"aws:CurrentTime": "tomorrow"}}}, "cannot be a value of DateLess"),
    ],
)
def test_statements_that_are_refused(changes: dict[str, Any], says: str) -> None:
    """The message says which field; the second statement is counted."""
    assert says in refusal(policy(changes))
    assert says.replace("[0]", "[1]") in refusal(policy({}, changes))


def test_a_statement_without_its_parts() -> None:
    """Each is needed."""
    for name in ("Principal", "Action", "Resource"):
        statement = {key: value for key, value in ANY.items() if key != name}
        assert f"Statement[0]: needs {name} or Not{name}" in refusal(json.dumps({"Statement": statement}))
    text = policy({}).replace('"Principal"', '"NotPrincipal"')
    assert "Allow with NotPrincipal" in refusal(text)


def test_a_stored_policy_that_cannot_be_read_shuts_the_bucket() -> None:
    """Only who owns it gets to the policy."""
    assert not may("{", ALICE, meta=thing("public-read")) and not may("{", OWEN)
    assert may("{", OWEN, "DeleteBucketPolicy")


@given(st.text(alphabet="ab*?", max_size=8), st.text(alphabet="ab", max_size=8))
def test_patterns(pattern: str, text: str) -> None:
    """As a naive matcher says."""

    def naive(p: str, t: str) -> bool:
        if not p:
            return not t
        if p[0] == "*":
            return any(naive(p[1:], t[i:]) for i in range(len(t) + 1))
        return bool(t) and p[0] in ("?", t[0]) and naive(p[1:], t[1:])

    assert like(pattern, text) is naive(pattern, text)
    long, tail = "*" + "yz?" * 50, "yz*" * 50  # such patterns are compared in another way
    assert like(long + pattern, "x" + tail + text) is naive(pattern, text)
    assert like(pattern + long, text + tail) is naive(pattern + "*", text)


PIECES = ["a", "b", "ab" * 70, "a" * 140, "aab" * 50]


@given(
    st.lists(st.sampled_from([*PIECES, "*", "*", "?", "a?" * 70, "ab" * 70 + "?a", "?" * 130]), max_size=7),
    st.lists(st.sampled_from(PIECES), max_size=6),
)
@example(["*", "ab" * 70 + "?a", "b"], ["b", "ab" * 70, "ab"])
@example(["*", "a?" * 70, "b"], ["b", "ab" * 70, "ab", "b"])
def test_long_patterns(pattern: list[str], text: list[str]) -> None:
    """As an expression says."""
    whole, against = "".join(pattern), "".join(text)
    expression = re.escape(whole).replace(r"\*", ".*").replace(r"\?", ".")
    assert like(whole, against) is (re.fullmatch(expression, against) is not None)


@pytest.mark.parametrize(
    "changes",
    [
        {"Resource": [f"arn:aws:s3:::b/*${{aws:Referer}}*{i}" for i in range(490)]},
        {"Resource": [f"arn:aws:s3:::b/{'*k' * 65}*x{i}" for i in range(110)]},
        {"Condition": {"StringLike": {"aws:UserAgent": [f"{'*a' * 66}b{i}" for i in range(120)]}}},
    ],
)
def test_no_policy_takes_long_to_evaluate(changes: dict[str, Any]) -> None:
    """Any user may set one for a bucket of his own; more than a second of the server went to each request."""
    text = policy(changes)
    values = {"aws:referer": "k" * 900, "aws:useragent": "a" * 2000}
    assert not may(text, ALICE, key="k" * 1000, values=values)
    began_s = time.process_time()
    for _ in range(10):
        assert not may(text, BOB, key="k" * 1000, values=values)
    assert time.process_time() - began_s < 0.15


def test_patterns_take_no_exponential_time() -> None:
    """A hundred stars against a long text that almost fits."""
    assert not like("*a" * 100 + "b", "a" * 2000)


def test_keys_are_compared_without_case() -> None:
    """As AWS does."""
    assert make("Bool", "AWS:securetransport", ("true",)).key == "aws:securetransport"


def test_the_guide_shows_a_policy_that_works() -> None:
    """docs/guide/cumulus-security.md: what it promises of it."""
    page = Path(__file__).resolve().parents[2] / "docs" / "guide" / "cumulus-security.md"
    text = page.read_text().split("```json\n")[1].split("```")[0]
    data = Bucket(name="data", owner=OWEN.id, created_ns=0, acl=bucket().acl, policy=text)

    def allowed(user: User | None, action: str, key: str, **context: Any) -> bool:
        around = RequestContext(**{"peer": "192.0.2.7", "secure": True, "key": key, **context})
        return allows(who(user), f"s3:{action}", data, thing(), around)

    assert allowed(None, "GetObject", "published/x") and not allowed(None, "GetObject", "home/alice/x")
    assert allowed(ALICE, "PutObject", "home/alice/x") and not allowed(ALICE, "PutObject", "home/bob/x")
    assert not allowed(BOB, "PutObject", "home/bob/x")
    assert not allowed(ALICE, "PutObject", "home/alice/x", peer="198.51.100.1")
    assert not allowed(None, "GetObject", "published/x", secure=False)
    assert not allowed(OWEN, "GetObject", "published/x", secure=False)
