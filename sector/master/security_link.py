"""The master's connections to the security server: a few, kept open, mutual TLS; and the audit buffer.

TLS carries one request at a time. What waits for the checking of passwords has connections of its own: behind
it stand neither the news of rights nor a join. A connection that was idle for long is not trusted to live.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore, ensureDeferred
from twisted.logger import Logger

from sector.config import Config
from sector.errors import Busy, Cancelled, SectorError, SecurityAway, Unreachable
from sector.pki import NodeFiles
from sector.tls import TlsCaller, open_tls
from sector.wire.admin import UserAdd, UserPasswd
from sector.wire.base import Request
from sector.wire.login import Audit, AuditEntry, Verify

log = Logger()

FRESH_S = 30.0
AUDIT_LINES = 10_000
AUDIT_BATCH = 50
AUDIT_S = 1.0


class _Lane:
    """`connections` to the security server for one kind of requests, of which at most `waiting` more wait."""

    def __init__(
        self, clock: Any, opened: Callable[[], Awaitable[TlsCaller]], connections: int, waiting: int
    ) -> None:
        self._clock = clock
        self._opened = opened
        self._slots = DeferredSemaphore(connections)
        self._most = connections + waiting
        self._inside = 0
        self._idle: list[tuple[float, TlsCaller]] = []
        self._timer: Any = None
        self._stopped = False

    async def call(self, request: Request) -> Any:
        """The reply to `request`. Raises as `SecurityLink.call`, and `Unreachable`."""
        if self._inside >= self._most:
            raise Busy("too many requests wait for the security server", hint="try again in a few seconds")
        self._inside += 1
        try:
            await self._slots.acquire()
            try:
                return await self._call(request)
            finally:
                self._slots.release()
        finally:
            self._inside -= 1

    async def _call(self, request: Request) -> Any:
        caller, reused = await self._caller()
        try:
            return await caller.call(request)
        except Unreachable:
            if not (reused and type(request).SAFE):
                raise
            caller, _ = await self._caller(fresh=True)
            return await caller.call(request)
        finally:
            if caller.connected and not self._stopped:
                self._idle.append((self._clock.seconds(), caller))
            else:
                caller.close()
            self._give_up_stale()

    def _give_up_stale(self) -> None:
        """Close what nobody needed for FRESH_S (the last returned is the first taken: the rest ages), also
        when no request comes any more."""
        while self._idle and self._clock.seconds() - self._idle[0][0] >= FRESH_S:
            self._idle.pop(0)[1].close()
        if self._idle and (self._timer is None or not self._timer.active()):
            left_s = FRESH_S - (self._clock.seconds() - self._idle[0][0])
            self._timer = self._clock.callLater(left_s, self._give_up_stale)

    async def _caller(self, fresh: bool = False) -> tuple[TlsCaller, bool]:
        while self._idle:
            since, caller = self._idle.pop()
            if not fresh and caller.connected and self._clock.seconds() - since < FRESH_S:
                return caller, True
            caller.close()
        return await self._opened(), False

    def stop(self) -> None:
        """Close what is idle now, and what will be."""
        self._stopped = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        for _, caller in self._idle:
            caller.close()
        self._idle.clear()


class SecurityLink:
    """Calls to the security server; connects when needed, and again after a failure."""

    def __init__(self, config: Config, reactor: Any) -> None:
        self._reactor = reactor
        self._peer = config.security_peer
        self._files = NodeFiles(config, "master", reactor.seconds)
        self._rest = _Lane(reactor, self._opened, connections=2, waiting=256)
        # few checks run at once: who would wait for longer than a few seconds is told at once
        hashes = _Lane(reactor, self._opened, connections=1, waiting=16)
        self._lanes = {
            Verify: _Lane(reactor, self._opened, connections=4, waiting=32),
            UserAdd: hashes,
            UserPasswd: hashes,
        }
        self._asking: set[Deferred[Any]] = set()
        self._stopped = False
        self._change_timer: Any = None
        self.on_change: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"SecurityLink({self._peer})"

    def call(self, request: Request) -> Deferred[Any]:
        """The reply to `request`. Errbacks with the server's error, `SecurityAway`, `TimedOut`, `Busy`."""
        result = ensureDeferred(self._call(request))
        self._asking.add(result)
        result.addBoth(self._asked, result)
        return result

    def _asked(self, outcome: Any, result: Deferred[Any]) -> Any:
        self._asking.discard(result)
        return outcome

    async def _call(self, request: Request) -> Any:
        if self._stopped:
            raise Cancelled("the master stops")
        try:
            return await self._lanes.get(type(request), self._rest).call(request)
        except Unreachable as error:  # users need not know its address
            log.debug("{what} not asked: {why}", what=type(request).__name__, why=error.message)
            raise SecurityAway("the security server does not answer the master") from None

    async def _opened(self) -> TlsCaller:
        peer = self._peer
        self._files.renewed()
        mine, trust = self._files.mine, self._files.trust
        return await open_tls(self._reactor, peer.host, peer.port, trust, mine, "security")

    def changed(self, delay_s: float = 0.3) -> None:
        """A change was made through us: ask the security server for news soon, after the reply is out."""
        if self._stopped or (self._change_timer is not None and self._change_timer.active()):
            return
        self._change_timer = self._reactor.callLater(delay_s, self._tell_change)

    def _tell_change(self) -> None:
        for listener in self.on_change:
            listener()

    async def stop(self) -> None:
        """Cancel what runs and close the connections."""
        self._stopped = True
        if self._change_timer is not None and self._change_timer.active():
            self._change_timer.cancel()
        for result in list(self._asking):
            result.addErrback(lambda failure: failure.trap(CancelledError, SectorError) and None)
            result.cancel()
        for lane in (self._rest, *self._lanes.values()):
            lane.stop()


