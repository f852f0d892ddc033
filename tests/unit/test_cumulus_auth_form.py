"""cumulus.auth.post_form and post_policy: forms of browsers in any pieces, and what their policy allows."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from botocore.auth import HmacV1PostAuth, S3SigV4PostAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cumulus_signing import ALICE, KEY, MAY, SECOND, SECRET, People
from hypothesis import given, settings
from hypothesis import strategies as st

from cumulus.auth import times
from cumulus.auth.claims import AuthSettings
from cumulus.auth.post_form import MAX_FIELDS, MAX_FIELDS_SIZE, FormDecoder, is_form
from cumulus.auth.post_policy import PostPolicy, authenticate_form, parse_post_policy
from cumulus.errors import S3Error
from cumulus.model import Credential, User

TYPE = "multipart/form-data; boundary=xYzZY"


def part(name: str, value: bytes, more: str = "") -> bytes:
    return (
        f'--xYzZY\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"
    )


def form(fields: dict[str, str], file: bytes = b"data", after: bytes = b"") -> bytes:
    parts = [part(name, value.encode()) for name, value in fields.items()]
    head = '; filename="C:\\dir\\a b.txt"\r\nContent-Type: text/plain'
    return b"".join(parts) + part("file", file, head) + after + b"--xYzZY--\r\n"


def run(wire: bytes, step: int = 0, content_type: str = TYPE) -> tuple[FormDecoder, bytes]:
    decoder, out = FormDecoder(content_type), bytearray()
    for at in range(0, len(wire), step or len(wire) or 1):
        for piece in decoder.feed(memoryview(wire)[at : at + (step or len(wire))]):
            assert decoder.ready
            out += piece
    decoder.finish()
    return decoder, bytes(out)


def refusal(wire: bytes, content_type: str = TYPE) -> S3Error:
    """The same at once and byte by byte."""
    with pytest.raises(S3Error) as caught:
        run(wire, 0, content_type)
    with pytest.raises(S3Error) as again:
        run(wire, 1, content_type)
    assert again.value.code == caught.value.code
    return caught.value


FILES = st.lists(
    st.sampled_from([b"\r", b"\n", b"\r\n", b"-", b"--", b"\r\n--", b"xYzZ", b"\r\n--xYzZ", b"Y!", b"data"])
)


@settings(max_examples=150)
@given(
    fields=st.dictionaries(
        st.sampled_from("abcdef"), st.text(max_size=8).map(lambda t: t.replace("\r", "")), max_size=3
    ),
    file=FILES.map(b"".join).filter(lambda data: b"\r\n--xYzZY" not in b"\r\n" + data),
    step=st.integers(0, 30),
)
def test_any_form_in_any_pieces(fields: dict[str, str], file: bytes, step: int) -> None:
    """Also files that are made of beginnings of the boundary."""
    decoder, data = run(form(fields, file), step)
    assert (decoder.fields, data) == (fields, file)
    assert (decoder.filename, decoder.file_type) == ("a b.txt", "text/plain")


def test_the_file_passes_as_slices() -> None:
    """Of a large buffer only the part beside the fields is copied."""
    wire = form({"key": "k"}, b"x" * (1 << 20))
    decoder = FormDecoder(TYPE)
    first = decoder.feed(memoryview(wire)[:100_000])
    second = decoder.feed(memoryview(wire)[100_000:200_000])
    assert sum(map(len, first)) < 100_000 and [len(piece) for piece in second] == [100_000]
    assert second[0].obj is wire


def test_names_and_variables() -> None:
    """Field names without case; ${filename} is the file's name, but not in what is signed."""
    fields = {"KEY": "up/${filename}", "Policy": "${filename}", "x": ""}
    decoder, _ = run(form(fields))
    assert decoder.fields == {"key": "up/a b.txt", "policy": "${filename}", "x": ""}
    quoted, _ = run(
        part("file", b"", '; filename="a\\"b"') + b"--xYzZY--", content_type=TYPE + "; charset=utf-8"
    )
    assert quoted.filename == 'a"b'
    assert run(form({}), 0, 'Multipart/Form-Data; charset=x; boundary="xYzZY"')[1] == b"data"
    assert is_form(TYPE) and not is_form("text/plain")


