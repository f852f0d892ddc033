"""TLS inside a connection that has begun in clear: protocols of Twisted and asyncio that do so over TCP do it
over UDT unchanged."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl as python_ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from twisted.internet import defer, reactor, ssl
from twisted.internet.endpoints import clientFromString, serverFromString, wrapClientTLS
from twisted.internet.interfaces import ISSLTransport
from twisted.internet.protocol import Factory, Protocol
from twisted.protocols import amp
from twisted.protocols.basic import LineReceiver
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from twisted.trial import unittest

from sector._udt.shared import shared_core
from sector.udt import MESSAGE, UdtClientEndpoint, UdtOptions, UdtServerEndpoint, open_udt, serve_udt

# of Twisted's own contexts, with the pyOpenSSL beside it
pytestmark = pytest.mark.filterwarnings("ignore:Passing pyOpenSSL:DeprecationWarning")


def identity(name: str = "localhost") -> tuple[bytes, bytes]:
    """A key and its own certificate, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names: list[x509.GeneralName] = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(named)
        .issuer_name(named)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.now(UTC) - timedelta(hours=1))
        .not_valid_after(datetime.now(UTC) + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return secret, certificate.public_bytes(serialization.Encoding.PEM)


class Says(LineReceiver):
    """As SMTP and IMAP begin: the first line asks for TLS, all others are answered in capitals."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.lines: list[bytes] = []

    def lineReceived(self, line: bytes) -> None:
        transport: Any = self.transport
        if line == b"STARTTLS":
            self.sendLine(b"go")
            transport.startTLS(self.context)
            return
        self.lines.append(line)
        self.sendLine(line.upper())


class Asks(LineReceiver):
    """Its client: `lines` come in order, then it closes. `over` fires with the reason."""

    def __init__(self, context: Any, large: int) -> None:
        self.context, self.large = context, large
        self.got: list[bytes] = []
        self.over: defer.Deferred[Exception] = defer.Deferred()
        self.secure: tuple[bool, bool] = (False, False)

    def connectionMade(self) -> None:
        self.sendLine(b"STARTTLS")

    def lineReceived(self, line: bytes) -> None:
        transport: Any = self.transport
        if line == b"go" and not self.secure[0]:
            transport.startTLS(self.context)
            transport.setTcpNoDelay(True)  # what clients of TCP set
            self.secure = transport.TLS, ISSLTransport.providedBy(transport)
            self.sendLine(b"secret")
            for _ in range(self.large):
                self.sendLine(b"x" * 16000)
            return
        self.got.append(line)
        if len(self.got) > self.large:
            self.certificate = transport.getPeerCertificate()
            transport.loseConnection()

    def connectionLost(self, reason: Failure | None = None) -> None:
        assert reason is not None
        self.over.callback(reason.value)


class Double(amp.Command):
    arguments = ((b"n", amp.Integer()),)
    response = ((b"n", amp.Integer()),)


class Doubles(amp.AMP):
    certificate: Any = None

    @Double.responder
    def double(self, n: int) -> dict[str, int]:
        return {"n": 2 * n}

    @amp.StartTLS.responder
    def secure(self) -> dict[str, Any]:
        return {
            "tls_localCertificate": self.certificate,
            "tls_verifyAuthorities": [self.certificate],
        }


class StartTlsTests(unittest.TestCase):
    """`transport.startTLS`."""

    timeout = 60

    def setUp(self) -> None:
        key, self.pem = identity()
        self.mine = ssl.PrivateCertificate.loadPEM(key + self.pem)
        self.trust = ssl.Certificate.loadPEM(self.pem)

    def tearDown(self) -> Any:
        return defer.ensureDeferred(shared_core(reactor).settle())

    async def talk(self, kind: str, trust: Any, large: int = 0) -> tuple[Asks, Says]:
        """One conversation over `kind` ("udt", "tcp")."""
        made: list[Says] = []

        def serve() -> Says:
            made.append(Says(self.mine.options()))
            return made[-1]

        listening = await serverFromString(reactor, f"{kind}:0:interface=127.0.0.1").listen(
            Factory.forProtocol(serve)
        )
        try:
            port = listening.getHost().port
            client = Asks(ssl.optionsForClientTLS("localhost", trustRoot=trust), large)
            await clientFromString(reactor, f"{kind}:127.0.0.1:{port}").connect(
                Factory.forProtocol(lambda: client)
            )
            self.reason = await client.over
            return client, made[0]
        finally:
            await listening.stopListening()

    async def test_a_protocol_that_begins_in_clear_goes_on_with_tls_as_over_tcp(self) -> None:
        ends = []
        for kind in ("tcp", "udt"):
            client, server = await self.talk(kind, self.trust, large=200)
            self.assertEqual(client.got[0], b"SECRET")
            self.assertEqual(server.lines[0], b"secret")
            self.assertEqual(client.got[1:], 200 * [b"X" * 16000])
            ends.append((client.secure, type(self.reason), client.certificate.to_cryptography().subject))
        self.assertEqual(ends[0], ends[1])
        self.assertEqual(ends[1][0], (True, True))

    async def test_a_server_with_another_certificate_is_refused(self) -> None:
        other = ssl.Certificate.loadPEM(identity()[1])
        client, server = await self.talk("udt", other)
        self.assertEqual(client.got, [])
        self.assertEqual(server.lines, [])
        self.assertIn("certificate verify failed", str(self.reason))

    async def test_amp_with_its_own_command_for_tls(self) -> None:
        def serve() -> Doubles:
            protocol = Doubles()
            protocol.certificate = self.mine
            return protocol

        listening = await serverFromString(reactor, "udt:0:interface=127.0.0.1").listen(
            Factory.forProtocol(serve)
        )
        port = listening.getHost().port
        client = await clientFromString(reactor, f"udt:127.0.0.1:{port}").connect(Factory.forProtocol(serve))
        self.assertEqual(await client.callRemote(Double, n=4), {"n": 8})
        await client.callRemote(
            amp.StartTLS, tls_localCertificate=self.mine, tls_verifyAuthorities=[self.mine]
        )
        self.assertEqual(await client.callRemote(Double, n=5), {"n": 10})
        self.assertTrue(ISSLTransport.providedBy(client.transport))
        client.transport.loseConnection()
        await listening.stopListening()
        await listening.portClosed()

    async def test_a_pull_producer_goes_on_inside_tls(self) -> None:
        got = bytearray()
        over: defer.Deferred[None] = defer.Deferred()
        context = self.mine.options()

        class Gets(Protocol):
            def connectionMade(self) -> None:
                transport: Any = self.transport
                transport.startTLS(context)

            def dataReceived(self, data: bytes) -> None:
                got.extend(data)

            def connectionLost(self, reason: Failure | None = None) -> None:
                over.callback(None)

        class Gives(Protocol):
            left = 50

            def connectionMade(self) -> None:
                transport: Any = self.transport
                transport.startTLS(ssl.optionsForClientTLS("localhost", trustRoot=trust))
                transport.registerProducer(self, False)

            def resumeProducing(self) -> None:
                transport: Any = self.transport
                if self.left:
                    self.left -= 1
                    transport.write(bytes(50_000))
                else:
                    transport.unregisterProducer()
                    transport.loseConnection()

            def stopProducing(self) -> None:
                pass

        trust = self.trust
        listening = await UdtServerEndpoint(reactor, 0, "127.0.0.1").listen(Factory.forProtocol(Gets))
        await UdtClientEndpoint(reactor, "127.0.0.1", listening.getHost().port).connect(
            Factory.forProtocol(Gives)
        )
        await over
        self.assertEqual(len(got), 50 * 50_000)
        await listening.stopListening()

    async def test_wrapped_endpoints_have_tls_from_the_beginning(self) -> None:
        said: defer.Deferred[bytes] = defer.Deferred()

        class Hears(Protocol):
            def dataReceived(self, data: bytes) -> None:
                said.callback(data)
                transport: Any = self.transport
                transport.loseConnection()

        inner = TLSMemoryBIOFactory(self.mine.options(), False, Factory.forProtocol(Hears))
        listening = await UdtServerEndpoint(reactor, 0, "127.0.0.1").listen(inner)
        plain = UdtClientEndpoint(reactor, "127.0.0.1", listening.getHost().port)
        trust = ssl.optionsForClientTLS("localhost", trustRoot=self.trust)
        client = await wrapClientTLS(trust, plain).connect(Factory.forProtocol(Protocol))
        client.transport.write(b"secret")
        self.assertEqual(await said, b"secret")
        await listening.stopListening()
        await listening.portClosed()

    async def test_messages_have_no_tls(self) -> None:
        options = UdtOptions(kind=MESSAGE)
        listening = await UdtServerEndpoint(reactor, 0, "127.0.0.1", options).listen(
            Factory.forProtocol(Protocol)
        )
        client = await UdtClientEndpoint(reactor, "127.0.0.1", listening.getHost().port, options).connect(
            Factory.forProtocol(Protocol)
        )
        self.assertRaises(NotImplementedError, client.transport.startTLS, self.mine.options())
        client.transport.abortConnection()
        await listening.stopListening()
        await listening.portClosed()


def test_asyncio_streams_go_on_with_tls() -> None:
    """`writer.start_tls` at the client, `loop.start_tls` behind `serve_udt`."""
    key, pem = identity()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "both.pem"
        file.write_bytes(key + pem)
        server_side = python_ssl.create_default_context(python_ssl.Purpose.CLIENT_AUTH)
        server_side.load_cert_chain(file)
    mine = python_ssl.create_default_context(cadata=pem.decode())
    strangers = python_ssl.create_default_context(cadata=identity()[1].decode())
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if await reader.readline() == b"STARTTLS\n":
                writer.write(b"go\n")
                await writer.start_tls(server_side)
            while data := await reader.read(1 << 16):
                heard.append(data)
                writer.write(data)
                await writer.drain()
        except OSError:  # a client that did not like the certificate
            pass
        writer.close()

    async def ask(port: int, context: python_ssl.SSLContext, data: bytes) -> bytes:
        async with open_udt("127.0.0.1", port) as (reader, writer):
            writer.write(b"STARTTLS\n")
            assert await reader.readline() == b"go\n"
            await writer.start_tls(context, server_hostname="localhost")

            async def write() -> None:
                for at in range(0, len(data), 1 << 16):
                    writer.write(data[at : at + (1 << 16)])
                    await writer.drain()

            work = asyncio.ensure_future(write())
            back = await reader.readexactly(len(data))
            await work
            assert writer.get_extra_info("cipher")
            return back

    async def run() -> None:
        data = bytes(range(256)) * 20_000
        async with await serve_udt(serve, 0, "127.0.0.1") as server:
            assert await ask(server.address[1], mine, data) == data
            heard.clear()
            try:
                await ask(server.address[1], strangers, b"secret")
            except python_ssl.SSLCertVerificationError:
                pass
            else:
                raise AssertionError("a certificate of somebody else was taken")
        await server.wait_closed()
        assert not heard

    asyncio.run(asyncio.wait_for(run(), 60))
