"""The HTTP floor of Cumulus against slow, broken and too many clients, over TLS, and at its end."""

from __future__ import annotations

import datetime
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from http_floor import Floor, Stream, Wire, client_tls, floor, request, until

from cumulus.http import held
from cumulus.http.access_log import AccessLog
from cumulus.http.metrics import prometheus
from cumulus.http.site import Site
from cumulus.http.tls import TlsFiles
from cumulus.rest.call import Download, Reply
from sector.errors import BadConfig


@pytest.fixture(scope="module")
def quick() -> Iterator[Floor]:
    """One floor with short time-outs."""
    with floor(
        header_timeout_s=0.3, idle_timeout_s=0.5, write_timeout_s=0.4, min_body_rate=100_000
    ) as running:
        yield running


# what is no request -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "head",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n",
        b"GET\r\n\r\n",
        b"GET /x HTTP/9.9\r\n\r\n",
        b"GET /x y HTTP/1.1\r\nHost: s3\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: s3\r\n\r\n",
        b"GE(T /x HTTP/1.1\r\nHost: s3\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: s3\r\nno colon\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: s3\r\nbad name: 1\r\nA: 1\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: s3\r\nA: 1\x00\r\n\r\n",
        b"PUT /x HTTP/1.1\r\nHost: s3\r\nContent-Length: -1\r\n\r\n",
        b"PUT /x HTTP/1.1\r\nHost: s3\r\nContent-Length: 1e3\r\nA: 1\r\n\r\n",
        b"PUT /x HTTP/1.1\r\nHost: s3\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"PUT /x HTTP/1.1\r\nHost: s3\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"PUT /x HTTP/1.1\r\nHost: s3\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"PUT /x HTTP/1.1\r\nHost: s3\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET /x HTTP/1.1\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: s3\r\nHost: s3\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: b.s3:x\r\n\r\n",
        b"GET http://b.s3:x/k HTTP/1.1\r\nHost: s3\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused_in_s3s_words(
    quick: Floor, head: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    calls = len(quick.gateway.calls)
    wire = quick.connect().send(head + b"\r\nGET /second HTTP/1.1\r\n\r\n")
    answer = wire.answer()
    assert (answer.status, answer.headers["content-type"]) == (400, "application/xml")
    assert b"<Code>InvalidRequest</Code>" in answer.body
    assert answer.headers["x-amz-request-id"].encode() in answer.body
    assert wire.ended()
    wire.close()
    assert len(quick.gateway.calls) == calls
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /x HTTP/1.1\r\n" + b"A: " + b"x" * 70_000 + b"\r\n\r\n",
        b"GET /x HTTP/1.1\r\n" + b"A: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n" * 2000 + b"\r\n",
        b"GET /x HTTP/1.1\r\n" + b"A: 1\r\n" * 600 + b"\r\n",
    ],
)
def test_a_head_that_is_too_long_is_refused(quick: Floor, head: bytes) -> None:
    wire = quick.connect().send(head)
    answer = wire.answer()
    assert (answer.status, b"RequestHeaderSectionTooLarge" in answer.body) == (400, True)
    wire.close()


def test_what_cannot_become_a_head_is_refused_at_its_first_bytes(quick: Floor) -> None:
    """A client that speaks TLS to the plain port waits for no time-out."""
    wire = quick.connect().send(b"\x16\x03\x01\x02")
    assert wire.answer().status == 400
    assert wire.ended()
    wire.close()


def test_empty_lines_before_a_head_and_heads_byte_by_byte(quick: Floor) -> None:
    wire = quick.connect()
    for piece in (b"\r", b"\nG", b"ET /one HTTP/1.1\r\n", b"Host: a\r", b"\n\r", b"\n\r\n" + request("/two")):
        wire.send(piece)
    assert [wire.answer().body for _ in range(2)] == [b"/one", b"/two"]
    wire.close()


def test_who_takes_no_replies_has_no_more_requests_begun(tmp_path: Path) -> None:
    """Many requests in one write: what waits for the client stays bounded."""
    with floor() as running:
        running.gateway.replies["/x"] = lambda call: Reply(200, [], bytes(60_000))
        wire = running.connect()
        count = 600
        sender = threading.Thread(target=wire.send, args=(request("/x") * count,))
        sender.start()
        channel = until(lambda: next(iter(running.site.channels), None))
        until(lambda: channel._choked)
        assert len(running.gateway.calls) < count
        assert [len(wire.answer().body) for _ in range(count)] == [60_000] * count
        sender.join()
        wire.close()


