"""What the head and a worker process say to one another: lines of JSON over a socket pair.

Head to worker: `{"settings": …}` once, then `{"do": "sample"}` and `{"do": "reload"}`. Worker to head:
`{"ready": true}` or `{"failed": text}`, then `{"sample": …}` for each question, in order.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.protocol import Factory
from twisted.protocols.basic import LineOnlyReceiver

LINE_MAX: Final = 32 << 20  # 10,000 users of 64 characters with counters of their own are 9 MB


class Control(LineOnlyReceiver):
    """One end. `heard(message)` for each line, `lost()` when the other end is gone."""

    delimiter = b"\n"
    MAX_LENGTH = LINE_MAX

    def __init__(self, heard: Callable[[dict[str, Any]], None], lost: Callable[[], None]) -> None:
        self._heard = heard
        self._lost = lost

    def say(self, **message: Any) -> None:
        """Tell the other end."""
        transport: Any = self.transport
        transport.write(json.dumps(message).encode() + b"\n")

    def lineReceived(self, line: bytes) -> None:
        """The other end said something."""
        self._heard(json.loads(line))

    def connectionLost(self, reason: Any = None) -> None:
        """The other process has ended, or closes."""
        self._lost()

    def close(self) -> None:
        """Say no more."""
        transport: Any = self.transport
        transport.loseConnection()


class _One(Factory):
    noisy = False

    def __init__(self, control: Control) -> None:
        self._control = control

    def buildProtocol(self, addr: Any) -> Control:
        return self._control


def adopt(reactor: Any, sock: socket.socket, control: Control) -> Control:
    """Let `control` speak over the socket, which becomes the reactor's."""
    sock.setblocking(False)
    reactor.adoptStreamConnection(sock.fileno(), socket.AF_UNIX, _One(control))
    sock.close()
    return control


def read_line(sock: socket.socket) -> dict[str, Any]:
    """The first line, read without a reactor. Raises `EOFError` when the other end is gone."""
    line = bytearray()
    while not line.endswith(b"\n"):
        part = sock.recv(1)
        if not part or len(line) > LINE_MAX:
            raise EOFError("the head process is gone")
        line += part
    message: dict[str, Any] = json.loads(line)
    return message
