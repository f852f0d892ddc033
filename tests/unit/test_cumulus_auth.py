"""cumulus.auth.verify: requests as botocore signs them are known, and nothing about them may change."""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from cumulus_signing import ALICE, KEY, MAY, SECOND, SECRET, People, call, signed
from hypothesis import given, settings
from hypothesis import strategies as st

from cumulus.auth import sigv2, times
from cumulus.auth.sigv4 import (
    EMPTY_SHA256,
    Scope,
    canonical_request,
    sign,
    signing_key,
    string_to_sign,
)
from cumulus.auth.verify import Authenticated, AuthSettings, authenticate
from cumulus.errors import S3Error
from cumulus.model import Credential, User
from cumulus.rest.call import Call, Headers
from cumulus.rest.target import parse

V2 = AuthSettings(allow_sigv2=True, domain="s3.example.org")
URL = "http://s3.example.org"
SHOWN = {"AWSAccessKeyId", "StringToSign", "SignatureProvided", "StringToSignBytes", "CanonicalRequest",
         "CanonicalRequestBytes"}  # fmt: skip


def check(
    request: Call, now_ns: int, people: People | None = None, rules: AuthSettings = V2
) -> Authenticated:
    return authenticate(request, people or People(), rules, now_ns)


def refusal(request: Call, now_ns: int, people: People | None = None, rules: AuthSettings = V2) -> S3Error:
    """The error; the secret is in none of it."""
    with pytest.raises(S3Error) as caught:
        check(request, now_ns, people, rules)
    assert SECRET not in f"{caught.value} {caught.value.fields} {caught.value.headers}"
    return caught.value


def without(request: Call, *names: str) -> Call:
    kept = [(name, value) for name, value in request.headers.pairs if name not in names]
    return replace(request, headers=Headers(kept))


def header(request: Call, name: str, value: str) -> Call:
    kept = [pair for pair in request.headers.pairs if pair[0] != name.lower()]
    return replace(request, headers=Headers([*kept, (name, value)]))


# as botocore signs

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
WORD = st.text("abz09 ._~-+%&=/:é", max_size=10)
REQUESTS = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["GET", "PUT", "DELETE", "HEAD", "POST"]),
        "key": TEXT,
        "query": st.dictionaries(st.text("abcXZ-.", min_size=1, max_size=6), TEXT, max_size=4),
        "meta": st.dictionaries(st.sampled_from("abcd"), st.text("az 09\t,;=\"'", max_size=12), max_size=3),
        "body": st.binary(max_size=20),
    }
)


def build(drawn: dict[str, Any], how: str) -> tuple[Call, int]:
    url = f"{URL}/bucket/{quote(drawn['key'], safe='/~')}"
    if drawn["query"]:
        url += "?" + urlencode(drawn["query"], quote_via=quote, safe="-_.~")
    meta = {f"x-amz-meta-{name}": value for name, value in drawn["meta"].items()}
    body = drawn["body"] if how == "v4" else b""  # botocore reads the body of others as a form
    return signed(drawn["method"], url, meta, how=how, body=body)


@settings(max_examples=60)
@given(drawn=REQUESTS, how=st.sampled_from(["v4", "v4-query", "v2", "v2-query"]))
def test_botocore_is_understood(drawn: dict[str, Any], how: str) -> None:
    """Any key, query, metadata and body, in all four ways of signing."""
    if how.startswith("v2"):
        # blanks inside values are folded by one side and not by the other; version 2 has no rule
        drawn = {**drawn, "meta": {name: "".join(value.split()) for name, value in drawn["meta"].items()}}
    request, now_ns = build(drawn, how)
    found = check(request, now_ns)
    assert (found.identity.user, found.identity.access_key, found.scheme) == (ALICE, KEY, how)
    assert found.identity.peer == "192.0.2.1"


def change(text: str, at: int) -> str:
    """One character becomes another, which means something else everywhere."""
    at %= len(text)
    return text[:at] + ("2" if text[at] != "2" else "3") + text[at + 1 :]


