"""Asks other servers how much they have to do: GET /load on each admin port, once a second."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.client import Agent, readBody

from cumulus.redirect import Balancer

log = Logger()

EVERY_S: Final = 1.0
ANSWER_S: Final = 2.0  # a server that takes longer is left out
_MOST: Final = 64 * 1024


class Load(msgspec.Struct):
    """What is used of the answer."""

    requests_in_flight: int


class LoadPoller:
    """Tells a balancer of least-loaded; a server that does not answer is asked again a second later."""

    def __init__(self, reactor: Any, balancer: Balancer) -> None:
        self._reactor = reactor
        self._balancer = balancer
        self._agent = Agent(reactor, connectTimeout=ANSWER_S)
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
        admins = self._balancer.admins()
        self._silent.intersection_update(admins)
        for admin in admins:
            if admin not in self._asked:
                asked: Deferred[None] = ensureDeferred(self._ask(admin))
                self._asked[admin] = asked
                asked.addTimeout(ANSWER_S, self._reactor)
                asked.addErrback(self._failed, admin)
                asked.addBoth(self._over, admin)

    async def _ask(self, admin: str) -> None:
        response: Any = await self._agent.request(b"GET", f"http://{admin}/load".encode())
        if response.code != 200 or not isinstance(response.length, int) or response.length > _MOST:
            response._transport.abortConnection()
            raise ValueError(f"status {response.code}, length {response.length}")
        load = msgspec.json.decode(await readBody(response), type=Load)
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
