"""Cumulus put together: settings in, a running service out; one process, or a head with worker processes.

With one process everything is in it. With more, the head holds the listening socket, the one writer of the
database and the admin port, and workers serve S3 (decision 0121). `python -m cumulus.service` is a worker.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from twisted.application.service import Service
from twisted.internet import error
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThread
from twisted.logger import Logger
from twisted.python.failure import Failure

from cumulus import detached
from cumulus.admin.clients import url
from cumulus.admin.options import Shared, shared_options
from cumulus.checked import can_append
from cumulus.config import Config
from cumulus.fair.board import Board, make_shared, open_shared
from cumulus.heap import connections_at_most, few_arenas
from cumulus.http.control import Control, adopt, read_line
from cumulus.http.listening import RestingPort, bind_to, cannot_listen, listen
from cumulus.http.metrics import Sample
from cumulus.http.renewal import Renewal
from cumulus.http.settings import HttpSettings
from cumulus.http.site import Site
from cumulus.http.tls import TlsFactory, TlsFiles
from cumulus.http.transport import S3Port
from cumulus.http.workers import CONTROL_FD, LISTENER_FD, SHARES_FD, WorkerPool
from cumulus.opening import tls_of, trust_of
from cumulus.parts import Parts, hosts_of, open_head, open_parts, open_worker
from cumulus.redirect import Balancer
from cumulus.rest.call import Gateway
from cumulus.rest.hops import Hops
from cumulus.storage.api import StorageError
from sector.config import Config as DaemonConfig
from sector.config import LogSection
from sector.errors import LocalIO, SectorError

if TYPE_CHECKING:  # imported where they are made: not every process has them, and each takes a while to load
    from cumulus.http.load_poll import LoadPoller
    from cumulus.web.resource import AdminPage

log = Logger()

FINISH_S: Final = 10.0  # for requests under way at the end
WORKER_END_S: Final = 15.0
BACKGROUND_S: Final = 1.0


def http_settings(config: Config) -> HttpSettings:
    """What each process is told. Connections are to leave open files to requests."""
    server = config.server
    return HttpSettings(
        max_connections=connections_at_most(server.max_connections),
        header_timeout_s=server.header_timeout_s,
        idle_timeout_s=server.idle_timeout_s,
        write_timeout_s=server.write_timeout_s,
        min_body_rate=config.min_body_bytes_per_s,
        total_rate=config.total_bytes_per_s,
        sharing=config.sharing,
        user_limits=config.user_limits,
        address_limits=config.address_limits,
        metrics_users=config.admin.metrics_users,
        proxies=config.proxies,
    )


def secured(site: Any, tls: TlsFiles | None, reactor: Any) -> Any:
    """The factory with TLS around it, if there is one."""
    return site if tls is None else TlsFactory(tls, site, reactor)


class S3Service(Service):
    """The S3 port of one process over a gateway. `listener` becomes its own; `poller` runs as long."""

    def __init__(
        self,
        site: Site,
        reactor: Any,
        listener: socket.socket,
        tls: TlsFiles | None = None,
        poller: LoadPoller | None = None,
    ) -> None:
        self.site = site
        self._poller = poller
        self._reactor = reactor
        self._renewal = Renewal(tls, "S3", reactor) if tls is not None else None
        listener.setblocking(False)
        self.address: tuple[str, int] = listener.getsockname()[:2]
        factory = secured(site, tls, reactor)
        self._port: S3Port = S3Port._fromListeningDescriptor(
            reactor, listener.fileno(), listener.family, factory
        )
        self._port.door = site.door
        listener.close()

    def startService(self) -> None:
        """Serve."""
        super().startService()
        self.site.start()
        for one in (self._poller, self._renewal):
            if one is not None:
                one.start()
        self._port.startListening()

    def stopService(self) -> Deferred[None]:
        """Take no more connections, finish what is under way for up to FINISH_S, end."""
        super().stopService()
        return ensureDeferred(self._stop())

    async def _stop(self) -> None:
        for one in (self._poller, self._renewal):
            if one is not None:
                one.stop()
        closed = self._port.stopListening()
        if closed is not None:
            await closed
        await self.site.drain(FINISH_S)

    def reload(self) -> None:
        """Go on in new log files, with the certificate as it is now."""
        self.site.access_log.reopen()
        if self._renewal is not None:
            self._renewal.read_again()


def _no_access_log(path: str | Path, why: OSError) -> LocalIO:
    hint = "[log] access names a file in a directory that the service may write"
    return LocalIO(f"cannot open the access log {path}: {why.strerror}", hint=hint)


def make_cumulus(
    config: Config,
    reactor: Any,
    gateway: Gateway,
    listener: socket.socket,
    balancer: Balancer | None = None,
    hops: Hops | None = None,
    board: Board | None = None,
    spare: Sequence[str] = (),
) -> S3Service:
    """The S3 port of one process; several of a server share bandwidth by `board`. The loads that `balancer`
    needs are asked for; `hops` has the keys with which a proxy passes requests on. `spare` are
    certificate and key for as long as their files cannot be used. Raises `SectorError` for files it cannot
    use."""
    tls = tls_of(config, "tls", (spare[0].encode("latin-1"), spare[1].encode("latin-1")) if spare else None)
    access = str(config.file(config.log.access)) if config.log.access else ""
    settings = http_settings(config)
    most = settings.max_connections
    if most < config.server.max_connections:
        log.info("at most {most} connections: the limit of open files is too low", most=most)
    try:
        site = Site(gateway, settings, reactor, access, board=board)
    except OSError as bad:
        raise _no_access_log(access, bad) from bad
    if config.redirect.mode == "proxy" and hops is not None:
        from cumulus.http.forward import Forwarder, ForwardingRequest

        forwarder = Forwarder(
            reactor,
            hosts_of(config),
            hops.keys,
            domain=config.server.domain,
            point=config.redirect.point,
            trust=trust_of(config),
            look_at_keys=hops.look,
        )
        site.pass_on(forwarder, ForwardingRequest)
    poller = None
    if balancer is not None and balancer.mode == "least-loaded":
        from cumulus.http.load_poll import LoadPoller

        poller = LoadPoller(reactor, balancer, trust_of(config), deferToThread)
    return S3Service(site, reactor, listener, tls, poller)


class Background:
    """Work that is done every second or so in a thread; one that takes longer is not begun twice."""

    def __init__(self, reactor: Any, work: Callable[[], object]) -> None:
        self._work = work
        self._running: Deferred[Any] | None = None
        self._loop = LoopingCall(self._turn)
        self._loop.clock = reactor
        self._complaint = ""

    def start(self) -> None:
        """Begin."""
        self._loop.start(BACKGROUND_S, now=False)

    def _turn(self) -> Deferred[None]:
        self._running = deferToThread(self._work)
        self._running.addCallbacks(self._fine, self._failed)
        return self._running

    def _fine(self, _result: object) -> None:
        self._complaint = ""

    def _failed(self, failure: Failure) -> None:
        text = f"{failure.type.__name__ if failure.type else ''}: {failure.getErrorMessage()}"
        if text != self._complaint:
            log.error("work in the background failed: {why}", why=text)
        self._complaint = text

    async def stop(self) -> None:
        """Begin no more, and wait for what is under way."""
        if self._loop.running:
            self._loop.stop()
        if self._running is not None and not self._running.called:
            await self._running


class Server(Service):
    """What `cumulus serve` runs: the S3 service in this process or in workers, and the admin port with its
    `page`, if there is one. `ready` fires when all of it serves. Raises `BadConfig` for a certificate that
    cannot be used."""

    def __init__(
        self,
        config: Config,
        reactor: Any,
        parts: Parts,
        *,
        s3: S3Service | None = None,
        pool: WorkerPool | None = None,
    ) -> None:
        self.page: AdminPage | None = None
        self._tls = tls_of(config, "admin")
        self._renewals = [Renewal(self._tls, "the admin port", reactor)] if self._tls is not None else []
        self._config = config
        self._reactor = reactor
        self._s3 = s3
        self._pool = pool
        self._admin: Any = None
        self._parts = parts
        self._background = Background(reactor, parts.work)
        self._healing = Background(reactor, parts.heal)
        self.ready: Deferred[None] = Deferred()
        self.address: tuple[str, int] = ("", 0)
        self.admin_address: tuple[str, int] = ("", 0)

    def keep(self, tls: TlsFiles) -> None:
        """Have ready for workers that start later what was last good."""
        self._renewals.append(Renewal(tls, "new workers", self._reactor))

    def startService(self) -> None:
        """Start S3, then the admin port."""
        super().startService()
        started = ensureDeferred(self._start())
        started.addCallbacks(self.ready.callback, self.ready.errback)

    async def _start(self) -> None:
        from cumulus.http.admin_port import admin_site

        admin = self._config.admin
        away = self._parts.gateway.site.index.away
        site = admin_site(self.samples, self.processes, self._reactor, self.page, away, self.counted)
        try:
            factory = secured(site, self._tls, self._reactor)
            self._admin = RestingPort(admin.port, factory, interface=admin.host, reactor=self._reactor)
            self._admin.startListening()
            for one in self._renewals:
                one.start()
        except error.CannotListenError as bad:
            raise cannot_listen(admin.host, admin.port, bad.socketError) from bad
        host = self._admin.getHost()
        self.admin_address = (host.host, host.port)
        if self._s3 is not None:
            self._s3.startService()
        if self._pool is not None:
            self._pool.start()
            await self._pool.ready
            self._healing.start()
        self._background.start()
        log.info(
            "S3 on {host} port {port}, admin on {admin_host} port {admin_port}",
            host=self.address[0],
            port=self.address[1],
            admin_host=self.admin_address[0],
            admin_port=self.admin_address[1],
        )

    async def samples(self) -> list[Sample]:
        """The counters of each process that serves."""
        found = [self._s3.site.sample()] if self._s3 is not None else []
        return found + (await self._pool.samples() if self._pool is not None else [])

    async def counted(self) -> list[Sample]:
        """The same, with what processes have counted that do not answer or have ended."""
        return await (self.samples() if self._pool is None else self._pool.counted())

    def processes(self) -> tuple[int, int]:
        """How many serve, and how many should."""
        if self._pool is not None:
            return self._pool.up, len(self._pool.workers)
        return (1, 1) if self._s3 is not None and self._s3.running else (0, 1)

    def reload(self) -> None:
        """On SIGHUP."""
        for one in self._renewals:
            one.read_again()
        if self._s3 is not None:
            self._s3.reload()
        if self._pool is not None:
            self._pool.reload()

    def stopService(self) -> Deferred[None]:
        """Fires when requests have ended, and processes, threads and files are closed."""
        super().stopService()
        return ensureDeferred(self._stop())

    async def _stop(self) -> None:
        for one in self._renewals:
            one.stop()
        if self._admin is not None:
            closed = self._admin.stopListening()
            if closed is not None:
                await closed
        if self._s3 is not None and self._s3.running:
            await self._s3.stopService()
        if self._pool is not None:
            self._pool.listener.close()  # when the workers' are closed too, nobody can connect
            await self._pool.stop(WORKER_END_S)
            for fd in self._pool.fds.values():
                os.close(fd)
        if self.page is not None:
            await self.page.stop()
        self._parts.hurry()
        await self._background.stop()
        await self._healing.stop()
        await close_parts(self._parts)


async def close_parts(parts: Parts) -> None:
    """At the end. A last checkpoint that is not possible (a full disk, the database away) is left to the next
    start: all is in the journal."""
    try:
        await deferToThread(parts.close)
    except StorageError as bad:
        log.error("no checkpoint at the end, the next start makes it: {why}", why=str(bad))


def on_hangup(reactor: Any, work: Callable[[], None]) -> None:
    """Do it in the reactor at each SIGHUP."""
    signal.signal(signal.SIGHUP, lambda _number, _frame: reactor.callFromThread(work))


def _check_for_workers(config: Config) -> TlsFiles | None:
    """What each of them would end with is told once, here; their certificate. Raises `BadConfig`,
    `LocalIO`."""
    tls = tls_of(config, "tls")
    if config.log.access:
        path = config.file(config.log.access)
        try:
            can_append(path)
        except OSError as bad:
            raise _no_access_log(path, bad) from bad
    return tls


async def make_server(config: Config, reactor: Any) -> Server:
    """All that `cumulus serve` runs, with the storage recovered. Raises `SectorError`."""
    from cumulus.web.resource import is_wanted, make_page

    listener = bind_to(config.server.host, config.server.port)  # clients wait for nothing: they are refused
    address, count = listener.getsockname()[:2], config.server.workers
    parts = await deferToThread(open_parts if count == 1 else open_head, config)
    try:
        listen(listener)
        if count == 1:
            gateway = parts.gateway
            s3 = make_cumulus(
                config, reactor, gateway, listener, balancer=gateway.balancer, hops=gateway.hops
            )
            server = Server(config, reactor, parts, s3=s3)
        else:
            tls = _check_for_workers(config)
            told = {"config": msgspec.to_builtins(config), "index": parts.socket}
            command = [sys.executable, "-P", "-m", "cumulus.service"]
            shares = make_shared(count)
            clear = open_shared(shares, count).clear

            def gone(number: int) -> None:
                clear(number)
                parts.worker_ended()

            fds, users = {SHARES_FD: shares}, config.admin.metrics_users

            def more() -> dict[str, object]:
                return {} if tls is None else {"tls": [pem.decode("latin-1") for pem in tls.pems]}

            pool = WorkerPool(
                reactor, command, listener, told, count, fds=fds, gone=gone, metrics_users=users, more=more
            )
            server = Server(config, reactor, parts, pool=pool)
            if tls is not None:
                server.keep(tls)
        if is_wanted(config):
            page_config = config.on_port(address[1])
            server.page = make_page(page_config, parts.gateway.site, server.processes, reactor)
    except SectorError:
        await deferToThread(parts.close)
        raise
    server.address = address
    on_hangup(reactor, server.reload)
    return server


def settle() -> None:
    """Once all is built: the collector of cycles passes over what is there now from then on. Each full pass
    over it took 70 ms of a process, in which it answered nothing."""
    gc.collect()
    gc.freeze()


def _daemon(config: Config) -> DaemonConfig:
    return DaemonConfig(log=LogSection(level=config.log.level, format=config.log.format))


def serve(config: Config) -> None:
    """Run the service until SIGTERM or SIGINT. Raises as `run_service`."""
    few_arenas()
    from sector.daemon import run_service

    async def make(reactor: Any) -> Server:
        early: list[bool] = []  # a SIGHUP while journals are replayed ends nothing
        on_hangup(reactor, lambda: early.append(True))
        server = await make_server(config, reactor)
        if early:
            reactor.callLater(0, server.reload)
        settle()
        return server

    run_service(_daemon(config), make, name="cumulus")


@click.command("serve")
@click.argument("directory", metavar="[DIR]", required=False)
@click.option("--workers", metavar="N", type=click.IntRange(1, 256), help="Processes; overrides the file.")
@click.option("--log-format", type=click.Choice(["human", "json"]), help="Overrides the file.")
@click.option("--check-config", is_flag=True, help="Only check settings and the files that they name.")
@click.option("--detach", is_flag=True, help="Return when it serves; see DIR/serve.log or FILE.serve.log.")
@shared_options
@click.pass_obj
def serve_command(
    shared: Shared,
    directory: str | None,
    workers: int | None,
    log_format: str | None,
    check_config: bool,
    detach: bool,
) -> None:
    """Serve S3 in the foreground until SIGTERM, or in the background until `cumulus stop`.

    \b
    Examples:
      cumulus serve /srv/cumulus
      cumulus serve /srv/cumulus --detach
      cumulus serve --config /etc/cumulus.toml --workers 4
    """
    shared.take_directory(directory)
    config = shared.config()
    if workers is not None:
        section = msgspec.structs.replace(config.server, workers=workers)
        config = msgspec.structs.replace(config, server=section)
    if log_format is not None:
        told = msgspec.structs.replace(config.log, format=log_format)
        config = msgspec.structs.replace(config, log=told)
    if check_config:
        shared.check(config)
        return
    if detach:
        _detach(shared, config, workers, log_format)
        return
    try:
        serve(config)
    except SectorError as bad:
        detached.tell(bad)
        raise


def _detach(shared: Shared, config: Config, workers: int | None, log_format: str | None) -> None:
    from cumulus.web.resource import is_wanted, page_url

    options = [f"--workers={workers}"] if workers else []
    options += [f"--log-format={log_format}"] if log_format else []
    pid, log_file = detached.start(config, options)
    where = url(config) if config.server.port else None
    page = page_url(config) if config.admin.port and is_wanted(config) else None
    told = [f"serving {where or 'S3'}", *([f"admin page {page}"] if page else [])]
    text = "; ".join([*told, f"process {pid}", f"log {log_file}"])
    shared.done(text, pid=pid, log=str(log_file), s3=where, page=page)


# a worker -----------------------------------------------------------------------------------------------
class WorkerService(Service):
    """A worker's S3 service, and its end of the control socket: when the head is gone, it ends."""

    def __init__(self, s3: S3Service, parts: Parts, control: socket.socket, reactor: Any) -> None:
        self._s3 = s3
        self._parts = parts
        self._reactor = reactor
        self._background = Background(reactor, parts.work)
        self._control = adopt(reactor, control, Control(self._heard, self._head_gone))
        self._stopping = False

    def startService(self) -> None:
        """Serve, and say so."""
        super().startService()
        self._s3.startService()
        self._background.start()
        self._control.say(ready=True)

    def _heard(self, message: dict[str, Any]) -> None:
        if message.get("do") == "sample":
            self._control.say(sample=msgspec.to_builtins(self._s3.site.sample(), str_keys=True))
        elif message.get("do") == "reload":
            self._s3.reload()

    def _head_gone(self) -> None:
        if not self._stopping:
            log.warn("the head process is gone; this worker ends")
            self._reactor.stop()

    def stopService(self) -> Deferred[None]:
        """Finish and end."""
        super().stopService()
        self._stopping = True
        return ensureDeferred(self._stop())

    async def _stop(self) -> None:
        await self._s3.stopService()
        self._parts.hurry()
        await self._background.stop()
        await close_parts(self._parts)
        self._control.close()


