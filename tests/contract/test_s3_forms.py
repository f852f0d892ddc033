"""Files uploaded by a browser's form, with the policies that boto3 signs."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from email.header import decode_header, make_header
from typing import Any

import pytest
from s3_world import Answer, World
from twisted.internet.task import Clock

from cumulus.backends.memory import MemoryStore
from cumulus.fair.limits import Limits
from cumulus.http.pace import Pacer
from cumulus.http.settings import HttpSettings
from cumulus.rest.call import Call, Reply, Sink


@pytest.fixture
def world() -> Iterator[World]:
    made = World(MemoryStore())
    assert made.ask("PUT", "/bkt").status == 200
    yield made
    made.close()


def form(fields: dict[str, str], body: bytes, name: str = "photo.jpg") -> bytes:
    """A form as a browser sends it."""
    parts = [
        f'--XX\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'
        for key, value in fields.items()
    ]
    head = f'--XX\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    return "".join(parts).encode() + head.encode() + body + b"\r\n--XX--\r\n"


def post(world: World, body: bytes, kind: str = "multipart/form-data; boundary=XX") -> Answer:
    """Send it; forms are not signed by headers."""
    return world.ask("POST", "/bkt", body, user="", headers={"Content-Type": kind})


def signed(world: World, key: str, fields: dict[str, str] | None = None, *more: Any) -> dict[str, str]:
    """Fields of a form that alice signed."""
    given = dict(fields or {})
    conditions: list[Any] = [{name: value} for name, value in given.items()]
    made = world.boto(signature_version="s3v4").generate_presigned_post(
        "bkt", key, given, [*conditions, *more]
    )
    return dict(made["fields"])


def test_a_signed_form_uploads_a_file(world: World) -> None:
    wanted = {"acl": "public-read", "Content-Type": "image/jpeg", "x-amz-meta-who": "me"}
    fields = signed(world, "in/${filename}", {**wanted, "success_action_status": "201"})
    answer = post(world, form(fields, b"\r\n--X bytes" * 30_000))
    assert (answer.status, answer.leaf("Key")) == (201, "in/photo.jpg")
    got = world.ask("GET", "/bkt/in/photo.jpg", user="")
    assert got.body == b"\r\n--X bytes" * 30_000
    assert (got.headers["content-type"], got.headers["x-amz-meta-who"]) == ("image/jpeg", "me")
    assert answer.notes["user"] == "alice" and answer.notes["key"] == "in/photo.jpg"
    assert world.index.usage("bucket", "bkt").reserved_bytes == 0


@pytest.mark.parametrize(
    "text", ["röd", "plain", "日本語 " * 20 + "x", "=?UTF-8?B?csO2ZA==?=", "\U0001f600" * 50]
)
def test_metadata_that_is_not_ascii_comes_back_in_encoded_words(world: World, text: str) -> None:
    """As clients for Amazon S3 expect it (RFC 2047); a copy keeps it. ASCII comes back as it was sent."""
    assert post(world, form(signed(world, "k", {"x-amz-meta-n": text}), b"x")).status == 204
    assert world.ask("PUT", "/bkt/copy", headers={"x-amz-copy-source": "bkt/k"}).status == 200
    for key in ("k", "copy"):
        shown = world.ask("HEAD", f"/bkt/{key}").headers["x-amz-meta-n"]
        assert shown.isascii() and all(len(word) <= 75 for word in shown.split())
        assert shown == text if text.isascii() else str(make_header(decode_header(shown))) == text


@pytest.mark.parametrize(("name", "code"), [("key", "UserKey"), ("x-amz-signature", "InvalidArgument")])
def test_a_field_behind_the_file_does_not_count(world: World, name: str, code: str) -> None:
    """The refusal says where to look."""
    fields = signed(world, "k")
    late = next(value for title, value in fields.items() if title.lower() == name)
    rest = {title: value for title, value in fields.items() if title.lower() != name}
    end = f'--XX\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{late}\r\n--XX--\r\n'.encode()
    refused = post(world, form(rest, b"x").removesuffix(b"--XX--\r\n") + end)
    assert refused.status == 400 and refused.code.startswith(code)
    assert "please check the order of the fields" in refused.leaf("Message")


def test_where_the_browser_goes_next(world: World) -> None:
    there = {"success_action_redirect": "https://page.example/done?a=1"}
    answer = post(world, form(signed(world, "k", there), b"x"))
    location = answer.headers["location"]
    assert answer.status == 303
    assert location.startswith("https://page.example/done?a=1&bucket=bkt&key=k&etag=%22")
    part = {"success_action_redirect": "https://page.example/done#files?all"}
    location = post(world, form(signed(world, "k", part), b"x")).headers["location"]
    assert location.startswith("https://page.example/done?bucket=bkt&key=k&etag=%22")
    assert location.endswith("%22#files?all")  # else the page would not be told
    assert post(world, form(signed(world, "k"), b"x")).status == 204
    script = {"success_action_redirect": "javascript:alert(1)"}
    assert post(world, form(signed(world, "k", script), b"x")).status == 204


def test_forms_count_for_the_limits_of_who_signed_them(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many is refused before its file; a form of nobody over the same connection is not."""
    settings = HttpSettings(user_limits=Limits(requests=0.01, burst_s=100))
    seat = Pacer(settings, Clock()).seat("192.0.2.1")
    plain, start = seat.owner, world.start

    def seated(call: Call, body: memoryview | None = None) -> Reply | Sink:
        call.seat = seat
        return start(call, body)

    monkeypatch.setattr(world, "start", seated)
    fields = signed(world, "k")
    assert post(world, form(fields, b"one")).status == 204
    assert seat.owner != plain, "the rest of the file is hers"
    refused = post(world, form(fields, b"two"))
    assert (refused.status, refused.code) == (503, "SlowDown")
    assert int(refused.headers["retry-after"]) > 1
    assert post(world, form({"key": "k2"}, b"x")).code == "AccessDenied", "of nobody"
    assert seat.owner == plain
    monkeypatch.undo()
    assert world.ask("GET", "/bkt/k").body == b"one"


