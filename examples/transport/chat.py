"""A chat between many: Twisted's LineReceiver, nothing changed, over whatever the endpoint string says.

    python examples/transport/chat.py serve udt:9000
    python examples/transport/chat.py join udt:127.0.0.1:9000 ann

`tcp:9000` and `tcp:127.0.0.1:9000` work just as well: the protocols do not know what carries them.
"""

from __future__ import annotations

import sys

from twisted.internet import reactor, stdio
from twisted.internet.defer import ensureDeferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory, connectionDone
from twisted.protocols.basic import LineReceiver
from twisted.python.failure import Failure


class Seat(LineReceiver):
    """One guest, at the server: the first line is the name, all others go to everybody."""

    delimiter = b"\n"

    def __init__(self, room: set[Seat]) -> None:
        self.room = room
        self.name = b""

    def tell(self, line: bytes) -> None:
        """A line to everybody."""
        for seat in self.room:
            seat.sendLine(line)

    def lineReceived(self, line: bytes) -> None:
        if self.name:
            self.tell(self.name + b": " + line)
            return
        self.name = line or b"nobody"
        self.room.add(self)
        self.tell(self.name + b" is here")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self in self.room:
            self.room.discard(self)
            self.tell(self.name + b" has left")


class Room(Factory):
    """All guests."""

    def __init__(self) -> None:
        self.seats: set[Seat] = set()

    def buildProtocol(self, addr: object) -> Seat:
        return Seat(self.seats)


class Keyboard(LineReceiver):
    """Standard input to the server."""

    delimiter = b"\n"

    def __init__(self, guest: Guest) -> None:
        self.guest = guest

    def lineReceived(self, line: bytes) -> None:
        self.guest.sendLine(line)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.guest.transport.loseConnection()


class Guest(LineReceiver):
    """The client: prints what comes."""

    delimiter = b"\n"

    def __init__(self, name: str) -> None:
        self.name = name.encode()

    def connectionMade(self) -> None:
        self.sendLine(self.name)
        stdio.StandardIO(Keyboard(self))

    def lineReceived(self, line: bytes) -> None:
        print(line.decode(errors="replace"), flush=True)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if reactor.running:
            reactor.stop()


async def begin(what: str, where: str, name: str) -> None:
    """Serve or join."""
    if what == "serve":
        port = await serverFromString(reactor, where).listen(Room())
        print(f"listening at {port.getHost().port}", flush=True)
    else:
        await clientFromString(reactor, where).connect(Factory.forProtocol(lambda: Guest(name)))


def main(what: str, where: str, name: str = "somebody") -> int:
    """Until the connection ends, or for ever; the exit status."""
    status = 0

    def failed(failure: Failure) -> None:
        nonlocal status
        status = 1
        print(f"chat: {failure.getErrorMessage()}", file=sys.stderr)
        reactor.callLater(0, reactor.stop)

    ensureDeferred(begin(what, where, name)).addErrback(failed)
    reactor.run()
    return status


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("serve", "join"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:4]))