class AuditBuffer:
    """Lines for the audit log on their way to the security server: kept while it is away, bounded.

    `now()` seconds since 1970. When the buffer is full the oldest lines are dropped and their number
    is itself a line."""

    def __init__(self, link: SecurityLink, clock: Any, now: Callable[[], float], who: str) -> None:
        self._link = link
        self._clock = clock
        self._now = now
        self._who = who
        self._lines: deque[AuditEntry] = deque()
        self._dropped = 0
        self._timer: Any = None
        self._sending: Deferred[None] | None = None
        self._runs = False
        self._stopped = False

    def __len__(self) -> int:
        return len(self._lines)

    def __call__(self, who: str, what: str, detail: str) -> None:
        """Add a line: who did what."""
        self._lines.append(AuditEntry(self._now(), who[:128], what[:128], detail[:1000]))
        while len(self._lines) > AUDIT_LINES:
            self._lines.popleft()
            self._dropped += 1
        self._plan(AUDIT_S)

    def _plan(self, delay_s: float) -> None:
        if self._stopped or self._runs or (self._timer is not None and self._timer.active()):
            return
        self._timer = self._clock.callLater(delay_s, self._send)

    def _send(self) -> Deferred[None]:
        self._runs = True
        self._sending = sending = ensureDeferred(self._flush())
        sending.addErrback(lambda failure: log.failure("audit lines cannot be sent", failure))
        return sending

    async def _flush(self) -> None:
        delay_s = AUDIT_S
        try:
            while self._lines:
                batch = [self._lines[i] for i in range(min(AUDIT_BATCH, len(self._lines)))]
                if self._dropped:
                    text = f"{self._dropped} lines were dropped"
                    batch.insert(0, AuditEntry(self._now(), self._who, "audit gap", text))
                dropped_before, told = self._dropped, len(batch) - bool(self._dropped)
                await self._link.call(Audit(batch))
                if self._dropped == dropped_before:
                    self._dropped = 0
                    for _ in range(told):
                        self._lines.popleft()
                else:
                    gone = self._dropped - dropped_before
                    self._dropped = 0
                    for _ in range(max(0, told - gone)):
                        self._lines.popleft()
        except SectorError as error:
            log.debug("audit lines wait: {why}", why=error.message)
            delay_s = 5.0
        finally:
            self._runs = False
        if self._lines:
            self._plan(delay_s)

    async def stop(self) -> None:
        """Send what is left if the server is there. A connection kept from before may be dead by now, and
        only its first use tells: hence twice."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._stopped = True
        for _ in range(2):
            if self._runs and self._sending is not None:
                await self._sending
            if self._lines:
                await self._send()