def test_replies_that_nobody_takes_have_a_bound_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes when it is reached is told to come again, and is served in place of those that take
    nothing; the small ones always are."""
    monkeypatch.setattr(held, "SLOW_S", 1.0)
    with floor() as running:
        running.site.held._most = 32 << 20
        running.gateway.replies["/large"] = lambda call: Reply(200, [], bytes(8 << 20))
        wires = [running.connect().send(request("/large")) for _ in range(12)]
        until(lambda: running.call(lambda: running.site.metrics.plain["refused_total"]) == 8)
        assert running.call(lambda: running.site.held.total) == 32 << 20
        told = [wire for wire in wires if wire.sock.recv(15, socket.MSG_PEEK) == b"HTTP/1.1 503 Ser"[:15]]
        assert len(told) == 8
        for wire in told:
            answer = wire.answer()
            assert (answer.status, b"<Code>SlowDown</Code>" in answer.body) == (503, True)
            assert wire.send(request("/small")).answer().body == b"/small"
        later = told[0]
        until(lambda: len(later.send(request("/large")).answer().body) == 8 << 20, "nobody makes room")
        assert running.call(lambda: len(running.site.channels)) == 11, "one has made room"
        for wire in wires:
            wire.close()
        until(lambda: running.call(lambda: not running.site.channels))
        assert running.call(lambda: running.site.held.total) == 0


def test_whole_replies_of_somebody_greedy_make_room_at_once() -> None:
    """Another address is served though no client has been looked at for long enough to be called slow."""
    with floor() as running:
        running.site.held._most = 32 << 20
        running.gateway.replies["/large"] = lambda call: Reply(200, [], bytes(8 << 20))
        wires = [running.connect("127.0.0.2").send(request("/large")) for _ in range(4)]
        until(lambda: running.call(lambda: running.site.held.total) == 32 << 20)
        wire = running.connect()
        assert [len(wire.send(request("/large")).answer().body) for _ in range(3)] == [8 << 20] * 3
        assert running.call(lambda: len(running.site.channels)) == 4, "one has made room"
        for one in [*wires, wire]:
            one.close()
        until(lambda: running.call(lambda: not running.site.channels))
        assert running.call(lambda: running.site.held.total) == 0


# slow clients -------------------------------------------------------------------------------------------
def test_a_head_that_drips_is_ended(quick: Floor) -> None:
    """Each byte is in time, the head is not."""
    wire = quick.connect().send(b"GET /x HTTP/1.1\r\n")
    stop = threading.Event()

    def drip() -> None:
        try:
            while not stop.wait(0.05):
                wire.send(b"A: 1\r\n")
        except OSError:
            return

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        answer = wire.answer()
    finally:
        stop.set()
        thread.join()
    assert (answer.status, b"RequestTimeout" in answer.body) == (400, True)
    wire.close()


@pytest.mark.parametrize("length", [1000, 10_000_000])
def test_a_body_that_does_not_come_is_refused_and_undone(quick: Floor, length: int) -> None:
    wire = quick.connect().send(request("/b/k", "PUT", f"Content-Length: {length}"), b"xyz")
    answer = wire.answer()
    assert (answer.status, b"RequestTimeout" in answer.body) == (400, True)
    assert wire.ended()
    if length > 100_000:
        assert until(lambda: quick.gateway.sinks[-1].aborted) == 1
    wire.close()


def test_a_body_that_waits_for_us_is_not_slow() -> None:
    """Time in which we do not read is not the client's."""
    with floor(header_timeout_s=0.3, min_body_rate=1) as running:
        running.gateway.hold.clear()
        wire = running.connect().send(request("/b/k", "PUT", "Content-Length: 2000000"))
        sender = threading.Thread(target=wire.send, args=(bytes(2_000_000),))
        sender.start()
        running.until_held_back()
        sweeps = running.site._checked
        until(lambda: running.site._checked > sweeps + 0.5)
        running.gateway.hold.set()
        sender.join()
        assert wire.answer().body == b"stored 2000000"
        wire.close()


