"""cumulus.auth.cors: what pages from elsewhere may send to a bucket, and what their browser is told."""

from __future__ import annotations

import time

import pytest

from cumulus.auth.cors import VARY, CorsRule, parse_cors, preflight, reply_headers
from cumulus.errors import S3Error

PAGE = "https://lab.example.org"


def config(*rules: str) -> str:
    return (
        "<CORSConfiguration>"
        + "".join(f"<CORSRule>{rule}</CORSRule>" for rule in rules)
        + "</CORSConfiguration>"
    )


def rule(origin: str = "*", method: str = "GET", more: str = "") -> str:
    return f"<AllowedOrigin>{origin}</AllowedOrigin><AllowedMethod>{method}</AllowedMethod>{more}"


def test_a_configuration() -> None:
    """All elements, in S3's namespace."""
    text = config(
        "<ID>one</ID><AllowedOrigin>https://*.example.org</AllowedOrigin><AllowedOrigin>http://a</AllowedOrigin>"
        "<AllowedMethod>PUT</AllowedMethod><AllowedMethod>GET</AllowedMethod><AllowedHeader>X-Amz-*</AllowedHeader>"
        "<ExposeHeader>ETag</ExposeHeader><MaxAgeSeconds>3000</MaxAgeSeconds>"
    ).replace("<CORSConfiguration>", '<CORSConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">')
    assert parse_cors(text) == (
        CorsRule(("https://*.example.org", "http://a"), ("PUT", "GET"), ("x-amz-*",), ("ETag",), 3000, "one"),
    )


def test_preflight() -> None:
    """The browser learns methods, headers, age, and that it may send credentials."""
    more = "<AllowedHeader>x-amz-*</AllowedHeader><ExposeHeader>ETag</ExposeHeader>"
    more += "<MaxAgeSeconds>60</MaxAgeSeconds>"
    rules = parse_cors(config(rule("https://other", "GET"), rule("https://*.example.org", "PUT", more)))
    assert dict(preflight(rules, PAGE, "PUT", "X-Amz-Acl, x-amz-date")) == {
        "Access-Control-Allow-Origin": PAGE,
        "Access-Control-Allow-Methods": "PUT",
        "Access-Control-Allow-Headers": "x-amz-acl, x-amz-date",
        "Access-Control-Allow-Credentials": "true",
        "Access-Control-Expose-Headers": "ETag",
        "Access-Control-Max-Age": "60",
        "Vary": VARY[1],
    }


def test_everybody() -> None:
    """A star for the origin, and then no credentials."""
    rules = parse_cors(config(rule()))
    expected = [("Access-Control-Allow-Origin", "*"), ("Access-Control-Allow-Methods", "GET"), VARY]
    assert preflight(rules, PAGE, "GET", "") == expected
    assert reply_headers(rules, PAGE, "GET") == expected


def test_replies() -> None:
    """Only to pages, only where a rule fits; what the request carried does not matter any more."""
    rules = parse_cors(config(rule(PAGE, "GET", "<ExposeHeader>x-amz-request-id</ExposeHeader>")))
    assert ("Access-Control-Allow-Origin", PAGE) in reply_headers(rules, PAGE, "GET")
    assert ("Access-Control-Expose-Headers", "x-amz-request-id") in reply_headers(rules, PAGE, "GET")
    for origin, method in (("", "GET"), (PAGE, "PUT"), ("https://else", "GET")):
        assert reply_headers(rules, origin, method) == []
    assert reply_headers((), PAGE, "GET") == []


