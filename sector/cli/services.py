"""How the services are put together for `sector.daemon`: settings in, a running part out.

Each function checks what can be checked at once and returns `make(reactor)`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from sector.cli.preflight_local import start_checks
from sector.config import Config
from sector.errors import LocalIO, PortInUse, SectorError

log = Logger()

Make = Callable[[Any], Awaitable[Any]]
PORT_TRIES = 16


class WithCore:
    """A service together with the transport core below it, which ends after it. Looks like the service."""

    def __init__(self, service: Any, core: Any) -> None:
        self._service = service
        self._core = core
        self.ready: Deferred[None] | None = getattr(service, "ready", None)
        self.fatal: Deferred[None] | None = getattr(service, "fatal", None)

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped."""
        return bool(self._service.running)

    def startService(self) -> None:
        """Start the service."""
        self._service.startService()

    def stopService(self) -> Deferred[None]:
        """Stop the service, then the core."""
        return ensureDeferred(self._stop())

    async def _stop(self) -> None:
        try:
            stopped = self._service.stopService()
            if stopped is not None:
                await stopped
        finally:
            await self._core.stop()


def _open(what: Callable[..., Any], core: Any, host: str, port: int, *more: Any) -> Any:
    """A port of the core. Raises `PortInUse`, `LocalIO`."""
    from sector._udt.errors import CoreError
    from sector.client.connect import no_port

    try:
        return what(core, host, port, *more)
    except CoreError as bad:
        text = f"cannot listen at {host}:{port}/udp: {bad}"
        raise (PortInUse(text) if bad.name == "INUSE" else LocalIO(text, hint=no_port(bad).hint)) from None


async def open_data_port(opening: Callable[[], Any], *, any_number: bool) -> Any:
    """The port that `opening()` opens, which takes transfers over TLS at the TCP port of its number too.
    Where somebody else has that: another one if `any_number` will do, else the log says so."""
    from sector._udt.errors import CoreError

    for left in reversed(range(PORT_TRIES)):
        data = opening()
        host, port = data.address
        try:
            data.listen_tls()
            break
        except CoreError as bad:
            if any_number and left and bad.name == "INUSE":
                await data.stop()
                continue
            log.warn(
                "no transfers over TLS: cannot listen at {host}:{port}/tcp: {why}; free it, or set another "
                "udt port in [listen]",
                host=host,
                port=port,
                why=str(bad),
            )
            break
    return data


def make_security_service(config: Config) -> Make:
    """The security server."""
    from sector.security.service import make_security
    from sector.security.store import SecurityStore

    async def make(reactor: Any) -> Any:
        store = SecurityStore.in_thread(config.data_dir / "security.db", reactor)
        return make_security(config, reactor, store)

    return make


def make_master_service(config: Config, rebuild: bool, rebuild_wait_s: float) -> Make:
    """A master; with `rebuild` it recovers its metadata from the slaves first."""
    from sector.tls import load_node

    load_node(config, "master")

    async def make(reactor: Any) -> Any:
        from sector._udt.context import Core
        from sector.gmp.node import open_gmp
        from sector.master.store import SqlStore
        from sector.master.whole import make_master

        core = Core(reactor)
        try:
            gmp = _open(open_gmp, core, config.listen.host, config.listen.gmp)
            store = SqlStore(config.data_dir / "master.db", reactor)
            service = make_master(config, reactor, gmp, store, rebuild=rebuild, rebuild_wait_s=rebuild_wait_s)
        except SectorError:
            await core.stop()
            raise
        return WithCore(service, core)

    return make


def make_slave_service(config: Config, spawner: Any) -> Make:
    """A slave; `spawner` starts its Sphere workers."""
    from sector.tls import load_node

    load_node(config, "slave")

    async def make(reactor: Any) -> Any:
        from sector._udt.context import Core
        from sector._udt.data import open_data
        from sector._udt.paths import paths_of
        from sector._udt.rates import rates_of
        from sector.gmp.api import GmpKey, Peer
        from sector.gmp.node import open_gmp
        from sector.gmp.probe import answers
        from sector.slave.service import make_slave

        for check in await deferToThreadPool(reactor, reactor.getThreadPool(), start_checks, config):
            log.warn("{text}", text=f"{check.text} ({check.remedy})", check=check.name)
        core = Core(reactor)
        try:
            gmp = _open(open_gmp, core, config.listen.host, config.listen.gmp)
            paths, rates = paths_of(config.data, reactor.seconds), rates_of(config.data)
            host, port = config.listen.host, config.listen.udt
            data = await open_data_port(
                lambda: _open(open_data, core, host, port, paths, rates), any_number=port == 0
            )

            def probe(key: GmpKey, peer: Peer, wait_s: float) -> Awaitable[bool]:
                return answers(core, config.listen.host, key, peer, wait_s)

            service = make_slave(config, reactor, gmp, data, spawner, probe=probe)
        except SectorError:
            await core.stop()
            raise
        return WithCore(service, core)

    return make