def test_a_body_that_came_while_we_stood_still_is_not_slow(quick: Floor) -> None:
    """A process that was stopped, or its machine, for longer than the time-out finds it in the socket."""
    wire = quick.connect().send(request("/b/k", "PUT", "Content-Length: 400000"), bytes(100_000))
    until(lambda: quick.call(lambda: any(r.intake.received for c in quick.site.channels for r in c.requests)))
    asleep, awake = threading.Event(), threading.Event()

    def stand_still() -> None:
        asleep.set()
        awake.wait(1.0)

    quick.reactor.callFromThread(stand_still)
    assert asleep.wait(10)
    wire.send(bytes(300_000))
    assert wire.answer().body == b"stored 400000"
    wire.close()


def test_a_kept_connection_that_is_idle_is_ended_without_a_word(quick: Floor) -> None:
    wire = quick.connect()
    assert wire.ended()
    wire.close()
    wire = quick.connect().send(request("/x"))
    assert wire.answer().status == 200
    assert wire.ended()
    wire.close()


@pytest.mark.parametrize("sendable", [True, False])
def test_a_reader_that_takes_nothing_is_ended(quick: Floor, tmp_path: Path, sendable: bool) -> None:
    path = tmp_path / "large"
    with path.open("wb") as made:
        made.truncate(100 << 20)
    stream = Stream(path, sendable=sendable)
    quick.gateway.replies["/large"] = lambda call: Reply(200, [], Download(stream, 0, 100 << 20))
    wire = quick.connect().send(request("/large"))
    assert until(lambda: stream.closed) == 1
    assert len(wire.rest()) < 100 << 20
    wire.close()


# broken clients -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", ["close", "reset"])
@pytest.mark.parametrize("sent", [0, 1000, 700_000])
def test_an_upload_that_breaks_is_undone_once(quick: Floor, way: str, sent: int) -> None:
    before = len(quick.gateway.sinks)
    wire = quick.connect().send(request("/b/k", "PUT", "Content-Length: 1000000"), bytes(sent))
    until(lambda: len(quick.gateway.sinks) > before)
    getattr(wire, way)()
    sink = quick.gateway.sinks[-1]
    until(lambda: sink.aborted)
    assert (sink.aborted, sink.finished) == (1, 0)


def test_an_upload_that_breaks_while_it_is_written_is_undone_after_that() -> None:
    with floor() as running:
        running.gateway.hold.clear()
        wire = running.connect().send(request("/b/k", "PUT", "Content-Length: 1000000"), bytes(900_000))
        until(lambda: running.gateway.sinks and running.gateway.sinks[0].inside)
        running.call(lambda: [channel.abort() for channel in running.site.channels])
        wire.close()
        until(lambda: not running.site.channels)
        assert running.gateway.sinks[0].aborted == 0
        running.gateway.hold.set()
        assert until(lambda: running.gateway.sinks[0].aborted) == 1


def test_a_client_that_goes_before_its_request_was_begun_leaves_nothing() -> None:
    with floor() as running:
        running.gateway.start_hold.clear()
        wire = running.connect().send(request("/b/k", "PUT", "Content-Length: 1000000"))
        until(lambda: running.gateway.calls)
        wire.reset()
        until(lambda: not running.site.channels)
        running.gateway.start_hold.set()
        assert until(lambda: running.gateway.sinks and running.gateway.sinks[0].aborted) == 1
        line = until(running.log_lines)[0]
        assert b'"status":499' in line and b"ClientDisconnected" in line


def test_a_download_for_a_client_that_went_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(1_000_000))
    with floor() as running:
        stream = Stream(path)
        running.gateway.replies["/x"] = lambda call: Reply(200, [], Download(stream, 0, 1_000_000))
        running.gateway.start_hold.clear()
        wire = running.connect().send(request("/x"))
        until(lambda: running.gateway.calls)
        wire.reset()
        until(lambda: not running.site.channels)
        running.gateway.start_hold.set()
        assert until(lambda: stream.closed) == 1