def test_what_follows_the_file_is_ignored() -> None:
    """Other parts, and a second file."""
    more = part("late", b"x") + part("file", b"other", '; filename="b"')
    decoder, data = run(form({"key": "k"}, after=more), 3)
    assert (decoder.fields, data) == ({"key": "k"}, b"data")


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (b"", "MalformedPOSTRequest"),
        (b"hello", "MalformedPOSTRequest"),
        (b"--xYzZY--\r\n", "InvalidArgument"),
        (part("key", b"k") + b"--xYzZY--\r\n", "InvalidArgument"),
        (part("key", b"k"), "MalformedPOSTRequest"),
        (form({})[:-10], "IncompleteBody"),
        (form({})[:-4], "IncompleteBody"),
        (form({}).replace(b"--\r\n", b"??\r\n"), "MalformedPOSTRequest"),
        (part("key", b"k").replace(b"xYzZY\r\n", b"xYzZYx\r\n") + form({}), "MalformedPOSTRequest"),
        (part("key", b"\xff") + form({}), "MalformedPOSTRequest"),
        (
            b'--xYzZY\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n' + form({}),
            "MalformedPOSTRequest",
        ),
        (b"--xYzZY\r\nContent-Disposition: form-data\r\n\r\n" + form({}), "MalformedPOSTRequest"),
        (b'--xYzZY\r\nContent-Disposition: attachment; name="a"\r\n\r\n' + form({}), "MalformedPOSTRequest"),
        (b"--xYzZY\r\nwhat\r\n\r\n" + form({}), "MalformedPOSTRequest"),
        (part("key", b"a") + form({"Key": "b"}), "InvalidArgument"),
        (form({f"f{i}": "" for i in range(MAX_FIELDS + 1)}), "InvalidArgument"),
        (form({"key": "k" * MAX_FIELDS_SIZE}), "MaxPostPreDataLengthExceeded"),
        (b"x" * (3 * MAX_FIELDS_SIZE), "MaxPostPreDataLengthExceeded"),
    ],
)
def test_forms_that_are_refused(wire: bytes, code: str) -> None:
    """Cut, without a file, with parts that cannot be read, too large before the file."""
    assert refusal(wire).code == code


@pytest.mark.parametrize(
    "text",
    [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "text/plain; boundary=x",
        f"multipart/form-data; boundary={'x' * 71}",
    ],
)
def test_types_without_a_boundary(text: str) -> None:
    """Are refused before the body."""
    with pytest.raises(S3Error) as caught:
        FormDecoder(text)
    assert caught.value.code == "MalformedPOSTRequest"


# policies

LATER = times.iso(MAY + 3600 * SECOND)


def policy(*conditions: Any, **more: Any) -> str:
    document = {"expiration": "2013-05-24T01:00:00.000Z", "conditions": list(conditions), **more}
    return base64.b64encode(json.dumps(document).encode()).decode()


def signed(how: str = "v4", secret: str = SECRET) -> dict[str, str]:
    """Fields of a form that botocore signs, names in lower case as the decoder gives them."""
    request = AWSRequest(method="POST", url="http://s3.example.org/b")
    fields: dict[str, str] = {"key": "k"}
    request.context["s3-presign-post-fields"] = fields
    request.context["s3-presign-post-policy"] = {
        "expiration": "2999-01-01T00:00:00Z",
        "conditions": [{"bucket": "b"}, {"key": "k"}],
    }
    credentials = Credentials(KEY, secret)
    auth = S3SigV4PostAuth(credentials, "s3", "us-east-1") if how == "v4" else HmacV1PostAuth(credentials)
    auth.add_auth(request)
    return {name.lower(): value for name, value in fields.items()}


def check(
    fields: dict[str, str], now_ns: int | None = None, people: People | None = None, **settings: Any
) -> Any:
    rules = AuthSettings(**{"allow_sigv2": True, **settings})
    now = (
        times.parse_basic(fields["x-amz-date"])
        if now_ns is None and "x-amz-date" in fields
        else now_ns or MAY
    )
    return authenticate_form(fields, people or People(), rules, "192.0.2.1", now)


@pytest.mark.parametrize("how", ["v4", "v2"])
def test_forms_that_botocore_signs(how: str) -> None:
    """Are known, and good for their bucket and key; with another policy or secret they are not."""
    fields = signed(how)
    found, rules = check(fields)
    assert (found.identity.user, found.identity.access_key, found.scheme) == (ALICE, KEY, "form")
    rules.check(fields, "b", MAY)
    for wrong in (
        signed(how, "x" * 40),
        {**fields, "policy": policy()},
        {**fields, "policy": fields["policy"] + " "},
    ):
        with pytest.raises(S3Error) as caught:
            check(wrong)
        assert caught.value.code == "SignatureDoesNotMatch"
        assert SECRET not in str(caught.value.fields)
    shut = People(Credential(access_key=KEY, secret=SECRET, user=User(id="a", name="a", disabled=True)))
    with pytest.raises(S3Error, match="disabled"):
        check(fields, people=shut)
    with pytest.raises(S3Error) as caught:
        check(fields, people=People(Credential(access_key="else", secret=SECRET, user=ALICE)))
    assert caught.value.code == "InvalidAccessKeyId"


