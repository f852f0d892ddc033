"""The load generator of the S3 benchmarks: its signatures beside botocore's, what it makes of answers."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from sector.bench.common import program

KEY, SECRET = "AKTEST", "s3cret/with+signs"
ENVIRONMENT = {**os.environ, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
TIME = "20260131T235959Z"


def s3load(*arguments: str, status: int = 0) -> str:
    """What it prints: on standard error if it is to fail."""
    done = subprocess.run(
        [program("s3load"), *arguments], capture_output=True, text=True, env=ENVIRONMENT, timeout=60
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr if status else done.stdout


def signed_by_botocore(method: str, url: str, headers: dict[str, str]) -> str:
    """The Authorization that botocore makes of the same request at the same time."""
    request = AWSRequest(method=method, url=url, headers=headers)
    request.context["timestamp"] = TIME
    signer = botocore.auth.S3SigV4Auth(Credentials(KEY, SECRET), "s3", "eu-test-1")
    text = signer.string_to_sign(request, signer.canonical_request(request))
    signer._inject_signature_to_request(request, signer.signature(text, request))
    return str(request.headers["Authorization"])


@pytest.mark.parametrize(
    ("op", "method", "more"),
    [
        ("get", "GET", ("--prefix", "a b/ü~*'(1)+")),
        ("head", "HEAD", ()),
        ("put", "PUT", ("--size", "4096")),
        ("put", "PUT", ("--size", "0", "--prefix", "x/y/")),
        ("put", "PUT", ("--unsigned-body",)),
        ("delete", "DELETE", ()),
        ("list", "GET", ("--prefix", "p q/", "--page", "7")),
        ("list", "GET", ("--token", "k/00+1==&x=ö", "--prefix", "")),
        ("bucket", "PUT", ()),
    ],
)
def test_signatures_are_those_of_botocore(op: str, method: str, more: tuple[str, ...]) -> None:
    head = s3load(
        op,
        *("--url", "http://127.0.0.1:8888", "--bucket", "bench", "--region", "eu-test-1"),
        *("--print-head", TIME, *more),
    )
    first, *lines = head.splitlines()
    headers = dict(line.split(": ", 1) for line in lines if line)
    authorization = headers.pop("Authorization")
    assert first.split(" ")[0] == method and headers["Host"] == "127.0.0.1:8888"
    kept = {name: headers[name] for name in ("Host", "x-amz-content-sha256", "x-amz-date")}
    assert authorization == signed_by_botocore(method, f"http://127.0.0.1:8888{first.split(' ')[1]}", kept)


def answered_to(conn: socket.socket, answer: Callable[[bytes, int], bytes | None]) -> None:
    """Give each request on a connection its answer; None cuts the connection."""
    count, data = 0, b""
    with conn:
        while chunk := conn.recv(65536):
            data += chunk
            while b"\r\n\r\n" in data:
                head, _, data = data.partition(b"\r\n\r\n")
                reply = answer(head, count)
                count += 1
                if reply is None:
                    return
                conn.sendall(reply)
                if b"Connection: close" in reply:
                    return


@contextmanager
def server(answer: Callable[[bytes, int], bytes | None]) -> Iterator[str]:
    """A server for requests without bodies; `answer` gets the head and its number on the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    conn, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=answered_to, args=(conn, answer), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def counted(url: str, op: str, *arguments: str) -> dict[str, Any]:
    """A run's outcome."""
    found: dict[str, Any] = json.loads(
        s3load(op, "--url", url, "--bucket", "bench", "--connections", "2", *arguments)
    )
    return found


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd"
CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    b"1;x=y\r\na\r\n3\r\nbcd\r\n0\r\nTrailer: 1\r\n\r\n"
)


