"""Asks other servers how much they have to do: GET /load on each admin port, once a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred, ensureDeferred, maybeDeferred
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Protocol
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.client import Agent, ResponseDone
from twisted.web.http import PotentialDataLoss

from cumulus.http.trust import Trust
from cumulus.redirect import Balancer

log = Logger()

EVERY_S: Final = 1.0
ANSWER_S: Final = 2.0  # a server that takes longer is left out
_MOST: Final = 64 * 1024
_NO_REASON: Final = Failure(ConnectionDone())


class Load(msgspec.Struct):
    """What is used of the answer."""

    requests_in_flight: int


class _Body(Protocol):
    """Reads a body of at most _MOST bytes; the connection is closed when there is more, and when nobody waits
    for it any more. `done` has the body."""

    def __init__(self) -> None:
        self._data = b""
        self.done: Deferred[bytes] = Deferred(lambda _done: self.drop())

    def dataReceived(self, data: bytes) -> None:
        """A piece."""
        self._data += data
        if len(self._data) > _MOST and not self.done.called:
            self.drop()
            self.done.errback(ValueError(f"the answer is longer than {_MOST} bytes"))

    def connectionLost(self, reason: Failure = _NO_REASON) -> None:
        """The end of the body, or of the connection."""
        if self.done.called:
            return
        if reason.check(ResponseDone, PotentialDataLoss):
            self.done.callback(self._data)
        else:
            self.done.errback(reason)

    def drop(self) -> None:
        """Read no more."""
        transport: Any = self.transport
        transport.loseConnection()


class LoadPoller:
    """Tells a balancer of least-loaded; a server that does not answer is asked again a second later."""

    def __init__(
        self,
        reactor: Any,
        balancer: Balancer,
        trust: Trust | None = None,
        aside: Callable[[Callable[[], list[str]]], Deferred[list[str]]] = maybeDeferred,
    ) -> None:
        """`trust` says whose certificates count at admin ports with https; None: the system's. `aside` calls
        what looks at the file of servers, which may take its time: in a thread, where that matters."""
        self._reactor = reactor
        self._balancer = balancer
        self._agent = Agent(reactor, trust or Trust(), connectTimeout=ANSWER_S)
        self._aside = aside
        self._looking = False
        self._admins: list[str] = []
        self._asked: dict[str, Deferred[None]] = {}
        self._silent: set[str] = set()
        self._loop = LoopingCall(self._turn)
        self._loop.clock = reactor

    def start(self) -> None:
        """Begin."""
        self._loop.start(EVERY_S)

    def stop(self) -> None:
        """Ask no more; what is under way is forgotten."""
        if self._loop.running:
            self._loop.stop()
        for asked in list(self._asked.values()):
            asked.cancel()

    def _turn(self) -> None:
        """Ask those that are known, and look who is: no later turn waits for that."""
        if not self._looking:
            self._looking = True
            self._aside(self._balancer.admins).addBoth(self._looked)
        self._ask_all()

    def _ask_all(self) -> None:
        for admin in self._admins:
            if admin not in self._asked:
                asked: Deferred[None] = ensureDeferred(self._ask(admin))
                self._asked[admin] = asked
                asked.addTimeout(ANSWER_S, self._reactor)
                asked.addErrback(self._failed, admin)
                asked.addBoth(self._over, admin)

    def _looked(self, admins: list[str] | Failure) -> None:
        self._looking = False
        if isinstance(admins, Failure):
            log.error("who is to be asked stays as it was: {why}", why=admins.getErrorMessage())
            return
        first = not self._admins
        self._admins = admins
        self._silent.intersection_update(admins)
        if first and self._loop.running:
            self._ask_all()

    async def _ask(self, admin: str) -> None:
        url = admin if admin.startswith("https://") else f"http://{admin}"
        response: Any = await self._agent.request(b"GET", f"{url}/load".encode())
        body = _Body()
        response.deliverBody(body)
        if response.code != 200:
            body.done.addErrback(lambda _reason: None)
            body.drop()
            raise ValueError(f"it answers with the status {response.code}")
        load = msgspec.json.decode(await body.done, type=Load)
        if self._balancer.heard(admin, load.requests_in_flight) and admin in self._silent:
            self._silent.discard(admin)
            log.info("the server with the admin port {admin} answers again", admin=admin)

    def _failed(self, failure: Failure, admin: str) -> None:
        self._balancer.lost(admin)
        if self._loop.running and admin not in self._silent:
            self._silent.add(admin)
            why = failure.getErrorMessage() or "no reason is known"
            log.warn("nothing is sent to the server with the admin port {admin}: {why}", admin=admin, why=why)

    def _over(self, _result: object, admin: str) -> None:
        self._asked.pop(admin, None)