def test_forms_without_a_policy_are_anonymous() -> None:
    """A signature without a policy, or a policy without a signature, is neither."""
    found, rules = check({"key": "k"})
    assert (found.identity.user, found.identity.peer, rules) == (None, "192.0.2.1", None)
    for fields, code in (
        ({"policy": policy()}, "InvalidArgument"),
        ({"x-amz-signature": "0"}, "AccessDenied"),
        ({"signature": "0"}, "AccessDenied"),
    ):
        with pytest.raises(S3Error) as caught:
            check(fields)
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"x-amz-algorithm": "AWS4-ECDSA-P256-SHA256"}, "InvalidArgument"),
        ({"x-amz-security-token": "t"}, "InvalidToken"),
        ({"x-amz-date": "today"}, "InvalidArgument"),
        ({"x-amz-credential": "x"}, "InvalidArgument"),
        ({"x-amz-signature": "x"}, "InvalidArgument"),
    ],
)
def test_signatures_that_cannot_be_read(changes: dict[str, str], code: str) -> None:
    """With the part that is wrong."""
    with pytest.raises(S3Error) as caught:
        check({**signed(), **changes}, 2**61)
    assert caught.value.code == code


def test_region_clock_and_version_2() -> None:
    """As for requests: another region, a date in the future, version 2 switched off."""
    fields = signed()
    with pytest.raises(S3Error) as caught:
        check(fields, region="eu-central-1")
    assert caught.value.fields["Region"] == "eu-central-1"
    at_ns = times.parse_basic(fields["x-amz-date"])
    check(fields, at_ns + 24 * 3600 * SECOND)
    with pytest.raises(S3Error) as caught:
        check(fields, at_ns - 16 * 60 * SECOND)
    assert caught.value.code == "RequestTimeTooSkewed"
    with pytest.raises(S3Error, match="not supported"):
        check(signed("v2"), allow_sigv2=False)


def allowed(text: str, fields: dict[str, str], now_ns: int = MAY) -> str:
    """ "" or why not."""
    try:
        parse_post_policy(text).check(fields, "b", now_ns)
    except S3Error as error:
        return f"{error.code}: {error.message}"
    return ""


def test_conditions() -> None:
    """Equal, beginning with, the bucket; fields that nobody named are too many."""
    text = policy(
        {"bucket": "b"},
        ["starts-with", "$key", "user/"],
        ["eq", "$Acl", "private"],
        ["starts-with", "$c", ""],
    )
    good = {
        "key": "user/x",
        "acl": "private",
        "c": "any",
        "policy": "p",
        "x-amz-signature": "s",
        "x-ignore-me": "1",
    }
    assert allowed(text, good) == ""
    assert allowed(text, {**good, "key": "x"}) == (
        'AccessDenied: Invalid according to Policy: Policy Condition failed: ["starts-with", "$key", "user/"]'
    )
    assert 'failed: ["eq", "$acl", "private"]' in allowed(text, {**good, "acl": "public-read"})
    assert "Extra input fields: x-amz-meta-a" in allowed(text, {**good, "x-amz-meta-a": "1"})
    assert "failed" in allowed(policy({"bucket": "c"}), {})
    assert "failed" in allowed(policy(["eq", "$key", "k"]), {})
    assert "Extra input fields: bucket" in allowed(policy(["eq", "$key", "k"]), {"key": "k"})
    assert allowed(policy({"bucket": "b"}), {}, MAY + 3599 * SECOND) == ""
    assert "Policy expired." in allowed(policy({"bucket": "b"}), {}, MAY + 3600 * SECOND)


def test_sizes() -> None:
    """Of several ranges all count; without one any size will do."""
    rules = parse_post_policy(policy(["content-length-range", 2, 10], ["content-length-range", "0", "8"]))
    for size, code in ((1, "EntityTooSmall"), (2, ""), (8, ""), (9, "EntityTooLarge")):
        try:
            rules.check_size(size)
            found = ""
        except S3Error as error:
            found = error.code
        assert found == code
    parse_post_policy(policy()).check_size(10**15)
    assert parse_post_policy(policy()) == PostPolicy(MAY + 3600 * SECOND, ())


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "é",
        base64.b64encode(b"{").decode(),
        base64.b64encode(b"[" * 9000).decode(),
        base64.b64encode(b"[]").decode(),
        policy(colour="red"),
        policy(expiration="soon"),
        policy(expiration=7),
        policy(conditions="none"),
        policy("x"),
        policy({}),
        policy({"key": 1}),
        policy(["eq", "$key"]),
        policy(["eq", "key", "x"]),
        policy(["matches", "$key", "x"]),
        policy(["content-length-range", 1]),
        policy(["content-length-range", 1, True]),
        policy(["content-length-range", -1, 5]),
    ],
)
def test_policies_that_are_refused(text: str) -> None:
    """Not JSON in base64, or not a policy."""
    with pytest.raises(S3Error) as caught:
        parse_post_policy(text)
    assert (caught.value.code, caught.value.status) == ("InvalidPolicyDocument", 400)