def test_answers_of_every_form_are_read() -> None:
    """With a length, in chunks with a trailer, with an end of the connection behind it."""
    forms = [OK, CHUNKED, OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)]
    with server(lambda _, count: forms[count % 3]) as url:
        found = counted(url, "get", "--size", "4", "--requests", "60")
    assert (found["done"], found["errors"], found["first_error"]) == (60, 0, "")
    assert found["statuses"] == {"200": 60} and found["bytes_in"] == 240
    assert found["connects"] >= 20
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (None, "the connection was cut"),
        (OK.replace(b"4", b"5", 1).replace(b"abcd", b"abcde"), "answer 200 of 5 bytes"),
        (b"HTTP/1.1 503 Slow\r\nContent-Length: 8\r\n\r\nSlowDown", "answer 503 of 8 bytes: SlowDown"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "no HTTP"),
        (b"SSH-2.0 is no HTTP\r\n", "no HTTP"),
        (OK + b"more", "more than was asked for"),
    ],
)
def test_answers_that_are_wrong_are_counted_and_told(reply: bytes | None, said: str) -> None:
    """One request in two is answered well, so that the run has an outcome."""
    with server(lambda _, count: OK if count % 2 == 0 else reply) as url:
        found = counted(url, "get", "--size", "4", "--requests", "20")
    assert found["done"] + found["errors"] == 20 and 8 <= found["done"] <= 11
    assert found["first_error"].startswith(said)


def test_nothing_answered_is_a_failure_with_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    arguments = ("get", "--url", url, "--bucket", "bench")
    assert "Connection refused" in s3load(*arguments, "--requests", "3", status=1)
    assert "usage" in s3load("fly", status=2)
    assert "no such number: 0" in s3load(*arguments, "--keys", "0", status=2)


def test_pages_are_followed_by_their_tokens() -> None:
    """Entities resolved and encoded again; after the last page from the beginning."""
    asked: list[str] = []

    def page(head: bytes, _: int) -> bytes:
        asked.append(head.split(b" ")[1].decode())
        last = "continuation-token" in asked[-1]
        body = b"<L><C><Key>a</Key></C>" + (
            b"</L>" if last else b"<NextContinuationToken>x&amp;&#43;/=</NextContinuationToken></L>"
        )
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    with server(page) as url:
        found = counted(url, "list", "--requests", "4", "--connections", "1", "--prefix", "")
    assert (
        asked
        == [
            "/bench?list-type=2&max-keys=1000&prefix=",
            "/bench?continuation-token=x%26%2B%2F%3D&list-type=2&max-keys=1000&prefix=",
        ]
        * 2
    )
    assert found["keys_per_s"] == pytest.approx(found["rate_per_s"], rel=1e-4)


def test_what_is_not_answered_in_the_end_is_told() -> None:
    """A server that holds one answer for longer than the client waits."""
    over = threading.Event()

    def answer(_: bytes, count: int) -> bytes:
        if count == 3:
            over.wait(20)
        return OK

    with server(answer) as url:
        words = ("--seconds", "0.3", "--grace", "0.1", "--connections", "1")
        found = counted(url, "get", "--size", "4", *words)
        over.set()
    assert (found["done"], found["errors"], found["unanswered"]) == (3, 0, 1)
    assert found["first_error"].startswith("not answered in the end: 1 of 4 requests still under way")


@pytest.mark.parametrize("size", [10, 200_000])
def test_an_answer_that_is_cut_with_its_last_bytes_is_an_error_at_once(size: int) -> None:
    """The end of the connection comes together with bytes of the answer; nothing waits for more."""
    part = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nConnection: close\r\n\r\n" + bytes(size)
    begun = time.monotonic()
    with server(lambda _, __: part) as url:
        said = s3load(
            *("get", "--url", url, "--bucket", "bench", "--size", "1000000"),
            *("--requests", "6", "--connections", "2"),
            status=1,
        )
    assert said == "s3load: the connection was cut\n" and time.monotonic() - begun < 30


