"""The result of a group call or group send: one outcome per peer, and the moment when the wait rule is
decided (spec/gmp.md section 10). Filled by `node.GmpNode` from events of the core, by `memory.MemoryGmp` from
calls."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from sector.gmp.api import STATUS_CANCELLED, GmpError, Peer

GROUP_MAX = 4096
Wait = Literal["all", "any", "none"] | int


def needed(wait: Wait, members: int) -> int:
    """How many members must succeed. Raises ValueError."""
    if wait == "all":
        return members
    if wait == "any":
        return min(1, members)
    if wait == "none":
        return 0
    if isinstance(wait, bool) or not isinstance(wait, int) or wait < 1:
        raise ValueError(f'wait is "all", "any", "none" or a number from 1, not {wait!r}')
    return wait


@dataclass(frozen=True, slots=True)
class Member:
    """How it ended with one peer. `index` in the list of peers; `error` None when it succeeded, then `result`
    is the answer (of a plain message None); `rtt_s` of the path, None when not known."""

    index: int
    peer: Peer
    result: Any
    error: Exception | None
    rtt_s: float | None

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.error is None


class GroupResult:
    """A group under way. A slow or dead member delays no other.

    `decided` fires with whether the wait rule was met, as soon as it is met or cannot be met any more.
    `done` fires when every member has its outcome, with a list like DeferredList's: (True, result) or (False,
    Failure) in the order of the peers; a peer listed twice counts once and has its outcome at both places.
    `await group` waits for `decided` and gives the list of members so far; `async for member in group` gives
    each member as it ends. Neither Deferred errbacks, unless somebody cancels it: that is `cancel()`, and the
    cancelled Deferred ends with CancelledError at once."""

    def __init__(
        self,
        peers: Sequence[Peer],
        *,
        cancel: Callable[[], None],
        convert: Callable[[Peer, Any], Any] | None = None,
        convert_error: Callable[[Peer, GmpError], Exception] | None = None,
    ) -> None:
        self.peers = list(peers)
        self._first = {peer: index for index, peer in reversed(list(enumerate(self.peers)))}
        self._members: dict[int, Member] = {}
        self._cancel, self._convert, self._convert_error = cancel, convert, convert_error
        self._order: list[Member] = []
        self._readers: deque[Deferred[None]] = deque()
        self._ended = False
        self.met: bool | None = None
        self.decided: Deferred[bool] = Deferred(lambda _: self.cancel())
        self.done: Deferred[list[tuple[bool, Any]]] = Deferred(lambda _: self.cancel())

    @property
    def members(self) -> list[Member]:
        """Those that have ended, in the order in which they did."""
        return list(self._order)

    @property
    def succeeded(self) -> int:
        """How many have succeeded so far; each peer counts once."""
        return sum(member.ok for member in self._order)

    def cancel(self) -> None:
        """Give up the members that are still open. They end with STATUS_CANCELLED, a little later: `decided`
        (False where the rule was not met yet) and `done` follow then. What a peer has begun it may still
        finish. Nothing happens when all have ended."""
        if not self._ended:
            self._cancel()

    def __await__(self) -> Generator[Any, Any, list[Member]]:
        return self._wait().__await__()

    async def _wait(self) -> list[Member]:
        if self.met is None:
            await self._next(lambda: self.met is not None)
        return self.members

    async def __aiter__(self) -> AsyncIterator[Member]:
        at = 0
        while True:
            while at < len(self._order):
                yield self._order[at]
                at += 1
            if self._ended:
                return
            await self._next(lambda seen=at: self._ended or len(self._order) > seen)  # type: ignore[misc]

    async def _next(self, ready: Callable[[], bool]) -> None:
        while not ready():
            reader: Deferred[None] = Deferred()
            self._readers.append(reader)
            await reader

    def _wake(self) -> None:
        readers, self._readers = self._readers, deque()
        for reader in readers:
            if not reader.called:
                reader.callback(None)

    # for the endpoints
    def member_ended(
        self,
        index: int,
        status: int,
        payload: bytes | None,
        rtt_s: float | None,
        *,
        text: str = "",
        not_delivered: bool = False,
    ) -> None:
        """A member has its outcome."""
        if index in self._members or not 0 <= index < len(self.peers):
            return
        peer = self.peers[index]
        result: Any = None
        error: Exception | None = None
        if status == 0:
            try:
                result = self._convert(peer, payload) if self._convert else payload
            except Exception as malformed:
                error = malformed
        else:
            failed = GmpError(status, payload or b"", text, not_delivered=not_delivered)
            error = self._convert_error(peer, failed) if self._convert_error else failed
        member = self._members[index] = Member(index, peer, result, error, rtt_s)
        self._order.append(member)
        self._wake()

    def group_decided(self, met: bool) -> None:
        """The wait rule is met or cannot be met."""
        if self.met is None:
            self.met = met
            if not self.decided.called:
                self.decided.callback(met)
            self._wake()

    def group_done(self, refused: GmpError | None = None) -> None:
        """Every member has its outcome; those that have none end as the group was `refused`, or with the
        endpoint."""
        if self._ended:
            return
        self._ended = True
        for peer, index in self._first.items():
            if index not in self._members:
                failed = refused or GmpError(STATUS_CANCELLED, text="the endpoint was closed")
                error = self._convert_error(peer, failed) if refused and self._convert_error else failed
                self._members[index] = Member(index, peer, None, error, None)
                self._order.append(self._members[index])
        self.group_decided(False)
        rows = [self._members[self._first[peer]] for peer in self.peers]
        if not self.done.called:
            self.done.callback([(row.ok, row.result if row.ok else Failure(row.error)) for row in rows])
        self._wake()
