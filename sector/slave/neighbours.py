"""What a slave asks other slaves of a job: over UDP, or through the master where UDP between them is silent.

The request goes around whole: the master passes it on under its own key, which reaches both slaves (over TLS
if it must), and says who asks. Bytes of files never go this way; transfers have TLS of their own.
Source: docs/guide/firewalls.md; docs/decisions/0117.
"""

from __future__ import annotations

from typing import Any

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from sector import errors
from sector.clock import pause
from sector.detour import delivered
from sector.gmp.api import Peer
from sector.rpc import Caller
from sector.slave.context import SlaveContext
from sector.wire.base import Request, decode, encode
from sector.wire.slave import Forward, Forwarded, ForwardReply
from sector.wire.sphere import BETWEEN_SLAVES

log = Logger()
ASK_S = 2.0
"""How long another slave has to acknowledge a message, whatever its program is busy with."""


class Neighbours:
    """The other slaves, as this one reaches them."""

    def __init__(self, context: SlaveContext) -> None:
        self._context = context
        self._wait_s = context.config.data.udp_wait_s
        self._retry_s = max(1.0, context.config.data.udp_retry_s)
        self._around: dict[str, float] = {}
        context.rpc.serve(Forwarded, self._forwarded)

    async def call(self, node: str, peer: Peer, request: Request, deadline_s: float) -> Any:
        """The reply of slave `node`, which listens at `peer`. Raises its errors, Unreachable, TimedOut."""
        known = self._around.get(node)
        if known is not None and self._context.clock.seconds() < known:
            return await self._through_master(node, request, deadline_s)
        try:
            reply = await self._over_udp(peer, request, deadline_s)
        except errors.Unreachable:
            reply = await self._through_master(node, request, deadline_s)
            self._remember(node, peer)
            return reply
        if self._around.pop(node, None) is not None:
            log.info("UDP to slave {node} is answered again; messages go over it", node=node, path="udp")
        return reply

    async def _over_udp(self, peer: Peer, request: Request, deadline_s: float) -> Any:
        """Raises Unreachable also when nothing is acknowledged: its endpoint does so while its program is
        busy, hence a slow answer is waited for and a silent path is not."""
        silent = False
        answer = self._context.rpc.call(peer, request, deadline_s=deadline_s)

        async def look() -> None:
            nonlocal silent
            await pause(self._context.clock, self._wait_s)
            if not await delivered(self._context.gmp, peer, ASK_S):
                silent = True
                answer.cancel()

        looking = Deferred.fromCoroutine(look())
        looking.addErrback(lambda failure: failure.trap(CancelledError))
        try:
            return await answer
        except errors.Cancelled:
            if not silent:
                raise
            raise errors.Unreachable(f"{peer.host}:{peer.port} acknowledges nothing") from None
        finally:
            looking.cancel()

    async def _through_master(self, node: str, request: Request, deadline_s: float) -> Any:
        cls = type(request)
        forward = Forward(self._context.slave_id, node, cls.NUMBER, encode(request))
        reply: ForwardReply = await self._context.master_call(forward, deadline_s=deadline_s)
        return decode(cls.REPLY, reply.body)

    def _remember(self, node: str, peer: Peer) -> None:
        if node not in self._around:
            log.warn(
                "UDP to slave {node} at {host}:{port} gets no answer; messages go through the master "
                "instead: ask your network people for UDP {port} between slaves",
                node=node,
                host=peer.host,
                port=peer.port,
                path="tls",
            )
        self._around[node] = self._context.clock.seconds() + self._retry_s

    async def _forwarded(self, request: Forwarded, caller: Caller) -> ForwardReply:
        """Another slave asks, says a master."""
        self._context.check_master(caller, request)
        if request.method not in BETWEEN_SLAVES:
            raise errors.Denied(f"slaves do not ask one another for {request.method:#x}", hint="")
        asking = msgspec.structs.replace(caller, principal=f"slave:{request.origin}")
        return ForwardReply(await self._context.rpc.answer(request.method, request.body, asking))