@pytest.mark.parametrize(
    ("origin", "method", "asked", "code"),
    [
        ("", "GET", "", "BadRequest"),
        (PAGE, "", "", "BadRequest"),
        (PAGE, "FLY", "", "BadRequest"),
        (PAGE, "PUT", "", "AccessForbidden"),
        ("https://else", "GET", "", "AccessForbidden"),
        (PAGE + ".evil.org", "GET", "", "AccessForbidden"),
        (PAGE, "GET", "x-amz-acl", "AccessForbidden"),
    ],
)
def test_preflights_that_are_refused(origin: str, method: str, asked: str, code: str) -> None:
    """Incomplete ones, and what no rule allows."""
    rules = parse_cors(config(rule(PAGE)))
    with pytest.raises(S3Error) as caught:
        preflight(rules, origin, method, asked)
    assert caught.value.code == code


def test_a_page_may_ask_for_some_headers_only() -> None:
    """A browser names those of one request; a stranger 9,000, and each was compared with each pattern."""
    rules = parse_cors(config(rule(more="<AllowedHeader>*</AllowedHeader>")))
    names = [f"x-amz-meta-{number}" for number in range(100)]
    answer = dict(preflight(rules, PAGE, "GET", ",".join([*names, *names])))
    assert answer["Access-Control-Allow-Headers"] == ", ".join(names)
    with pytest.raises(S3Error, match="more than 100 headers") as caught:
        preflight(rules, PAGE, "GET", ",".join([*names, "x-one-more"]))
    assert caught.value.code == "BadRequest"


def test_many_patterns_take_no_time() -> None:
    """Any user may set them, for some buckets of his own: each reply to a page took 0.1 s."""
    patterns = ["".join(f"<AllowedOrigin>*x{j}y{i}</AllowedOrigin>" for j in range(15)) for i in range(90)]
    rules = parse_cors(config(*(f"{many}<AllowedMethod>GET</AllowedMethod>" for many in patterns)))
    began_s = time.process_time()
    for _ in range(3):
        assert reply_headers(rules, "https://x14y89", "GET") != []
        assert reply_headers(rules, "y89" * 20_000, "GET") == []
    assert time.process_time() - began_s < 0.1


def test_a_bucket_without_rules() -> None:
    """Says so."""
    with pytest.raises(S3Error, match="not enabled for this bucket"):
        preflight((), PAGE, "GET", "")


def test_only_stars_are_special() -> None:
    """A question mark and a dot are letters."""
    fits = parse_cors(config(rule("http://a.b?c*")))[0].fits
    assert (
        fits("http://a.b?cd", "GET", ())
        and not fits("http://a.bxc", "GET", ())
        and not fits("http://axb?c", "GET", ())
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "MalformedXML"),
        ("<CORSConfiguration/>", "MalformedXML"),
        ("<Configuration/>", "MalformedXML"),
        ("<CORSConfiguration><Rule/></CORSConfiguration>", "MalformedXML"),
        ('<!DOCTYPE a [<!ENTITY b "c">]>' + config(rule("&b;")), "MalformedXML"),
        (config(""), "MalformedXML"),
        (config("<AllowedOrigin>*</AllowedOrigin>"), "MalformedXML"),
        (config(rule(more="<Colour/>")), "MalformedXML"),
        (config(rule(more="<MaxAgeSeconds>x</MaxAgeSeconds>")), "MalformedXML"),
        (config(rule(more="<MaxAgeSeconds>-1</MaxAgeSeconds>")), "MalformedXML"),
        (config(rule()) + " " * 65536, "MalformedXML"),
        (config(*[rule()] * 101), "InvalidRequest"),
        (config(rule(method="PATCH")), "InvalidRequest"),
        (config(rule("http://*.a.*")), "InvalidRequest"),
        (config(rule(more="<AllowedHeader>x-*-*</AllowedHeader>")), "InvalidRequest"),
        (config(rule(more="<ExposeHeader>x-*</ExposeHeader>")), "InvalidRequest"),
        (config(rule(more=f"<ID>{'x' * 256}</ID>")), "InvalidRequest"),
    ],
)
def test_configurations_that_are_refused(text: str, code: str) -> None:
    """With S3's codes."""
    with pytest.raises(S3Error) as caught:
        parse_cors(text)
    assert caught.value.code == code
