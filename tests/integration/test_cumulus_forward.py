"""A proxy before other servers: what passes, in which pace, and what is answered when a server fails."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from http_floor import Floor, Stream, floor, request, until
from s3_tls import write_certificate

from cumulus.auth import hop
from cumulus.http import forward, upstream
from cumulus.http.forward import RETRY_AFTER, Forwarder, ForwardingRequest
from cumulus.http.settings import FIRST_BUFFER
from cumulus.http.site import Site
from cumulus.http.tls import TlsFiles
from cumulus.http.trust import Trust
from cumulus.redirect import HostsFile
from cumulus.rest.call import Download, Reply
from cumulus.rest.hops import Hops
from cumulus.secrets import Keyring
from sector.errors import SectorError

KEY = b"k" * 32
MIB = 1 << 20


@contextmanager
def proxy(
    hosts: Path,
    *,
    point: bool = True,
    trust: Trust | None = None,
    hops: Hops | None = None,
    **settings: float,
) -> Iterator[Floor]:
    """A floor that passes requests on to the servers of the file, signed with the keys of `hops`."""

    def complain(bad: SectorError) -> None:
        raise bad

    def prepare(site: Site) -> None:
        servers = HostsFile(hosts, complain, time.monotonic)
        forwarder = Forwarder(
            site.reactor,
            servers,
            hops.keys if hops else lambda: [KEY],
            domain="s3.test",
            point=point,
            trust=trust,
            look_at_keys=hops.look if hops else None,
        )
        site.pass_on(forwarder, ForwardingRequest)

    with floor(prepare=prepare, **settings) as running:
        yield running


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Floor, Floor]]:
    """A proxy and the server behind it."""
    hosts = tmp_path_factory.mktemp("proxy") / "hosts"
    with floor() as server:
        hosts.write_text(f"http://127.0.0.1:{server.port}\n")
        with proxy(hosts) as front:
            yield front, server


# what passes -----------------------------------------------------------------------------------------------
def test_requests_pass_as_they_came(pair: tuple[Floor, Floor]) -> None:
    """Method, target, Host and headers are the client's; the header beside them proves who it is; the reply
    and both logs have one id; a connection is used again on both sides."""
    front, server = pair
    wire = front.connect()
    for number in range(3):
        target = f"/b/k%2F{number}?x=%20y"
        wire.send(request(target, "GET", "X-Amz-Date: 1", "A: b", "A: c", "Connection: keep-alive"))
        answer = wire.answer()
        assert (answer.status, answer.body) == (200, target.encode())
        call = server.gateway.calls[-1]
        assert (call.method, call.target, call.headers.get("host")) == ("GET", target, "s3")
        assert call.headers.get("a") == "b,c" and "connection" not in call.headers
        origin = hop.origin(call, [KEY], int(time.time()))
        assert origin == hop.Origin(answer.headers["x-amz-request-id"], "127.0.0.1", False)
    wire.close()
    assert len(server.site.channels) == 1
    assert not front.gateway.calls, "nothing is served here"


def test_a_proxy_signs_with_the_key_that_is_the_newest_now(tmp_path: Path) -> None:
    """Others know no older one once they have started again."""
    ring = Keyring.create(tmp_path / "secret.key")
    with floor() as server:
        (tmp_path / "hosts").write_text(f"http://127.0.0.1:{server.port}\n")
        with proxy(tmp_path / "hosts", hops=Hops(tmp_path / "secret.key")) as front:
            wire = front.connect()

            def signed() -> bool:
                wire.send(request("/b/k", "GET"))
                assert wire.answer().status == 200
                keys = ring.derived(hop.PURPOSE)
                return hop.origin(server.gateway.calls[-1], keys, int(time.time())) is not None

            assert signed()
            ring.add_newest()
            ring.drop_older()
            until(signed, "the proxy does not hear of the new key")
            wire.close()


def test_bodies_pass_whole(pair: tuple[Floor, Floor]) -> None:
    """Small and large, with a length, in chunks and empty."""
    front, server = pair
    wire = front.connect()
    for size in (0, 1, 70_000, 3 * MIB + 1):
        body = bytes(range(251)) * (size // 251 + 1)
        body = body[:size]
        framed = b"".join(
            b"%x\r\n%s\r\n" % (len(body[at : at + 9999]), body[at : at + 9999]) for at in range(0, size, 9999)
        )
        for head, data in (
            (request("/b/k", "PUT", f"Content-Length: {size}"), body),
            (request("/b/k", "PUT", "Transfer-Encoding: chunked"), framed + b"0\r\n\r\n"),
        ):
            answer = wire.send(head, data).answer()
            assert (answer.status, answer.body) == (200, b"stored %d" % size)
            assert server.gateway.sinks[-1].data == body
    wire.close()


def test_replies_pass_whole(pair: tuple[Floor, Floor], tmp_path: Path) -> None:
    """Large ones, refusals, those without a body, and of HEAD the length alone."""
    front, server = pair
    path = tmp_path / "large"
    path.write_bytes(bytes(range(253)) * 20_000)

    def large(_call: object) -> Reply:
        return Reply(206, [("etag", '"e"')], Download(Stream(path), 0, path.stat().st_size))

    refusal = Reply(403, [("x-a", "1")], b"<Error/>")
    server.gateway.replies = {
        "/large": large,
        "/refused": lambda _call: refusal,
        "/none": lambda _call: Reply(204),
        "/same": lambda _call: Reply(304, [("etag", '"e"')]),
    }
    wire = front.connect()
    answer = wire.send(request("/large")).answer()
    assert (answer.status, answer.headers["etag"]) == (206, '"e"')
    assert answer.body == path.read_bytes()
    answer = wire.send(request("/large", "HEAD")).answer("HEAD")
    assert (answer.status, answer.headers["content-length"]) == (206, str(path.stat().st_size))
    answer = wire.send(request("/refused")).answer()
    assert (answer.status, answer.headers["x-a"], answer.body) == (403, "1", b"<Error/>")
    for target, status in (("/none", 204), ("/same", 304)):
        answer = wire.send(request(target)).answer()
        assert (answer.status, "content-length" in answer.headers) == (status, False)
    wire.close()
    server.gateway.replies = {}


def test_the_body_is_asked_for_when_the_server_asks(pair: tuple[Floor, Floor]) -> None:
    """100 comes from the server; without it the body is never sent."""
    front, server = pair
    wire = front.connect()
    wire.send(request("/b/k", "PUT", "Content-Length: 100000", "Expect: 100-continue"))
    assert wire.answer().status == 100
    assert wire.send(bytes(100_000)).answer().body == b"stored 100000"
    wire.send(request("/b/k", "PUT", "Content-Length: 0", "Expect: 100-continue"))
    assert [wire.answer().status for _ in range(2)] == [100, 200]
    server.gateway.replies["/b/no"] = lambda _call: Reply(403, [], b"<Error/>")
    for size in (100_000, 0):
        wire.send(request("/b/no", "PUT", f"Content-Length: {size}", "Expect: 100-continue"))
        assert wire.answer().status == 403
        assert wire.ended()
        wire.close()
        wire = front.connect()
    wire.close()
    server.gateway.replies.clear()


def test_who_waits_for_a_copy_through_a_proxy_hears_that_it_is_being_done(
    pair: tuple[Floor, Floor], tmp_path: Path
) -> None:
    _, server = pair
    document = b'<?xml version="1.0" encoding="UTF-8"?>\n<CopyObjectResult/>'
    server.gateway.replies["/b/copy"] = lambda call: Reply(200, [], document)
    (tmp_path / "hosts").write_text(f"http://127.0.0.1:{server.port}\n")
    with proxy(tmp_path / "hosts", write_timeout_s=1.0, silence_s=0.2) as front:
        server.gateway.start_hold.clear()
        wire = front.connect()
        wire.send(request("/b/copy", "PUT", "x-amz-copy-source: /b/k", "Connection: close"))
        assert wire.head()[1]["transfer-encoding"] == "chunked"
        server.gateway.start_hold.set()
        told = wire.rest()
        assert told.startswith(b"27\r\n" + document[:0x27] + b"\r\n")
        assert told.endswith(b"13\r\n<CopyObjectResult/>\r\n0\r\n\r\n")
        wire.close()


def test_a_refusal_in_the_middle_of_a_body_is_passed(pair: tuple[Floor, Floor]) -> None:
    front, server = pair
    server.gateway.refuse_after = MIB
    wire = front.connect()
    wire.send(request("/b/k", "PUT", f"Content-Length: {64 * MIB}"))
    stop = threading.Event()

    def pour() -> None:
        try:
            while not stop.is_set():
                wire.send(bytes(MIB))
        except OSError:
            return

    thread = threading.Thread(target=pour)
    thread.start()
    try:
        assert (wire.answer().status, wire.rest()) == (403, b"")
    finally:
        stop.set()
        wire.close()
        thread.join()
        server.gateway.refuse_after = -1


# the pace --------------------------------------------------------------------------------------------------
def test_a_slow_server_stops_the_client(pair: tuple[Floor, Floor]) -> None:
    """While the server writes, the proxy holds some buffers and takes no more."""
    front, server = pair
    server.gateway.hold.clear()
    wire = front.connect()
    wire.send(request("/b/k", "PUT", f"Content-Length: {96 * MIB}"))
    thread = threading.Thread(target=lambda: wire.send(*[bytes(MIB)] * 96))
    thread.start()

    def received() -> int:
        return front.call(
            lambda: max((r.intake.received for r in front.site._in_flight if r.intake), default=0)
        )

    def still() -> bool:
        before = received()
        threading.Event().wait(0.3)
        return bool(before > MIB and before == received())

    until(still, "the client is not stopped")
    # two buffers here and what the kernel holds between the proxy and the server
    assert received() < 32 * MIB
    server.gateway.hold.set()
    assert wire.answer().body == b"stored %d" % (96 * MIB)
    thread.join()
    wire.close()


def test_a_server_that_does_not_read_for_long_is_not_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk stands still, or its user has moved too much: its machine answers. The kernel's own time-out
    (TCP_USER_TIMEOUT) takes that for silence. Here a second stands for the half minute."""
    times = {option: 1000 if option == socket.TCP_USER_TIMEOUT else 1 for option in upstream._TCP}
    monkeypatch.setattr(upstream, "_TCP", times)
    monkeypatch.setattr(upstream, "GONE_S", 1.0)
    monkeypatch.setattr(forward, "CHECK_S", 0.1)
    with floor() as server:
        (tmp_path / "hosts").write_text(f"http://127.0.0.1:{server.port}\n")
        with proxy(tmp_path / "hosts") as front:
            server.gateway.hold.clear()
            wire = front.connect()
            wire.send(request("/b/k", "PUT", f"Content-Length: {64 * MIB}"))
            thread = threading.Thread(target=lambda: wire.send(*[bytes(MIB)] * 64))
            thread.start()
            until(lambda: server.gateway.sinks and server.gateway.sinks[0].inside)
            threading.Event().wait(5)  # the kernel's probes, which the server's answers
            server.gateway.hold.set()
            assert wire.answer().body == b"stored %d" % (64 * MIB)
            thread.join()
            wire.close()


