"""GMP inside one process: the same interface and rules (keys, deadlines, cancellation, restart) without
packets. A `MemoryHub` is the network; tests can cut it and let calls vanish."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, fail, maybeDeferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from sector._udt.address import canonical
from sector.clock import Clock
from sector.gmp.api import (
    STATUS_CANCELLED,
    STATUS_DENIED,
    STATUS_NO_METHOD,
    STATUS_TIMEOUT,
    STATUS_TOO_LARGE,
    STATUS_UNKNOWN,
    TOKEN_BYTES,
    GmpError,
    GmpKey,
    Handler,
    IncomingCall,
    Payload,
    Peer,
    PeerEvent,
    as_bytes,
)
from sector.gmp.group import GROUP_MAX, GroupResult, Wait, needed

log = Logger()
MESSAGE_MAX, CONTROL_MAX = 64 << 20, 256  # bytes; a call has a head in them
CALL_HEAD = 24
_place = lru_cache(4096)(canonical)


class MemoryHub:
    """A network of MemoryGmp endpoints by (host, port). `blocked` pairs of ports lose everything."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.endpoints: dict[tuple[str, int], MemoryGmp] = {}
        self.blocked: set[tuple[int, int]] = set()
        self._ports = itertools.count(20000)

    def endpoint(self, host: str = "127.0.0.1", port: int = 0) -> MemoryGmp:
        """A new endpoint; port 0 picks a free one."""
        node = MemoryGmp(self, *canonical(host, port or next(self._ports)))
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
        self._pending: dict[Deferred[Any], Callable[[GmpError], None]] = {}
        self._work: set[Deferred[Any]] = set()  # handlers that have not answered yet
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
        target = self._hub.endpoints.get(_place(peer.host, peer.port))
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

    def _refusal(self, peer: Peer, payload: bytes, head: int, control: bool) -> GmpError | None:
        """Why nothing can be sent at all. Raises ValueError for what is no address."""
        _place(peer.host, peer.port)
        if self._stopped:
            return GmpError(STATUS_CANCELLED, text="the endpoint was closed", not_delivered=True)
        if len(payload) > (CONTROL_MAX if control else MESSAGE_MAX) - head:
            return GmpError(STATUS_TOO_LARGE, text="message or datagram too large", not_delivered=True)
        return None

    def _begin(
        self, deadline_s: float, late: GmpError, on_cancel: Callable[[], None]
    ) -> tuple[Deferred[Any], Callable[[Any], None]]:
        """A Deferred that ends at the deadline, when it is cancelled or with the endpoint; and what ends it
        before that. `on_cancel` is called unless it ended by itself."""

        def finish(result: Any, *, mine: bool = False) -> None:
            if self._pending.pop(answer, None) is None:
                return
            if timer.active():
                timer.cancel()
            if mine:
                on_cancel()
            answer.callback(result)

        def cancelled(_: Deferred[Any]) -> None:
            finish(Failure(GmpError(STATUS_CANCELLED, text="cancelled")), mine=True)

        answer: Deferred[Any] = Deferred(cancelled)
        timer = self._hub.clock.callLater(deadline_s, lambda: finish(Failure(late), mine=True))
        self._pending[answer] = lambda error: finish(Failure(error), mine=True)
        return answer, finish

    def call(
        self,
        peer: Peer,
        method: int,
        payload: Payload,
        *,
        deadline_s: float = 60.0,
        control: bool = False,
        idempotent: bool = False,
        on_progress: Callable[[int], None] | None = None,
    ) -> Deferred[bytes]:
        body = as_bytes(payload)
        refusal = self._refusal(peer, body, CALL_HEAD, control)
        if refusal is not None:
            return fail(refusal)
        running: list[Deferred[Any]] = []

        def give_up() -> None:
            for work in running:
                work.cancel()

        def progress(percent: int) -> None:
            back = (peer.port, self._address[1])
            if on_progress is not None and answer in self._pending and back not in self._hub.blocked:
                on_progress(min(100, max(0, percent)))

        target = self._target(peer)
        late = GmpError(STATUS_TIMEOUT, text="no answer in time", not_delivered=target is None)
        answer, finish = self._begin(deadline_s, late, give_up)
        if target is not None:
            incoming = IncomingCall(
                Peer(*self._address, peer.key_id),
                target._keys[peer.key_id].principal,
                self._instance,
                method,
                body,
                deadline_s,
                progress,
            )
            self._hub.clock.callLater(0, target._serve, incoming, finish, running)
        return answer

    def _serve(
        self, incoming: IncomingCall, finish: Callable[[Any], None], running: list[Deferred[Any]]
    ) -> None:
        if self._stopped:
            return
        handler = self._handlers.get(incoming.method, self._default)
        if handler is None:
            finish(Failure(GmpError(STATUS_NO_METHOD)))
            return

        def good(body: Any) -> bytes:
            if not isinstance(body, Payload):
                raise TypeError(f"an answer is bytes, not {type(body).__name__}")
            return as_bytes(body)

        def failed(failure: Failure) -> Failure:
            error = failure.value
            if isinstance(error, GmpError) and error.status < 0:
                return Failure(GmpError(error.status, as_bytes(error.payload)))
            if failure.check(CancelledError):
                return Failure(GmpError(STATUS_CANCELLED))
            log.failure("handler of method {method} failed", failure, method=incoming.method)
            return Failure(GmpError(STATUS_UNKNOWN))

        work = maybeDeferred(handler, incoming)
        running.append(work)
        self._work.add(work)

        def over(result: Any) -> Any:
            self._work.discard(work)
            return result

        def answer(result: Any) -> None:
            if not self._stopped:  # else nothing leaves any more
                finish(result)

        work.addBoth(over).addCallback(good).addErrback(failed).addBoth(answer)

    def send(
        self,
        peer: Peer,
        payload: Payload,
        *,
        channel: int = 0,
        control: bool = False,
        deadline_s: float = 30.0,
    ) -> Deferred[None]:
        body = as_bytes(payload)
        refusal = self._refusal(peer, body, 0, control)
        if refusal is not None:
            return fail(refusal)
        target = self._target(peer)
        if target is None:
            late = GmpError(STATUS_TIMEOUT, text="not sent", not_delivered=True)
            return self._begin(deadline_s, late, lambda: None)[0]
        handler = target._messages.get(channel)
        if handler is None and channel:
            result, finish = self._begin(deadline_s, GmpError(STATUS_TIMEOUT), lambda: None)
            text = "the peer has no such channel"
            refused = GmpError(STATUS_DENIED, text=text, not_delivered=True)
            self._hub.clock.callLater(0, finish, Failure(refused))
            return result
        if handler is not None:  # nobody need listen to channel 0: it exists all the same
            source = Peer(*self._address, peer.key_id)
            try:
                handler(source, target._keys[peer.key_id].principal, body)
            except Exception:  # the receiver's own affair: it was delivered
                log.failure("handler of channel {channel} failed", channel=channel)
        return succeed(None)

    def group_call(
        self,
        peers: Sequence[Peer],
        method: int,
        payload: Payload,
        *,
        wait: Wait = "all",
        deadline_s: float = 60.0,
        control: bool = False,
        idempotent: bool = False,
        cancel_rest: bool = False,
        convert: Callable[[Peer, Any], Any] | None = None,
        convert_error: Callable[[Peer, GmpError], Exception] | None = None,
    ) -> GroupResult:
        body = as_bytes(payload)

        def one(peer: Peer) -> Deferred[Any]:
            return self.call(peer, method, body, deadline_s=deadline_s, control=control)

        return self._group(peers, one, wait, cancel_rest, convert, convert_error)

    def group_send(
        self,
        peers: Sequence[Peer],
        payload: Payload,
        *,
        channel: int = 0,
        wait: Wait = "all",
        deadline_s: float = 30.0,
        control: bool = False,
        cancel_rest: bool = False,
    ) -> GroupResult:
        body = as_bytes(payload)

        def one(peer: Peer) -> Deferred[Any]:
            return self.send(peer, body, channel=channel, control=control, deadline_s=deadline_s)

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
        for peer in unique:
            _place(peer.host, peer.port)
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
                assert isinstance(error, GmpError)
                group.member_ended(
                    index,
                    error.status,
                    error.payload,
                    None,
                    text=str(error),
                    not_delivered=error.not_delivered,
                )
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
        canonical(host, port)
        return os.urandom(TOKEN_BYTES)

    def introduce(self, peer: Peer, instance: int, token: bytes) -> None:
        """Nothing to save here: there is no first contact in a MemoryHub. Kept for tests to see."""
        if len(token) != TOKEN_BYTES:
            raise ValueError(f"a token has {TOKEN_BYTES} bytes")
        self.introduced[peer] = instance

    def writable(self, peer: Peer) -> Deferred[None]:
        if self._stopped:
            return fail(GmpError(STATUS_CANCELLED, text="the endpoint was closed"))
        return succeed(None)

    def counters(self) -> dict[str, int]:
        return {"assoc": len(self._keys), "sockets": 0, "half_open": 0}

    def refused(self) -> list[tuple[str, tuple[int, int, int]]]:
        return [("", (0, 0, 0))]

    def stop(self) -> Deferred[None]:
        self._stopped = True
        self._hub.endpoints.pop(self._address, None)
        for end in list(self._pending.values()):
            end(GmpError(STATUS_CANCELLED, text="the endpoint was closed"))
        for work in list(self._work):
            work.cancel()
        return succeed(None)
