"""Keeps the spawner of a slave: hears it, notices its end, and starts another, later each time.

Nothing but the reactor and the spawner's socket; who the workers are is the supervisor's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.logger import Logger

from sector.clock import Timer
from sector.sphere import channel
from sector.sphere.spawner import Spawner

log = Logger()
FIRST_S = 0.5
MOST_S = 60.0
STEADY_S = 60.0
"""A spawner that lived so long ended by an accident: the next one comes at once again."""


class Reader:
    """A descriptor for the reactor; calls back when it is readable."""

    def __init__(self, fd: int, ready: Callable[[], None], name: str) -> None:
        self._fd = fd
        self._ready = ready
        self._name = name

    def fileno(self) -> int:
        return self._fd

    def doRead(self) -> None:
        self._ready()

    def connectionLost(self, reason: Any) -> None:
        """Called when the reactor ends."""

    def logPrefix(self) -> str:
        return self._name


class SpawnerKeeper:
    """`said(message)` hears the spawner, `lost(why)` that it has ended, `back()` that another runs."""

    def __init__(
        self,
        reactor: Any,
        spawner: Spawner,
        said: Callable[[dict[str, Any]], None],
        lost: Callable[[str], None],
        back: Callable[[], None],
    ) -> None:
        self._reactor = reactor
        self._spawner = spawner
        self._said = said
        self._lost = lost
        self._back = back
        self._wait_s = FIRST_S
        self._again: Timer | None = None
        self._reader: Reader | None = None
        self._listen()

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Raises `channel.Closed`, OSError."""
        channel.send(self._spawner.sock, message, fds)

    def stop(self) -> None:
        """End the spawner for good, and with it all workers; returns when it is gone."""
        if self._again is not None and self._again.active():
            self._again.cancel()
        self._unlisten()
        self._spawner.stop()

    def _listen(self) -> None:
        self._begun = self._reactor.seconds()
        self._reader = Reader(self._spawner.sock.fileno(), self._read, "spawner")
        self._reactor.addReader(self._reader)

    def _unlisten(self) -> None:
        if self._reader is not None:
            self._reactor.removeReader(self._reader)
            self._reader = None

    def _read(self) -> None:
        while self._reader is not None:
            try:
                message, fds = channel.receive(self._spawner.sock)
            except BlockingIOError:
                return
            except (channel.Closed, OSError):
                self._ended()
                return
            channel.close_all(fds)
            self._said(message)

    def _ended(self) -> None:
        self._unlisten()
        if self._reactor.seconds() - self._begun >= STEADY_S:
            self._wait_s = FIRST_S
        why = f"the process that starts workers has ended; another is started in {self._wait_s:g} s"
        log.error("sphere: {why}", why=why)
        self._later()
        self._lost(why)

    def _later(self) -> None:
        self._again = self._reactor.callLater(self._wait_s, self._restart)
        self._wait_s = min(MOST_S, 2 * self._wait_s)

    def _restart(self) -> None:
        try:
            self._spawner.restart()
        except OSError as error:
            log.error("sphere: no process that starts workers: {why}", why=str(error))
            self._later()
            return
        self._listen()
        log.info("sphere: workers can be started again")
        self._back()