# what changes the meaning of a request signed in its header; each gets a number to choose a place with
MUTATIONS: dict[str, Callable[[Call, int], Call]] = {
    "method": lambda request, _n: replace(request, method="PATCH"),
    "key": lambda request, n: replace(request, target="/bucket" + change(request.target[7:] + "x", n)),
    "slash": lambda request, _n: replace(request, target="/" + request.target),
    "parameter": lambda request, _n: replace(
        request, target=request.target + ("&" if "?" in request.target else "?") + "acl"
    ),
    "host": lambda request, _n: header(request, "host", "other.example.org"),
    "own header": lambda request, _n: header(request, "x-amz-acl", "public-read"),
    "second value": lambda request, _n: replace(
        request, headers=Headers([*request.headers.pairs, ("x-amz-meta-s", "2")])
    ),
    "no metadata": lambda request, _n: without(request, "x-amz-meta-s"),
    "no host": lambda request, _n: without(request, "host"),
    "time": lambda request, _n: header(
        request, "x-amz-date", times.basic(times.parse_basic(request.headers.get("x-amz-date")) + SECOND)
    ),
    "body": lambda request, n: header(
        request, "x-amz-content-sha256", change(request.headers.get("x-amz-content-sha256"), n)
    ),
    "unsigned body": lambda request, _n: header(request, "x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
    "authorization": lambda request, n: header(
        request, "authorization", change(request.headers.get("authorization"), n)
    ),
}


@settings(max_examples=80)
@given(drawn=REQUESTS, mutation=st.sampled_from(sorted(MUTATIONS)), place=st.integers(0, 400))
def test_nothing_signed_may_change(drawn: dict[str, Any], mutation: str, place: int) -> None:
    """Method, path, query, headers, time, body's hash, any character of the authorization."""
    request, now_ns = build({**drawn, "meta": {**drawn["meta"], "s": "1"}}, "v4")
    error = refusal(MUTATIONS[mutation](request, place), now_ns)
    assert error.status in (400, 403)


@settings(max_examples=60)
@given(drawn=REQUESTS, place=st.integers(0, 2000))
def test_nothing_presigned_may_change(drawn: dict[str, Any], place: int) -> None:
    """Any character of the path below the bucket and of the query, the method, one header more."""
    request, now_ns = build({**drawn, "meta": {}}, "v4-query")
    target = change(request.target, 8 + place % (len(request.target) - 8))
    if target.count("?") == 1:  # else nothing is presigned any more
        refusal(replace(request, target=target), now_ns)
    refusal(replace(request, method="PATCH"), now_ns)
    refusal(header(request, "x-amz-acl", "public-read"), now_ns)


def test_another_secret() -> None:
    """The refusal shows what was compared."""
    request, now_ns = signed("GET", f"{URL}/b/k", secret="x" * 40)
    error = refusal(request, now_ns)
    assert (error.code, error.status, error.fields.keys()) == ("SignatureDoesNotMatch", 403, SHOWN)
    assert error.fields["CanonicalRequest"].startswith("GET\n/b/k\n\nhost:s3.example.org\n")
    assert bytes.fromhex(error.fields["StringToSignBytes"]).decode() == error.fields["StringToSign"]
    assert refusal(*signed("GET", f"{URL}/b/k", secret="x", how="v2")).fields.keys() <= SHOWN


# paths and queries in odd forms


@pytest.mark.parametrize(
    "path", ["//b//k/", "/b/./k/../x", "/b/a+b", "/b/%2e%2e/k", "/b/%7Ek", "/b/a%20b/%C3%A9", "/b/a:b@c!d"]
)
def test_paths_are_signed_as_they_are(path: str) -> None:
    """Neither normalised nor encoded twice; clients that encode in a way of their own are understood."""
    assert check(*signed("GET", URL + path)).identity.user == ALICE


@pytest.mark.parametrize(
    "query", ["acl", "prefix=&marker=%2F", "b=2&a=1&a=0", "prefix=a%20b", "x=%C3%A9&&y=1"]
)
def test_queries_are_sorted_and_encoded(query: str) -> None:
    """Also names without values and names that come twice."""
    request, now_ns = signed("GET", f"{URL}/b?" + query.replace("&&", "&"))
    assert check(replace(request, target=f"/b?{query}"), now_ns).identity.user == ALICE


def test_a_plus_in_a_query_is_a_blank() -> None:
    """And one in a path is a plus."""
    request, now_ns = signed("GET", f"{URL}/b?prefix=a%20b")
    assert check(replace(request, target="/b?prefix=a+b"), now_ns).identity.user == ALICE
    refusal(replace(request, target="/b?prefix=a%2Bb"), now_ns)


def test_a_target_that_no_wire_carries() -> None:
    """And a line feed in a path is never taken for a line of the canonical request."""
    assert refusal(call("GET", "/b?x=Ω", {}), MAY).code == "InvalidURI"
    request, now_ns = signed("GET", f"{URL}/b/k?acl")
    assert refusal(replace(request, target="/b/k\nacl="), now_ns).code == "SignatureDoesNotMatch"


# who it is not


def test_nobody() -> None:
    """A request without a signature is anonymous."""
    found = check(call("GET", "/b?prefix=x", {"Host": "h"}), MAY)
    assert (found.identity.user, found.identity.id, found.scheme) == (None, "", "")


def people(**changes: Any) -> People:
    user = User(id="a" * 64, name="alice", disabled=changes.pop("disabled", False))
    return People(Credential(access_key=KEY, secret=SECRET, user=user, **changes))


@pytest.mark.parametrize("how", ["v4", "v4-query", "v2", "v2-query"])
def test_keys_that_are_not_good(how: str) -> None:
    """Unknown, expired, of a user who is disabled; the last two are told to who has the secret only."""
    request, now_ns = signed("GET", f"{URL}/b/k", how=how, key="AKNOBODY")
    error = refusal(request, now_ns)
    assert (error.code, error.fields) == ("InvalidAccessKeyId", {"AWSAccessKeyId": "AKNOBODY"})
    request, now_ns = signed("GET", f"{URL}/b/k", how=how)
    assert refusal(request, now_ns, people(expires_ns=now_ns)).code == "ExpiredToken"
    assert check(request, now_ns, people(expires_ns=now_ns + 1)).identity.access_key == KEY
    assert refusal(request, now_ns, people(disabled=True)).message == "The user is disabled."
    forged, now_ns = signed("GET", f"{URL}/b/k", how=how, secret="x" * 40)
    assert refusal(forged, now_ns, people(disabled=True, expires_ns=1)).code == "SignatureDoesNotMatch"


def test_a_changed_secret_counts_at_once() -> None:
    """Kept signing keys belong to secrets, not to names."""
    request, now_ns = signed("GET", f"{URL}/b/k")
    check(request, now_ns)
    other = People(Credential(access_key=KEY, secret="another", user=ALICE))
    assert refusal(request, now_ns, other).code == "SignatureDoesNotMatch"
    assert signing_key.cache_info().maxsize == 4096


@pytest.mark.parametrize("how", ["v4", "v4-query"])
def test_regions(how: str) -> None:
    """The refusal names the right one; without a region in the settings any will do."""
    request, now_ns = signed("GET", f"{URL}/b/k", how=how, region="eu-central-1")
    error = refusal(request, now_ns)
    assert error.fields["Region"] == "us-east-1"
    assert "the region 'eu-central-1' is wrong; expecting 'us-east-1'" in error.message
    expected = {"v4": "AuthorizationHeaderMalformed", "v4-query": "AuthorizationQueryParametersError"}[how]
    assert (error.code, error.status) == (expected, 400)
    for region in ("eu-central-1", ""):
        assert check(request, now_ns, rules=AuthSettings(region=region)).identity.user == ALICE


# times


@pytest.mark.parametrize("how", ["v4", "v2"])
def test_clocks_may_differ_by_a_quarter_of_an_hour(how: str) -> None:
    """A replay after 20 minutes is refused."""
    request, now_ns = signed("PUT", f"{URL}/b/k", how=how)
    for minutes in (-14, 14):
        check(request, now_ns + minutes * 60 * SECOND)
    for minutes in (-16, 16, 20):
        error = refusal(request, now_ns + minutes * 60 * SECOND)
        assert (error.code, error.status) == ("RequestTimeTooSkewed", 403)
        assert error.fields["MaxAllowedSkewMilliseconds"] == "900000"
        assert error.fields["ServerTime"] == times.iso(now_ns + minutes * 60 * SECOND)


def test_presigned_times() -> None:
    """Good from a quarter of an hour before its date to its end; at most a week."""
    request, now_ns = signed("GET", f"{URL}/b/k", how="v4-query", expires_s=60)
    check(request, now_ns + 58 * SECOND)
    check(request, now_ns - 14 * 60 * SECOND)
    late = refusal(request, now_ns + 62 * SECOND)
    assert (late.code, late.message, late.fields["X-Amz-Expires"]) == (
        "AccessDenied",
        "Request has expired",
        "60",
    )
    assert refusal(request, now_ns - 16 * 60 * SECOND).message == "Request is not yet valid"
    check(*signed("GET", f"{URL}/b/k", how="v4-query", expires_s=604800))
    for expires_s in (604801, -1):
        error = refusal(*signed("GET", f"{URL}/b/k", how="v4-query", expires_s=expires_s))
        assert error.code == "AuthorizationQueryParametersError"
        assert "X-Amz-Expires" in error.message


def test_the_header_date_will_do() -> None:
    """Where there is no x-amz-date, in HTTP's form."""
    request, now_ns = signed("GET", f"{URL}/b/k")
    for wrong in (without(request, "x-amz-date"), header(request, "x-amz-date", "yesterday")):
        error = refusal(wrong, now_ns)
        assert (error.code, "valid Date or x-amz-date" in error.message) == ("AccessDenied", True)
    text = "AWS4-HMAC-SHA256 Credential={}/20130524/us-east-1/s3/aws4_request,SignedHeaders=host,Signature={}"
    dated = {"Date": "Fri, 24 May 2013 00:00:00 GMT", "Host": "h",
             "Authorization": text.format(KEY, "0" * 64)}  # fmt: skip
    assert refusal(call("GET", "/", dated), MAY).code == "SignatureDoesNotMatch"
    assert refusal(call("GET", "/", dated), MAY + 3600 * SECOND).code == "RequestTimeTooSkewed"


def bare(method: str, length: int | None = None, *, chunked: bool = False) -> Call:
    """Signed as curl 7.88 signs: over the hash of nothing, without saying so."""
    stamp, scope = "20130524T000000Z", Scope("20130524", "us-east-1")
    headers = [("host", "h"), ("x-amz-date", stamp)]
    request = canonical_request(method, "/b/k", "", headers, EMPTY_SHA256)
    mine = sign(signing_key(SECRET, scope), string_to_sign(stamp, scope, request))
    text = f"AWS4-HMAC-SHA256 Credential={KEY}/{scope},SignedHeaders=host;x-amz-date,Signature={mine}"
    made = call(method, "/b/k", {**dict(headers), "Authorization": text})
    return replace(made, length=length, chunked=chunked)


def test_a_request_without_a_body_may_keep_its_hash_to_itself() -> None:
    """The signature is over the hash of nothing, so the body has to be empty; with a body it is refused, as
    nothing would be known about it."""
    for method in ("GET", "HEAD", "DELETE", "PUT"):
        for length in (None, 0):
            found = check(bare(method, length), MAY)
            assert found.identity.user is not None
            assert found.body.sha256 == bytes.fromhex(EMPTY_SHA256)
    other = replace(bare("GET"), method="DELETE")
    assert refusal(other, MAY).code == "SignatureDoesNotMatch"
    for bodied in (bare("PUT", 3), bare("PUT", chunked=True)):
        error = refusal(bodied, MAY)
        assert (error.code, error.status) == ("InvalidRequest", 400)
        assert error.message.endswith("x-amz-content-sha256")


# forms


def test_two_signatures_are_one_too_many() -> None:
    """In header and query; the message repeats neither."""
    request, now_ns = signed("GET", f"{URL}/b/k", how="v4-query")
    error = refusal(header(request, "Authorization", "AWS4-HMAC-SHA256 x"), now_ns)
    assert (error.code, error.fields) == ("InvalidArgument", {"ArgumentName": "Authorization"})
    assert (
        refusal(call("GET", "/", {"Authorization": "Bearer x"}), MAY).message
        == "Unsupported Authorization Type"
    )


def test_all_of_ours_must_be_signed() -> None:
    """x-amz-* and host, in the header's form and in the query's."""
    for how in ("v4", "v4-query"):
        request, now_ns = signed("GET", f"{URL}/b/k", how=how)
        error = refusal(header(request, "X-Amz-Tagging", "a=b"), now_ns)
        assert (error.code, error.fields["HeadersNotSigned"]) == ("AccessDenied", "x-amz-tagging")
    request, now_ns = signed("GET", f"{URL}/b/k")
    bare = request.headers.get("authorization").replace("host;", "")
    assert refusal(header(request, "authorization", bare), now_ns).fields["HeadersNotSigned"] == "host"
    other = header(request, "User-Agent", "anything")
    assert check(other, now_ns).identity.user == ALICE


def test_a_signed_header_has_to_be_there() -> None:
    """It is not taken for an empty one."""
    request, now_ns = signed("GET", f"{URL}/b/k", {"x-amz-meta-a": ""})
    check(request, now_ns)
    error = refusal(without(request, "x-amz-meta-a"), now_ns)
    assert (error.code, "x-amz-meta-a" in error.message) == ("SignatureDoesNotMatch", True)


def test_session_tokens_are_unknown_here() -> None:
    """Refused by name instead of as a wrong signature."""
    request, now_ns = signed("GET", f"{URL}/b/k", {"x-amz-security-token": "t"})
    assert refusal(request, now_ns).code == "InvalidToken"
    request, now_ns = signed("GET", f"{URL}/b/k", how="v4-query")
    assert (
        refusal(replace(request, target=request.target + "&X-Amz-Security-Token=t"), now_ns).code
        == "InvalidToken"
    )


@pytest.mark.parametrize(
    ("pattern", "by", "says"),
    [
        (r"Credential=[^,]*", "Credential=x", "KEY/YYYYMMDD/REGION/SERVICE/aws4_request"),
        (r"Credential=[^/]*", "Credential=", "KEY/YYYYMMDD/REGION/SERVICE/aws4_request"),
        (r"/s3/", "/ec2/", '"/s3/aws4_request"'),
        (r"aws4_request", "aws5_request", '"/s3/aws4_request"'),
        (r"/20\d{6}/", "/20010101/", 'date "20010101"'),
        (r"SignedHeaders=host", "SignedHeaders=Host", "lower case"),
        (r"SignedHeaders=host", "SignedHeaders=host;host", "each once"),
        (
            r"SignedHeaders=host",
            "SignedHeaders=host;" + ";".join(f"a{i}" for i in range(100)),
            "SignedHeaders",
        ),
        (r"Signature=.*", "Signature=00", "64 hex digits"),
        (r", Signature=.*", "", "it needs Credential"),
        (r"Signature=", "signature=", "it needs Credential"),
        (r"(Signature=.*)", r"\1, \1", "malformed"),
        (r"SHA256 ", "SHA256", "it needs Credential"),
        (r"SignedHeaders=", "SignedHeaders", "malformed"),
    ],
)
def test_authorization_headers_that_cannot_be_read(pattern: str, by: str, says: str) -> None:
    """The message says which part."""
    request, now_ns = signed("GET", f"{URL}/b/k")
    text = re.sub(pattern, by, request.headers.get("authorization"), count=1)
    error = refusal(header(request, "authorization", text), now_ns)
    assert (error.code, error.status) == ("AuthorizationHeaderMalformed", 400)
    assert says in error.message


@pytest.mark.parametrize(
    ("pattern", "by", "says"),
    [
        (r"Algorithm=[^&]*", "Algorithm=AWS4-ECDSA-P256-SHA256", "AWS4-HMAC-SHA256"),
        (r"X-Amz-Algorithm=[^&]*&", "", "it needs X-Amz-Algorithm"),
        (r"X-Amz-Date=[^&]*", "X-Amz-Date=now", "ISO8601"),
        (r"X-Amz-Date=[^&]*", "X-Amz-Date=20131324T000000Z", "ISO8601"),
        (r"X-Amz-Expires=[^&]*", "X-Amz-Expires=1e3", "non-negative"),
        (r"X-Amz-Expires=[^&]*", "X-Amz-Expires=1&X-Amz-Expires=2", "twice"),
        (r"X-Amz-Credential=[^&]*", "X-Amz-Credential=x", "Credential"),
        (r"X-Amz-Signature=[^&]*", "X-Amz-Signature=x", "64 hex digits"),
    ],
)
def test_presigned_queries_that_cannot_be_read(pattern: str, by: str, says: str) -> None:
    """The message says which parameter."""
    request, now_ns = signed("GET", f"{URL}/b/k", how="v4-query")
    error = refusal(replace(request, target=re.sub(pattern, by, request.target)), now_ns)
    assert (error.code, error.status) == ("AuthorizationQueryParametersError", 400)
    assert says in error.message


# version 2


def test_version_2_is_off_unless_it_is_on() -> None:
    """Also presigned."""
    for how in ("v2", "v2-query"):
        error = refusal(*signed("GET", f"{URL}/b/k", how=how), rules=AuthSettings())
        assert (error.code, "AWS4-HMAC-SHA256" in error.message) == ("InvalidRequest", True)


def test_version_2_of_a_virtual_host() -> None:
    """The documentation's first example (Amazon S3 developer guide, "Signing and authenticating REST
    requests"): the bucket in the host's name belongs to the resource."""
    at_ns = times.parse_http("Tue, 27 Mar 2007 19:36:42 +0000")
    sent = {"Host": "awsexamplebucket1.us-west-1.s3.amazonaws.com", "Date": "Tue, 27 Mar 2007 19:36:42 +0000",
            "Authorization": f"AWS {KEY}:qgk2+6Sv9/oM7G3qLEjTH1a1l1g="}  # fmt: skip
    rules = AuthSettings(allow_sigv2=True, domain="us-west-1.s3.amazonaws.com")
    request = call("GET", "/photos/puppy.jpg", sent)
    assert check(request, at_ns, rules=rules).identity.user == ALICE
    error = refusal(request, at_ns, rules=AuthSettings(allow_sigv2=True))
    assert error.fields["StringToSign"].endswith("\n/photos/puppy.jpg")


@pytest.mark.parametrize("how", ["v2", "v2-query"])
def test_version_2_of_one_bucket_opens_no_other(how: str) -> None:
    """However the host is written. Who has a link to public/secret/report may ask for secret/report of the
    bucket public, by its host; nothing makes that report of the bucket secret of it."""
    request, now_ns = signed("GET", f"{URL}/public/secret/report", how=how)
    check(request, now_ns)
    moved = replace(request, target=request.target.removeprefix("/public"))
    for port in ("", ":", ":80"):
        for name in ("public.s3.example.org", "PUBLIC.S3.Example.org"):
            assert check(header(moved, "Host", name + port), now_ns).identity.user == ALICE
    for port in (":x", ":80x", ":8:8", ":80]", ":\xb2", ":80\n", "]", "."):
        error = refusal(header(moved, "Host", f"public.s3.example.org{port}"), now_ns)
        assert error.code == "SignatureDoesNotMatch", port


@pytest.mark.parametrize("how", ["v2", "v2-query"])
def test_version_2_of_a_key_with_a_slash_opens_no_other(how: str) -> None:
    """The slash that may be missing is that of a bucket alone."""
    request, now_ns = signed("GET", f"{URL}/b/k/", how=how)
    moved = header(replace(request, target=request.target.removeprefix("/b")), "Host", "b.s3.example.org")
    assert check(moved, now_ns).identity.user == ALICE
    other = replace(moved, target=moved.target.replace("/k/", "/k", 1))
    assert refusal(other, now_ns).code == "SignatureDoesNotMatch"
    request, now_ns = signed("GET", f"{URL}/b/", how=how)
    alone = replace(request, target=request.target.replace("/b/", "/b", 1))
    assert check(alone, now_ns).identity.user == ALICE


@pytest.mark.parametrize(
    "host",
    ["b.s3.test", "b.s3.test:80", "b.s3.test:", "b.s3.test:x", "b.s3.test:8:8", "b.s3.test:80]",
     "b.s3.test:80\n", "B.S3.TEST", "s3.test", ".s3.test", "[::1]:80", "[::1]", ""],
)  # fmt: skip
def test_signatures_and_routing_find_the_same_bucket(host: str) -> None:
    """In any Host, whether it is one or not."""
    found = parse("/x/y", host, "s3.test")
    assert sigv2.resource("/x/y", [], host, "s3.test") == f"/{found.bucket}/{found.key}"


def test_version_2_signs_what_chooses_an_operation() -> None:
    """A sub-resource put there or changed afterwards is refused; a listing's parameters are not signed."""
    for how in ("v2", "v2-query"):
        request, now_ns = signed("PUT", f"{URL}/b/k?acl&versionId=1", {"x-amz-acl": "private"}, how=how)
        check(request, now_ns)
        for target in ("/b/k", "/b/k?versionId=1", "/b/k?acl&versionId=2", "/b/k?acl&tagging&versionId=1"):
            changed = request.target.replace("/b/k?acl&versionId=1", target)
            assert refusal(replace(request, target=changed.replace("/b/k&", "/b/k?")), now_ns).status == 403
        assert refusal(header(request, "x-amz-acl", "public-read"), now_ns).code == "SignatureDoesNotMatch"


def test_version_2_times() -> None:
    """A date has to be there; a presigned request ends."""
    request, now_ns = signed("GET", f"{URL}/b/k", how="v2")
    assert refusal(without(request, "date"), now_ns).code == "AccessDenied"
    for own in ("20130524T000000Z", "Fri, 24 May 2013 00:00:00 GMT"):
        text = f"GET\n\n\n\nx-amz-date:{own}\n/b/k"  # with an x-amz-date the line of the date is empty
        signature = base64.b64encode(hmac.digest(SECRET.encode(), text.encode(), "sha1")).decode()
        sent = {"x-amz-date": own, "Date": "whenever", "Authorization": f"AWS {KEY}:{signature}"}
        assert check(call("GET", "/b/k", sent), MAY).scheme == "v2"
    request, now_ns = signed("GET", f"{URL}/b/k", how="v2-query", expires_s=60)
    assert refusal(request, now_ns + 62 * SECOND).message == "Request has expired"
    wrong = replace(request, target=re.sub(r"Expires=\d+", "Expires=soon", request.target))
    assert "seconds since epoch" in refusal(wrong, now_ns).message


# times and scopes as text


def test_times() -> None:
    """There and back; what is no time."""
    assert times.basic(MAY) == "20130524T000000Z" and times.parse_basic("20130524T000000Z") == MAY
    assert times.parse_iso("2013-05-24T00:00:00.000Z") == times.parse_iso("2013-05-24") == MAY
    for text in ("", "2013-05-24 00:00:00", "2013-13-01", "2013-05-24T25:00:00Z", "٢٠١٣-05-24"):
        with pytest.raises(ValueError, match=r"."):
            times.parse_iso(text)
    for text in ("", "x", "Fri, 99 May 2013 00:00:00 GMT", "Mon, 01 Jan 0001 00:00:00 +2400"):
        with pytest.raises(ValueError, match=r"."):
            times.parse_http(text)
    assert str(Scope("20130524", "us-east-1")) == "20130524/us-east-1/s3/aws4_request"
