"""The endpoint over the core and the one inside a process keep the same promises to their callers."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import Any

from twisted.internet import defer, reactor, task
from twisted.internet.defer import Deferred
from twisted.logger import LogLevel, globalLogPublisher
from twisted.trial import unittest

from sector._udt.context import Core
from sector._udt.shared import shared_core
from sector.gmp.api import (
    STATUS_CANCELLED,
    STATUS_DENIED,
    STATUS_NO_METHOD,
    STATUS_TIMEOUT,
    STATUS_TOO_LARGE,
    STATUS_UNKNOWN,
    GmpError,
    GmpKey,
    IncomingCall,
    Peer,
)
from sector.gmp.memory import MemoryHub
from sector.gmp.node import open_gmp

KEY = 7
NOBODY = Peer("127.0.0.1", 9, KEY)


class Rules:
    """What holds for both; `a` calls `b`."""

    a: Any
    b: Any
    timeout = 60

    def pair(self, a: Any, b: Any) -> None:
        """Both have the key."""
        self.a, self.b = a, b
        secret = os.urandom(32)
        for node in a, b:
            node.add_key(GmpKey(KEY, secret, "somebody"))
        self.to_b = Peer(*b.address, KEY)
        self.b.register(1, lambda call: call.payload)

    async def fails(self, attempt: Deferred[Any], status: int, not_delivered: bool = False) -> GmpError:
        """The error it ends with."""
        with self.assertRaises(GmpError) as caught:  # type: ignore[attr-defined]
            await attempt
        self.assertEqual(caught.exception.status, status)  # type: ignore[attr-defined]
        self.assertEqual(caught.exception.not_delivered, not_delivered)  # type: ignore[attr-defined]
        return caught.exception

    async def test_whatever_holds_bytes_is_sent_as_it_is_now(self: Any) -> None:
        heard: list[bytes] = []
        self.b.on_message(0, lambda peer, name, data: heard.append(data))
        for payload in (b"acb", bytearray(b"acb"), memoryview(b"acb"), memoryview(b"a-c-b")[::2]):
            answer = self.a.call(self.to_b, 1, payload)
            group = self.a.group_call([self.to_b], 1, payload)
            sent = self.a.send(self.to_b, payload)
            if isinstance(payload, bytearray):
                payload[:] = b"xxx"  # it was copied
            self.assertEqual(await answer, b"acb")
            self.assertEqual(await group.done, [(True, b"acb")])
            self.assertIsNone(await sent)
        self.assertEqual(heard, 4 * [b"acb"])
        self.assertEqual({type(data) for data in heard}, {bytes})

    def test_what_is_no_payload_or_address_is_refused_at_once(self: Any) -> None:
        for wrong in ("text", 5, None, [1, 2]):
            self.assertRaises(TypeError, self.a.call, self.to_b, 1, wrong)
            self.assertRaises(TypeError, self.a.send, self.to_b, wrong)
            self.assertRaises(TypeError, self.a.group_call, [self.to_b], 1, wrong)
            self.assertRaises(TypeError, self.a.group_send, [self.to_b], wrong)
        for kind, host, port in (
            (ValueError, "localhost", 9),
            (ValueError, "127.0.0.1", 99999),
            (OSError, "fe80::1%nosuch", 9),
        ):
            peer = Peer(host, port, KEY)
            self.assertRaises(kind, self.a.call, peer, 1, b"")
            self.assertRaises(kind, self.a.send, peer, b"")
            self.assertRaises(kind, self.a.group_call, [self.to_b, peer], 1, b"")
            self.assertRaises(kind, self.a.mint_token, host, port, 1, KEY)

    async def test_a_peer_has_many_spellings(self: Any) -> None:
        other = Peer("::ffff:127.0.0.1", self.to_b.port, KEY)
        self.assertEqual(await self.a.call(other, 1, b"x"), b"x")

    async def test_answers_are_bytes(self: Any) -> None:
        for right in (b"abc", bytearray(b"abc"), memoryview(b"abc")):
            self.b.register(2, lambda call, right=right: right)
            answer = await self.a.call(self.to_b, 2, b"")
            self.assertEqual(answer, b"abc")
            self.assertIs(type(answer), bytes)
        for wrong in (None, "text", 5):
            self.b.register(2, lambda call, wrong=wrong: wrong)
            await self.fails(self.a.call(self.to_b, 2, b""), STATUS_UNKNOWN)
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 3)
        await self.fails(self.a.call(self.to_b, 99, b""), STATUS_NO_METHOD)

    async def test_a_refusal_carries_its_detail(self: Any) -> None:
        async def refuses(call: IncomingCall) -> bytes:
            raise GmpError(-150, bytearray(b"why"))

        self.b.register(2, refuses)
        refusal = await self.fails(self.a.call(self.to_b, 2, b""), -150)
        self.assertEqual(refusal.payload, b"why")

    async def test_a_message_that_was_refused_was_not_delivered(self: Any) -> None:
        refusal = await self.fails(self.a.send(self.to_b, b"x", channel=9), STATUS_DENIED, True)
        self.assertEqual(str(refusal), "the peer has no such channel")
        ((ok, failure),) = await self.a.group_send([self.to_b], b"x", channel=9).done
        self.assertFalse(ok)
        self.assertEqual((failure.value.status, failure.value.not_delivered), (STATUS_DENIED, True))
        await self.fails(self.a.send(NOBODY, b"x", deadline_s=0.2), STATUS_TIMEOUT, True)
        await self.fails(self.a.send(self.to_b, bytes(257), control=True), STATUS_TOO_LARGE, True)
        await self.fails(self.a.send(self.to_b, bytes((1 << 26) + 1)), STATUS_TOO_LARGE, True)
        await self.fails(self.a.call(self.to_b, 1, bytes(1 << 26)), STATUS_TOO_LARGE, True)
        ((ok, failure),) = await self.a.group_call([self.to_b], 1, bytes(1 << 26)).done
        self.assertEqual((failure.value.status, failure.value.not_delivered), (STATUS_TOO_LARGE, True))
        heard: list[bytes] = []
        self.b.on_message(9, lambda peer, name, data: heard.append(data))
        await self.a.send(self.to_b, b"y", channel=9)
        self.assertEqual(heard, [b"y"])

    async def test_a_receiver_that_raises_has_the_message(self: Any) -> None:
        def raises(peer: Peer, name: str, data: bytes) -> None:
            raise RuntimeError("receiver")

        self.b.on_message(0, raises)
        self.assertIsNone(await self.a.send(self.to_b, b"x"))
        self.assertEqual(await self.a.call(self.to_b, 1, b"x"), b"x")  # and all goes on
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    async def test_a_callee_hears_that_nobody_waits_any_more(self: Any) -> None:
        """The caller cancels, its deadline passes, the callee stops: the handler's Deferred is cancelled, and
        that is nothing for a log."""
        logged: list[Any] = []
        globalLogPublisher.addObserver(logged.append)
        self.addCleanup(globalLogPublisher.removeObserver, logged.append)
        begun: list[Deferred[None]] = [Deferred() for _ in range(3)]
        ended: list[Deferred[None]] = [Deferred() for _ in range(3)]

        def handler(call: IncomingCall) -> Deferred[bytes]:
            at = call.payload[0]
            reactor.callLater(0, begun[at].callback, None)
            return Deferred(lambda _: ended[at].callback(None))

        self.b.register(2, handler)
        attempt = self.a.call(self.to_b, 2, b"\0")
        await begun[0]
        attempt.cancel()
        await self.fails(attempt, STATUS_CANCELLED)
        await ended[0]
        await self.fails(self.a.call(self.to_b, 2, b"\1", deadline_s=0.2), STATUS_TIMEOUT)
        await ended[1]
        self.assertEqual(await self.a.call(self.to_b, 1, b"x"), b"x")
        attempt = self.a.call(self.to_b, 2, b"\2", deadline_s=0.3)
        await begun[2]
        stopped = self.b.stop()
        await ended[2]
        await stopped
        await self.fails(attempt, STATUS_TIMEOUT)
        loud = [event for event in logged if event.get("log_level", LogLevel.debug) >= LogLevel.warn]
        small = [event for event in loud if "UDP buffers" not in (event["log_format"] or "")]
        self.assertEqual(small, [])

    async def test_sends_can_be_cancelled(self: Any) -> None:
        attempt = self.a.send(NOBODY, b"x", deadline_s=0.2)
        attempt.cancel()
        await self.fails(attempt, STATUS_CANCELLED)
        await task.deferLater(reactor, 0.3, lambda: None)  # its deadline finds nobody

    async def test_an_endpoint_that_stops_ends_what_is_under_way(self: Any) -> None:
        self.b.register(2, lambda call: Deferred())
        waiting = [self.a.call(self.to_b, 2, b""), self.a.send(NOBODY, b""), self.a.call(NOBODY, 1, b"")]
        await self.a.stop()
        for attempt in waiting:
            error = await self.fails(attempt, STATUS_CANCELLED)
            self.assertEqual(str(error), "the endpoint was closed")
        for attempt in (self.a.call(self.to_b, 1, b""), self.a.send(self.to_b, b"")):
            await self.fails(attempt, STATUS_CANCELLED, True)
        await self.fails(self.a.writable(self.to_b), STATUS_CANCELLED)
        await self.a.stop()

    async def test_a_call_that_never_left_was_not_delivered(self: Any) -> None:
        """Whoever has a second peer may ask that one, even where the call must not be made twice."""
        self.b.register(2, lambda call: Deferred())
        await self.fails(self.a.call(NOBODY, 1, b"", deadline_s=0.3), STATUS_TIMEOUT, True)
        await self.fails(self.a.call(self.to_b, 2, b"", deadline_s=0.3), STATUS_TIMEOUT, False)
        group = self.a.group_call([NOBODY, self.to_b], 2, b"", deadline_s=0.3)
        outcomes = [(one.value.status, one.value.not_delivered) for _, one in await group.done]
        self.assertEqual(outcomes, [(STATUS_TIMEOUT, True), (STATUS_TIMEOUT, False)])


class CoreTests(Rules, unittest.TestCase):
    """Over the core."""

    def setUp(self) -> None:
        self.core = Core(reactor)
        self.pair(*(open_gmp(self.core, "127.0.0.1", 0) for _ in range(2)))

    def tearDown(self) -> Any:
        async def over() -> None:
            await self.a.stop()
            await self.b.stop()
            await self.core.stop()

        return defer.ensureDeferred(over())

    async def test_a_call_under_a_key_that_is_unknown_here_was_not_delivered(self) -> None:
        host, port = self.b.address
        await self.fails(self.a.call(Peer(host, port, KEY + 1), 1, b""), STATUS_DENIED, True)
        ((_, failure),) = await self.a.group_call([Peer(host, port, KEY + 1)], 1, b"").done
        self.assertEqual((failure.value.status, failure.value.not_delivered), (STATUS_DENIED, True))

    async def test_what_a_handler_tells_before_it_first_waits_reaches_the_caller(self) -> None:
        """The core sends the newest every quarter of the deadline: one early word, then only waiting."""
        told: list[int] = []

        async def handler(call: IncomingCall) -> bytes:
            call.progress(140)  # all of it, and not lost for being too much
            await task.deferLater(reactor, 1.5, lambda: None)
            return b"done"

        self.b.register(2, handler)
        answer = await self.a.call(self.to_b, 2, b"", deadline_s=4, on_progress=told.append)
        self.assertEqual(answer, b"done")
        self.assertEqual(told, [100])


class MemoryTests(Rules, unittest.TestCase):
    """Inside one process, with the reactor as its clock."""

    def setUp(self) -> None:
        hub = MemoryHub(reactor)
        self.pair(hub.endpoint(), hub.endpoint())

    def tearDown(self) -> Any:
        return defer.gatherResults([self.a.stop(), self.b.stop()])


class SharedCoreTests(unittest.TestCase):
    """Endpoints of a program that owns no core."""

    timeout = 60

    async def test_the_program_of_the_guide_runs(self) -> None:
        guide = Path(__file__).parents[2] / "docs" / "guide" / "transport.md"
        blocks = guide.read_text(encoding="utf-8").split("```python\n")[1:]
        (code,) = [block.split("```")[0] for block in blocks if "open_gmp(reactor" in block]
        names: dict[str, Any] = {}
        exec(compile(code, str(guide), "exec"), names)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            await names["main"](reactor, bytes(32))
        self.assertEqual(out.getvalue(), "b'HELLO'\nthe client sends b'a message'\n")
        await shared_core(reactor).settle()
        self.assertIsNone(shared_core(reactor)._core)

    async def test_the_last_endpoint_takes_the_core_with_it(self) -> None:
        a, b = (open_gmp(reactor, "127.0.0.1", 0) for _ in range(2))
        for gmp in a, b:
            gmp.add_key(GmpKey(KEY, bytes(32), "somebody"))
        b.register(1, lambda call: call.payload[::-1])
        with self.assertRaises(ValueError):
            open_gmp(reactor, "localhost", 0)
        await a.stop()
        a = open_gmp(reactor, "127.0.0.1", 0)
        a.add_key(GmpKey(KEY, bytes(32), "somebody"))
        self.assertEqual(await a.call(Peer(*b.address, KEY), 1, b"abc"), b"cba")
        await a.stop()
        self.assertIsNotNone(shared_core(reactor)._core)
        await defer.gatherResults([b.stop(), b.stop()])
        await shared_core(reactor).settle()
        self.assertIsNone(shared_core(reactor)._core)
