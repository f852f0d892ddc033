"""The master's TLS door: login and resume of clients, join of slaves; and the end of sessions.

Source: spec/security.md, TLS channels and Sessions.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any, Protocol, cast

from twisted.application.service import MultiService
from twisted.internet import error
from twisted.internet.defer import CancelledError, Deferred, ensureDeferred, maybeDeferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from sector._udt.errors import CoreError
from sector.config import Config, cannot_listen
from sector.errors import (
    BadConfig,
    Busy,
    Damaged,
    Denied,
    LoginRefused,
    NotAllowed,
    NotFound,
    SectorError,
    SessionExpired,
    UsageError,
)
from sector.gmp.api import Gmp, GmpKey, Peer
from sector.keys import SECRET_BYTES
from sector.master.admission import Admission
from sector.master.security_link import SecurityLink
from sector.master.sessions import SessionRow, Sessions, outdated
from sector.model import Address, Right
from sector.pki import NodeFiles
from sector.tls import Raw, Switch, TlsPeer, TlsServer, literal, site
from sector.tunnel import Aliases, MasterTunnel
from sector.tunnel import Gmp as TunnelGmp
from sector.wire import login
from sector.wire.base import Ok, Request

log = Logger()

WATCH_S = 2.0
EXPIRE_S = 30.0
RELOAD_S = 5.0
_TUNNELS = 512
_TUNNEL_IDLE_S = 120.0
_KNOCKS = 32
_KNOCK_S = 2.0


class SessionStore(Protocol):
    """What of the master's database is needed here."""

    def session_add(self, row: SessionRow) -> Deferred[None]:
        """Keep a session."""

    def session_all(self) -> Deferred[list[SessionRow]]:
        """All that are kept."""

    def session_drop(self, ids: list[bytes]) -> Deferred[None]:
        """Forget sessions."""


def single_network(address: str) -> str:
    """The CIDR that holds exactly one address."""
    return f"{address}/{ip_address(address).max_prefixlen}"


def _over(row: SessionRow) -> SectorError:
    """What is said of a session that ended before it was given out."""
    if row.via:
        return SessionExpired("the session has ended")
    return LoginRefused("user name or password is wrong, or this address may not log in")


def load_cluster_key(config: Config) -> bytes:
    """The key (32 bytes, hex in a file) that seals session secrets in the database. Raises `BadConfig`."""
    path = config.file(config.master.cluster_key)
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except OSError as bad:
        raise BadConfig(f"{path}: cannot be read: {bad.strerror}") from None
    except ValueError:
        raise BadConfig(f"{path}: is not a key in hex") from None
    if len(key) != SECRET_BYTES:
        raise BadConfig(f"{path}: has {len(key)} bytes, not {SECRET_BYTES}")
    return key


def make_sessions(config: Config, now: Callable[[], float] = time.time) -> Sessions:
    """The session table of a master with its cluster key. Raises `BadConfig`."""
    master = config.master
    key = load_cluster_key(config)
    return Sessions(master.id, key, now, os.urandom, master.issuer, master.session_hours * 3600)


def make_login_service(
    config: Config,
    reactor: Any,
    sessions: Sessions,
    link: SecurityLink,
    gmp: Gmp,
    store: SessionStore,
    on_join: Callable[[login.Join, str], Awaitable[login.Joined]],
    on_closed: Callable[[list[SessionRow]], None] | None = None,
    on_node_removed: Callable[[str], None] | None = None,
    on_rights: Callable[[dict[str, tuple[Right, ...]]], None] | None = None,
) -> LoginService:
    """The TLS door of a master. `on_join(join, address)` answers an allowed slave; `on_closed(rows)` hears
    of sessions that ended (their keys are gone already); `on_node_removed("slave:ID")` of nodes taken from
    their list; `on_rights(user -> all his directory rights)` of changes (a removed user has none)."""
    return LoginService(
        config, reactor, sessions, link, gmp, store, on_join, on_closed, on_node_removed, on_rights
    )


