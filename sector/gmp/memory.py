"""GMP inside one process: the same interface and rules (keys, deadlines, cancellation, restart) without
packets. A `MemoryHub` is the network; tests can cut it and let calls vanish."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from sector.clock import Clock
from sector.gmp.api import (
    STATUS_CANCELLED,
    STATUS_DENIED,
    STATUS_NO_METHOD,
    STATUS_TIMEOUT,
    STATUS_UNKNOWN,
    TOKEN_BYTES,
    GmpError,
    GmpKey,
    Handler,
    IncomingCall,
    Peer,
    PeerEvent,
)
from sector.gmp.group import GROUP_MAX, GroupResult, Wait, needed

log = Logger()


class MemoryHub:
    """A network of MemoryGmp endpoints by (host, port). `blocked` pairs of ports lose everything."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.endpoints: dict[tuple[str, int], MemoryGmp] = {}
        self.blocked: set[tuple[int, int]] = set()
        self._ports = itertools.count(20000)

    def endpoint(self, host: str = "127.0.0.1", port: int = 0) -> MemoryGmp:
        """A new endpoint; port 0 picks a free one."""
        node = MemoryGmp(self, host, port or next(self._ports))
        self.endpoints[node.address] = node
        return node


class MemoryGmp:
    """One endpoint of a MemoryHub; implements `sector.gmp.api.Gmp`."""

    def __init__(self, hub: MemoryHub, host: str, port: int) -> None:
        self._hub = hub
        self._address = (host, port)
        self._instance = int.from_bytes(os.urandom(8), "big") | 1
        self._keys: dict[int, GmpKey] = {}
        self._handlers: dict[int, Handler] = {}
        self._default: Handler | None = None
        self._messages: dict[int, Callable[[Peer, str, bytes], None]] = {}
        self._watchers: list[Callable[[PeerEvent], None]] = []
        self._pending: set[Deferred[bytes]] = set()
        self._stopped = False
        self.introduced: dict[Peer, int] = {}

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    @property
    def instance(self) -> int:
        return self._instance

    def add_key(self, key: GmpKey) -> None:
        self._keys[key.key_id] = key

    def remove_key(self, key_id: int) -> None:
        self._keys.pop(key_id, None)

    def register(self, method: int, handler: Handler) -> None:
        self._handlers[method] = handler

    def register_default(self, handler: Handler) -> None:
        self._default = handler

    def on_message(self, channel: int, handler: Callable[[Peer, str, bytes], None]) -> None:
        self._messages[channel] = handler

    def on_peer_event(self, handler: Callable[[PeerEvent], None]) -> None:
        self._watchers.append(handler)

    def _target(self, peer: Peer) -> MemoryGmp | None:
        target = self._hub.endpoints.get((peer.host, peer.port))
        if target is None or target._stopped or (self._address[1], peer.port) in self._hub.blocked:
            return None
        mine, theirs = self._keys.get(peer.key_id), target._keys.get(peer.key_id)
        if mine is None or theirs is None or mine.secret != theirs.secret:
            self._hub.clock.callLater(0, self._tell, PeerEvent("key_unknown", peer, target._instance))
            return None
        return target

    def _tell(self, event: PeerEvent) -> None:
        for watcher in self._watchers:
            watcher(event)

    def call(
        self,
        peer: Peer,
        method: int,
        payload: bytes,
        *,
        deadline_s: float = 60.0,
        control: bool = False,
        idempotent: bool = False,
        on_progress: Callable[[int], None] | None = None,
    ) -> Deferred[bytes]:
        answer: Deferred[bytes] = Deferred()
        self._pending.add(answer)

        def finish(result: Any) -> None:
            if answer in self._pending:
                self._pending.discard(answer)
                if timer.active():
                    timer.cancel()
                answer.callback(result)

        def dead() -> None:
            finish(Failure(GmpError(STATUS_TIMEOUT, text="no answer in time")))

        timer = self._hub.clock.callLater(deadline_s, dead)
        target = self._target(peer)
        if target is not None:
            incoming = IncomingCall(
                Peer(*self._address, peer.key_id),
                target._keys[peer.key_id].principal,
                self._instance,
                method,
                bytes(payload),
                deadline_s,
                on_progress or (lambda percent: None),
            )
            self._hub.clock.callLater(0, target._serve, incoming, finish)
        answer.addErrback(self._dropped, answer, timer)
        return answer

    def _dropped(self, failure: Failure, answer: Deferred[bytes], timer: Any) -> Failure:
        if failure.check(CancelledError):
            self._pending.discard(answer)
            if timer.active():
                timer.cancel()
            return Failure(GmpError(STATUS_CANCELLED, text="cancelled"))
        return failure

    def _serve(self, incoming: IncomingCall, finish: Callable[[Any], None]) -> None:
        if self._stopped:
            return
        handler = self._handlers.get(incoming.method, self._default)
        if handler is None:
            finish(Failure(GmpError(STATUS_NO_METHOD, text="no such method")))
            return

        def failed(failure: Failure) -> Failure:
            if failure.check(GmpError):
                return failure
            log.failure("handler of method {method} failed", failure, method=incoming.method)
            return Failure(GmpError(STATUS_UNKNOWN, text="internal error"))

        maybeDeferred(handler, incoming).addErrback(failed).addBoth(finish)

    def send(
        self, peer: Peer, payload: bytes, *, channel: int = 0, control: bool = False, deadline_s: float = 30.0
    ) -> Deferred[None]:
        target = self._target(peer)
        result: Deferred[None] = Deferred()
        if target is None:
            self._hub.clock.callLater(deadline_s, result.errback, GmpError(STATUS_TIMEOUT))
            return result
        handler = target._messages.get(channel)
        if handler is None and channel:
            self._hub.clock.callLater(0, result.errback, GmpError(STATUS_DENIED, text="no such channel"))
            return result
        if handler is not None:  # nobody need listen to channel 0: it exists all the same
            source = Peer(*self._address, peer.key_id)
            handler(source, target._keys[peer.key_id].principal, bytes(payload))
        return succeed(None)

    def group_call(
        self,
        peers: Sequence[Peer],
        method: int,
        payload: bytes,
        *,
        wait: Wait = "all",
        deadline_s: float = 60.0,
        control: bool = False,
        idempotent: bool = False,
        cancel_rest: bool = False,
        convert: Callable[[Peer, Any], Any] | None = None,
        convert_error: Callable[[Peer, GmpError], Exception] | None = None,
    ) -> GroupResult:
        def one(peer: Peer) -> Deferred[Any]:
            return self.call(peer, method, payload, deadline_s=deadline_s, control=control)

        return self._group(peers, one, wait, cancel_rest, convert, convert_error)

    def group_send(
        self,
        peers: Sequence[Peer],
        payload: bytes,
        *,
        channel: int = 0,
        wait: Wait = "all",
        deadline_s: float = 30.0,
        control: bool = False,
        cancel_rest: bool = False,
    ) -> GroupResult:
        def one(peer: Peer) -> Deferred[Any]:
            return self.send(peer, payload, channel=channel, deadline_s=deadline_s)

        return self._group(peers, one, wait, cancel_rest, None, None)

    def _group(
        self,
        peers: Sequence[Peer],
        one: Callable[[Peer], Deferred[Any]],
        wait: Wait,
        cancel_rest: bool,
        convert: Callable[[Peer, Any], Any] | None,
        convert_error: Callable[[Peer, GmpError], Exception] | None,
    ) -> GroupResult:
        if len(peers) > GROUP_MAX:
            raise ValueError(f"a group has at most {GROUP_MAX} peers")
        unique = list(dict.fromkeys(peers))
        quorum = needed(wait, len(unique))
        running: list[Deferred[Any]] = []

        def cancel() -> None:
            for call in running:
                call.cancel()

        group = GroupResult(peers, cancel=cancel, convert=convert, convert_error=convert_error)

        def judge() -> None:
            left = len(unique) - len(group.members)
            if group.met is None and (group.succeeded >= quorum or group.succeeded + left < quorum):
                group.group_decided(group.succeeded >= quorum)
                if cancel_rest:
                    cancel()
            if left == 0:
                group.group_done()

        def ended(result: Any, index: int) -> None:
            if isinstance(result, Failure):
                error = result.value
                status = error.status if isinstance(error, GmpError) else STATUS_UNKNOWN
                group.member_ended(index, status, getattr(error, "payload", b""), None)
            else:
                group.member_ended(index, 0, result, None)
            judge()

        judge()
        for peer in unique:
            call = one(peer)
            running.append(call)
            call.addBoth(ended, group.peers.index(peer))
        return group

    def mint_token(self, host: str, port: int, instance: int, key_id: int) -> bytes:
        return os.urandom(TOKEN_BYTES)

    def introduce(self, peer: Peer, instance: int, token: bytes) -> None:
        """Nothing to save here: there is no first contact in a MemoryHub. Kept for tests to see."""
        if len(token) != TOKEN_BYTES:
            raise ValueError(f"a token has {TOKEN_BYTES} bytes")
        self.introduced[peer] = instance

    def writable(self, peer: Peer) -> Deferred[None]:
        return succeed(None)

    def counters(self) -> dict[str, int]:
        return {"assoc": len(self._keys), "sockets": 0, "half_open": 0}

    def refused(self) -> list[tuple[str, tuple[int, int, int]]]:
        return [("", (0, 0, 0))]

    def stop(self) -> Deferred[None]:
        self._stopped = True
        self._hub.endpoints.pop(self._address, None)
        for answer in list(self._pending):
            answer.cancel()
        return succeed(None)
