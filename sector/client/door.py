"""How sessions begin, go on and end at a master: TLS 1.3 (spec/security.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

from sector import errors
from sector.config import Config, parse_address
from sector.detour import Blocked, ask_for_way
from sector.keys import resume_proof
from sector.model import Address
from sector.resolve import is_refused
from sector.tls import (
    TlsCaller,
    Trust,
    first_that_answers,
    open_tls,
    tls_proved,
    tls_request,
    tls_resume,
)
from sector.tunnel import ClientTunnel
from sector.tunnel import Gmp as TunnelGmp
from sector.wire.base import Request
from sector.wire.login import ActFor, Login, Logout, Tunnel
from sector.wire.login import Session as Granted


class Door(Protocol):
    """How sessions begin: TLS to a master, or its equivalent in one process."""

    def login(self, user: str, password: str) -> Awaitable[Granted]:
        """A new session with its secret. Raises LoginRefused, Busy, Unreachable."""

    def resume(self, session_id: bytes, secret: bytes) -> Awaitable[Granted]:
        """The same session (its `secret` empty). Raises SessionExpired, Unreachable."""

    def tunnel(
        self,
        session_id: bytes,
        secret: bytes,
        gmp: TunnelGmp,
        blocked: Blocked,
        lost: Callable[[], None],
    ) -> Awaitable[ClientTunnel | None]:
        """A way for GMP's datagrams inside TLS; None when the master is there and UDP is not `blocked()`.
        Raises SessionExpired, Busy, Unreachable, Protocol."""

    def look(self) -> Awaitable[None]:
        """Raises Unreachable when it is certain that no master runs: all refuse connections."""


class TlsDoor:
    """Sessions over TLS 1.3 with the masters of the client's settings (spec/security.md)."""

    def __init__(self, reactor: Any, config: Config) -> None:
        """Raises BadConfig when there is no master or no CA to check it by."""
        client = config.client
        if not client.masters:
            raise errors.BadConfig(
                "no master is known", hint="run sector login HOST:PORT --ca FILE, or sector up"
            )
        if not client.ca and not client.ca_sha256:
            raise errors.BadConfig(
                "the cluster's CA is not known", hint="run sector login HOST:PORT --ca FILE (or --ca-sha256)"
            )
        self._reactor = reactor
        self._addresses = [parse_address(text, 7001) for text in client.masters]
        self._trust = Trust.load(config.file(client.ca) if client.ca else None, client.ca_sha256)

    async def login(self, user: str, password: str) -> Granted:
        def ask(address: Address) -> Awaitable[Granted]:
            request = Login(user, password)
            return tls_request(self._reactor, address.host, address.port, self._trust, request)

        granted: Granted = await first_that_answers(self._addresses, ask)
        return granted

    async def resume(self, session_id: bytes, secret: bytes) -> Granted:
        def ask(address: Address) -> Awaitable[Granted]:
            return tls_resume(self._reactor, address.host, address.port, self._trust, session_id, secret)

        granted: Granted = await first_that_answers(self._addresses, ask)
        return granted

    async def act_for(self, session_id: bytes, secret: bytes, user: str) -> Granted:
        """A session for another user, under that of a service account. Raises Denied, SessionExpired, Busy,
        Unreachable."""
        return cast(Granted, await self._proved(secret, lambda proof: ActFor(session_id, proof, user)))

    async def logout(self, session_id: bytes, secret: bytes) -> None:
        """End a session. Raises SessionExpired, Busy, Unreachable."""
        await self._proved(secret, lambda proof: Logout(session_id, proof))

    async def _proved(self, secret: bytes, make: Callable[[bytes], Request]) -> Any:
        def ask(address: Address) -> Awaitable[Any]:
            return tls_proved(self._reactor, address.host, address.port, self._trust, secret, make)

        return await first_that_answers(self._addresses, ask)

    async def tunnel(
        self,
        session_id: bytes,
        secret: bytes,
        gmp: TunnelGmp,
        blocked: Blocked,
        lost: Callable[[], None],
    ) -> ClientTunnel | None:
        def ask(address: Address) -> Awaitable[TlsCaller | None]:
            return ask_for_way(
                lambda: open_tls(self._reactor, address.host, address.port, self._trust),
                blocked,
                lambda caller: Tunnel(session_id, resume_proof(secret, caller.exporter())),
            )

        caller: TlsCaller | None = await first_that_answers(self._addresses, ask)
        if caller is None:
            return None
        begun = caller.switch(lambda transport: ClientTunnel(self._reactor, gmp, transport, lost))
        return cast(ClientTunnel, begun)

    async def look(self) -> None:
        for address in self._addresses:
            if not await is_refused(self._reactor, address.host, address.port):
                return
        raise errors.Unreachable(f"connection to {self._addresses[0]} refused")
