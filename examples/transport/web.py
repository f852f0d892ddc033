"""A folder over HTTP over UDT: twisted.web's server and client, unchanged, on `udt:` endpoints.

    python examples/transport/web.py serve udt:8080 .
    python examples/transport/web.py get udt:127.0.0.1:8080 /README.md > copy.md

Over a long line with some loss a large file arrives many times faster than over TCP, and the programs are the
same.
"""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.client import Agent, ResponseDone
from twisted.web.iweb import IAgentEndpointFactory
from twisted.web.server import Site
from twisted.web.static import File
from zope.interface import implementer


@implementer(IAgentEndpointFactory)
class Through:
    """Every request of an Agent goes through one endpoint."""

    def __init__(self, where: str) -> None:
        self.where = where

    def endpointForURI(self, uri: object) -> Any:
        """The endpoint."""
        return clientFromString(reactor, self.where)


class Output(Protocol):
    """A body to standard output."""

    def __init__(self) -> None:
        self.done: Deferred[None] = Deferred()

    def dataReceived(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if reason.check(ResponseDone):
            sys.stdout.buffer.flush()
            self.done.callback(None)
        else:
            self.done.errback(reason)


async def get(where: str, path: str) -> None:
    """Print one file."""
    agent = Agent.usingEndpointFactory(reactor, Through(where))
    response = await agent.request(b"GET", b"http://udt" + path.encode())
    if response.code != 200:
        raise SystemExit(f"the server says {response.code} {response.phrase.decode()}")
    output = Output()
    response.deliverBody(output)
    await output.done


async def serve(where: str, folder: str) -> None:
    """Serve a folder."""
    port = await serverFromString(reactor, where).listen(Site(File(folder)))
    print(f"listening at {port.getHost().port}", flush=True)


def main(what: str, where: str, thing: str) -> int:
    """Serve or get; the exit status."""
    status = 0

    def failed(failure: Failure) -> None:
        nonlocal status
        status = 1
        print(f"web: {failure.getErrorMessage()}", file=sys.stderr)
        if what == "serve":
            reactor.callLater(0, reactor.stop)

    work = ensureDeferred(get(where, thing) if what == "get" else serve(where, thing)).addErrback(failed)
    if what == "get":
        work.addBoth(lambda _: reactor.callLater(0, reactor.stop))
    reactor.run()
    return status


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("serve", "get"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
