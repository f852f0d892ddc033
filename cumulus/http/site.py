"""What all connections of a process share: the gateway, the threads, counters, the access log, time-outs."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol, ServerFactory
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from cumulus.errors import S3Error
from cumulus.fair.board import Board, local_board
from cumulus.heap import give_back
from cumulus.http.access_log import AccessLog
from cumulus.http.batches import Batches
from cumulus.http.buffers import Buffers
from cumulus.http.channel import Refuser, S3Channel
from cumulus.http.door import Door
from cumulus.http.held import Held
from cumulus.http.metrics import Metrics, Sample
from cumulus.http.pace import Pacer
from cumulus.http.pool import Pool
from cumulus.http.reply import HeadWriter
from cumulus.http.request import REFUSED, S3Request
from cumulus.http.settings import HttpSettings
from cumulus.rest.call import Gateway

if TYPE_CHECKING:
    from cumulus.http.forward import Forwarder

log = Logger()

_REFUSERS: Final = 256  # connections beyond the most that are answered; the rest are closed unanswered
_LEAVING: Final = 64  # connections that are made to end for others in one turn of the reactor
_LOOKS: Final = 64  # connections of which it is asked, for one that comes, whether all is taken
_TELL_S: Final = 60.0  # a line of the log about them at most so often


def _done(_outcome: Any) -> None:
    pass


class Site(ServerFactory):
    """Makes the channels of one process. `start` before the first connection, `drain` at the end."""

    noisy = False

    def __init__(
        self,
        gateway: Gateway,
        settings: HttpSettings,
        reactor: Any,
        access_log: str = "",
        host_id: str = "",
        board: Board | None = None,
    ) -> None:
        self.gateway = gateway
        self.settings = settings
        self.reactor = reactor
        self.metrics = Metrics(settings.metrics_users)
        self.pool = Pool(reactor, settings.threads, settings.queue)
        # what takes minutes has threads of its own: all others would wait for it
        self.long_pool = Pool(
            reactor, max(1, settings.threads // 2), settings.queue, "cumulus-long", reads=False
        )
        self.batches = Batches(reactor, self.pool, gateway.finish_all)
        self.access_log = AccessLog(access_log, self.pool, reactor, self.metrics)
        self.request_factory: type[S3Request] = S3Request
        self.forwarder: Forwarder | None = None
        self.heads = HeadWriter(host_id or os.urandom(12).hex())
        board = board or local_board()
        self.pacer = Pacer(settings, reactor, board)
        self.buffers = Buffers()
        self.door = Door(board, self.now, settings.max_connections)
        self.channels: set[S3Channel] = set()
        self._silent: dict[S3Channel, None] = {}  # of these, without any request; the oldest first
        self._unproven: dict[S3Channel, None] = {}  # with some, none of a user
        self._leaving: set[S3Channel] = set()
        self.held = Held(self.now)
        self._told_full = -_TELL_S
        self.refusers: set[Refuser] = set()
        self.stopping = False
        self._in_flight: set[Any] = set()
        self._prefix = os.urandom(4).hex().upper()
        self._count = 0
        self._checked = self.now()
        self._sweep = LoopingCall(self._check_all)
        self._sweep.clock = reactor
        self._empty: Deferred[None] | None = None

    def now(self) -> float:
        """Seconds of the reactor's clock."""
        return float(self.reactor.seconds())

    def next_id(self) -> str:
        """A request id: of this process, and new."""
        self._count += 1
        return f"{self._prefix}{self._count:08X}"

    # life -------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Begin to watch time-outs."""
        settings = self.settings
        shortest = min(settings.header_timeout_s, settings.idle_timeout_s, settings.write_timeout_s)
        self._checked = self.now()
        self.door.tell(len(self.channels))
        self._sweep.start(min(1.0, shortest / 4), now=False)
        if self.forwarder is not None:
            self.forwarder.start(self)

    def pass_on(self, forwarder: Forwarder, request_factory: type[S3Request]) -> None:
        """Requests are passed on by `forwarder`, as `request_factory` does it; before `start`."""
        self.forwarder = forwarder
        self.request_factory = request_factory

    def buildProtocol(self, addr: Any) -> Protocol | None:
        """A channel, or, beyond the limits, a refusal, or nothing."""
        if not self.stopping:
            seat = self.pacer.seat(str(getattr(addr, "host", "")))
            if seat.take():
                if len(self.channels) < self.settings.max_connections or self._make_room():
                    return S3Channel(self, seat)
                seat.leave()
        self.metrics.plain["refused_total"] += 1
        most = min(_REFUSERS, max(8, self.settings.max_connections // 4))
        return Refuser(self) if len(self.refusers) < most else None

    def _make_room(self) -> bool:
        """End a connection over which nobody has proved who he is, without any request or with answers that
        were all taken (decision 0296); whether there is one."""
        if len(self._leaving) >= _LEAVING:
            return False
        idle = next((one for one in self._silent if one.quiet), None) or self._all_taken()
        if idle is None:
            return False
        self.closed(idle)
        self._leaving.add(idle)  # its descriptor goes with the next turn
        idle.abort()
        if self.now() - self._told_full >= _TELL_S:
            self._told_full = self.now()
            log.warn("all {most} connections are taken: silent ones end", most=self.settings.max_connections)
        return True

    def _all_taken(self) -> S3Channel | None:
        """One that was answered and has all of it; who has not is asked again after all others."""
        late: list[S3Channel] = []
        found: S3Channel | None = None
        for one in islice((one for one in self._unproven if one.quiet), _LOOKS):
            if one.idle:
                found = one
                break
            late.append(one)
        for one in late:
            del self._unproven[one]
            self._unproven[one] = None
        return found

    def _check_all(self) -> None:
        """While the process stood still (was stopped, or its machine, or its clock set) nobody waited."""
        now = self.now()
        passed, self._checked = min(now - self._checked, 2 * (self._sweep.interval or 0.0)), now
        self.door.tell(len(self.channels))
        for channel in list(self.channels):
            channel.check(now, passed)
        self.held.look()
        dropped = self.buffers.rest()
        if self.pacer.rested() or dropped:
            self.pool.submit(give_back, _done)

    def drain(self, wait_s: float) -> Deferred[None]:
        """Let requests under way finish for up to `wait_s`, then cut them; fires when no connection is left
        and no thread works. Listening must have ended before."""
        self.stopping = True
        self.door.leave()
        for channel in list(self.channels):
            channel.end_if_idle()
        done: Deferred[None] = Deferred()
        self._empty = done
        timer = self.reactor.callLater(wait_s, self._cut_all)
        if not self.channels:
            done.callback(None)

        async def finish() -> None:
            await done
            if timer.active():
                timer.cancel()
            for refuser in list(self.refusers):
                transport: Any = refuser.transport
                transport.abortConnection()
            if self._sweep.running:
                self._sweep.stop()
            if self.forwarder is not None:
                self.forwarder.stop()
            for pool in (self.long_pool, self.pool):
                await pool.when_idle()
            for pool in (self.long_pool, self.pool):
                pool.stop()
            self.access_log.close()

        return Deferred.fromCoroutine(finish())

    def _cut_all(self) -> None:
        for channel in list(self.channels):
            channel.abort()

    # what channels and requests tell ----------------------------------------------------------------------
    def opened(self, channel: S3Channel) -> None:
        """A connection was made."""
        self.channels.add(channel)
        self._silent[channel] = None
        self.door.tell(len(self.channels))

    def closed(self, channel: S3Channel) -> None:
        """A connection is gone."""
        self.channels.discard(channel)
        self._silent.pop(channel, None)
        self._unproven.pop(channel, None)
        self._leaving.discard(channel)
        self.held.free(channel)
        self.door.tell(len(self.channels))
        if self._empty is not None and not self.channels and not self._empty.called:
            self._empty.callback(None)

    def begun(self, request: Any) -> None:
        """A request's head is there."""
        self._in_flight.add(request)
        channel = request.channel
        if channel in self._silent:
            del self._silent[channel]
            self._unproven[channel] = None

    def ended(
        self,
        request: Any,
        operation: str,
        status: int,
        seconds: float,
        received: int,
        sent: int,
        user: str = "",
    ) -> None:
        """It was answered, or its client is gone. `user` is the name of who signed it; who that was of one
        that is passed on its server knows."""
        if user or (self.forwarder is not None and status < REFUSED):
            self._unproven.pop(request.channel, None)
        self.metrics.of_user(user, received, sent)
        self._in_flight.discard(request)
        self.metrics.request(operation or "unknown", status, seconds)
        self.metrics.plain["received_bytes_total"] += received
        self.metrics.plain["sent_bytes_total"] += sent

    def refused(self, peer: str, error: S3Error) -> None:
        """What came from `peer` was no request."""
        self.metrics.request("malformed", error.status, 0.0)
        log.debug("a request of {peer} was refused: {code}", peer=peer, code=error.code)

    def too_slow(self, peer: str, what: str) -> None:
        """A client took or gave too slowly."""
        self.metrics.plain["timeouts_total"] += 1
        log.info("the connection of {peer} is ended: its {what} is too slow", peer=peer, what=what)

    def sample(self) -> Sample:
        """The counters now."""
        self.metrics.plain["connections"] = len(self.channels)
        self.metrics.plain["requests_in_flight"] = len(self._in_flight)
        self.metrics.plain["jobs_waiting"] = self.pool.outstanding + self.long_pool.outstanding
        for name, value in self.pacer.figures().items():
            self.metrics.plain[name] = value
        return self.metrics.sample()