class LoginService(MultiService):
    """Serves Login, Resume and Join. `ready` fires when it does, or errbacks with what hinders it."""

    def __init__(
        self,
        config: Config,
        reactor: Any,
        sessions: Sessions,
        link: SecurityLink,
        gmp: Gmp,
        store: SessionStore,
        on_join: Callable[[login.Join, str], Awaitable[login.Joined]],
        on_closed: Callable[[list[SessionRow]], None] | None,
        on_node_removed: Callable[[str], None] | None,
        on_rights: Callable[[dict[str, tuple[Right, ...]]], None] | None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ready: Deferred[None] = Deferred()
        self._config = config
        self._reactor = reactor
        self._sessions = sessions
        self._link = link
        self._gmp = gmp
        self._store = store
        self._on_join = on_join
        self._on_closed = on_closed
        self._on_node_removed = on_node_removed
        self._on_rights = on_rights
        per_s = config.master.logins_per_s
        self._admission = Admission(per_s, max(1.0, per_s))
        self._serial = 0
        self._tunnels = 0
        self._knocks = 0
        self._slave_tunnels: dict[str, MasterTunnel] = {}
        self.slave_address: Callable[[str], tuple[str, int] | None] = lambda slave_id: None
        """GMP address (IP literal, port) of a slave that has joined, None for any other."""
        self.aliases = Aliases()
        """The addresses that clients in tunnels have here."""
        self.slaves: Callable[[], set[tuple[str, int]]] = set
        """GMP addresses (IP literal, port) of the slaves, which tunnels may reach."""
        self._watching: Deferred[None] | None = None
        self._watch_runs = False
        self._watch_again = False
        self._timers: dict[str, Any] = {}
        self._reloaded = float("-inf")
        self._reading = 0
        self._ended: set[bytes] = set()  # sessions that may still be read from the database
        self._dropped: set[bytes] = set()  # those of them that only a read that began before may bring
        self._undropped: set[bytes] = set()  # those of them that are to be dropped again
        self._hearing: list[dict[str, int]] = []
        self._port: Any = None
        self._starting: Deferred[None] | None = None
        files = NodeFiles(config, "master", reactor.seconds)
        handlers: dict[type[Request], Any] = {
            login.Login: self.serve_login,
            login.Resume: self.serve_resume,
            login.ActFor: self.serve_act_for,
            login.Logout: self.serve_logout,
            login.Tunnel: self.serve_tunnel,
            login.Join: self.serve_join,
            login.Preflight: self.serve_preflight,
            login.SlaveTunnel: self.serve_slave_tunnel,
        }
        self.server = TlsServer(
            reactor, files.mine, files.trust, handlers, idle_s=10.0, renewed=files.renewed
        )

    # life -------------------------------------------------------------------------------------------
    @property
    def address(self) -> tuple[str, int]:
        """(host, port) of the TLS listener."""
        host = self._port.getHost()
        return host.host, host.port

    def startService(self) -> None:
        """Load the sessions, listen, watch for changed rights; see `ready`."""
        super().startService()  # type: ignore[no-untyped-call]
        self._starting = ensureDeferred(self._start())
        self._starting.addCallbacks(self.ready.callback, self.ready.errback)

    async def _start(self) -> None:
        await self.reload()
        listen = self._config.listen
        try:
            self._port = self._reactor.listenTCP(
                listen.tls, self.server.listener(), interface=listen.host, backlog=1024
            )
        except error.CannotListenError as bad:
            raise cannot_listen(f"{listen.host}:{listen.tls}", bad.socketError) from None
        self._link.on_change.append(self.watch)
        self.watch()
        self._later("expire", EXPIRE_S, self._expire)

    def stopService(self) -> Deferred[None]:
        """Fires when the port, connections and timers are gone."""
        return ensureDeferred(self._stop())

    async def _stop(self) -> None:
        stopped: Any = MultiService.stopService(self)
        await stopped
        if self.watch in self._link.on_change:
            self._link.on_change.remove(self.watch)
        for timer in self._timers.values():
            if timer.active():
                timer.cancel()
        self.ready.addErrback(lambda failure: None)
        if self._starting is not None:
            self._starting.cancel()
        if self._watching is not None:
            self._watching.cancel()
        if self._port is not None:
            await maybeDeferred(self._port.stopListening)
        self.server.close_all()

    def _later(self, name: str, delay_s: float, function: Callable[[], None]) -> None:
        timer = self._timers.get(name)
        if timer is not None and timer.active():
            timer.cancel()
        if self.running:
            self._timers[name] = self._reactor.callLater(delay_s, function)

    async def reload(self) -> None:
        """Take the sessions of the database, but for those that ended here; a restart loses none."""
        self._reloaded = self._reactor.seconds()
        self._reading += 1
        try:
            kept = await self._store.session_all()
        finally:
            self._reading -= 1
        before = {row.id for row in self._sessions.rows()}
        over = self._sessions.load(row for row in kept if row.id not in self._ended)
        unusable = []
        for row in self._sessions.rows():
            if row.id in before:
                continue
            try:
                self._gmp.add_key(self._sessions.gmp_key(row))
            except Damaged:
                unusable.append(row)
        if unusable:
            log.warn("{count} sessions do not open with this cluster key", count=len(unusable))
            self._sessions.close([row.id for row in unusable])
        gone = [row.id for row in (*over, *unusable)]
        if gone:
            await self._drop(gone)

    def counters(self) -> dict[str, int]:
        """For `status`: sessions, TLS connections, those still in their handshake."""
        half_open = sum(not protocol.established for protocol in self.server.open)
        return {"sessions": len(self._sessions), "tls": len(self.server.open), "tls_half_open": half_open}

    # requests ---------------------------------------------------------------------------------------
    def _admit(self, peer: TlsPeer) -> None:
        wait = self._admission.admit(self._reactor.seconds(), random.random(), site(peer.address))
        if wait > 0:
            raise Busy("many clients log in at once", hint=f"try again in {wait:.1f} s")

    async def serve_login(self, request: login.Login, peer: TlsPeer) -> login.Session:
        """Name and password to the security server, a new session to the client."""
        self._admit(peer)
        with self._changes() as changed:
            verified = await self._link.call(login.Verify(request.user, request.password, peer.address))
        row, secret = self._sessions.create(verified, single_network(peer.address))
        row = await self._keep(row, changed)
        log.info("{user} logged in from {address}", user=row.user, address=peer.address)
        return self._session(row, secret)

    @contextmanager
    def _changes(self) -> Iterator[dict[str, int]]:
        """The changes (user -> rights_epoch) that come while the security server is asked: they end no
        session that is begun with its answer, which may be older."""
        changed: dict[str, int] = {}
        self._hearing.append(changed)
        try:
            yield changed
        finally:
            self._hearing = [one for one in self._hearing if one is not changed]

    async def _keep(self, row: SessionRow, changed: dict[str, int]) -> SessionRow:
        """Store a new session, and know its key from then on; the session as it is by then. Raises what
        `_over` says when one of `changed`, or of those that come meanwhile, ended it."""
        try:
            if outdated(row, changed):
                raise _over(row)
            await self._store.session_add(row)
        except BaseException as error:
            self._sessions.close([row.id])
            if isinstance(error, CancelledError):  # it may be stored all the same
                self._drop([row.id])
            raise
        now = self._sessions.get(row.id)
        if now is None:
            raise _over(row)
        self._gmp.add_key(self._sessions.gmp_key(now))
        return now

    async def serve_resume(self, request: login.Resume, peer: TlsPeer) -> login.Session:
        """A client that proves its secret gets its session's data again, without a password."""
        row = await self._proved(request, peer)
        self._gmp.add_key(self._sessions.gmp_key(row))
        return self._session(row, b"")

    async def _proved(self, request: login.Resume | login.ActFor | login.Logout, peer: TlsPeer) -> SessionRow:
        """The session whose secret was proved on this connection. Raises `Busy`, `SessionExpired`."""
        if self._sessions.get(request.session_id) is None:
            if self._reactor.seconds() - self._reloaded < RELOAD_S:
                raise SessionExpired("the session has ended")
            await self.reload()
        row = self._sessions.resume(request.session_id, request.proof, peer.exporter, peer.address)
        self._admit(peer)  # who proves nothing takes no turn of those who do
        return row

    async def serve_act_for(self, request: login.ActFor, peer: TlsPeer) -> login.Session:
        """A session for another user, to a service account that the security server vouches for."""
        mine = await self._proved(request, peer)
        if mine.via:
            raise Denied(f"this session is {mine.via}'s, for {mine.user}; it cannot act for others")
        asked = login.Vouch(mine.user, request.user, peer.address)
        with self._changes() as changed:
            vouched: login.Vouched = await self._link.call(asked)
        if self._sessions.get(mine.id) is None:  # it ended while we asked
            raise SessionExpired("the session has ended")
        given = login.Verified(vouched.user, ["user"], vouched.rights, vouched.rights_epoch)
        cidr = single_network(peer.address)
        row, secret = self._sessions.create(given, cidr, mine.user, vouched.service_epoch)
        row = await self._keep(row, changed)
        log.info("{who} acts for {user} from {address}", who=mine.user, user=row.user, address=peer.address)
        return self._session(row, secret)

    async def serve_logout(self, request: login.Logout, peer: TlsPeer) -> Ok:
        """End a session before its time; the answer waits for the database, so that no restart knows it."""
        row = await self._proved(request, peer)
        await self._end(self._sessions.close([row.id]))
        return Ok()

    async def serve_tunnel(self, request: login.Tunnel, peer: TlsPeer) -> Switch:
        """A client whose UDP is blocked sends its datagrams over this connection from now on."""
        self._check_tunnels()
        await self.serve_resume(login.Resume(request.session_id, request.proof), peer)
        log.info("{address} gets no answer over UDP; its messages come over TLS", address=peer.address)
        return Switch(Ok(), self._begin_tunnel, _TUNNEL_IDLE_S)

    def _check_tunnels(self) -> None:
        if self._tunnels >= _TUNNELS:
            raise Busy(f"this master carries {_TUNNELS} tunnels", hint="try again later, or open UDP")

    def _begin_tunnel(self, transport: Any) -> Raw:
        self._check_tunnels()
        client = self.aliases.take(literal(transport.getPeer().host))

        def over() -> None:
            self._tunnels -= 1
            self.aliases.give_back(client)

        try:
            tunnel = self._tunnel(client, transport, over)
        except BaseException:
            self.aliases.give_back(client)
            raise
        self._tunnels += 1
        return tunnel

    def _tunnel(self, client: tuple[str, int], transport: Any, over: Callable[[], None]) -> MasterTunnel:
        """One end of a tunnel. Raises `Busy` where the system has no room for it."""
        gmp = cast(TunnelGmp, self._gmp)
        try:
            return MasterTunnel(self._reactor, gmp, client, transport, self._own_names, self.slaves, over)
        except (OSError, CoreError) as bad:
            log.warn("no tunnel for {host} can be begun: {why}", host=client[0], why=str(bad))
            why = bad.strerror if isinstance(bad, OSError) else bad
            raise Busy(f"this master cannot begin a tunnel: {why}", hint="try again later") from None

    async def serve_slave_tunnel(self, request: login.SlaveTunnel, peer: TlsPeer) -> Switch:
        """A slave whose UDP is blocked: what is for its address goes over this connection from now on."""
        who = peer.identity
        if who is None or (who.role, who.id) != ("slave", request.slave_id):
            raise NotAllowed(f"this request is only for slave {request.slave_id} itself")
        where = self.slave_address(who.id)
        if where is None:
            raise NotFound(f"slave {who.id} has not joined this master")
        where = literal(where[0]), where[1]
        log.warn("slave {slave_id} gets no answer over UDP; its messages come over TLS", slave_id=who.id)
        return Switch(
            Ok(), lambda transport: self._begin_slave_tunnel(who.id, where, transport), _TUNNEL_IDLE_S
        )

    def _begin_slave_tunnel(self, slave_id: str, where: tuple[str, int], transport: Any) -> Raw:
        before = self._slave_tunnels.pop(slave_id, None)
        if before is not None:
            before.close()

        def over() -> None:
            if self._slave_tunnels.get(slave_id) is tunnel:
                del self._slave_tunnels[slave_id]
                log.info("slave {slave_id} is out of its tunnel", slave_id=slave_id)

        tunnel = self._tunnel(where, transport, over)
        self._slave_tunnels[slave_id] = tunnel
        return tunnel

    def _own_names(self, where: tuple[str, int]) -> bool:
        return where[1] == self._gmp.address[1]

    def _session(self, row: SessionRow, secret: bytes) -> login.Session:
        host = self._config.listen.advertise or self._gmp.address[0]
        return login.Session(
            row.id,
            secret,
            row.user,
            row.expires,
            self._sessions.master_id,
            Address(host, self._gmp.address[1]),
            row.key_id,
            list(row.roles),
            list(row.rights),
        )

    async def serve_join(self, request: login.Join, peer: TlsPeer) -> login.Joined:
        """A slave that shows its certificate and stands on the allow-list."""
        slave_id = await self._allowed_slave(request.slave_id, peer)
        joined = await self._on_join(request, peer.address)
        log.info("slave {slave_id} joined from {address}", slave_id=slave_id, address=peer.address)
        return joined

    async def serve_preflight(self, request: login.Preflight, peer: TlsPeer) -> login.Seen:
        """A slave that may join, and asks before whether it could."""
        await self._allowed_slave(request.slave_id, peer)
        if self._knocks + len(request.ports) > _KNOCKS:
            raise Busy("many slaves ask at once", hint=f"try again in {_KNOCK_S:.0f} s")
        for port in request.ports:
            self._knock(peer.address, port)
        host = self._config.listen.advertise or self._gmp.address[0]
        others = [Address(*where) for where in sorted(self.slaves())[:64]]
        mine = Address(host, self._gmp.address[1])
        return login.Seen(self._sessions.master_id, time.time(), peer.address, mine, others)

    def _knock(self, host: str, port: int) -> None:
        """Send a few datagrams that nobody can answer: a call under a key that only we have."""
        key_id = self._sessions.key_ids.new()
        self._gmp.add_key(GmpKey(key_id, os.urandom(SECRET_BYTES), f"preflight:{key_id}"))
        self._knocks += 1
        calling = self._gmp.call(Peer(host, port, key_id), 0, b"", deadline_s=_KNOCK_S)

        def over(_: object) -> None:
            self._knocks -= 1
            self._gmp.remove_key(key_id)
            self._sessions.key_ids.free(key_id)

        calling.addBoth(over)

    async def _allowed_slave(self, slave_id: str, peer: TlsPeer) -> str:
        """The id of a slave with a certificate for it that stands on the allow-list. Raises NotAllowed."""
        who = peer.identity
        if who is None or who.role != "slave":
            raise NotAllowed("only a slave with a certificate of this cluster may join")
        if who.id != slave_id:
            raise NotAllowed(f"the certificate is for slave {who.id}, not {slave_id}")
        verdict = await self._link.call(login.NodeAllowed("slave", who.id, peer.address))
        if not verdict.allowed:
            log.warn("slave {slave_id} refused: {why}", slave_id=who.id, why=verdict.why)
            raise NotAllowed(verdict.why, hint=f"an administrator must add it: sector acl slave add {who.id}")
        return who.id

    # ends of sessions -------------------------------------------------------------------------------
    def _expire(self) -> None:
        if not self._reading:
            self._ended -= self._dropped
            self._dropped.clear()
        again, self._undropped = list(self._undropped), set()
        if again:
            self._drop(again)
        self._end(self._sessions.expired())
        self._later("expire", EXPIRE_S, self._expire)

    def _end(self, rows: list[SessionRow]) -> Deferred[None]:
        """Carry the end of these sessions everywhere; fires as `_drop` does."""
        if not rows:
            return succeed(None)
        for row in rows:
            self._gmp.remove_key(row.key_id)
        dropping = self._drop([row.id for row in rows])
        if self._on_closed is not None:
            self._on_closed(rows)
        return dropping

    def _drop(self, ids: list[bytes]) -> Deferred[None]:
        """Have the database forget sessions; no reload takes them back. Fires when that was tried; what
        failed is tried again by `_expire`."""

        def failed(failure: Failure) -> None:
            self._undropped.update(ids)
            why = failure.getErrorMessage()
            log.warn("{count} ended sessions stay in the database for now: {why}", count=len(ids), why=why)

        self._ended.update(ids)
        dropping = self._store.session_drop(ids)
        return dropping.addCallbacks(lambda _: self._dropped.update(ids), failed)

    def watch(self) -> None:
        """Ask for changed rights now, and every 2 s from then on."""
        if self._watch_runs:
            self._watch_again = True
            return
        self._watch_runs = True
        self._watching = ensureDeferred(self._watch())
        self._watching.addErrback(self._watch_failed)

    def _watch_failed(self, failure: Failure) -> None:
        if failure.check(CancelledError) is None:
            log.failure("watching rights failed", failure)
            self._later("watch", WATCH_S, self.watch)

    async def _watch(self) -> None:
        try:
            while True:
                self._watch_again = False
                news: login.Epochs = await self._link.call(login.WatchRights(self._serial))
                if news.serial != self._serial:
                    await self._apply(news)
                    self._serial = news.serial
                elif not self._watch_again:
                    break
        except SectorError as failed:
            log.debug("security server: {why}", why=failed.message)
        finally:
            self._watch_runs = False
        self._later("watch", WATCH_S * random.uniform(0.9, 1.1), self.watch)

    async def _apply(self, news: login.Epochs) -> None:
        for changed in self._hearing:
            changed.update(news.changed)
        self._end(self._sessions.apply_epochs(news.changed))
        for node, epoch in news.nodes.items():
            if epoch == 0:
                role, _, node_id = node.partition(":")
                self.server.close_all(role, node_id)
                if self._on_node_removed is not None:
                    self._on_node_removed(node)
        rows = self._sessions.rows()
        live = {row.user for row in rows if not row.via}
        users = set(news.changed)
        if news.serial < self._serial:  # an older database of the security server was put back
            users |= {row.user for row in rows}
        pairs: set[tuple[str, str]] = set()
        for user in sorted(users):
            if user in live:
                await self._refresh(user)
            pairs |= self._sessions.acting(user)
        for service, user in sorted(pairs):
            await self._refresh_acting(service, user)
        if self._on_rights is not None and news.changed:
            self._on_rights({user: tuple(r for r in news.rights if r.user == user) for user in news.changed})

    async def _refresh(self, user: str) -> None:
        try:
            verified: login.Verified = await self._link.call(login.RightsOf(user))
            self._end(self._sessions.apply_epochs({user: verified.rights_epoch}))  # taken since the news
            self._sessions.renew_rights(verified)
        except NotFound:
            self._end(self._sessions.apply_epochs({user: 0}))

    async def _refresh_acting(self, service: str, user: str) -> None:
        """The sessions that a service account has for a user, after the rights of one of them changed."""
        rows = self._sessions.of_pair(service, user)
        if not rows:
            return
        try:
            address = rows[0].cidr.partition("/")[0]
            now: login.Vouched = await self._link.call(login.Vouch(service, user, address, True))
            epochs = {service: now.service_epoch, user: now.rights_epoch}
            self._end(self._sessions.apply_epochs(epochs))
            self._sessions.renew_acting(service, now)
        except (Denied, UsageError):  # also: more rights than a message holds
            self._end(self._sessions.close([row.id for row in rows]))