def worker_main() -> int:
    """The main program of a worker process, which the head starts with its two sockets."""
    from sector.daemon import all_descriptors, run_service

    few_arenas()
    all_descriptors()
    for number in (signal.SIGHUP, signal.SIGINT):  # Ctrl-C is the head's, which ends us
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=CONTROL_FD)
    try:
        told = read_line(control)
    except EOFError:
        return 1
    config = msgspec.convert(told["settings"]["config"], Config)
    index: str = told["settings"]["index"]

    async def make(reactor: Any) -> WorkerService:
        parts = await deferToThread(open_worker, config, index)
        listener = socket.socket(fileno=LISTENER_FD)
        gateway = parts.gateway
        board = open_shared(SHARES_FD, config.server.workers, told["worker"])
        os.close(SHARES_FD)
        s3 = make_cumulus(
            config,
            reactor,
            gateway,
            listener,
            balancer=gateway.balancer,
            hops=gateway.hops,
            board=board,
            spare=told.get("tls", ()),
        )
        settle()
        return WorkerService(s3, parts, control, reactor)

    try:
        run_service(_daemon(config), make, name=f"worker {told['worker']}")
    except SectorError as bad:
        if control.fileno() >= 0:
            control.sendall(msgspec.json.encode({"failed": bad.message}) + b"\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(worker_main())
