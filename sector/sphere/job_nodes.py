"""The slaves of a job as its driver sees them: keys, code shipped once, loss and return."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from sector.client.cloud import CloudClient
from sector.clock import pause
from sector.errors import (
    Busy,
    Cancelled,
    Conflict,
    LeaseLost,
    LocalIO,
    NoSpace,
    NotFound,
    SectorError,
    TimedOut,
    Unavailable,
    Unreachable,
)
from sector.gmp.api import TOKEN_BYTES, GmpKey, Peer
from sector.keys import client_slave_key
from sector.resolve import literal_host
from sector.wire.base import Request
from sector.wire.sphere import BlobHave, BlobPut, BlobsMissing, ResultDrop, SpeNode

log = Logger()
BLOB_S = 120.0
KEEP_S = 60.0
SILENCE = (Unreachable, TimedOut)
"""A call failed because the slave, or the way to it, is gone; not for what it said."""
UNFIT = (NoSpace, LocalIO)
"""What a slave says whose disk is full or fails: another can do the work."""
SILENT_TIMES, SILENT_S = 3, 90.0
"""A slave that we alone do not reach is left out after so many calls in a row, over so long."""
LOST = (Unavailable, Cancelled, Unreachable, TimedOut, LeaseLost, Conflict)
"""Ends of an attempt that another one may do better than."""
_shared_keys: dict[int, dict[int, int]] = {}


class Once:
    """One piece of work that several wait for; each gets its outcome."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self.over = self.failed = False
        self._failure: Failure | None = None
        self._waiting: list[Deferred[None]] = []
        Deferred.fromCoroutine(work).addCallbacks(self._done, self._broken)

    def _done(self, _: None) -> None:
        self.over = True
        for waiting in self._waiting:
            if not waiting.called:
                waiting.callback(None)

    def _broken(self, failure: Failure) -> None:
        self.over = self.failed = True
        self._failure = failure
        for waiting in self._waiting:
            if not waiting.called:
                waiting.errback(failure)

    def wait(self) -> Deferred[None]:
        """Fires with the outcome."""
        waiting: Deferred[None] = Deferred()
        if not self.over:
            self._waiting.append(waiting)
        elif self._failure is not None:
            waiting.errback(self._failure)
        else:
            waiting.callback(None)
        return waiting


@dataclass(eq=False)
class NodeLink:
    """One slave: where it is, under which key, whether it has the code. `up` False = not in use now."""

    info: SpeNode
    peer: Peer
    up: bool = True
    lost_at: float = 0.0
    shipping: Once | None = None


