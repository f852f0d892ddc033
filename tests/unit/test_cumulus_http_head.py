"""Heads of requests: what they say, and what is none."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cumulus.http.head import MAX_HEADERS, MalformedHead, TooManyHeaders, may_become, parse


def test_a_head_says_what_was_sent() -> None:
    head = parse(
        b"PUT /b/%C3%A4?x=1 HTTP/1.1\r\nHost: s3\r\nX-A:\t1 \r\nx-a: 2\r\nContent-Length: 12\r\nV: \xfc"
    )
    assert (head.method, head.target, head.length) == ("PUT", "/b/%C3%A4?x=1", 12)
    assert head.headers.pairs == [
        ("host", "s3"),
        ("x-a", "1"),
        ("x-a", "2"),
        ("content-length", "12"),
        ("v", "\xfc"),
    ]
    assert head.headers.get("x-a") == "1,2"
    assert (head.persistent, head.continues) == (True, True)


@pytest.mark.parametrize(
    ("target", "host", "origin"),
    [
        ("http://s3:80/b/k?x=1", "s3:80", "/b/k?x=1"),
        ("HTTPS://b.s3/k//http://x", "b.s3", "/k//http://x"),
        ("http://s3", "s3", "/"),
        ("http://s3?x=/1", "s3", "/?x=/1"),
        ("http://[::1]:80/b", "[::1]:80", "/b"),
        ("/http://s3/k", "other", "/http://s3/k"),
        ("http:///k", "other", "http:///k"),
        ("http://a@s3/k", "other", "http://a@s3/k"),
        ("s3:80", "other", "s3:80"),
        ("*", "other", "*"),
    ],
)
def test_a_whole_url_is_its_path_on_its_host(target: str, host: str, origin: str) -> None:
    """RFC 9112, section 3.2.2: servers accept it, and the header Host counts for nothing then."""
    head = parse(f"GET {target} HTTP/1.1\r\nA: 1\r\nHost: other\r\nB: 2".encode())
    assert (head.target, head.headers.get("host")) == (origin, host)
    assert sorted(head.headers.pairs) == [("a", "1"), ("b", "2"), ("host", host)]


@pytest.mark.parametrize(
    ("lines", "length"),
    [
        ("", 0),
        ("Content-Length: 0", 0),
        ("Transfer-Encoding: Chunked", None),
        ("Transfer-Encoding: identity\r\nContent-Length: 3", 3),
    ],
)
def test_the_length_of_a_body(lines: str, length: int | None) -> None:
    text = "PUT / HTTP/1.1\r\nHost: s3" + (f"\r\n{lines}" if lines else "")
    assert parse(text.encode()).length == length


@pytest.mark.parametrize(
    ("version", "connection", "kept"),
    [
        ("1.1", "", True),
        ("1.1", "Keep-Alive", True),
        ("1.1", "Close", False),
        ("1.1", "te, close", False),
        ("1.0", "keep-alive", False),
    ],
)
def test_who_keeps_the_connection(version: str, connection: str, kept: bool) -> None:
    assert parse(f"GET / HTTP/{version}\r\nHost: s3\r\nConnection: {connection}".encode()).persistent is kept


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nA: 1\r\n folded",
        b"GET / HTTP/1.1\r\n A: 1",
        b"GET / HTTP/1.1\r\nA : 1",
        b"GET / HTTP/1.1\r\nA: 1\rB: 2",
        b"GET / HTTP/1.1\r\nA: 1\nB: 2",
        b"GET / HTTP/1.1\r\nHost",
        b"GET / HTTP/1.1\r\n: 1",
        b"GET /\xc3\xa4 HTTP/1.1",
        b"GET  / HTTP/1.1",
        b"GET / http/1.1",
        b"GET / HTTP/1.2",
        b"PUT / HTTP/1.1\r\nContent-Length: +1",
        b"PUT / HTTP/1.1\r\nContent-Length: \xb2",
        b"PUT / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3",
        b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"PUT / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked",
        b"PUT / HTTP/1.1\r\nTransfer-Encoding: identity",
    ],
)
def test_what_others_might_read_otherwise_is_no_head(head: bytes) -> None:
    with pytest.raises(MalformedHead):
        parse(head + b"\r\nHost: s3")


@pytest.mark.parametrize(
    ("head", "good"),
    [
        (b"GET / HTTP/1.1", False),
        (b"GET / HTTP/1.1\r\nX-Host: s3", False),
        (b"GET / HTTP/1.1\r\nHost: s3\r\nhost: s3", False),
        (b"GET / HTTP/1.0\r\nHost: s3\r\nA: 1\r\nHost: other", False),
        (b"GET / HTTP/1.1\r\nHost:", True),
        (b"GET / HTTP/1.0", True),
        (b"GET / HTTP/1.1\r\nHost: s3:8888", True),
        (b"GET / HTTP/1.1\r\nHost: s3:", True),
        (b"GET / HTTP/1.1\r\nHost: [::1]", True),
        (b"GET / HTTP/1.1\r\nHost: [::1]:80", True),
        (b"GET / HTTP/1.1\r\nHost: s3:x", False),
        (b"GET / HTTP/1.1\r\nHost: s3:8x", False),
        (b"GET / HTTP/1.1\r\nHost: s3:8:8", False),
        (b"GET / HTTP/1.1\r\nHost: s3:80]", False),
        (b"GET / HTTP/1.1\r\nHost: [::1]x", False),
        (b"GET / HTTP/1.1\r\nHost: [::1", False),
        (b"GET / HTTP/1.1\r\nHost: s3:\xb2", False),
        (b"GET / HTTP/1.0\r\nHost: s3:x", False),
        (b"GET http://s3:x/k HTTP/1.1\r\nHost: s3", False),
        (b"GET http://s3/k HTTP/1.1\r\nHost: s3:x", False),
    ],
)
def test_a_request_names_one_host(head: bytes, good: bool) -> None:
    """RFC 9112, section 3.2; those of HTTP/1.0 need none."""
    if good:
        parse(head)
        return
    with pytest.raises(MalformedHead, match="Host"):
        parse(head)


def test_headers_are_counted() -> None:
    parse(b"GET / HTTP/1.1\r\nHost: s3" + b"\r\nA: 1" * (MAX_HEADERS - 1))
    with pytest.raises(TooManyHeaders):
        parse(b"GET / HTTP/1.1\r\nHost: s3" + b"\r\nA: 1" * MAX_HEADERS)


def test_what_may_still_become_a_head() -> None:
    whole = b"GET /x HTTP/1.1\r\nHost: a"
    assert all(may_become(whole[:end]) for end in range(1, len(whole) + 1))
    assert may_become(b"\r")
    for data in (b"\x16\x03\x01", b"GET\r\n", b" GET", b"G T / HTTP/1.1\r\n", b"<xml>"):
        assert not may_become(data)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser(data: bytes) -> None:
    for head in (data, b"GET / HTTP/1.1\r\n" + data, b"GET / HTTP/1.1\r\nHost: s3\r\n" + data):
        with contextlib.suppress(MalformedHead, TooManyHeaders):
            parse(head)
        may_become(head)
