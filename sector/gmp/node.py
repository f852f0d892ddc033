"""GMP over the C core: `open_gmp` gives an endpoint with the interface of `sector.gmp.api`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, fail, maybeDeferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from sector._udt.address import canonical
from sector._udt.context import Core
from sector._udt.errors import CoreError
from sector._udt.gmp_port import (
    CONTROL,
    IDEMPOTENT,
    WAIT_ALL,
    WAIT_ANY,
    WAIT_NONE,
    WAIT_QUORUM,
    WANT_PROGRESS,
    GmpEvent,
    GmpPort,
    Kind,
)
from sector._udt.shared import CoreSource, core_source
from sector.gmp.api import (
    STATUS_BUSY,
    STATUS_CANCELLED,
    STATUS_DENIED,
    STATUS_NO_METHOD,
    STATUS_PEER_LOST,
    STATUS_PEER_RESTARTED,
    STATUS_TIMEOUT,
    STATUS_TOO_LARGE,
    STATUS_UNKNOWN,
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

_PEER_EVENTS = {
    Kind.PEER_READY: "ready",
    Kind.PEER_SUSPECT: "suspect",
    Kind.PEER_LOST: "lost",
    Kind.PEER_RESTARTED: "restarted",
    Kind.KEY_UNKNOWN: "key_unknown",
}
# outcomes of plain messages (udt_err.h) as call statuses
_OUTCOME = {"TIMEOUT": STATUS_TIMEOUT, "UNREACHABLE": STATUS_PEER_LOST, "RESTARTED": STATUS_PEER_RESTARTED}
_OUTCOME |= {
    "CANCELLED": STATUS_CANCELLED,
    "CLOSED": STATUS_CANCELLED,
    "AGAIN": STATUS_BUSY,
    "LIMIT": STATUS_BUSY,
}
_OUTCOME |= {"TOOBIG": STATUS_TOO_LARGE, "NOTSENT": STATUS_TIMEOUT}  # it waited for its peer to the end
_OUTCOME |= {"REFUSED": STATUS_DENIED, "NOKEY": STATUS_DENIED, "AUTHFAILED": STATUS_DENIED}
# why a peer refused a message (SGMP_EV_OUTCOME of sgmp.h)
_REFUSALS = {
    1: (STATUS_DENIED, "the peer has no such channel"),
    2: (STATUS_TOO_LARGE, "too large for the peer"),
    3: (STATUS_DENIED, "the peer does not permit it"),
    5: (STATUS_TIMEOUT, "it came too late"),
}


ANSWER_MAX = (64 << 20) - 24  # a message less the head of its kind
ANSWERS_WAITING = 256 << 20  # bytes of answers that the core has no room for yet


def _can_be_sent(error: GmpError) -> bool:
    """Whether a peer can be told just that: a failure has a status below 0, in 32 bits."""
    return isinstance(error.payload, Payload) and -(1 << 31) <= error.status < 0


def _closed(not_delivered: bool = False) -> GmpError:
    return GmpError(STATUS_CANCELLED, text="the endpoint was closed", not_delivered=not_delivered)


def _ended(code: int, not_delivered: bool, why: int = 0) -> GmpError:
    """The end of a message, from its outcome in the core; `why` it was refused, where that is known."""
    error = CoreError(code)
    status, text = _OUTCOME.get(error.name, STATUS_UNKNOWN), str(error)
    if error.name == "REFUSED":
        status, text = _REFUSALS.get(why, (status, text))
    return GmpError(status, text=text, not_delivered=not_delivered)


class GmpNode:
    """One endpoint; see `sector.gmp.api.Gmp`. All calls and handlers belong to the reactor thread."""

    def __init__(
        self, source: CoreSource, core: Core, host: str, port: int, *, require_auth: bool = True
    ) -> None:
        self._source = source
        self._port = GmpPort(
            core,
            host,
            port,
            require_auth=require_auth,
            on_event=self._event,
            on_response=self._response,
            on_request=self._request,
        )
        self._principals: dict[int, str] = {}
        self._marks: dict[int, bytes] = {}  # of the keys: SHA-256 of the secrets
        self._peers: dict[tuple[str, int, int], Peer] = {}  # those that called last
        self._calls: dict[int, Deferred[bytes]] = {}
        self._watch: dict[int, Callable[[int], None]] = {}
        self._sends: dict[int, Deferred[None]] = {}
        self._running: dict[int, Deferred[Any]] = {}
        self._answers: dict[int, tuple[int, bytes]] = {}  # by request: those that wait for room in the core
        self._answers_bytes = 0
        self._cancels: set[int] = set()  # calls, messages and groups: the core has no room for that word yet
        self._groups: dict[int, tuple[GroupResult, bool]] = {}  # and whether of calls
        self._full: set[tuple[str, int]] = set()  # where there was no room, and WRITABLE is to come
        self._room: dict[Deferred[None], tuple[str, int]] = {}  # who waits for it
        self._handlers: dict[int, Handler] = {}
        self._default: Handler | None = None
        self._messages: dict[int, Callable[[Peer, str, bytes], None]] = {}
        self._peer_handlers: list[Callable[[PeerEvent], None]] = []
        self._stopped: Deferred[None] | None = None

    @property
    def address(self) -> tuple[str, int]:
        return self._port.address

    @property
    def instance(self) -> int:
        return self._port.instance

    def add_key(self, key: GmpKey) -> None:
        mark = hashlib.sha256(key.secret).digest()
        known = self._principals.get(key.key_id), self._marks.get(key.key_id)
        if known[0] == key.principal and known[1] != mark:
            self.remove_key(key.key_id)
        try:
            self._port.add_key(key.key_id, key.secret, key.principal, key.valid_s)
        except CoreError as error:  # a session that is resumed while its key is still in use
            if error.name != "INUSE":
                raise
            if known != (key.principal, mark):
                raise CoreError(error.code, f"GMP key {key.key_id:#x} of another principal") from None
        self._principals[key.key_id], self._marks[key.key_id] = key.principal, mark

    def remove_key(self, key_id: int) -> None:
        self._principals.pop(key_id, None)
        self._marks.pop(key_id, None)
        self._port.remove_key(key_id)

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
        flags = (CONTROL if control else 0) | (IDEMPOTENT if idempotent else 0)
        flags |= WANT_PROGRESS if on_progress else 0

        def cancel(deferred: Deferred[bytes]) -> None:
            if self._calls.pop(call_id, None) is not None:
                self._watch.pop(call_id, None)
                if self._stopped is None:
                    self._give_up(call_id)
                deferred.errback(GmpError(STATUS_CANCELLED, text="cancelled"))

        if self._stopped is not None:
            return fail(_closed(not_delivered=True))
        body = as_bytes(payload)
        answer: Deferred[bytes] = Deferred(cancel)
        try:
            call_id = self._port.call(peer.host, peer.port, peer.key_id, method, body, flags, deadline_s)
        except CoreError as error:
            answer.errback(self._not_sent(peer, error))
            return answer
        self._calls[call_id] = answer
        if on_progress:
            self._watch[call_id] = on_progress
        return answer

    def send(
        self,
        peer: Peer,
        payload: Payload,
        *,
        channel: int = 0,
        control: bool = False,
        deadline_s: float = 30.0,
    ) -> Deferred[None]:
        def cancel(deferred: Deferred[None]) -> None:
            if self._sends.pop(message_id, None) is not None:
                self._give_up(message_id)
                deferred.errback(GmpError(STATUS_CANCELLED, text="cancelled"))

        if self._stopped is not None:
            return fail(_closed(not_delivered=True))
        body = as_bytes(payload)
        outcome: Deferred[None] = Deferred(cancel)
        flags = CONTROL if control else 0
        try:
            message_id = self._port.send(peer.host, peer.port, peer.key_id, channel, body, flags, deadline_s)
        except CoreError as error:
            outcome.errback(self._not_sent(peer, error))
            return outcome
        self._sends[message_id] = outcome
        return outcome

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
        flags = (CONTROL if control else 0) | (IDEMPOTENT if idempotent else 0)
        group = GroupResult(
            peers, cancel=lambda: self._cancel_group(group), convert=convert, convert_error=convert_error
        )
        return self._group(group, payload, wait, method, 0, True, flags, deadline_s, cancel_rest)

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
        flags = CONTROL if control else 0
        group = GroupResult(peers, cancel=lambda: self._cancel_group(group), convert=lambda peer, data: None)
        return self._group(group, payload, wait, 0, channel, False, flags, deadline_s, cancel_rest)

    def _group(
        self,
        group: GroupResult,
        payload: Payload,
        wait: Wait,
        method: int,
        channel: int,
        call: bool,
        flags: int,
        deadline_s: float,
        cancel_rest: bool,
    ) -> GroupResult:
        if len(group.peers) > GROUP_MAX:
            raise ValueError(f"a group has at most {GROUP_MAX} peers")
        body = as_bytes(payload)
        quorum = needed(wait, len(group.peers))
        rule = {"all": WAIT_ALL, "any": WAIT_ANY, "none": WAIT_NONE}.get(str(wait), WAIT_QUORUM)
        if not group.peers:
            group.group_decided(quorum == 0)
        if not group.peers or self._stopped is not None:
            group.group_done()
            return group
        try:
            group_id = self._port.group(
                [(peer.host, peer.port, peer.key_id) for peer in group.peers],
                body,
                method=method,
                channel=channel,
                call=call,
                flags=flags,
                deadline_s=deadline_s,
                wait=rule,
                quorum=quorum,
                cancel_rest=cancel_rest,
            )
        except CoreError as error:
            if error.name == "AGAIN":
                self._full.update(canonical(peer.host, peer.port) for peer in group.peers)
            status = _OUTCOME.get(error.name, STATUS_UNKNOWN)
            for index in range(len(group.peers)):
                group.member_ended(index, status, b"", None, not_delivered=True)
            group.group_done()
            return group
        self._groups[group_id] = group, call
        return group

    def _cancel_group(self, group: GroupResult) -> None:
        for group_id, (known, _) in self._groups.items():
            if known is group and self._stopped is None:
                self._give_up(group_id)

    def _give_up(self, id: int) -> None:
        if not self._port.cancel(id):
            self._cancels.add(id)  # said when there is room

    def mint_token(self, host: str, port: int, instance: int, key_id: int) -> bytes:
        try:
            return self._port.mint_token(host, port, instance, key_id)
        except CoreError as error:
            raise GmpError(STATUS_UNKNOWN, text=str(error)) from None

    def introduce(self, peer: Peer, instance: int, token: bytes) -> None:
        try:
            self._port.introduce(peer.host, peer.port, peer.key_id, instance, token)
        except CoreError as error:  # a HELLO will do
            log.debug("no introduction to {host}: {why}", host=peer.host, why=str(error))

    def _not_sent(self, peer: Peer, error: CoreError) -> GmpError:
        full = error.name == "AGAIN"
        if full:
            self._full.add(canonical(peer.host, peer.port))
        status = _OUTCOME.get(error.name, STATUS_UNKNOWN)
        return GmpError(status, text=str(error), queue_full=full, not_delivered=True)

    def writable(self, peer: Peer) -> Deferred[None]:
        to = canonical(peer.host, peer.port)
        if self._stopped is not None:
            return fail(_closed())
        if to not in self._full:  # nothing was refused, or WRITABLE was here already
            return succeed(None)

        def cancel(cancelled: Deferred[None]) -> None:
            self._room.pop(cancelled, None)

        room: Deferred[None] = Deferred(cancel)
        self._room[room] = to
        return room

    def _writable(self, event: GmpEvent) -> None:
        if event.port == 0:  # everybody
            self._full.clear()
            self._say_what_waits()
        self._full.discard((event.host, event.port))
        for room in [room for room, to in self._room.items() if to not in self._full]:
            if self._room.pop(room, None) is not None:  # the one before may have cancelled it
                room.callback(None)

    def _say_what_waits(self) -> None:
        cancels, self._cancels = self._cancels, set()
        for id in cancels:
            self._give_up(id)
        answers, self._answers, self._answers_bytes = self._answers, {}, 0
        for request_id, (status, body) in answers.items():
            self._answer(request_id, status, body)

    def _group_event(self, event: GmpEvent) -> None:
        group, is_call = self._groups.get(event.id, (None, False))
        if group is None:
            return
        if event.kind == Kind.GROUP_MEMBER:
            rtt_s = event.ms / 1e6 if event.ms else None
            if event.status and not is_call:
                end = _ended(event.status, event.not_delivered)
                group.member_ended(
                    event.method, end.status, b"", rtt_s, text=str(end), not_delivered=end.not_delivered
                )
            else:
                group.member_ended(
                    event.method, event.status, event.data, rtt_s, not_delivered=event.not_delivered
                )
        elif event.kind == Kind.GROUP_DECIDED:
            group.group_decided(event.status == 0)
        else:
            del self._groups[event.id]
            group.group_done(_ended(event.status, True) if event.status else None)

    def register(self, method: int, handler: Handler) -> None:
        self._handlers[method] = handler

    def register_default(self, handler: Handler) -> None:
        self._default = handler

    def on_message(self, channel: int, handler: Callable[[Peer, str, bytes], None]) -> None:
        self._messages[channel] = handler
        if channel:
            self._port.open_channel(channel)

    def on_peer_event(self, handler: Callable[[PeerEvent], None]) -> None:
        self._peer_handlers.append(handler)

    def divert(self, peer: tuple[str, int] | None, fd: int) -> None:
        """Datagrams to `peer` (None = anybody) go to the datagram socket `fd`, -1 = to the network again."""
        if self._stopped is None:
            self._port.divert(peer, fd)

    def inject(self, peer: tuple[str, int], data: bytes) -> None:
        """A datagram as if from `peer` (IP literal, port)."""
        if self._stopped is None:
            self._port.inject(peer, data)

    def counters(self) -> dict[str, int]:
        """Counters of the endpoint (udt_port_stats and sgmp_stats of the C headers)."""
        return self._port.counters()

    def refused(self) -> list[tuple[str, tuple[int, int, int]]]:
        """Refused datagrams by source, the sums first (see `Core.refused`)."""
        return self._port.refused()

    def stop(self) -> Deferred[None]:
        if self._stopped is None:
            self._stopped = self._port.close()
            waiting: list[Deferred[Any]] = [*self._calls.values(), *self._sends.values()]
            self._calls.clear()
            self._sends.clear()
            self._answers.clear()
            self._cancels.clear()
            for pending in waiting:
                if not pending.called:
                    pending.errback(_closed())
            for running in list(self._running.values()):
                running.cancel()
            for group, _ in list(self._groups.values()):
                group.group_done()
            self._groups.clear()
            while self._room:
                room, _ = self._room.popitem()
                room.errback(_closed())
            self._stopped.addBoth(lambda _: self._source.give_back())
        done: Deferred[None] = Deferred()

        def gone(result: object) -> object:
            done.callback(None)
            return result

        self._stopped.addCallback(gone)
        return done

    # events of the core
    def _event(self, event: GmpEvent) -> None:
        if self._stopped is not None:
            return
        match event.kind:
            case Kind.OUTCOME:
                self._outcome(event)
            case Kind.PROGRESS:
                watcher = self._watch.get(event.id)
                if watcher is not None:
                    watcher(event.status)
            case Kind.MESSAGE:
                handler = self._messages.get(event.channel)
                if handler is not None:
                    peer = Peer(event.host, event.port, event.key_id)
                    handler(peer, self._principals.get(event.key_id, ""), event.data)
            case Kind.CANCEL:
                running = self._running.get(event.id)
                if running is not None:
                    running.cancel()
                self._answers_bytes -= len(self._answers.pop(event.id, (0, b""))[1])
            case Kind.GROUP_MEMBER | Kind.GROUP_DECIDED | Kind.GROUP_DONE:
                self._group_event(event)
            case Kind.WRITABLE:
                self._writable(event)
            case kind if kind in _PEER_EVENTS:
                peer = Peer(event.host, event.port, event.key_id)
                for listener in list(self._peer_handlers):
                    listener(PeerEvent(_PEER_EVENTS[Kind(kind)], peer, event.instance))

    def _response(self, call_id: int, status: int, data: bytes, not_delivered: bool) -> None:
        answer = self._calls.pop(call_id, None)
        if answer is None:
            return
        if self._watch:
            self._watch.pop(call_id, None)
        if status == 0:
            answer.callback(data)
        else:
            answer.errback(GmpError(status, data, not_delivered=not_delivered))

    def _outcome(self, event: GmpEvent) -> None:
        outcome = self._sends.pop(event.id, None)
        if outcome is None:
            return
        if event.status == 0:
            outcome.callback(None)
        else:
            outcome.errback(_ended(event.status, event.not_delivered, event.ms))

    def _request(
        self,
        request_id: int,
        host: str,
        port: int,
        key_id: int,
        instance: int,
        method: int,
        budget_ms: int,
        data: bytes,
    ) -> None:
        if self._stopped is not None:
            return
        handler = self._handlers.get(method, self._default)
        if handler is None:
            self._answer(request_id, STATUS_NO_METHOD, b"")
            return

        def progress(percent: int) -> None:
            if self._stopped is None:  # of a request that is over the core knows nothing
                self._port.progress(request_id, min(100, max(0, percent)))

        principal = self._principals.get(key_id, "")
        peer = self._peers.get((host, port, key_id)) or self._peer(host, port, key_id)
        incoming = IncomingCall(peer, principal, instance, method, data, budget_ms / 1000.0, progress)
        try:
            answer = handler(incoming)
        except Exception:
            self._failed(request_id, method, Failure())
            return
        if isinstance(answer, bytes):
            self._answer(request_id, 0, answer)
            return
        running = maybeDeferred(lambda: answer)
        self._running[request_id] = running
        running.addCallbacks(
            lambda body: self._succeeded(request_id, method, body),
            lambda failure: self._failed(request_id, method, failure),
        )

    def _peer(self, host: str, port: int, key_id: int) -> Peer:
        if len(self._peers) >= 4096:
            self._peers.clear()
        peer = self._peers[host, port, key_id] = Peer(host, port, key_id)
        return peer

    def _succeeded(self, request_id: int, method: int, body: Any) -> None:
        if isinstance(body, Payload):
            self._finish(request_id, 0, as_bytes(body))
        else:
            wrong = TypeError(f"an answer is bytes, not {type(body).__name__}")
            self._failed(request_id, method, Failure(wrong))

    def _failed(self, request_id: int, method: int, failure: Failure) -> None:
        error = failure.value
        if isinstance(error, GmpError) and _can_be_sent(error):
            self._finish(request_id, error.status, as_bytes(error.payload))
        elif isinstance(error, CancelledError):
            self._finish(request_id, STATUS_CANCELLED, b"")
        else:
            log.failure("handler of method {method:#x} failed", failure, method=method)
            self._finish(request_id, STATUS_UNKNOWN, b"")

    def _finish(self, request_id: int, status: int, body: bytes) -> None:
        self._running.pop(request_id, None)
        self._answer(request_id, status, body)

    def _answer(self, request_id: int, status: int, body: bytes) -> None:
        if self._stopped is not None:
            return
        if len(body) > ANSWER_MAX:
            log.warn("the answer to request {id} has {size} bytes", id=request_id, size=len(body))
            status, body = STATUS_TOO_LARGE, b""
        try:
            self._port.reply(request_id, status, body)
        except CoreError as error:
            if error.name == "NOSOCK":  # its caller gave up, or its time was over
                return
            if error.name == "AGAIN":
                self._keep(request_id, status, body)
                return
            log.warn("cannot answer request {id}: {error}", id=request_id, error=str(error))

    def _keep(self, request_id: int, status: int, body: bytes) -> None:
        """An answer that the core has no room for; it goes when there is. Of its caller's deadline CANCEL
        tells."""
        if self._answers_bytes + len(body) > ANSWERS_WAITING:
            log.warn("no room for the answer to request {id}: {size} bytes", id=request_id, size=len(body))
            status, body = STATUS_UNKNOWN, b""
        self._answers[request_id] = status, body
        self._answers_bytes += len(body)


def open_gmp(core: Any, host: str, port: int, *, require_auth: bool = True) -> GmpNode:
    """An endpoint on UDP (host, port); `host` an IP literal, "::" hears IPv4 too, port 0 picks a free one.
    `core` is a reactor (the process's shared core is used, until `stop`) or a `Core` of the caller's own.
    Raises CoreError (INUSE, SYS), ValueError for no address."""
    source = core_source(core)
    running = source.take()
    try:
        return GmpNode(source, running, host, port, require_auth=require_auth)
    except BaseException:
        source.give_back()
        raise
