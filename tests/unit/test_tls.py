"""TLS channels over real loopback connections, and their frames."""

from __future__ import annotations

import random
import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from hypothesis import given
from hypothesis import strategies as st
from OpenSSL import SSL
from twisted.internet import defer, reactor
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock, deferLater
from twisted.internet.tcp import Client
from twisted.logger import formatEvent, globalLogPublisher
from twisted.trial.unittest import TestCase

from sector import errors, keys, pki, tls, tls_contexts
from sector.cli import udtcat
from sector.frames import MAX_FRAME, FrameBuffer, Refusal, frame, parse_frame
from sector.model import Address
from sector.pki import Credentials, Identity, Trust
from sector.tls import Switch, TlsPeer, TlsServer, open_tls, tls_request, tls_resume
from sector.wire.base import Ok, Request, encode
from sector.wire.login import Join, Login, NodeAllowed, NodeVerdict, Resume, Session, Tunnel, Verify

NOW = datetime.now(UTC)
CA_PEM, CA_KEY = pki.make_ca("test", NOW)
OTHER_PEM, OTHER_KEY = pki.make_ca("test", NOW)
CA = pki.load_certificate(CA_PEM, "ca")
TRUST = Trust(CA)


def node(
    role: str, name: str, *, ca: tuple[bytes, bytes] = (CA_PEM, CA_KEY), at: datetime = NOW
) -> Credentials:
    """Certificate and key of a node, made at `at`."""
    cert, key = pki.make_node(*ca, Identity("test", role, name), at)
    private: Any = load_pem_private_key(key, None)
    return Credentials(x509.load_pem_x509_certificate(cert), private, pki.load_certificate(ca[0], "ca"))


MASTER = node("master", "m1")


class TestFrames:
    """Frames: a u32 length and msgpack [number, body] (spec/security.md, TLS channels)."""

    def test_round_trip_in_any_pieces(self) -> None:
        data = frame(7, encode(NodeAllowed("slave", "s1", "::1")))
        buffer = FrameBuffer()
        got = [inner for byte in data if (inner := buffer.feed(bytes([byte]))) is not None]
        assert [parse_frame(inner)[0] for inner in got] == [7]
        assert len(buffer) == 0

    def test_a_message_over_64_kib_is_not_sent(self) -> None:
        with pytest.raises(errors.Protocol):
            frame(1, encode(Ok()) + b"\0" * MAX_FRAME)

    @pytest.mark.parametrize("length", [0, MAX_FRAME + 1, 0xFFFFFFFF])
    def test_a_length_out_of_bounds_is_refused_at_once(self, length: int) -> None:
        with pytest.raises(errors.Protocol):
            FrameBuffer().feed(struct.pack(">I", length))

    def test_bytes_after_a_frame_are_refused(self) -> None:
        with pytest.raises(errors.Protocol):
            FrameBuffer().feed(frame(1, encode(Ok())) + b"x")

    @given(st.lists(st.binary(max_size=200), max_size=20))
    def test_any_bytes_end_in_a_frame_or_protocol_error_and_never_hold_more_than_one_frame(
        self, pieces: list[bytes]
    ) -> None:
        buffer = FrameBuffer()
        try:
            for piece in pieces:
                inner = buffer.feed(piece)
                assert len(buffer) <= MAX_FRAME + 4
                if inner is not None:
                    parse_frame(inner)
        except errors.Protocol:
            pass

    @given(st.binary(max_size=400))
    def test_any_frame_content_decodes_or_raises_protocol(self, inner: bytes) -> None:
        try:
            number, body = parse_frame(inner)
            assert 0 <= number <= 0xFFFFFFFF and isinstance(body, bytes)
        except errors.Protocol:
            pass
        assert isinstance(tls.refusal(inner), errors.SectorError)


class TestAddresses:
    def test_peer_addresses_are_canonical(self) -> None:
        assert tls.literal("::ffff:10.0.0.1") == "10.0.0.1"
        assert tls.literal("fe80::1%eth0") == "fe80::1"

    def test_a_subscriber_of_ipv6_is_counted_as_one_whatever_address_he_takes(self) -> None:
        assert tls.site("2001:db8:1:2:3::4") == tls.site("2001:db8:1:2::9") == "2001:db8:1:2::/64"
        assert tls.site("::1") == "::/64" and tls.site("10.0.0.1") == "10.0.0.1"


