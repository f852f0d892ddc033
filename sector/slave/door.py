"""A slave's way to its masters over TLS: joining, and messages inside TLS where UDP is blocked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from twisted.logger import Logger

from sector import errors
from sector.config import Config
from sector.detour import Blocked, Detour, Way, ask_for_way, delivered, no_probe
from sector.gmp.api import Gmp, GmpKey, Peer
from sector.model import Address
from sector.pki import NodeFiles, cluster_mark
from sector.tls import TlsCaller, first_that_answers, open_tls, tls_request
from sector.tunnel import ClientTunnel
from sector.tunnel import Gmp as TunnelGmp
from sector.wire.login import Join, Joined, SlaveTunnel

log = Logger()
Probe = Callable[[GmpKey, Peer, float], Awaitable[bool]]


class MasterDoor:
    """Mutual TLS to the masters of the slave's settings. Certificates are read at once (BadConfig)."""

    def __init__(self, config: Config, reactor: Any, gmp: Gmp) -> None:
        self._config = config
        self._reactor = reactor
        self._gmp = gmp
        self._files = NodeFiles(config, "slave", reactor.seconds)
        self.cluster = cluster_mark(self._files.mine.ca)

    async def join(self, request: Join) -> Joined:
        """The first master that answers. Raises Unreachable, NotAllowed, Busy."""

        def ask(address: Address) -> Awaitable[Joined]:
            mine, trust = self._files.mine, self._files.trust
            return tls_request(self._reactor, address.host, address.port, trust, request, mine)

        self._files.renewed()
        joined: Joined = await first_that_answers(self._config.master_peers, ask)
        return joined

    def look(self) -> None:
        """Use the certificate of now, and warn when it will end soon; called often, looks once a minute."""
        self._files.renewed()

    async def tunnel(self, blocked: Blocked, lost: Callable[[], None]) -> Way | None:
        """All messages of this slave go inside TLS from now on; None when a master is there and UDP is not
        `blocked()`. Raises Unreachable, NotFound."""

        def ask(address: Address) -> Awaitable[TlsCaller | None]:
            return ask_for_way(
                lambda: open_tls(
                    self._reactor, address.host, address.port, self._files.trust, self._files.mine
                ),
                blocked,
                lambda caller: SlaveTunnel(self._config.slave.id),
            )

        self._files.renewed()
        caller: TlsCaller | None = await first_that_answers(self._config.master_peers, ask)
        if caller is None:
            return None
        gmp = cast(TunnelGmp, self._gmp)
        begun = caller.switch(lambda transport: ClientTunnel(self._reactor, gmp, transport, lost))
        return cast(ClientTunnel, begun)


class Link:
    """Which master a slave has, and which way its messages to it go."""

    def __init__(
        self, clock: Any, gmp: Gmp, door: MasterDoor | None, probe: Probe | None, retry_s: float
    ) -> None:
        """Without `door` (one process, simulated time) UDP is never left; `probe(key, peer, wait_s)` tells
        whether a master is answered over UDP."""
        self.peer: Peer | None = None
        self._key: GmpKey | None = None
        self._door = door
        self._probe = probe
        self.cluster = door.cluster if door is not None else ""
        self.detour = Detour(
            clock,
            self._open,
            lambda wait_s: delivered(gmp, self.peer, wait_s),
            no_probe if probe is None else self._answers,
            retry_s=retry_s,
            on_begin=self._left_udp,
            on_end=lambda: log.info("UDP to the master is answered again; messages go over it", path="udp"),
        )

    def begin(self, peer: Peer, key: GmpKey) -> None:
        """A master was joined."""
        self.peer, self._key = peer, key
        self.detour.begin()

    def look(self) -> None:
        """The link holds: it may do so for months, in which nothing else looks at the certificate."""
        if self._door is not None:
            self._door.look()

    def event(self, kind: str) -> None:
        """What GMP says of the master: "ready", "suspect" or "lost"."""
        (self.detour.ready if kind == "ready" else self.detour.suspect)()

    async def _open(self, blocked: Blocked, lost: Callable[[], None]) -> Way | None:
        if self._door is None:
            raise errors.Unreachable("there is no way around UDP here")
        return await self._door.tunnel(blocked, lost)

    async def _answers(self, wait_s: float) -> bool:
        if self._probe is None or self.peer is None or self._key is None:
            return False
        return await self._probe(self._key, self.peer, wait_s)

    def _left_udp(self) -> None:
        if self.peer is not None:
            log.warn(
                "UDP to the master at {host}:{port} gets no answer; messages go over TLS instead: ask your "
                "network people for UDP {port}",
                host=self.peer.host,
                port=self.peer.port,
                path="tls",
            )
