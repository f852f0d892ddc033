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


def listen_on(host: str, port: int) -> socket.socket:
    """A listening socket; "::" takes IPv4 too. Raises `PortInUse`, `LocalIO`."""
    try:
        if ":" in host:
            return socket.create_server(
                (host, port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=host == "::"
            )
        return socket.create_server((host, port), backlog=BACKLOG)
    except OSError as bad:
        raise cannot_listen(host, port, bad) from bad


def cannot_listen(host: str, port: int, bad: OSError) -> SectorError:
    """What is told of it."""
    kind = PortInUse if bad.errno == errno.EADDRINUSE else LocalIO
    named = (bad.errno or 0) > 0  # otherwise the name was not found
    why = os.strerror(bad.errno or 0) if named else "there is no such host"
    hint = "give a name or an address of this machine as host"
    if bad.errno == errno.EACCES:
        hint = "ports below 1024 are for root: choose a higher one"
    return kind(f"cannot listen on {host} port {port}: {why}", hint=None if kind is PortInUse else hint)