def test_sizes_that_the_policy_does_not_allow(world: World) -> None:
    bounds = ["content-length-range", 3, 10]
    fields = signed(world, "k", None, bounds)
    assert post(world, form(fields, b"x" * 11)).code == "EntityTooLarge"
    assert post(world, form(fields, b"x" * 200_000)).code == "EntityTooLarge"
    assert post(world, form(fields, b"xx")).code == "EntityTooSmall"
    assert world.ask("GET", "/bkt/k").status == 404
    assert post(world, form(fields, b"x" * 10)).status == 204
    assert world.index.usage("bucket", "bkt").reserved_bytes == 0


def test_forms_that_are_refused(world: World) -> None:
    fields = signed(world, "k")
    for wrong, code in (
        ({**fields, "key": "other"}, "AccessDenied"),
        ({**fields, "x-amz-signature": "0" * 64}, "SignatureDoesNotMatch"),
        ({**fields, "x-amz-meta-more": "1"}, "AccessDenied"),
        ({name: value for name, value in fields.items() if name != "key"}, "UserKeyMustBeSpecified"),
        ({"key": "k"}, "AccessDenied"),
        ({"key": "k" * 1025}, "KeyTooLongError"),
    ):
        assert post(world, form(wrong, b"x")).code == code, code
    assert post(world, form(fields, b"x")[:-4]).code == "IncompleteBody"
    assert post(world, b"key=value", "application/x-www-form-urlencoded").status == 412
    assert post(world, b"nonsense").code == "MalformedPOSTRequest"
    assert post(world, form(fields, b"x"), "multipart/form-data").code == "MalformedPOSTRequest"
    assert world.ask("GET", "/bkt/k").status == 404


def test_a_form_cannot_smuggle_headers(world: World) -> None:
    evil = {"x-amz-meta-a": "1\nx-amz-acl: public-read"}
    answer = post(world, form(signed(world, "k", evil), b"x"))
    assert answer.code == "InvalidArgument"
    assert world.ask("GET", "/bkt/k").status == 404


def test_a_form_that_breaks_gives_its_room_back(world: World) -> None:
    body = form(signed(world, "k"), b"x" * 100_000)
    headers = {"Content-Type": "multipart/form-data; boundary=XX"}
    sink = world.open("POST", "/bkt", body, user="", headers=headers)[1]
    assert sink.write(memoryview(body)[:50_000]) is None  # type: ignore[union-attr]
    assert world.index.usage("bucket", "bkt").reserved_objects == 1
    sink.abort()  # type: ignore[union-attr]
    assert world.index.usage("bucket", "bkt").reserved_objects == 0
    assert world.ask("GET", "/bkt/k").status == 404