def test_a_slow_client_stops_the_server(pair: tuple[Floor, Floor], tmp_path: Path) -> None:
    front, server = pair
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(96 * MIB)
    server.gateway.replies["/large"] = lambda _call: Reply(200, [], Download(Stream(path), 0, 96 * MIB))
    wire = front.connect()
    wire.send(request("/large"))

    def given() -> int:
        requests = front.site._in_flight
        return int(front.call(lambda: max((one._bytes_out for one in requests), default=0)))

    def still() -> bool:
        before = given()
        threading.Event().wait(0.3)
        return bool(before and before == given())

    until(still, "the server is not stopped")
    assert given() < 32 * MIB
    assert wire.head()[0] == 200
    assert len(wire.rest_of(96 * MIB)) == 96 * MIB
    wire.close()
    server.gateway.replies.clear()


def test_a_limit_of_rate_holds_both_ways(tmp_path: Path) -> None:
    """8 MB at 16 MB/s, of which a quarter of a second's worth may come at once."""
    with floor() as server:
        (tmp_path / "hosts").write_text(f"http://127.0.0.1:{server.port}\n")
        path = tmp_path / "large"
        path.write_bytes(bytes(8 * MIB))
        server.gateway.replies["/large"] = lambda _call: Reply(200, [], Download(Stream(path), 0, 8 * MIB))
        with proxy(tmp_path / "hosts", total_rate=16 * MIB) as front:
            wire, began = front.connect(), time.monotonic()
            assert len(wire.send(request("/large")).answer().body) == 8 * MIB
            wire.send(request("/b/k", "PUT", f"Content-Length: {8 * MIB}"), bytes(8 * MIB))
            assert wire.answer().body == b"stored %d" % (8 * MIB)
            assert time.monotonic() - began > 0.7
            wire.close()