# too many -----------------------------------------------------------------------------------------------
def test_beyond_the_queue_the_answer_is_slow_down_and_the_connection_stays() -> None:
    with floor(threads=2, queue=1) as running:
        running.gateway.start_hold.clear()
        busy = [running.connect().send(request(f"/{n}")) for n in range(3)]
        until(lambda: running.site.pool.outstanding == 3)
        wire = running.connect()
        for extra in (
            request("/x"),
            request("/x", "PUT", body=bytes(100)),
            request("/x", "PUT", body=bytes(99_000)),
        ):
            answer = wire.send(extra).answer()
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert b"<Code>SlowDown</Code>" in answer.body
        running.gateway.start_hold.set()
        assert [other.answer().body for other in busy] == [b"/0", b"/1", b"/2"]
        assert wire.send(request("/now")).answer().body == b"/now"
        assert running.gateway.threads <= {"cumulus-0", "cumulus-1"}
        assert running.call(running.site.sample).plain["refused_total"] == 3
        for each in (*busy, wire):
            each.close()


def test_beyond_the_queue_a_file_that_was_opened_already_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(bytes(1000))
    stream = Stream(path)  # not to be read at once
    with floor(threads=1, queue=0) as running:
        running.gateway.start_hold.clear()
        busy = running.connect().send(request("/busy"))
        until(lambda: running.site.pool.outstanding == 1)
        running.gateway.at_once = lambda call: Reply(200, [], Download(stream, 0, 1000))
        wire = running.connect()
        assert wire.send(request("/x")).answer().status == 503
        assert stream.closed == 1
        running.gateway.start_hold.set()
        assert busy.answer().body == b"/busy"
        busy.close()
        wire.close()


def test_total_rate_holds_for_both_directions(tmp_path: Path) -> None:
    path = tmp_path / "object"
    path.write_bytes(bytes(3_000_000))
    with floor(total_rate=4_000_000) as running:
        for sendable in (True, False):
            stream = Stream(path, sendable=sendable)
            running.gateway.replies["/x"] = lambda call, s=stream: Reply(200, [], Download(s, 0, 3_000_000))
            before = running.site.now()
            wire = running.connect().send(request("/x"))
            assert len(wire.answer().body) == 3_000_000
            wire.close()
            assert running.site.now() - before >= 0.3
        before = running.site.now()
        wire = running.connect().send(request("/b/k", "PUT", body=bytes(3_000_000)))
        assert wire.answer().body == b"stored 3000000"
        assert running.site.now() - before >= 0.3
        wire.close()


@pytest.mark.parametrize("sendable", [True, False])
def test_total_rate_holds_for_objects_of_one_turn(tmp_path: Path, sendable: bool) -> None:
    """By sendfile(2) nobody counted them: whoever fetched objects below an eighth of the rate had no limit;
    nor did the log and the metrics have their bytes."""
    path = tmp_path / "object"
    path.write_bytes(bytes(400_000))
    with floor(total_rate=4_000_000) as running:
        running.gateway.replies["/x"] = lambda call: Reply(
            200, [], Download(Stream(path, sendable=sendable), 0, 400_000)
        )
        wire = running.connect()
        before = running.site.now()
        for _ in range(8):
            assert len(wire.send(request("/x")).answer().body) == 400_000
        assert running.site.now() - before >= 0.5  # a quarter of a second's worth may come at once
        wire.close()
        lines = until(lambda: [*running.log_lines()] if len(running.log_lines()) == 8 else None)
        assert all(b'"bytes_out":400000,' in line for line in lines)
        assert running.call(running.site.sample).plain["sent_bytes_total"] == 3_200_000


# the end ------------------------------------------------------------------------------------------------
def test_a_request_under_way_is_finished_at_the_end() -> None:
    with floor() as running:
        idle = running.connect().send(request("/idle"))
        idle.answer()
        running.gateway.start_hold.clear()
        wire = running.connect().send(request("/late"))
        until(lambda: len(running.gateway.calls) == 2)
        ended = threading.Event()
        running.call(lambda: running.site.drain(5.0).addBoth(lambda _done: ended.set()))
        assert idle.ended()
        assert not ended.is_set()
        running.gateway.start_hold.set()
        answer = wire.answer()
        assert (answer.body, answer.headers["connection"]) == (b"/late", "close")
        assert wire.ended()
        assert ended.wait(5)
        assert len(running.log_lines()) == 2
        idle.close()
        wire.close()


