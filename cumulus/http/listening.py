"""A listening port of a process that has no descriptor left now and then.

accept(2) fails then as often as it is called, and the socket stays readable: Twisted's port closes waiting
clients by a descriptor that it keeps for that, but once a thread has taken that one, it turns as fast as the
processor allows, with a line of the log each time. Nor has it anything for a system that is out of files or
memory. So this one rests for a moment; clients wait meanwhile, or another process takes them.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Any, Final

from twisted.internet import tcp
from twisted.logger import Logger

from sector.errors import LocalIO, PortInUse, SectorError

log = Logger()

BACKLOG: Final = 1024
REST_S: Final = 0.1
TELL_S: Final = 60.0  # a line of the log at most so often
_LACKING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class _Listening(socket.socket):
    """A listening socket that says that nobody is there when the system has no room for a connection;
    `lacking` is what is missing."""

    lacking: str = ""

    def accept(self) -> tuple[socket.socket, Any]:
        """As the parent."""
        try:
            return super().accept()
        except OSError as bad:
            if bad.errno not in _LACKING:
                raise
            self.lacking = os.strerror(bad.errno)
            raise BlockingIOError(errno.EAGAIN, self.lacking) from None


class RestingPort(tcp.Port):
    """A listening port that rests for `REST_S` when it cannot take a connection."""

    socket: Any
    _resting: Any = None
    _told = -TELL_S

    def startListening(self) -> None:
        """As the parent."""
        super().startListening()
        self.socket = _Listening(fileno=self.socket.detach())
        self.socket.setblocking(False)
        self.fileno = self.socket.fileno  # type: ignore[method-assign]

    def doRead(self) -> None:
        """Take connections, as far as there is room for them."""
        super().doRead()
        lacking, self.socket.lacking = self.socket.lacking, ""
        if lacking:
            self.stopReading()
            self._resting = self.reactor.callLater(REST_S, self._go_on)
            now = self.reactor.seconds()
            if now - self._told >= TELL_S:
                self._told = now
                log.warn("clients wait, no connection can be taken now: {why}", why=lacking)

    def _go_on(self) -> None:
        self._resting = None
        if self.connected and not self.disconnecting:
            self.startReading()

    def connectionLost(self, reason: Any) -> None:
        """As the parent."""
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        super().connectionLost(reason)


def bind_to(host: str, port: int) -> socket.socket:
    """A socket that has the port and refuses connections until `listen`; "::" takes IPv4 too. Raises
    `PortInUse`, `LocalIO`."""
    six = ":" in host
    made = socket.socket(socket.AF_INET6 if six else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if six:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
        made.bind((host, port))
    except OSError as bad:
        made.close()
        raise cannot_listen(host, port, bad) from bad
    return made


def listen(bound: socket.socket) -> None:
    """From now on clients are taken. Raises `PortInUse`: another one that is bound to the port came first."""
    host, port = bound.getsockname()[:2]
    try:
        bound.listen(BACKLOG)
    except OSError as bad:
        raise cannot_listen(host, port, bad) from bad


def listen_on(host: str, port: int) -> socket.socket:
    """Both. Raises `PortInUse`, `LocalIO`."""
    made = bind_to(host, port)
    listen(made)
    return made


def cannot_listen(host: str, port: int, bad: OSError) -> SectorError:
    """What is told of it."""
    kind = PortInUse if bad.errno == errno.EADDRINUSE else LocalIO
    named = (bad.errno or 0) > 0  # otherwise the name was not found
    why = os.strerror(bad.errno or 0) if named else "there is no such host"
    hint = "give a name or an address of this machine as host"
    if bad.errno == errno.EACCES:
        hint = "ports below 1024 are for root: choose a higher one"
    return kind(f"cannot listen on {host} port {port}: {why}", hint=None if kind is PortInUse else hint)