# what fails ------------------------------------------------------------------------------------------------
def test_a_limit_of_rate_holds_for_replies_of_one_piece(tmp_path: Path) -> None:
    """8 times 200 KB at 1 MB/s, each on a connection of its own; a quarter of a second's worth may come at
    once. Each was given before its rest began, and the next one knew nothing of it."""
    with floor() as server:
        (tmp_path / "hosts").write_text(f"http://127.0.0.1:{server.port}\n")
        server.gateway.replies["/x"] = lambda _call: Reply(200, [], bytes(200_000))
        with proxy(tmp_path / "hosts", total_rate=1_000_000) as front:
            began = time.monotonic()
            for _ in range(8):
                wire = front.connect()
                assert wire.send(request("/x")).answer().body == bytes(200_000)
                wire.close()
            assert time.monotonic() - began >= 1.2
            until(lambda: len(front.log_lines()) == 8)
            assert all(b'"bytes_out":200000,' in line for line in front.log_lines())


def test_a_refusal_that_rests_for_a_limit_comes_whole_though_the_body_goes_on(tmp_path: Path) -> None:
    """The proxy has passed the first buffer and waits for the next one when the server refuses."""
    with floor() as server:
        (tmp_path / "hosts").write_text(f"http://127.0.0.1:{server.port}\n")
        with proxy(tmp_path / "hosts", total_rate=MIB) as front:
            server.gateway.replies["/b/no"] = lambda _call: Reply(403, [], bytes(MIB))
            server.gateway.start_hold.clear()
            wire = front.connect()
            wire.send(request("/b/no", "PUT", f"Content-Length: {64 * MIB}"), bytes(FIRST_BUFFER))

            def at(what: Callable[[Any], bool]) -> bool:
                requests = front.site._in_flight
                return bool(front.call(lambda: [one for one in requests if one.intake and what(one)]))

            until(lambda: at(lambda one: one.intake.received and not one.intake._held), "it is not passed")
            server.gateway.start_hold.set()
            until(lambda: at(lambda one: one._answering), "no reply has begun")
            wire.send(bytes(MIB // 2))
            answer = wire.answer()
            assert (answer.status, len(answer.body)) == (403, MIB)
            wire.close()


@pytest.mark.parametrize("bad", ["a stranger's certificate", "silence"])
def test_another_server_takes_the_place_of_one_without_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    """It was taken for reached when TCP was there: half of all requests were 503, or were never answered."""
    monkeypatch.setattr(upstream, "CONNECT_S", 0.3)
    ours = write_certificate(tmp_path)
    with ExitStack() as stack:
        server = stack.enter_context(floor(tls=TlsFiles(*ours)))
        other = stack.enter_context(floor(tls=TlsFiles(*write_certificate(tmp_path, "stranger"))))
        mute = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = mute.getsockname()[1] if bad == "silence" else other.port
        (tmp_path / "hosts").write_text(f"https://127.0.0.1:{server.port}\nhttps://127.0.0.1:{port}\n")
        front = stack.enter_context(proxy(tmp_path / "hosts", trust=Trust(ours[0])))
        wire = front.connect()
        for number in range(4):
            body = bytes(100_000)
            assert wire.send(request(f"/b/{number}", "PUT", body=body)).answer().body == b"stored 100000"
        assert not other.gateway.calls
        wire.close()


def test_another_server_takes_the_place_of_one_that_is_down(tmp_path: Path) -> None:
    """The file is read again while the proxy runs; without any server the answer is 503."""
    hosts = tmp_path / "hosts"
    hosts.write_text("http://127.0.0.1:1\nhttp://[::1]:1\nhttp://localhost:1\n")
    with ExitStack() as stack:
        server = stack.enter_context(floor())
        front = stack.enter_context(proxy(hosts))
        wire = front.connect()
        for method, length in (("GET", 0), ("PUT", 5), ("PUT", 1000_000)):
            wire.send(request("/b/k", method, f"Content-Length: {length}"), bytes(length))
            answer = wire.answer()
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert b"<Code>ServiceUnavailable</Code>" in answer.body
            if length > 100_000:
                wire.close()
                wire = front.connect()
        hosts.write_text(f"http://127.0.0.1:1\nhttp://127.0.0.1:{server.port}\n")

        def served() -> bool:
            return wire.send(request("/b/k")).answer().status == 200

        until(served, "the new file does not count")
        for _ in range(8):
            assert served()
        answer = wire.send(request("/b/k", "PUT", "Content-Length: 5"), b"12345").answer()
        assert answer.body == b"stored 5"
        wire.close()


BROKEN = [
    b"",
    b"SSH-2.0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 200 OK\r\nno colon\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
    b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000,
]


@contextmanager
def scripted(answer: bytes, times: int) -> Iterator[int]:
    """A server that says the same to each request and ends the connection; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(times):
                with listener.accept()[0] as peer:
                    peer.settimeout(10)
                    data = b""
                    while b"\r\n\r\n" not in data and (more := peer.recv(1 << 16)):
                        data += more
                    with suppress(OSError):  # it may not want to hear all of it
                        peer.sendall(answer)
                        peer.shutdown(socket.SHUT_WR)
                        while peer.recv(1 << 16):
                            pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield int(listener.getsockname()[1])
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("answer", BROKEN, ids=range(len(BROKEN)))
def test_what_is_no_reply_becomes_503(answer: bytes, tmp_path: Path) -> None:
    """To GET, which goes to the same server once, and to PUT, after which the connection ends."""
    with scripted(answer, 2) as port:
        (tmp_path / "hosts").write_text(f"http://127.0.0.1:{port}\n")
        with proxy(tmp_path / "hosts") as front:
            wire = front.connect()
            for head, body in ((request(), b""), (request("/b/k", "PUT", "Content-Length: 9"), bytes(9))):
                found = wire.send(head, body).answer()
                assert (found.status, found.headers["retry-after"]) == (503, "1")
            assert wire.ended()
            wire.close()


def test_a_reply_that_breaks_off_is_cut(tmp_path: Path) -> None:
    with scripted(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", 1) as port:
        (tmp_path / "hosts").write_text(f"http://127.0.0.1:{port}\n")
        with proxy(tmp_path / "hosts") as front:
            wire = front.connect().send(request())
            assert (wire.head()[0], wire.rest()) == (200, b"abc")
            wire.close()
            until(lambda: b'"error":"ServiceUnavailable"' in front.log.read_bytes(), "it is in the log")


def test_a_kept_connection_that_has_ended_is_made_again(pair: tuple[Floor, Floor]) -> None:
    """The server restarts between two requests of one client."""
    front, server = pair
    wire = front.connect()
    assert wire.send(request()).answer().status == 200
    server.call(lambda: [channel.transport.abortConnection() for channel in list(server.site.channels)])
    until(lambda: not server.site.channels, "the connection is gone")
    assert wire.send(request()).answer().status == 200
    wire.close()


@pytest.mark.parametrize("reset", [True, False])
def test_a_client_that_goes_takes_its_request_along(pair: tuple[Floor, Floor], reset: bool) -> None:
    """The server hears of it and forgets what it had written."""
    front, server = pair
    wire = front.connect().send(request("/b/k", "PUT", f"Content-Length: {8 * MIB}"), bytes(2 * MIB))
    until(lambda: server.gateway.sinks and server.gateway.sinks[-1].data, "the body arrives")
    wire.reset() if reset else wire.close()
    assert until(lambda: server.gateway.sinks[-1].aborted) == 1
    until(lambda: not front.site._in_flight, "the proxy forgets it")


def test_a_slow_body_is_ended_by_the_proxy(tmp_path: Path) -> None:
    with floor() as server:
        (tmp_path / "hosts").write_text(f"http://127.0.0.1:{server.port}\n")
        with proxy(tmp_path / "hosts", header_timeout_s=0.3, min_body_rate=100_000) as front:
            wire = front.connect().send(request("/b/k", "PUT", f"Content-Length: {MIB}"), bytes(20_000))
            answer = wire.answer()
            assert (answer.status, b"RequestTimeout" in answer.body) == (400, True)
            wire.close()
            assert until(lambda: server.gateway.sinks[-1].aborted) == 1


def test_a_malformed_chunk_is_refused_by_the_proxy(pair: tuple[Floor, Floor]) -> None:
    front, server = pair
    before = len(server.gateway.sinks)
    wire = front.connect().send(request("/b/k", "PUT", "Transfer-Encoding: chunked"), b"5\r\nabcdefgh\r\n")
    answer = wire.answer()
    assert (answer.status, b"InvalidRequest" in answer.body) == (400, True)
    wire.close()
    until(
        lambda: all(sink.aborted or sink.finished for sink in server.gateway.sinks[before:]),
        "it is forgotten",
    )


# who serves ------------------------------------------------------------------------------------------------
def test_a_server_that_also_serves(tmp_path: Path) -> None:
    """What is addressed to a server of the file, also with the bucket in the name, or was passed on to it."""
    with floor() as server:
        hosts = tmp_path / "hosts"
        hosts.write_text(f"http://127.0.0.1:{server.port}\nhttp://own.test:80\nhttp://s3.test\n")
        with proxy(hosts, point=False) as front:
            wire = front.connect()
            for host, here in (("own.test", True), ("x.s3.test", True), ("other.test", False)):
                before = len(front.gateway.calls)
                head = request("/b/k").replace(b"Host: s3", f"Host: {host}".encode())
                assert wire.send(head).answer().status == 200
                assert (len(front.gateway.calls) > before) is here
            assert wire.send(request("/b/k", "GET", f"{hop.HEADER}: x")).answer().status == 200
            assert front.gateway.calls[-1].headers.get(hop.HEADER) == "x", "for the gateway to judge"
            wire.close()


def test_the_least_busy_server_is_next(tmp_path: Path) -> None:
    """While one holds its requests, the other one gets all."""
    with floor() as slow, floor() as quick:
        hosts = tmp_path / "hosts"
        hosts.write_text(f"http://127.0.0.1:{slow.port}\nhttp://127.0.0.1:{quick.port}\n")
        slow.gateway.start_hold.clear()
        with proxy(hosts) as front:
            wires = [front.connect().send(request("/b/k")) for _ in range(2)]
            until(lambda: slow.gateway.calls and quick.gateway.calls, "each has one")
            readable = select.select([wire.sock for wire in wires], [], [], 10)[0]
            free = next(wire for wire in wires if wire.sock in readable)
            assert free.answer().status == 200
            for _ in range(5):
                assert free.send(request("/b/k")).answer().status == 200
            assert (len(slow.gateway.calls), len(quick.gateway.calls)) == (1, 6)
            slow.gateway.start_hold.set()
            other = wires[1] if free is wires[0] else wires[0]
            assert other.answer().status == 200
            for wire in wires:
                wire.close()


def test_a_server_that_refuses_at_once_does_not_draw_all_requests(tmp_path: Path) -> None:
    """Its database is away, say: of the requests of six clients nearly all are served by the other one."""
    with floor() as away, floor() as good:
        hosts = tmp_path / "hosts"
        hosts.write_text(f"http://127.0.0.1:{away.port}\nhttp://127.0.0.1:{good.port}\n")
        away.gateway.replies["/b/k"] = lambda _call: Reply(503, RETRY_AFTER, b"<Error/>")

        def serve(_call: object) -> Reply:
            time.sleep(0.005)  # which takes longer than to refuse
            return Reply(200, [], b"ok")

        good.gateway.replies["/b/k"] = serve
        found: list[int] = []
        with proxy(hosts) as front:

            def ask() -> None:
                wire = front.connect()
                for _ in range(50):
                    found.append(wire.send(request("/b/k")).answer().status)
                wire.close()

            threads = [threading.Thread(target=ask) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        assert len(found) == 300 and found.count(503) < 60