def test_the_log_goes_on_in_a_new_file_after_reopen() -> None:
    with floor() as running:
        wire = running.connect().send(request("/one"))
        wire.answer()
        until(running.log_lines)
        old = running.log.with_suffix(".1")
        running.log.rename(old)
        running.call(running.site.access_log.reopen)
        wire.send(request("/two")).answer()
        assert len(until(running.log_lines)) == 1
        assert len(old.read_bytes().splitlines()) == 1
        wire.close()


def test_lines_for_which_the_disk_has_no_room_are_counted() -> None:
    """Requests go on; the metrics say how many lines are missing."""

    def full(site: Site) -> None:
        site.access_log.close()
        site.access_log = AccessLog("/dev/full", site.pool, site.reactor, site.metrics)

    with floor(prepare=full) as running:
        wire = running.connect()
        for _ in range(3):
            assert wire.send(request("/x")).answer().status == 200
        until(lambda: running.call(running.site.sample).plain.get("access_log_dropped_total") == 3)
        wire.close()


def test_metrics_count_what_happened() -> None:
    with floor() as running:
        wire = running.connect()
        wire.send(request("/x")).answer()
        wire.send(request("/b/k", "PUT", body=bytes(1000))).answer()
        text = prometheus(running.call(running.site.sample))
        for line in (
            'cumulus_requests_total{operation="FakeGet",status="200"} 1',
            'cumulus_requests_total{operation="FakePut",status="200"} 1',
            "cumulus_received_bytes_total 1000",
            "cumulus_sent_bytes_total 13",
            "cumulus_connections 1",
            "cumulus_requests_in_flight 0",
            "cumulus_request_seconds_count 2",
        ):
            assert f"\n{line}\n" in text
        wire.close()


# TLS ----------------------------------------------------------------------------------------------------
def make_tls(directory: Path, name: str = "s3") -> TlsFiles:
    """A certificate of its own in two files there."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    dated = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(hours=1))
    cert = dated.sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    (directory / "cert.pem").write_bytes(cert.public_bytes(pem))
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    (directory / "key.pem").write_bytes(key.private_bytes(pem, form, plain))
    return TlsFiles(directory / "cert.pem", directory / "key.pem")


def test_a_new_certificate_is_used_after_reload_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    files = make_tls(tmp_path, "old")
    with floor(tls=files) as running:

        def certificate() -> bytes:
            raw = socket.create_connection(("127.0.0.1", running.port), 10)
            with client_tls().wrap_socket(raw) as secured:
                found = secured.getpeercert(binary_form=True)
            assert found is not None
            return found

        old = certificate()
        make_tls(tmp_path, "new")
        assert certificate() == old
        files.reload()
        new = certificate()
        assert new != old
        (tmp_path / "key.pem").write_text("no key")
        with pytest.raises(BadConfig, match=r"cert\.pem and .*key\.pem are not a certificate chain"):
            files.reload()
        (tmp_path / "key.pem").unlink()
        with pytest.raises(BadConfig, match=r"cannot read .*key\.pem: No such file"):
            files.reload()
        assert certificate() == new


def test_the_same_over_tls(tmp_path: Path) -> None:
    path = tmp_path / "object"
    path.write_bytes(os.urandom(3_000_000))
    with floor(tls=make_tls(tmp_path)) as running:
        raw = socket.create_connection(("127.0.0.1", running.port), 10)
        wire = Wire(client_tls().wrap_socket(raw))
        body = os.urandom(2_000_000)
        wire.send(request("/b/k", "PUT", body=body))
        assert wire.answer().body == b"stored 2000000"
        assert bytes(running.gateway.sinks[-1].data) == body
        assert running.gateway.calls[-1].secure
        stream = Stream(path)
        running.gateway.replies["/x"] = lambda call: Reply(200, [], Download(stream, 0, 3_000_000))
        assert wire.send(request("/x")).answer().body == path.read_bytes()
        assert until(lambda: stream.closed) == 1
        running.gateway.replies["/no"] = lambda call: Reply(403, [], b"<Error/>")
        wire.send(request("/no", "PUT", "Expect: 100-continue", "Content-Length: 10"))
        assert wire.answer().status == 403
        wire.close()