class Nodes:
    """All slaves of a job."""

    def __init__(self, client: CloudClient, job: str, blobs: dict[bytes, bytes]) -> None:
        self.client = client
        self.job = job
        self.blobs = blobs
        self.links: dict[str, NodeLink] = {}
        self.left_out: dict[str, str] = {}
        self._keys: set[int] = set()
        self._silent: dict[str, tuple[int, float]] = {}
        self._session = client.session.section.session
        self._kept_at = client.clock.seconds()

    def __getitem__(self, node: str) -> NodeLink:
        return self.links[node]

    @property
    def up(self) -> list[NodeLink]:
        """Slaves in use, by name."""
        return [self.links[name] for name in sorted(self.links) if self.links[name].up]

    @property
    def names_up(self) -> set[str]:
        """Their names."""
        return {link.info.node for link in self.up}

    async def take(self, infos: list[SpeNode]) -> list[tuple[str, bool, bool]]:
        """What the master says now: (node, whether it is new or restarted, whether it knows this client by
        another session now, so that what it was asked before is not answered) for each that is not left out.
        Others stay."""
        news = []
        before, self._session = self._session, self.client.session.section.session
        for info in infos:
            if info.node in self.left_out:
                continue
            known = self.links.get(info.node)
            fresh = known is None or known.info.instance != info.instance
            if fresh or known is None or known.info.key_id != info.key_id:
                host = await literal_host(self.client.clock, info.gmp.host)
                self._install(info)
                link = NodeLink(info, Peer(host, info.gmp.port, info.key_id))
                if len(info.token) == TOKEN_BYTES:
                    self.client.gmp.introduce(link.peer, info.instance, info.token)
                if known is not None and not fresh:
                    link.shipping = known.shipping
                self.links[info.node] = link
            else:
                known.up = True
            news.append((info.node, fresh, before != self._session))
        return news

    def _install(self, info: SpeNode) -> None:
        """Install the key towards a slave. Several jobs of a client share it."""
        users = _shared_keys.setdefault(id(self.client.gmp), {})
        if info.key_id not in self._keys:
            self._keys.add(info.key_id)
            users[info.key_id] = users.get(info.key_id, 0) + 1
        session = self.client.session
        secret = client_slave_key(session.secret, info.node, info.instance, info.key_id)
        principal = (
            f"slave:{info.node}#{session.section.session}"  # slaves, too, know a client by its session
        )
        self.client.gmp.add_key(GmpKey(info.key_id, secret, principal))

    def close(self) -> None:
        """Forget the keys that no other job of this client uses."""
        users = _shared_keys.get(id(self.client.gmp), {})
        for number in self._keys:
            users[number] -= 1
            if not users[number]:
                del users[number]
                self.client.gmp.remove_key(number)
        self._keys.clear()
        if not users:
            _shared_keys.pop(id(self.client.gmp), None)

    def mark_lost(self, node: str) -> bool:
        """A slave does not answer; whether that is news."""
        link = self.links.get(node)
        if link is None or not link.up:
            return False
        link.up = False
        link.lost_at = self.client.clock.seconds()
        return True

    def forgot(self, node: str, error: SectorError) -> bool:
        """Whether a slave says that it does not know the job (any more): what it had of it, code too, is
        gone, and the next `take` finds it new."""
        if not isinstance(error, NotFound) or "does not know job" not in error.message:
            return False
        link = self.links[node]
        link.info = msgspec.structs.replace(link.info, instance=0)
        return True

    def keep(self) -> None:
        """Tell the slaves now and then that the job goes on: those that have nothing to do for it would take
        its driver for dead, and forget it."""
        now = self.client.clock.seconds()
        if now - self._kept_at >= KEEP_S:
            self._kept_at = now
            for link in self.up:
                self.call(link.info.node, ResultDrop(self.job, [])).addErrback(lambda _: None)

    def leave_out(self, node: str, why: str) -> bool:
        """The job does without this slave from now on; whether any is left, though it may be away now."""
        self.left_out.setdefault(node, why[:500])
        self.links[node].up = False
        return any(name not in self.left_out for name in self.links)

    def unanswered(self, node: str) -> bool:
        """A slave that the master calls up did not answer; whether it never will, as far as can be told: an
        outage of a minute and a half costs no slave."""
        now: float = self.client.clock.seconds()
        times, since = self._silent.get(node, (0, now))
        self._silent[node] = (times + 1, since)
        return times + 1 >= SILENT_TIMES and now - since >= SILENT_S

    def answered(self, node: str) -> None:
        """It is there."""
        self._silent.pop(node, None)

    def strangers(self, holders: Iterable[str]) -> bool:
        """Whether input lies on slaves that were not up when the job began, and have not come since."""
        return any(node not in self.links and node not in self.left_out for node in holders)

    @property
    def missed(self) -> bool:
        """Whether one does not answer that is not left out, or all know this client by a former session."""
        if self._session != self.client.session.section.session:
            return True
        return any(not link.up for name, link in self.links.items() if name not in self.left_out)

    def call(self, node: str, request: Request, *, deadline_s: float = 30.0, on_progress: Any = None) -> Any:
        """A request to a slave under the job's key."""
        return self.client.rpc.call(
            self.links[node].peer, request, deadline_s=deadline_s, on_progress=on_progress
        )

    async def patient(self, node: str, request: Request, *, deadline_s: float, tries: int = 5) -> Any:
        """A request that may be repeated while the slave is busy."""
        for attempt in range(tries):
            try:
                return await self.call(node, request, deadline_s=deadline_s)
            except Busy:
                if attempt + 1 == tries:
                    raise
                await pause(self.client.clock, 0.2 * 2**attempt * (0.5 + random.random()))
        raise AssertionError("unreachable")

    def ship(self, node: str) -> Deferred[None]:
        """Fires when the slave has the code; it is shipped once, whoever asks first."""
        link = self.links[node]
        if link.shipping is None or link.shipping.failed:
            link.shipping = Once(self._ship(link))
        return link.shipping.wait()

    async def _ship(self, link: NodeLink) -> None:
        missing: BlobsMissing = await self.patient(link.info.node, BlobHave(self.job), deadline_s=30.0)
        for sha256 in missing.missing:
            request = BlobPut(self.job, sha256, self.blobs[sha256])
            await self.patient(link.info.node, request, deadline_s=BLOB_S)


def is_silence(error: SectorError) -> bool:
    """Whether nobody answered."""
    return isinstance(error, SILENCE)
