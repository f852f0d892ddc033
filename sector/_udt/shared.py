"""Where endpoints take their core from: one that the caller owns, or the process's own for a reactor.

The shared one starts with the first connection or listener that needs it and stops when the last is gone, so
a program that names endpoints by strings owns nothing and leaves nothing behind.
"""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakKeyDictionary

from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from sector._udt.context import Core

log = Logger()


class CoreSource(Protocol):
    """Gives a running core; each `take` is followed by one `give_back`."""

    reactor: Any

    def take(self) -> Core:
        """The core."""

    def give_back(self) -> Deferred[None]:
        """Not needed any more; fires when what was only held for this user is gone."""


class OwnedCore:
    """A core that somebody else starts and stops."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.reactor = core.reactor

    def take(self) -> Core:
        """The core."""
        return self.core

    def give_back(self) -> Deferred[None]:
        """Nothing to do."""
        return succeed(None)


class SharedCore:
    """A core of the process for one reactor, counted."""

    def __init__(self, reactor: Any) -> None:
        self.reactor = reactor
        self._core: Core | None = None
        self._users = 0
        self._told_reactor = False
        self._stopping: list[Core] = []
        self._waiting: list[Deferred[None]] = []

    def take(self) -> Core:
        """The core, started if nobody uses it yet."""
        if self._core is None:
            self._core = Core(self.reactor)
            self._at_the_end()
        self._users += 1
        return self._core

    def _at_the_end(self) -> None:
        """When the reactor stops, connections that are still there end as those over TCP do: the protocols
        hear of it, the peers too, and nobody waits until a silent peer counts as dead."""
        add = getattr(self.reactor, "addSystemEventTrigger", None)
        if add is not None and not self._told_reactor:
            self._told_reactor = True
            add("during", "shutdown", self._shut)

    def _shut(self) -> None:
        if self._core is not None:
            self._core.shut()

    def give_back(self) -> Deferred[None]:
        """The last one stops it."""
        self._users -= 1
        if self._users or self._core is None:
            return succeed(None)
        core, self._core = self._core, None
        self._stopping.append(core)

        def stopped(result: object) -> None:
            self._stopping.remove(core)
            if isinstance(result, Failure):
                log.failure("the transport core did not stop", result)
            waiting, self._waiting = self._waiting, []
            for done in waiting:
                done.callback(None)

        return ensureDeferred(core.stop()).addBoth(stopped)

    async def settle(self) -> None:
        """Wait for what ends just now: ports on their way out, and the core if they were its last."""
        core = self._core
        if core is not None:
            for handle in core.closing_ports():
                await core.close_port(handle)
        while self._stopping:
            done: Deferred[None] = Deferred()
            self._waiting.append(done)
            await done


_shared: WeakKeyDictionary[Any, SharedCore] = WeakKeyDictionary()


def shared_core(reactor: Any) -> SharedCore:
    """The counted core of a reactor."""
    found = _shared.get(reactor)
    if found is None:
        found = _shared[reactor] = SharedCore(reactor)
    return found


def core_source(core: Any) -> CoreSource:
    """`core` may be a Core, a CoreSource, or a reactor whose shared core is meant."""
    if isinstance(core, Core):
        return OwnedCore(core)
    if isinstance(core, (OwnedCore, SharedCore)):
        return core
    return shared_core(core)
