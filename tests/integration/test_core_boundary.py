"""The C core as Python sees it: Twisted protocols over UDT, GMP calls, files through the data channel."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

from twisted.internet import defer, reactor, task
from twisted.internet.protocol import Factory, Protocol
from twisted.trial import unittest

from sector._udt.context import Core
from sector._udt.data import open_data
from sector._udt.data_api import DataTicket, TransferError
from sector._udt.endpoints import UdtClientEndpoint, UdtRendezvousEndpoint, UdtServerEndpoint
from sector._udt.errors import CoreError
from sector._udt.transport import MESSAGE, STREAM, UdtOptions
from sector.gmp.api import STATUS_CANCELLED, STATUS_NO_METHOD, STATUS_TIMEOUT, GmpError, GmpKey, Peer
from sector.gmp.node import GmpNode, open_gmp


class Collect(Protocol):
    """Keeps what arrives; `closed` fires at the end; echoes if asked."""

    def __init__(self, echo: bool = False) -> None:
        self.echo = echo
        self.data = bytearray()
        self.messages: list[bytes] = []
        self.closed: defer.Deferred[Any] = defer.Deferred()

    def dataReceived(self, data: bytes) -> None:
        self.data += data
        if self.echo:
            self.transport.write(data)

    def messageReceived(self, data: bytes) -> None:
        self.messages.append(data)
        if self.echo:
            self.transport.write(data)

    def connectionLost(self, reason: Any = None) -> None:
        self.closed.callback(reason.value)


class One(Factory):
    """A factory of one protocol."""

    def __init__(self, protocol: Collect) -> None:
        self.protocol_made = protocol

    def buildProtocol(self, addr: object) -> Collect:
        return self.protocol_made


async def until(condition: Any, seconds: float = 10.0) -> None:
    """Let the reactor run until the condition holds."""
    end = reactor.seconds() + seconds
    while not condition():
        if reactor.seconds() > end:
            raise AssertionError("waited in vain")
        await task.deferLater(reactor, 0.005)


class CoreCase(unittest.TestCase):
    """A core for each test, freed at its end."""

    timeout = 60

    def setUp(self) -> None:
        self.core = Core(reactor)
        self.addCleanup(lambda: defer.ensureDeferred(self.core.stop()))


class StreamTests(CoreCase):
    """Any Protocol runs over UDT."""

    async def _pair(self, kind: int = 1, echo: bool = True) -> tuple[Collect, Collect, Any]:
        server, client = Collect(echo), Collect()
        listening = await UdtServerEndpoint(
            self.core, 0, interface="127.0.0.1", options=UdtOptions(kind=kind)
        ).listen(One(server))
        port = listening.getHost().port
        await UdtClientEndpoint(self.core, "127.0.0.1", port, UdtOptions(kind=kind)).connect(One(client))
        return server, client, listening

    async def test_echo_of_ten_megabytes_with_back_pressure(self) -> None:
        _, client, listening = await self._pair()
        data = os.urandom(10_000_000)
        for at in range(0, len(data), 100_000):
            client.transport.write(data[at : at + 100_000])
        await until(lambda: len(client.data) == len(data), 30)
        self.assertEqual(bytes(client.data), data)
        await until(lambda: client.transport.stats()["bytes_sent"] >= len(data))  # they may be 250 ms old
        client.transport.loseConnection()
        await client.closed
        await listening.stopListening()

    async def test_all_written_bytes_arrive_before_the_close(self) -> None:
        server, client, listening = await self._pair(echo=False)
        data = os.urandom(3_000_000)
        client.transport.write(data)
        client.transport.loseConnection()
        await server.closed
        self.assertEqual(bytes(server.data), data)
        await client.closed
        await listening.stopListening()

    async def test_final_statistics_are_right(self) -> None:
        for kind in (STREAM, MESSAGE):
            server, client, listening = await self._pair(kind, echo=False)
            await until(lambda end=server: end.transport is not None)
            data = os.urandom(300_000)
            client.transport.write(data)
            client.transport.loseConnection()
            await defer.gatherResults([client.closed, server.closed])
            self.assertEqual(bytes(server.data) or server.messages[0], data)
            for end, field in ((client, "bytes_sent"), (server, "bytes_recv")):
                self.assertEqual(end.transport.final_stats[field], len(data))
                self.assertEqual(end.transport.stats()[field], len(data))
            await listening.stopListening()

    async def test_core_stops_while_its_ports_close(self) -> None:
        for _ in range(20):
            core = Core(reactor)
            closing = [core.close_port(core.open_port("127.0.0.1", 0)) for _ in range(3)]
            await core.stop()
            self.assertTrue(all(done.called for done in closing))

    async def test_a_close_that_loses_data_is_no_clean_close(self) -> None:
        from twisted.internet.error import ConnectionLost

        server, client, listening = await self._pair(echo=False)
        await until(lambda: server.transport is not None)
        server.transport.pauseProducing()
        for _ in range(50):
            client.transport.write(bytes(1_000_000))
        client.transport.loseConnection()
        await task.deferLater(reactor, 0.2)
        server.transport.abortConnection()
        reason = await client.closed
        self.assertIsInstance(reason, ConnectionLost)
        await server.closed
        await listening.stopListening()

    async def test_messages_keep_their_boundaries(self) -> None:
        _, client, listening = await self._pair(MESSAGE)
        sizes = [1, 1456, 1457, 100_000]
        for size in sizes:
            client.transport.write(bytes([size % 251]) * size)
        await until(lambda: len(client.messages) == len(sizes))
        self.assertEqual([len(m) for m in client.messages], sizes)
        client.transport.abortConnection()
        await client.closed
        await listening.stopListening()

    async def test_paused_reader_stops_the_sender(self) -> None:
        server, client, listening = await self._pair(echo=False)
        await until(lambda: server.transport is not None)
        server.transport.pauseProducing()
        blob = bytes(1_000_000)
        for _ in range(200):
            client.transport.write(blob)
        await task.deferLater(reactor, 1.0)
        self.assertLess(len(server.data), 2_000_000)
        self.assertLess(client.transport.stats()["bytes_sent"], 190_000_000)
        server.transport.resumeProducing()
        await until(lambda: len(server.data) == 200_000_000, 50)
        client.transport.abortConnection()
        await client.closed
        await listening.stopListening()

    async def test_rendezvous(self) -> None:
        a, b = Collect(), Collect(echo=True)
        first = self.core.open_port("127.0.0.1", 0)
        second = self.core.open_port("127.0.0.1", 0)
        ports = [self.core.port_address(handle)[1] for handle in (first, second)]
        await self.core.close_port(first)
        await self.core.close_port(second)
        one = UdtRendezvousEndpoint(self.core, ports[0], "127.0.0.1", ports[1]).connect(One(a))
        two = UdtRendezvousEndpoint(self.core, ports[1], "127.0.0.1", ports[0]).connect(One(b))
        await defer.gatherResults([one, two])
        a.transport.write(b"through both doors")
        await until(lambda: a.data == b"through both doors")
        a.transport.loseConnection()
        await a.closed
        await b.closed

    async def test_nobody_listens(self) -> None:
        from twisted.internet.error import ConnectError

        with self.assertRaises(ConnectError):
            await UdtClientEndpoint(self.core, "127.0.0.1", 9, UdtOptions(connect_timeout_s=0.5)).connect(
                One(Collect())
            )

    async def test_port_in_use_is_an_error_with_a_name(self) -> None:
        handle = self.core.open_port("127.0.0.1", 0)
        with self.assertRaises(CoreError) as caught:
            self.core.open_port("127.0.0.1", self.core.port_address(handle)[1])
        self.assertEqual(caught.exception.name, "INUSE")

    async def test_a_port_that_cannot_be_opened_says_why(self) -> None:
        """Here no address of this machine; a low port without rights alike."""
        with self.assertRaises(CoreError) as caught:
            self.core.open_port("192.0.2.1", 0)
        self.assertEqual(caught.exception.name, "SYS")
        self.assertIn("192.0.2.1:0", str(caught.exception))
        self.assertIn(os.strerror(errno.EADDRNOTAVAIL), str(caught.exception))


KEY = 0x01000001


class GmpTests(CoreCase):
    """Calls and messages as Deferreds."""

    def _pair(self) -> tuple[GmpNode, GmpNode, Peer]:
        a, b = open_gmp(self.core, "127.0.0.1", 0), open_gmp(self.core, "127.0.0.1", 0)
        secret = os.urandom(32)
        a.add_key(GmpKey(KEY, secret, "slave:b"))
        b.add_key(GmpKey(KEY, secret, "master:a"))
        return a, b, Peer(*b.address, KEY)

    async def test_call_and_answer_small_and_large(self) -> None:
        a, b, to_b = self._pair()
        callers = []

        def echo(call: Any) -> bytes:
            callers.append(call.principal)
            return bytes(call.payload[::-1])

        b.register(7, echo)
        for size in (0, 1, 1000, 5000, 3_000_000):
            payload = os.urandom(size)
            self.assertEqual(await a.call(to_b, 7, payload), payload[::-1])
        self.assertEqual(set(callers), {"master:a"})

    async def test_errors_have_their_status(self) -> None:
        a, b, to_b = self._pair()

        def refuse(call: Any) -> bytes:
            raise GmpError(-150, b"because")

        b.register(1, refuse)
        b.register(2, lambda call: defer.Deferred())
        with self.assertRaises(GmpError) as caught:
            await a.call(to_b, 1, b"")
        self.assertEqual((caught.exception.status, caught.exception.payload), (-150, b"because"))
        with self.assertRaises(GmpError) as caught:
            await a.call(to_b, 99, b"")
        self.assertEqual(caught.exception.status, STATUS_NO_METHOD)
        with self.assertRaises(GmpError) as caught:
            await a.call(to_b, 2, b"", deadline_s=0.3)
        self.assertEqual(caught.exception.status, STATUS_TIMEOUT)

    async def test_cancel_reaches_the_callee(self) -> None:
        a, b, to_b = self._pair()
        running: list[defer.Deferred[bytes]] = []
        cancelled: list[bool] = []

        def slow(call: Any) -> defer.Deferred[bytes]:
            waiting: defer.Deferred[bytes] = defer.Deferred(lambda d: cancelled.append(True))
            running.append(waiting)
            return waiting

        b.register(3, slow)
        call = a.call(to_b, 3, b"")
        await until(lambda: running)
        call.cancel()
        with self.assertRaises(GmpError) as caught:
            await call
        self.assertEqual(caught.exception.status, STATUS_CANCELLED)
        await until(lambda: cancelled)

    async def test_unknown_key_is_told(self) -> None:
        a, b, to_b = self._pair()
        events = []
        a.on_peer_event(events.append)
        b.remove_key(KEY)
        with self.assertRaises(GmpError):
            await a.call(to_b, 7, b"", deadline_s=1.0)
        self.assertIn("key_unknown", [event.kind for event in events])

    async def test_plain_messages(self) -> None:
        a, b, to_b = self._pair()
        got = []
        b.on_message(0, lambda peer, principal, data: got.append((principal, data)))
        await a.send(to_b, b"hello")
        await until(lambda: got)
        self.assertEqual(got, [("master:a", b"hello")])
        self.assertEqual(a.counters()["assoc"], 1)

    async def test_a_thousand_calls_at_once(self) -> None:
        a, b, to_b = self._pair()
        b.register(7, lambda call: call.payload)
        answers = await defer.gatherResults([a.call(to_b, 7, b"%d" % n) for n in range(200)])
        self.assertEqual(answers, [b"%d" % n for n in range(200)])


class DataTests(CoreCase):
    """Files to tickets and tickets to files."""

    def _ticket(self, encrypt: bool = True) -> DataTicket:
        return DataTicket(os.urandom(16), os.urandom(32), int.from_bytes(os.urandom(4), "big") | 1, encrypt)

    async def _move(self, data: bytes, encrypt: bool) -> tuple[Any, Any, bytes]:
        slave, client = open_data(self.core, "127.0.0.1", 0), open_data(self.core, "127.0.0.1", 0)
        ticket = self._ticket(encrypt)
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "a"), Path(folder, "b")
            source.write_bytes(data)
            with source.open("rb") as reader, target.open("wb") as writer:
                receiving = slave.receive_file(ticket, writer.fileno(), limit=len(data))
                sending = client.send_file(ticket, reader.fileno(), length=len(data), to=slave.address)
                fin = await receiving.fin
                receiving.finish(version=(3, 9), durable=1)
                sent = await sending.done
                await receiving.done
                return fin, sent, target.read_bytes()

    async def test_a_file_arrives_with_its_digest(self) -> None:
        for encrypt in (True, False):
            data = os.urandom(5_000_001)
            fin, sent, arrived = await self._move(data, encrypt)
            self.assertEqual(arrived, data)
            self.assertEqual(fin.moved, len(data))
            self.assertEqual(len(fin.crcs), 5)
            self.assertEqual(sent.version, (3, 9))
            self.assertEqual(sent.digest, fin.digest)

    async def test_empty_file(self) -> None:
        fin, _, arrived = await self._move(b"", True)
        self.assertEqual((fin.moved, arrived), (0, b""))

    async def test_wrong_key_never_meets(self) -> None:
        slave, client = open_data(self.core, "127.0.0.1", 0), open_data(self.core, "127.0.0.1", 0)
        right = self._ticket()
        wrong = DataTicket(right.id, os.urandom(32), right.tag)
        with tempfile.TemporaryFile() as file:
            receiving = slave.receive_file(right, file.fileno(), start_s=2.0)
            sending = client.send_file(wrong, file.fileno(), length=0, to=slave.address, start_s=1.0)
            for transfer in (sending, receiving):  # neither learns that the other exists
                with self.assertRaises(TransferError) as caught:
                    await transfer.done
                self.assertEqual(caught.exception.code, "TIMEOUT")
