"""Whatever a handler does, its caller hears of it at once and not by waiting for the deadline."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from twisted.internet import defer, reactor
from twisted.trial import unittest

from sector._udt.context import Core
from sector._udt.errors import CoreError
from sector.gmp.api import (
    STATUS_CANCELLED,
    STATUS_TIMEOUT,
    STATUS_TOO_LARGE,
    STATUS_UNKNOWN,
    GmpError,
    GmpKey,
    Peer,
)
from sector.gmp.node import open_gmp


class Case(unittest.TestCase):
    """Two endpoints that share a key."""

    timeout = 60

    def setUp(self) -> None:
        self.core = Core(reactor)
        self.a, self.b = (open_gmp(self.core, "127.0.0.1", 0) for _ in range(2))
        secret = os.urandom(32)
        for node in self.a, self.b:
            node.add_key(GmpKey(7, secret, "somebody"))
        self.to_b = Peer(*self.b.address, 7)

    def tearDown(self) -> Any:
        async def over() -> None:
            await self.a.stop()
            await self.b.stop()
            await self.core.stop()

        return defer.ensureDeferred(over())


class HandlerTests(Case):
    async def ask(self, handler: Callable[[Any], Any], payload: bytes = b"") -> bytes:
        """The answer; far within the deadline."""
        self.b.register(1, handler)
        before = reactor.seconds()
        try:
            return await self.a.call(self.to_b, 1, payload, deadline_s=10)
        finally:
            self.assertLess(reactor.seconds() - before, 5)

    async def test_answers_that_are_no_bytes(self) -> None:
        for wrong in (None, "text", 5):
            for handler in (lambda call, wrong=wrong: wrong, lambda call, wrong=wrong: defer.succeed(wrong)):
                with self.assertRaises(GmpError) as caught:
                    await self.ask(handler)
                self.assertEqual(caught.exception.status, STATUS_UNKNOWN)
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 6)
        for right in (bytearray(b"abc"), memoryview(b"abc")):
            self.assertEqual(await self.ask(lambda call, right=right: right), b"abc")

    async def test_what_is_no_call_is_refused_at_once(self) -> None:
        """Each time alike, and before there is a Deferred."""
        wrong = [
            (ValueError, Peer("localhost", 9, 7), 1, b""),
            (ValueError, Peer("127.0.0.1", 99999, 7), 1, b""),
            (OSError, Peer("fe80::1%nosuch", 9, 7), 1, b""),
            (OverflowError, self.to_b, -1, b""),
            (TypeError, self.to_b, 1, "text"),
        ]
        for kind, peer, method, payload in 2 * wrong:
            self.assertRaises(kind, self.a.call, peer, method, payload)
        for kind, peer, _, payload in 2 * wrong[:3]:
            self.assertRaises(kind, self.a.send, peer, payload)
            self.assertRaises(kind, self.a.group_call, [peer], 1, payload)
        with self.assertRaises(GmpError) as caught:
            await self.a.call(self.to_b, 1, bytes(65 << 20))
        self.assertEqual(caught.exception.status, STATUS_TOO_LARGE)

    async def test_failures_that_have_no_number_on_the_wire(self) -> None:
        for wrong in (GmpError(5), GmpError(0), GmpError(-(1 << 40)), GmpError(-150, "text")):  # type: ignore

            def fails(call: Any, wrong: GmpError = wrong) -> bytes:
                raise wrong

            with self.assertRaises(GmpError) as caught:
                await self.ask(fails)
            self.assertEqual(caught.exception.status, STATUS_UNKNOWN)
        self.assertEqual(len(self.flushLoggedErrors(GmpError)), 4)

    async def test_an_answer_that_is_too_large(self) -> None:
        for size in ((64 << 20) - 23, 64 << 20, 65 << 20):
            with self.assertRaises(GmpError) as caught:
                await self.ask(lambda call, size=size: bytes(size))
            self.assertEqual(caught.exception.status, STATUS_TOO_LARGE)
            self.assertEqual(str(caught.exception), "too large")
        size = (64 << 20) - 24
        self.assertEqual(len(await self.ask(lambda call: bytes(size))), size)

    async def test_large_answers_at_once(self) -> None:
        """More than the core has room for: each is given, and none is dropped."""
        self.b.register(1, lambda call: call.payload + bytes(1 << 20))
        calls = [self.a.call(self.to_b, 1, b"%5d" % n, deadline_s=30) for n in range(200)]
        for n, call in enumerate(calls):
            answer = await call
            self.assertEqual((answer[:5], len(answer)), (b"%5d" % n, 5 + (1 << 20)))

    async def test_more_answers_than_may_wait(self) -> None:
        """Those for which there is no room at all end at once."""
        self.b.register(1, lambda call: bytes(2 << 20))
        calls = [self.a.call(self.to_b, 1, b"", deadline_s=20) for _ in range(250)]
        results = await defer.DeferredList(calls, consumeErrors=True)
        failed = [result.value for good, result in results if not good]
        self.assertLessEqual({error.status for error in failed}, {STATUS_UNKNOWN})
        self.assertGreater(len(results) - len(failed), 150)

    async def test_a_closed_endpoint_answers_as_one_that_closes(self) -> None:
        """Who repeats a call when it fails may do so at any time."""
        await self.a.stop()
        for _ in range(2):
            for attempt in (self.a.call(self.to_b, 1, b""), self.a.send(self.to_b, b"")):
                with self.assertRaises(GmpError) as caught:
                    await attempt
                self.assertEqual(caught.exception.status, STATUS_CANCELLED)
            ((good, failure),) = await self.a.group_call([self.to_b], 1, b"").done
            self.assertFalse(good)
            self.assertEqual(failure.value.status, STATUS_CANCELLED)
            await self.b.stop()
            await self.core.stop()


class KeyTests(Case):
    """A key id that is used again, and what messages that cannot go end with."""

    async def test_a_key_id_takes_the_secret_that_came_last(self) -> None:
        """A call is answered only where both ends have the same."""
        self.b.register(1, lambda call: call.payload)
        secret = os.urandom(32)
        self.a.add_key(GmpKey(7, secret, "somebody"))
        with self.assertRaises(GmpError) as caught:
            await self.a.call(self.to_b, 1, b"x", deadline_s=0.5)
        self.assertEqual(caught.exception.status, STATUS_TIMEOUT)
        self.b.add_key(GmpKey(7, secret, "somebody"))
        self.b.add_key(GmpKey(7, secret, "somebody"))  # a session that is resumed
        self.assertEqual(await self.a.call(self.to_b, 1, b"x", deadline_s=10), b"x")

    def test_a_key_id_of_somebody_else_is_refused(self) -> None:
        with self.assertRaisesRegex(CoreError, "GMP key 0x7 of another principal"):
            self.a.add_key(GmpKey(7, bytes(32), "another"))

    async def test_messages_that_cannot_go_say_why(self) -> None:
        nobody = Peer("127.0.0.1", 9, 7)
        with self.assertRaises(GmpError) as caught:
            await self.a.send(self.to_b, bytes((64 << 20) + 1))
        self.assertEqual(caught.exception.status, STATUS_TOO_LARGE)
        with self.assertRaises(GmpError) as caught:
            await self.a.send(nobody, b"x", deadline_s=0.5)
        self.assertEqual(caught.exception.status, STATUS_TIMEOUT)