class Silent(Protocol):
    """Accepts or connects, and never says anything; `over` fires when the other end has had enough."""

    def __init__(self) -> None:
        self.over: defer.Deferred[None] = defer.Deferred()

    def connectionLost(self, reason: Any = None) -> None:
        self.over.callback(None)


class ChannelCase(TestCase):
    """A TLS server on loopback with recorded requests."""

    timeout = 20

    def setUp(self) -> None:
        self.seen: list[tuple[Any, TlsPeer]] = []
        self.ports: list[Any] = []
        self.servers: list[TlsServer] = []

    async def tearDown(self) -> None:
        for server in self.servers:
            server.close_all()
        for port in self.ports:
            await port.stopListening()
        for _ in range(200):
            if not any(server.open for server in self.servers) and not self.callers():
                break
            await deferLater(reactor, 0.01)

    def callers(self) -> list[Any]:
        """Ends of callers that have not heard yet that their connection is over."""
        return [one for one in (*reactor.getReaders(), *reactor.getWriters()) if isinstance(one, Client)]

    def serve(self, mine: Credentials = MASTER, trust: Trust = TRUST, **options: Any) -> int:
        async def answer(request: Any, peer: TlsPeer) -> Any:
            self.seen.append((request, peer))
            if isinstance(request, NodeAllowed):
                return NodeVerdict(True, "fine")
            if isinstance(request, Login):
                raise errors.LoginRefused("no")
            if isinstance(request, Verify):
                await defer.Deferred()
            if isinstance(request, Tunnel):
                return Switch(Ok(), self.begin, 60.0)
            return Session(b"s" * 16, b"", "u", 1.0, "m1", Address("::1", 1), 1, [], [])

        asked = (NodeAllowed, Login, Resume, Verify, Tunnel)
        handlers: dict[type[Request], Any] = dict.fromkeys(asked, answer)
        server = TlsServer(reactor, mine, trust, handlers, **options)
        self.servers.append(server)
        port = reactor.listenTCP(0, server.listener(), interface="127.0.0.1")
        self.ports.append(port)
        number: int = port.getHost().port
        return number

    def begin(self, transport: Any) -> Any:
        """What takes a connection over."""
        raise errors.Busy("no room for another tunnel")

    async def refused(self, kind: type[errors.SectorError], awaitable: Any) -> errors.SectorError:
        try:
            await awaitable
        except kind as error:
            return error
        raise AssertionError(f"{kind.__name__} was not raised")


ASK = NodeAllowed("slave", "s1", "127.0.0.1")