def test_the_md5_of_a_form_counts(world: World) -> None:
    """A field Content-MD5 is checked as the header of that name."""
    right = base64.b64encode(hashlib.md5(b"body").digest()).decode()
    fields = signed(world, "k", {"Content-MD5": right})
    assert post(world, form(fields, b"other")).code == "BadDigest"
    assert world.ask("GET", "/bkt/k").status == 404
    assert post(world, form(fields, b"body")).status == 204
    assert post(world, form(signed(world, "k", {"Content-MD5": "x"}), b"body")).code == "InvalidDigest"
    assert world.index.usage("bucket", "bkt").reserved_bytes == 0


@pytest.mark.parametrize(
    "name", ["x-amz-meta-a\nSet-Cookie", "x-amz-meta-a\rb", "x-amz-meta-a: b", "x-amz-meta-naïve"]
)
def test_a_field_whose_name_is_no_headers_makes_no_object(world: World, name: str) -> None:
    """Its name comes back in the replies to GET, where it would begin a header of its own."""
    answer = post(world, form(signed(world, "k", {name: "value"}), b"x"))
    assert (answer.status, answer.code) == (400, "InvalidArgument")
    assert world.ask("GET", "/bkt/k").status == 404
    assert world.index.usage("bucket", "bkt").reserved_bytes == 0


def _allow(world: World, *conditions: tuple[str, dict[str, Any]]) -> None:
    """The bucket's policy: an effect and its conditions for what everybody puts below in/."""
    statements = [
        {
            "Effect": effect,
            "Principal": "*",
            "Action": "s3:PutObject",
            "Resource": "arn:aws:s3:::bkt/in/*",
            "Condition": condition,
        }
        for effect, condition in conditions
    ]
    text = json.dumps({"Version": "2012-10-17", "Statement": statements})
    assert world.ask("PUT", "/bkt", text.encode(), query="policy").status == 204


@pytest.mark.parametrize("user", ["", "bob"])
def test_a_form_is_no_copy_though_it_says_so(world: World, user: str) -> None:
    """Where a policy lets people put copies of certain objects alone, a field puts no bytes of their own."""
    copies = {"StringLike": {"s3:x-amz-copy-source": "bkt/checked/*"}}
    _allow(world, ("Allow", copies))
    assert world.ask("PUT", "/bkt/checked/a", b"good", headers={"x-amz-acl": "public-read"}).status == 200
    headers = {"x-amz-copy-source": "bkt/checked/a"}
    assert world.ask("PUT", "/bkt/in/a", user=user, headers=headers).status == 200
    fields = {"key": "in/a"}
    if user:
        client = world.boto(user, signature_version="s3v4")
        made = client.generate_presigned_post("bkt", "in/a", headers, [headers])["fields"]
        fields = dict(made)
    refused = post(world, form({**fields, **headers}, b"evil"))
    assert (refused.status, refused.code) == (400, "InvalidArgument")
    assert world.ask("GET", "/bkt/in/a", user=user or "alice").body == b"good"


def test_the_hash_that_a_field_names_is_none_of_its_body(world: World) -> None:
    """Nothing compares it, so no policy that asks for a signed body is content with it."""
    hashed = {"StringNotEquals": {"s3:x-amz-content-sha256": "UNSIGNED-PAYLOAD"}}
    known = {"Null": {"s3:x-amz-content-sha256": "false"}}
    _allow(world, ("Allow", {**hashed, **known}))
    assert world.ask("PUT", "/bkt/in/a", b"good", user="bob").status == 200
    claim = {"key": "in/a", "x-amz-content-sha256": hashlib.sha256(b"good").hexdigest()}
    assert post(world, form(claim, b"evil")).code == "AccessDenied"


def test_a_policy_knows_the_page_and_the_browser_of_a_form(world: World) -> None:
    """They are in the headers of its request, as they would be in those of a PUT; no field counts as one."""
    ours = {"StringLike": {"aws:Referer": "https://ours.example/*"}}
    _allow(world, ("Allow", ours), ("Deny", {"StringLike": {"aws:UserAgent": "Robot*"}}))

    def sent(fields: dict[str, str], headers: dict[str, str]) -> int:
        kind = {"Content-Type": "multipart/form-data; boundary=XX"}
        body = form({"key": "in/a", **fields}, b"x")
        return world.ask("POST", "/bkt", body, user="", headers={**kind, **headers}).status

    page = {"Referer": "https://ours.example/form"}
    assert sent({}, page) == 204
    assert sent({}, {}) == sent(page, {}) == sent({}, {"Referer": "https://other.example/"}) == 403
    assert sent({}, {**page, "User-Agent": "Robot/1"}) == 403
    assert sent({"User-Agent": "Browser"}, {**page, "User-Agent": "Robot/1"}) == 403