def test_how_far_a_request_came_that_stays_unanswered() -> None:
    """A server that answers one object and then sends a part only; one that reads nothing of an upload."""
    part = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + bytes(60)
    words = ("--seconds", "0.3", "--grace", "0.1", "--connections", "1")
    with server(lambda _, count: OK if count == 0 else part) as url:
        found = counted(url, "get", "--size", "4", *words)
    assert found["first_error"].endswith(" s, 60 bytes of an answer with status 200")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        size = ("--size", str(100 << 20), "--unsigned-body")
        said = s3load("put", "--url", url, "--bucket", "bench", *words, *size, status=1)
    assert re.search(r"for 0\.\d s, \d+ of 1048\d+ bytes sent\n$", said), said


def test_bytes_count_of_answers_that_end_after_the_time_that_is_counted() -> None:
    """Large objects over a thin link: none is whole within the second that is looked at."""
    part = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + bytes(10_000)
    with server(lambda _, __: part) as url:
        words = ("--size", "1000000", "--seconds", "0.5", "--grace", "0")
        found = counted(url, "get", *words)
    assert (found["done"], found["errors"], found["unanswered"]) == (0, 0, 2)
    assert round(found["taken_per_s"] * found["seconds"]) == 20_000


def test_no_byte_of_an_answer_in_the_time_that_is_counted_is_a_failure() -> None:
    """Also when the server is there; what stayed open is told."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        words = ("--connections", "3", "--seconds", "0.2", "--grace", "0.1")
        said = s3load("get", "--url", url, "--bucket", "bench", *words, status=1)
    assert said.startswith(
        "s3load: nothing was answered in the time that was counted: 3 of 3 requests still under way, the"
        " oldest for 0."
    )
    assert said.endswith(" s, sent whole\n")


def test_an_open_loop_times_from_when_a_request_was_due() -> None:
    """A server that holds the first answer for half a second delays all that were due meanwhile."""
    held = threading.Event()

    def answer(_: bytes, count: int) -> bytes:
        if count == 0:
            held.wait(0.5)
        return OK

    with server(answer) as url:
        found = counted(url, "get", "--size", "4", "--rate", "100", "--requests", "100", "--connections", "1")
    assert found["done"] == 100 and found["max_ms"] >= 490
    assert found["p50_ms"] >= 1 or found["p90_ms"] >= 300, "those that waited count their waiting"
    assert found["mean_ms"] >= 100 and found["seconds"] >= 0.9


def test_redirections_are_followed_with_a_connection_of_their_own() -> None:
    """The second request goes where Location points, without the first one's signature; once only."""
    heads: list[bytes] = []

    def last(head: bytes, _: int) -> bytes:
        heads.append(head)
        return OK

    with server(last) as there:
        moved = (
            f"HTTP/1.1 307 T\r\nLocation: {there}/bench/k?X-Amz-Signature=1\r\nContent-Length: 3\r\n\r\n<E>"
        )
        with server(lambda _, __: moved.encode()) as point:
            found = counted(point, "get", "--size", "4", "--requests", "10", "--follow")
    assert (found["done"], found["errors"], found["followed"]) == (10, 0, 10)
    assert found["bytes_in"] == 40 and len(heads) == 10
    assert all(head.startswith(b"GET /bench/k?X-Amz-Signature=1 HTTP/1.1\r\n") for head in heads)
    assert not any(b"Authorization" in head for head in heads)


@pytest.mark.parametrize(
    "location", ["", "Location: https://elsewhere/\r\n", "Location: http://127.0.0.1:1\r\n"]
)
def test_redirections_to_nowhere_are_errors(location: str) -> None:
    moved = f"HTTP/1.1 307 T\r\n{location}Content-Length: 0\r\n\r\n".encode()
    with server(lambda _, count: OK if count % 2 == 0 else moved) as url:
        found = counted(url, "get", "--size", "4", "--requests", "20", "--follow")
    assert found["done"] + found["errors"] == 20 and found["errors"] >= 8 and found["first_error"]