class TestChannel(ChannelCase):
    async def test_request_and_reply(self) -> None:
        port = self.serve()
        reply = await tls_request(reactor, "127.0.0.1", port, TRUST, ASK)
        assert reply == NodeVerdict(True, "fine")
        assert self.seen[0][1].address == "127.0.0.1"
        assert self.seen[0][1].identity is None

    async def test_the_pinned_sha256_is_enough_and_a_wrong_one_refuses(self) -> None:
        port = self.serve()
        pin = Trust(ca_sha256=pki.fingerprint(CA))
        assert (await tls_request(reactor, "127.0.0.1", port, pin, ASK)).allowed
        wrong = Trust(ca_sha256="ab" * 32)
        error = await self.refused(errors.NotAllowed, tls_request(reactor, "127.0.0.1", port, wrong, ASK))
        assert "CA" in error.message
        assert len(self.seen) == 1

    async def test_a_server_of_another_ca_with_the_same_names_is_refused(self) -> None:
        port = self.serve(node("master", "m1", ca=(OTHER_PEM, OTHER_KEY)))
        error = await self.refused(errors.NotAllowed, tls_request(reactor, "127.0.0.1", port, TRUST, ASK))
        assert "CA" in error.message
        assert self.seen == []

    async def test_an_impostor_that_shows_the_pinned_ca_beside_its_own_certificate_is_refused(self) -> None:
        theirs = node("master", "m1", ca=(OTHER_PEM, OTHER_KEY))
        port = self.serve(Credentials(theirs.certificate, theirs.key, CA))
        pin = Trust(ca_sha256=pki.fingerprint(CA))
        await self.refused(errors.SectorError, tls_request(reactor, "127.0.0.1", port, pin, ASK))
        assert self.seen == []

    async def test_a_server_of_another_role_is_refused(self) -> None:
        port = self.serve(node("slave", "s1"))
        error = await self.refused(errors.NotAllowed, tls_request(reactor, "127.0.0.1", port, TRUST, ASK))
        assert "slave:s1" in error.message

    async def test_an_expired_server_is_refused_by_name_of_the_reason(self) -> None:
        port = self.serve(node("master", "m1", at=NOW - timedelta(days=100)))
        error = await self.refused(errors.NotAllowed, tls_request(reactor, "127.0.0.1", port, TRUST, ASK))
        assert "expired" in error.message

    async def test_mutual_tls_tells_the_server_who_calls(self) -> None:
        port = self.serve(roles=("slave",))
        await tls_request(reactor, "127.0.0.1", port, TRUST, ASK, node("slave", "s1"))
        assert self.seen[0][1].identity == Identity("test", "slave", "s1")

    async def test_mutual_tls_refuses_wrong_role_no_certificate_expired_and_foreign(self) -> None:
        port = self.serve(roles=("slave",))
        bad = {
            "wrong role": node("master", "m2"),
            "none": None,
            "expired": node("slave", "s1", at=NOW - timedelta(days=100)),
            "foreign": node("slave", "s1", ca=(OTHER_PEM, OTHER_KEY)),
        }
        for cert in bad.values():
            await self.refused(errors.SectorError, tls_request(reactor, "127.0.0.1", port, TRUST, ASK, cert))
        assert self.seen == []

    async def test_the_servers_error_comes_out_as_the_same_class(self) -> None:
        port = self.serve()
        error = await self.refused(
            errors.LoginRefused, tls_request(reactor, "127.0.0.1", port, TRUST, Login("u", "p"))
        )
        assert error.message == "no"

    async def test_an_unknown_request_is_answered_with_an_error_and_the_connection_stays(self) -> None:
        port = self.serve()
        caller = await open_tls(reactor, "127.0.0.1", port, TRUST)
        join = Join("s", 1, Address("::1", 1), Address("::1", 1), "", 1, "1")
        await self.refused(errors.Protocol, caller.call(join))
        assert (await caller.call(ASK)).allowed
        caller.close()

    async def test_resume_proves_the_secret_on_this_connection(self) -> None:
        port = self.serve()
        secret = b"k" * 32
        await tls_resume(reactor, "127.0.0.1", port, TRUST, b"s" * 16, secret)
        await tls_resume(reactor, "127.0.0.1", port, TRUST, b"s" * 16, secret)
        (first, peer1), (second, peer2) = self.seen
        assert first.proof == keys.resume_proof(secret, peer1.exporter)
        assert first.proof != second.proof and peer1.exporter != peer2.exporter

    async def test_connections_leave_no_lines_about_factories_in_the_log(self) -> None:
        """Twisted tells of each factory that starts or stops unless it is asked not to."""
        lines: list[str] = []

        def note(event: Any) -> None:
            lines.append(formatEvent(event))

        port = self.serve()
        globalLogPublisher.addObserver(note)
        self.addCleanup(globalLogPublisher.removeObserver, note)
        caller = await open_tls(reactor, "127.0.0.1", port, TRUST)
        assert (await caller.call(ASK)).allowed
        caller.close()
        once = udtcat._Once(udtcat.Cat.__new__(udtcat.Cat))
        once.doStart()
        once.doStop()
        assert [line for line in lines if "factory" in line.lower()] == []

    async def test_malformed_input_closes_one_connection_not_the_server(self) -> None:
        port = self.serve()
        for body in (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x02\xc1\xc1", b"\0\0\0\x01\xc0"):
            caller = await open_tls(reactor, "127.0.0.1", port, TRUST)
            caller._protocol.transport.write(body)
            await self.refused(errors.SectorError, caller.call(ASK))
            caller.close()
        assert (await tls_request(reactor, "127.0.0.1", port, TRUST, ASK)).allowed

    async def test_tls_1_2_is_refused(self) -> None:
        port = self.serve()
        old = SSL.Context(SSL.TLS_CLIENT_METHOD)
        old.set_max_proto_version(SSL.TLS1_2_VERSION)
        old.set_verify(SSL.VERIFY_NONE, lambda *_: True)
        original = tls_contexts._context
        self.patch(
            tls_contexts,
            "_context",
            lambda *a, server, **k: old if not server else original(*a, server=server, **k),
        )
        await self.refused(errors.SectorError, tls_request(reactor, "127.0.0.1", port, TRUST, ASK))
        assert self.seen == []

    async def test_what_cannot_take_the_connection_over_is_a_refusal_and_no_reply(self) -> None:
        port = self.serve()
        caller = await open_tls(reactor, "127.0.0.1", port, TRUST, node("slave", "s1"))
        error = await self.refused(errors.Busy, caller.call(Tunnel(b"s" * 16, b"p" * 32)))
        assert error.message == "no room for another tunnel"
        assert (await caller.call(ASK)).allowed
        caller.close()

    async def test_garbage_instead_of_tls_leaves_no_connection_behind(self) -> None:
        port = self.serve()
        rng = random.Random(7)
        for number in range(40):
            endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", port)
            protocol: Any = await endpoint.connect(Factory.forProtocol(Silent))
            protocol.transport.write(rng.randbytes(rng.choice([1, 5, 600])))
            if number % 2:
                protocol.transport.abortConnection()
            else:
                protocol.transport.loseConnection()
        for _ in range(300):
            if not self.servers[0].open:
                break
            await deferLater(reactor, 0.01)
        assert not self.servers[0].open and self.seen == []
        assert (await tls_request(reactor, "127.0.0.1", port, TRUST, ASK)).allowed

    async def test_a_server_full_of_proved_ones_closes_further_connections_and_takes_them_again_later(
        self,
    ) -> None:
        self.patch(tls, "MAX_CONNECTIONS", 2)
        port = self.serve()
        first = await open_tls(reactor, "127.0.0.1", port, TRUST, node("slave", "s1"))
        second = await open_tls(reactor, "127.0.0.1", port, TRUST)
        assert (await second.call(ASK)).allowed
        await self.refused(errors.Unreachable, open_tls(reactor, "127.0.0.1", port, TRUST))
        first.close()
        await self.until_open(1)
        assert (await tls_request(reactor, "127.0.0.1", port, TRUST, ASK)).allowed
        assert (await second.call(ASK)).allowed
        second.close()

    async def test_who_says_nothing_makes_room_the_oldest_first(self) -> None:
        """As many connections as a server takes, with not one byte on them, kept everybody out."""
        self.patch(tls, "MAX_CONNECTIONS", 4)
        port = self.serve()
        proved = await open_tls(reactor, "127.0.0.1", port, TRUST)
        assert (await proved.call(ASK)).allowed
        silent = [await self.silence(port) for _ in range(3)]
        await self.until_open(4)
        came = await open_tls(reactor, "127.0.0.1", port, TRUST)
        assert (await came.call(ASK)).allowed
        await self.until_open(4)
        await silent[0].over
        assert not silent[1].over.called and not silent[2].over.called
        silent += [await self.silence(port) for _ in range(5)]
        await defer.gatherResults([one.over for one in silent[1:6]])
        assert (await proved.call(ASK)).allowed and (await came.call(ASK)).allowed
        assert len(self.servers[0].open) == 4 and not any(one.over.called for one in silent[6:])

    async def test_a_refusal_proves_nothing(self) -> None:
        self.patch(tls, "MAX_CONNECTIONS", 2)
        port = self.serve()
        join = Join("s", 1, Address("::1", 1), Address("::1", 1), "", 1, "1")
        strangers = [await open_tls(reactor, "127.0.0.1", port, TRUST) for _ in range(2)]
        for stranger in strangers:
            await self.refused(errors.Protocol, stranger.call(join))
        assert (await tls_request(reactor, "127.0.0.1", port, TRUST, ASK)).allowed
        await self.refused(errors.Unreachable, strangers[0].call(ASK))

    async def test_a_server_of_nodes_has_room_for_them_beside_silent_strangers(self) -> None:
        self.patch(tls, "MAX_CONNECTIONS", 2)
        port = self.serve(roles=("slave",))
        for _ in range(5):
            await self.silence(port)
        mine = node("slave", "s1")
        assert (await tls_request(reactor, "127.0.0.1", port, TRUST, ASK, mine)).allowed

    async def silence(self, port: int) -> Silent:
        """A connection on which nothing is ever sent."""
        endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", port)
        protocol: Silent = await endpoint.connect(Factory.forProtocol(Silent))
        return protocol

    async def until_open(self, count: int) -> None:
        for _ in range(300):
            if len(self.servers[0].open) == count:
                return
            await deferLater(reactor, 0.01)
        raise AssertionError("connections stay open")

    async def test_a_refused_port_is_one_clear_line(self) -> None:
        error = await self.refused(errors.Unreachable, tls_request(reactor, "127.0.0.1", 1, TRUST, ASK))
        assert error.message == "connection to 127.0.0.1:1 refused"

    async def test_a_silent_server_times_out(self) -> None:
        port = reactor.listenTCP(0, Factory.forProtocol(Silent), interface="127.0.0.1")
        self.ports.append(port)
        await self.refused(
            errors.TimedOut,
            open_tls(reactor, "127.0.0.1", port.getHost().port, TRUST, timeout_s=0.3),
        )

    async def test_close_all_drops_one_node_only(self) -> None:
        port = self.serve(roles=("slave",))
        one = await open_tls(reactor, "127.0.0.1", port, TRUST, node("slave", "s1"))
        two = await open_tls(reactor, "127.0.0.1", port, TRUST, node("slave", "s2"))
        await one.call(ASK)
        await two.call(ASK)
        self.servers[0].close_all("slave", "s1")
        await self.refused(errors.Unreachable, one.call(ASK))
        assert (await two.call(ASK)).allowed
        two.close()


class StringTransport:
    """What ServerProtocol needs of a transport."""

    def __init__(self) -> None:
        self.aborted = False
        self.closed = False
        self.written = b""

    def abortConnection(self) -> None:
        self.aborted = True

    def loseConnection(self) -> None:
        self.closed = True

    def write(self, data: bytes) -> None:
        self.written += data


def test_a_connection_without_a_whole_request_is_dropped_after_ten_seconds() -> None:
    """A peer that sends its bytes one by one does not keep a place for ever."""
    clock = Clock()
    server = TlsServer(clock, MASTER, TRUST, {})
    protocol = tls.ServerProtocol(server, "127.0.0.1")
    transport = StringTransport()
    protocol.makeConnection(transport)
    protocol._ready = True
    for _ in range(9):
        protocol.dataReceived(b"\0" if not len(protocol._buffer) else b"")
        clock.advance(1)
    assert not transport.aborted
    clock.advance(1.1)
    assert transport.aborted


def test_secrets_do_not_show() -> None:
    secret = b"\x13" * 32
    assert "\\x13" not in repr(TlsPeer("::1", None, secret))
    assert "key" not in repr(MASTER).lower().replace("elliptic", "")[:5]
    assert "PRIVATE" not in repr(MASTER)


class TestCertificates:
    def test_identity_is_a_uri_of_cluster_role_and_id(self) -> None:
        assert pki.identity_of(MASTER.certificate).uri == "sector://test/master/m1"

    @pytest.mark.parametrize(
        "uri",
        [
            "http://test/master/m1",
            "sector://test/king/m1",
            "sector://test/master",
            "sector://t/master/a/b",
            "sector://t/master/a b",
        ],
    )
    def test_other_uris_name_nobody(self, uri: str) -> None:
        with pytest.raises(errors.NotAllowed):
            pki.parse_identity(uri)

    def test_a_node_certificate_lives_at_most_90_days(self) -> None:
        with pytest.raises(ValueError):
            pki.make_node(CA_PEM, CA_KEY, Identity("test", "slave", "s"), NOW, days=91)
        assert 89 < pki.days_left(MASTER.certificate, NOW) <= 90

    def test_a_pin_that_differs_from_the_file_is_refused(self) -> None:
        with pytest.raises(errors.BadConfig):
            Trust(CA, "00" * 32)
        with pytest.raises(errors.BadConfig):
            Trust()

    def test_a_node_certificate_cannot_issue_certificates(self) -> None:
        master_pem = MASTER.certificate.public_bytes(pki.Encoding.PEM)
        key_pem = pki._private_pem(MASTER.key)
        forged, _ = pki.make_node(master_pem, key_pem, Identity("test", "security", "x"), NOW)
        with pytest.raises(errors.NotAllowed):
            pki.check_certificate(x509.load_pem_x509_certificate(forged), CA, NOW)


def test_refusals_are_bounded() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(["x" * 65, "", ""]), type=Refusal)
