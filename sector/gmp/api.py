"""What GMP offers to the layers above: bytes in, bytes out, outcomes by Deferreds.

`node.GmpNode` implements it over the C core, `memory.MemoryGmp` inside one process. Neither knows a
message class (layout.md, import rule 2). Wire and promises: spec/gmp.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from twisted.internet.defer import Deferred

if TYPE_CHECKING:
    from sector.gmp.group import GroupResult, Wait


@dataclass(frozen=True, slots=True)
class GmpKey:
    """A pairwise key. `secret` is 32 bytes; `valid_s` seconds from now, 0 = until removed."""

    key_id: int
    secret: bytes = field(repr=False)
    principal: str
    valid_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A destination: address and the key used towards it. `host` is an IP literal."""

    host: str
    port: int
    key_id: int


class IncomingCall(msgspec.Struct, frozen=True):
    """A request to answer. `principal` is the authenticated name bound to the key; `budget_s` what is
    left of the caller's deadline; `progress(percent)` tells the caller that work goes on (0 to 100; it hears
    the newest every 5 s, or every quarter of its deadline where that is shorter)."""

    peer: Peer
    principal: str
    instance: int
    method: int
    payload: bytes
    budget_s: float
    progress: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class PeerEvent:
    """`kind` is "ready", "suspect", "lost", "restarted" or "key_unknown"; `instance` of the peer."""

    kind: str
    peer: Peer
    instance: int


class GmpError(Exception):
    """A call or message failed. `status` < 0: core status -1..-9 (spec/gmp.md section 9), <= -100 the peer
    application's own with `payload` as its detail; `queue_full` when nothing was sent for lack of room.
    `not_delivered`: it is certain that the peer's program got nothing (it never left, or was refused); else
    it may have, as whenever the peer answered. Its text says in words what the status means."""

    def __init__(
        self,
        status: int,
        payload: bytes = b"",
        text: str = "",
        *,
        queue_full: bool = False,
        not_delivered: bool = False,
    ) -> None:
        super().__init__(text or _TEXTS.get(status) or f"status {status} of the peer's program")
        self.status = status
        self.payload = payload
        self.queue_full = queue_full
        self.not_delivered = not_delivered or queue_full


Payload = bytes | bytearray | memoryview
TOKEN_BYTES = 24
STATUS_UNKNOWN = -1
STATUS_NO_METHOD = -2
STATUS_BUSY = -3
STATUS_CANCELLED = -4
STATUS_TIMEOUT = -5
STATUS_PEER_LOST = -6
STATUS_PEER_RESTARTED = -7
STATUS_TOO_LARGE = -8
STATUS_DENIED = -9
STATUS_APPLICATION = -100
_TEXTS: Final = {
    STATUS_UNKNOWN: "the peer failed",
    STATUS_NO_METHOD: "the peer has no such method",
    STATUS_BUSY: "the peer is busy",
    STATUS_CANCELLED: "cancelled",
    STATUS_TIMEOUT: "no answer in time",
    STATUS_PEER_LOST: "the peer is lost",
    STATUS_PEER_RESTARTED: "the peer was restarted",
    STATUS_TOO_LARGE: "too large",
    STATUS_DENIED: "denied",
}

Handler = Callable[[IncomingCall], "bytes | Deferred[bytes]"]


def as_bytes(data: Payload) -> bytes:
    """What is sent, copied unless it is bytes. Raises TypeError for what has no bytes (text, numbers)."""
    return data if type(data) is bytes else bytes(memoryview(data))


class Gmp(Protocol):
    """One GMP endpoint (one UDP port, one instance)."""

    @property
    def address(self) -> tuple[str, int]:
        """Local (host, port) that the endpoint is bound to."""

    @property
    def instance(self) -> int:
        """Random 64-bit id of this endpoint, new at each start."""

    def add_key(self, key: GmpKey) -> None:
        """Install a key; from now on datagrams under it are accepted. Replaces the same key_id."""

    def remove_key(self, key_id: int) -> None:
        """Forget a key; its associations end."""

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
        """Request and response; `payload` is copied. Errbacks with GmpError, also when nothing can be sent
        (no room, too large, endpoint stopped); cancelling the Deferred cancels the call, which the peer may
        have begun. What is no call is refused at once: raises ValueError for a host that is no IP literal or
        a port that is none, OSError for a scope that is none, OverflowError or TypeError for what its field
        cannot hold."""

    def send(
        self,
        peer: Peer,
        payload: Payload,
        *,
        channel: int = 0,
        control: bool = False,
        deadline_s: float = 30.0,
    ) -> Deferred[None]:
        """One message; fires when it is delivered (placed in the receiver's queue), else GmpError, whose
        `not_delivered` says whether it is certain that it was not. STATUS_DENIED: the peer has no such
        channel, or we have no such key. Cancelling the Deferred gives it up. Raises as `call`."""

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
        """The same request to at most GROUP_MAX peers. `wait` "all", "any", "none" or how many must
        succeed; what is still open when that is decided goes on, unless `cancel_rest`. `convert` makes the
        result of a member from its answer, `convert_error` its error. Raises as `call`, ValueError also
        for too many peers or a wrong `wait`."""

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
        """The same message to at most GROUP_MAX peers; a member succeeds when it is delivered.
        Raises as `group_call`."""

    def mint_token(self, host: str, port: int, instance: int, key_id: int) -> bytes:
        """A token (24 bytes, valid 120 s) for a holder at that address with that instance and key: who
        gets it from a third party needs no HELLO with us. Raises GmpError, ValueError for no address."""

    def introduce(self, peer: Peer, instance: int, token: bytes) -> None:
        """A third party vouches for `peer` and brought the token it minted for us: the first message goes
        out at once. A token that is refused costs one HELLO, no message. Needs the key."""

    def writable(self, peer: Peer) -> Deferred[None]:
        """Fires when there is room again towards `peer` after a GmpError with `queue_full`. A peer has
        room for 1024 messages and 4 MiB, all peers together for 64 MiB. Of a group whose members all
        ended with STATUS_BUSY (all groups together have room for 65,536 members), ask for any."""

    def register(self, method: int, handler: Handler) -> None:
        """Serve `method`. The handler gives the answer, or a Deferred or coroutine of it, which is cancelled
        when the caller gives up or its deadline is over. A handler that raises GmpError answers with its
        status and payload; any other exception is logged and answered with status -1."""

    def register_default(self, handler: Handler) -> None:
        """Serve every method without a handler of its own."""

    def on_message(self, channel: int, handler: Callable[[Peer, str, bytes], None]) -> None:
        """Receive plain messages of a channel: handler(peer, principal, payload)."""

    def on_peer_event(self, handler: Callable[[PeerEvent], None]) -> None:
        """Hear of peers that became ready, silent, lost, restarted, or do not know our key."""

    def counters(self) -> dict[str, int]:
        """State and traffic of this endpoint; at least `assoc` (associations), `sockets`, `half_open`."""

    def refused(self) -> list[tuple[str, tuple[int, int, int]]]:
        """Refused datagrams: (host, (under a wrong key, replayed, for tickets that are over)), sums first."""

    def stop(self) -> Deferred[None]:
        """Close the port; pending calls end with GmpError(STATUS_CANCELLED)."""
