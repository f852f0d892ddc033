"""When messages to a master go inside TLS, and when over UDP again: for clients and slaves.

UDP counts as blocked when nothing comes back over it while the master answers over TLS: neither to a fresh
UDP port, nor (where only that one is filtered) to our own for longer than its pauses between repeats. A
master that is slow, or was stopped and is back, is no reason to leave UDP.
Source: docs/guide/firewalls.md; docs/decisions/0102.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from sector import errors
from sector.clock import pause
from sector.gmp.api import Gmp, GmpError, Peer
from sector.tls import TlsCaller
from sector.wire.base import Request

log = Logger()
PROBE_S = 0.6
"""Least time that a fresh UDP port waits for the master."""
OWN_S = 10.0
"""How long our own port is waited for where a fresh one is answered; its repeats are at most 8 s apart."""
RETURN_S = 30.0
"""Seconds in a tunnel before UDP is tried for the first time (`udp_retry_s` if that is less); doubles up to
`udp_retry_s`."""


class Way(Protocol):
    """An open tunnel."""

    def close(self) -> None:
        """End it."""


Probe = Callable[[float], Awaitable[bool]]
Blocked = Callable[[], Awaitable[bool]]
OpenWay = Callable[[Blocked, Callable[[], None]], Awaitable[Way | None]]


async def no_probe(wait_s: float) -> bool:
    """Where there is nothing to probe with, silence alone decides."""
    return False


async def delivered(gmp: Gmp, peer: Peer | None, wait_s: float) -> bool:
    """Whether `peer` acknowledges one more message of `gmp`. Its acknowledgement also shows at once that
    those before it were lost, which would be sent again only after growing pauses."""
    try:
        if peer is not None:
            await gmp.send(peer, b"?", deadline_s=wait_s)
    except GmpError:
        return False
    return peer is not None


async def ask_for_way(
    connect: Callable[[], Awaitable[TlsCaller]], blocked: Blocked, request: Callable[[TlsCaller], Request]
) -> TlsCaller | None:
    """A connection to a master that took `request`, ready to carry datagrams; None when it is there and UDP
    is not `blocked()`. Raises what `connect` and the request raise."""
    caller = await connect()
    try:
        if await blocked():
            if not caller.connected:  # a master does not wait as long as that question may take
                caller = await connect()
            await caller.call(request(caller))
            return caller
    except BaseException:
        caller.close()
        raise
    caller.close()
    return None


class Detour:
    """The way that messages to the current master go. `heard` = a datagram of its came; `silent` = then it
    stopped answering."""

    def __init__(
        self,
        clock: Any,
        open_way: OpenWay,
        own: Probe,
        fresh: Probe,
        *,
        retry_s: float = 300.0,
        doubt: bool = False,
        on_begin: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`open_way(blocked, lost)` asks for the tunnel once the master is there over TLS and `blocked()` is
        true (else None; raises SectorErrors); `lost` is called when it breaks. `own(wait_s)` and
        `fresh(wait_s)` tell whether our own port, or a fresh one, is answered over UDP. `doubt`: UDP was
        blocked a moment ago. `on_begin` and `on_end` hear of a tunnel in use and of UDP that works again;
        losing a tunnel is neither."""
        self._clock = clock
        self._open = open_way
        self._own = own
        self._fresh = fresh
        self._retry_s = max(1.0, retry_s)
        self.doubt = doubt
        self._on_begin = on_begin
        self._on_end = on_end
        self._way: Way | None = None
        self._trying = False
        self._closed = False
        self._watch: Deferred[None] | None = None
        self._wait_s = 0.0
        self._returned = float("-inf")
        self.heard = False
        self.silent = False

    @property
    def used(self) -> bool:
        """Whether messages go inside TLS."""
        return self._way is not None

    def begin(self) -> None:
        """Another master, or the same one again: nothing is known of it."""
        self.heard = self.silent = False

    def ready(self) -> None:
        """A datagram of the master's came."""
        self.heard, self.silent = True, False
        if self.doubt and self._way is None:
            self.doubt = False
            self._on_end()

    def suspect(self) -> None:
        """The master's endpoint acknowledges nothing any more; it does while its program is busy."""
        self.silent = True

    async def consider(self) -> bool:
        """A call waits and the master listens for TLS: go around UDP if that is what is silent. Returns
        whether messages go another way from now on."""
        if self._closed or self._trying or self._way is not None or (self.heard and not self.silent):
            return False
        self._trying = True
        began, doubt = self._clock.seconds(), self.doubt
        lost = False

        def over() -> None:
            nonlocal lost
            lost = True
            if self._way is way:
                self._way = None
                self.begin()

        async def blocked() -> bool:
            if doubt or not await self._fresh(max(PROBE_S, 2 * (self._clock.seconds() - began))):
                return True
            return not await self._own(2 * PROBE_S if self._in_vain() else OWN_S)

        way: Way | None = None
        try:
            way = await self._open(blocked, over)
        except errors.SectorError as error:
            log.debug("no way around UDP: {why}", why=error.message)
            return False
        finally:
            self._trying = False
        if way is None:
            self.silent = False
            log.debug("the master answers over UDP again: no way around it is needed")
            return False
        if self._closed or lost:
            way.close()
            return False
        self._way = way
        self.doubt = True
        self._on_begin()
        if not self._in_vain():
            self._wait_s = 0.0
        self._watch = Deferred.fromCoroutine(self._back(way, 0.0 if doubt else self._longer()))
        self._watch.addErrback(lambda failure: failure.trap(CancelledError))
        return True

    def _in_vain(self) -> bool:
        """A fresh port was answered and ours was not, a moment ago."""
        return bool(self._clock.seconds() - self._returned <= 2 * self._retry_s)

    def _longer(self) -> float:
        self._wait_s = min(max(2 * self._wait_s, RETURN_S), self._retry_s)
        return self._wait_s

    async def _back(self, way: Way, wait: float) -> None:
        """Try UDP now and then; leave the tunnel when it is answered."""
        while self._way is way:
            await pause(self._clock, wait)
            if self._way is way and await self._fresh(2 * PROBE_S) and self._way is way:
                self._way = None
                self.doubt = False
                self._returned = self._clock.seconds()
                way.close()
                self._on_end()
                return
            wait = self._longer()

    def close(self) -> None:
        """End the tunnel."""
        self._closed = True
        way, self._way = self._way, None
        if way is not None:
            way.close()
        if self._watch is not None:
            self._watch.cancel()
