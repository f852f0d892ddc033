"""The security server: answers masters over mutual TLS; decides by `core`, remembers in `store`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from twisted.application.service import MultiService
from twisted.internet import error
from twisted.internet.defer import Deferred, ensureDeferred, maybeDeferred
from twisted.logger import Logger

from sector.config import Config, cannot_listen
from sector.errors import Busy, Denied, LoginRefused, NotAllowed, NotFound
from sector.pki import NodeFiles
from sector.security import core
from sector.security.core import Backoff, BackoffRule, NodeRecord, UserRecord
from sector.security.sources.database import HashPool, Passwords
from sector.security.store import SecurityStore
from sector.tls import TlsPeer, TlsServer, site
from sector.wire import admin, login
from sector.wire.base import Message, Ok, Request

log = Logger()

NAME_RULE = BackoffRule(free=5, first_s=0.5, most_s=8.0)
ADDRESS_RULE = BackoffRule(free=20, first_s=0.5, most_s=60.0)
PAGE = 100
NODES_PAGE = 2000
PAGE_BYTES = 40000
"""Of an answer; a frame is 64 KiB."""


def make_security(
    config: Config, reactor: Any, store: SecurityStore, now: Callable[[], float] | None = None
) -> SecurityService:
    """The security server of these settings. `now()` seconds since 1970."""
    return SecurityService(config, reactor, store, now or time.time)


class Decisions:
    """Requests of masters, one method each. `clock()` monotonic seconds, `now()` seconds since 1970."""

    def __init__(
        self, store: SecurityStore, passwords: Passwords, clock: Callable[[], float], now: Callable[[], float]
    ) -> None:
        self.store = store
        self.passwords = passwords
        self._clock = clock
        self._now = now
        self._names = Backoff(NAME_RULE)
        self._addresses = Backoff(ADDRESS_RULE)
        self._refusals = core.Few()

    # login --------------------------------------------------------------------------------------------
    def _check_backoff(self, name: str, where: str) -> None:
        now = self._clock()
        wait = max(self._names.wait_s(name, now), self._addresses.wait_s(where, now))
        if wait > 0:
            seconds = math.ceil(wait)
            raise Busy("too many failed logins", hint=f"try again in {seconds} s")

    async def verify(self, request: login.Verify) -> login.Verified:
        """Check name, password and address; the answer to a refusal is the same for every reason."""
        where = site(request.address)
        self._check_backoff(request.user, where)
        store, now = self.store, self._now()
        checked = await store.run(store.database.user, request.user)
        good, renewed = await self.passwords.check(checked, request.password)
        user = await store.run(store.database.user, request.user)  # by now: a check may wait for seconds
        if user is None or checked is None or not core.same_password(checked, user):
            good = False
        here = user is not None and core.address_allowed(user.addresses, request.address)
        if user is None or checked is None or not good or not here:
            self._names.failed(request.user, self._clock())
            self._addresses.failed(where, self._clock())
            why = "unknown name" if user is None else "wrong password" if not good else "address not allowed"
            entry = (now, f"user:{request.user}", "login refused", f"from {request.address}: {why}")
            await store.run(store.database.audit_append, [entry])
            raise LoginRefused("user name or password is wrong, or this address may not log in")
        self._names.worked(request.user)
        if renewed:
            await store.run(store.database.user_rehash, user.name, checked.password_hash, renewed)
        entry = (now, f"user:{request.user}", "login", f"from {request.address}")
        await store.run(store.database.audit_append, [entry])
        return verified(user)

    async def rights_of(self, request: login.RightsOf) -> login.Verified:
        """What a user may do now."""
        return verified(await self._user(request.user))

    async def _user(self, name: str) -> UserRecord:
        user = await self.store.run(self.store.database.user, name)
        if user is None:
            raise NotFound(f"there is no user {name}", hint="sector user list")
        return user

    async def vouch(self, request: login.Vouch) -> login.Vouched:
        """Whether a service account may act for a user, and with which rights. Nothing is answered that is
        not in the audit log; of refusals only so many a minute are."""
        store = self.store
        service = await store.run(store.database.user, request.service)
        user = await store.run(store.database.user, request.user)
        names = (request.service, request.user)
        why = core.acting_problem(service, user, names, request.address)
        if why or service is None or user is None:
            await self._note_refusal(request, why)
            hint = "an administrator must add it: sector user add NAME"
            if service is None or core.SERVICE not in service.roles:
                hint = f"an administrator must give it: sector user roles {request.service} {core.SERVICE}"
            raise Denied(why, hint=hint)
        rights = core.acting_rights(service, user)
        if not request.again:
            entry = (self._now(), f"user:{service.name}", "act for", f"{user.name} from {request.address}")
            await store.run(store.database.audit_append, [entry])
        return login.Vouched(user.name, list(rights), user.rights_epoch, service.rights_epoch)

    async def _note_refusal(self, request: login.Vouch, why: str) -> None:
        step = self._refusals.next(request.service, self._clock())
        if step == "no":
            return
        text = f"{request.user} from {request.address}: {why}"
        if step == "last":
            text = "further refusals of this minute are not listed"
        entry = (self._now(), f"user:{request.service}", "act for refused", text)
        await self.store.run(self.store.database.audit_append, [entry])

    async def node_allowed(self, request: login.NodeAllowed) -> login.NodeVerdict:
        """Whether a node may join from an address."""
        why = await self.node_problem(request.role, request.name, request.address)
        return login.NodeVerdict(not why, why)

    async def node_problem(self, role: str, name: str, address: str) -> str:
        """Why a node may not come, "" when it may."""
        entry = await self.store.run(self.store.database.node, role, name)
        return core.node_verdict(entry, role, name, address)

    async def watch_rights(self, request: login.WatchRights) -> login.Epochs:
        """What changed since a serial."""
        serial, found, rights = await self.store.run(self.store.database.changes, request.serial)
        users = {subject[5:]: epoch for subject, epoch in found.items() if subject.startswith("user:")}
        nodes = {subject: epoch for subject, epoch in found.items() if not subject.startswith("user:")}
        return login.Epochs(serial, users, rights, nodes)

    async def audit(self, request: login.Audit) -> Ok:
        """Append a master's lines."""
        entries = [(entry.at, entry.who, entry.what, entry.detail) for entry in request.entries]
        await self.store.run(self.store.database.audit_append, entries)
        return Ok()

    # administration -----------------------------------------------------------------------------------
    async def user_list(self, request: admin.UserList) -> admin.Users:
        """Users behind a name, in parts that fit a frame."""
        found = await self.store.run(self.store.database.users, request.after, PAGE + 1)
        users: list[admin.UserInfo] = []
        size = 0
        for user in found[:PAGE]:
            size += 200 + sum(len(right.path.encode()) + 100 for right in user.rights)
            if users and size > PAGE_BYTES:
                break
            users.append(
                admin.UserInfo(
                    user.name, list(user.roles), list(user.rights), list(user.addresses), user.created
                )
            )
        return admin.Users(users, len(users) < len(found))

    async def user_add(self, request: admin.UserAdd) -> Ok:
        """Add a user."""
        name = core.check_user_name(request.name)
        core.check_password(request.password)
        roles = core.check_roles(request.roles)
        hashed = await self.passwords.hash(request.password)
        user = UserRecord(name, hashed, roles, (), (), 0, self._now())
        await self.store.run(self.store.database.user_add, user, request.by, self._now())
        return Ok()

    async def user_remove(self, request: admin.UserRemove) -> Ok:
        """Remove a user."""
        await self.store.run(self.store.database.user_remove, request.name, request.by, self._now())
        return Ok()

    async def user_passwd(self, request: admin.UserPasswd) -> Ok:
        """Set a password; `old` is checked when the user himself asks."""
        core.check_password(request.password)
        user = await self._user(request.name)
        if request.old:
            self._check_backoff(request.name, "")
            good, _ = await self.passwords.check(user, request.old)
            if not good:
                self._names.failed(request.name, self._clock())
                raise LoginRefused("the old password is wrong")
        hashed = await self.passwords.hash(request.password)
        change, checked = self.store.database.user_password, user if request.old else None
        await self.store.run(change, request.name, hashed, request.by, self._now(), checked)
        return Ok()

    async def user_roles(self, request: admin.UserRoles) -> Ok:
        """Set roles."""
        roles = core.check_roles(request.roles)
        await self.store.run(self.store.database.user_roles, request.name, roles, request.by, self._now())
        return Ok()

    async def user_addresses(self, request: admin.UserAddresses) -> Ok:
        """Change address rules."""
        change = self.store.database.user_addresses
        await self.store.run(change, request.name, request.add, request.remove, request.by, self._now())
        return Ok()

    async def grant(self, request: admin.Grant) -> Ok:
        """Set a directory right."""
        await self.store.run(self.store.database.grant, request.right, request.by, self._now())
        return Ok()

    async def revoke(self, request: admin.Revoke) -> Ok:
        """Take a directory right."""
        await self.store.run(self.store.database.revoke, request.user, request.path, request.by, self._now())
        return Ok()

    async def acl_change(self, request: admin.AclChange) -> Ok:
        """Change an allow-list."""
        core.check_node(request.role, request.name)
        database = self.store.database
        if request.add:
            node = NodeRecord(request.role, request.name, core.check_rules(request.addresses))
            await self.store.run(database.node_set, node, request.by, self._now())
        else:
            await self.store.run(database.node_remove, request.role, request.name, request.by, self._now())
        return Ok()

    async def acl_list(self, request: admin.AclList) -> admin.Acl:
        """An allow-list behind a name, in parts that fit a frame."""
        found = await self.store.run(self.store.database.nodes, request.role, request.after, NODES_PAGE + 1)
        entries: list[admin.AclEntry] = []
        size = 0
        for node in found[:NODES_PAGE]:
            size += 20 + len(node.role) + len(node.name) + sum(len(rule) + 5 for rule in node.addresses)
            if entries and size > PAGE_BYTES:
                break
            entries.append(admin.AclEntry(node.role, node.name, list(node.addresses)))
        return admin.Acl(entries, len(entries) < len(found))

    def handlers(self) -> dict[type[Request], Callable[[Any], Any]]:
        """Request class -> method."""
        return {
            login.Verify: self.verify,
            login.RightsOf: self.rights_of,
            login.Vouch: self.vouch,
            login.NodeAllowed: self.node_allowed,
            login.WatchRights: self.watch_rights,
            login.Audit: self.audit,
            admin.UserList: self.user_list,
            admin.UserAdd: self.user_add,
            admin.UserRemove: self.user_remove,
            admin.UserPasswd: self.user_passwd,
            admin.UserRoles: self.user_roles,
            admin.UserAddresses: self.user_addresses,
            admin.Grant: self.grant,
            admin.Revoke: self.revoke,
            admin.AclChange: self.acl_change,
            admin.AclList: self.acl_list,
        }


def verified(user: UserRecord) -> login.Verified:
    """What a master hears of a user: rights, never hashes."""
    return login.Verified(user.name, list(user.roles), list(user.rights), user.rights_epoch)


class SecurityService(MultiService):
    """Listens with mutual TLS; only masters on the allow-list are served. `ready` fires when it serves, or
    errbacks with what hinders it."""

    def __init__(self, config: Config, reactor: Any, store: SecurityStore, now: Callable[[], float]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ready: Deferred[None] = Deferred()
        self._config = config
        self._reactor = reactor
        self._store = store
        files = NodeFiles(config, "security", reactor.seconds)
        self._pool = HashPool(reactor, config.security.hashers, config.security.hash_queue)
        passwords = Passwords(
            self._pool, mib=config.security.argon2_mib, passes=config.security.argon2_passes
        )
        self._passwords = passwords
        self.decisions = Decisions(store, passwords, reactor.seconds, now)
        self._server = TlsServer(
            reactor,
            files.mine,
            files.trust,
            {cls: self._guarded(method) for cls, method in self.decisions.handlers().items()},
            roles=("master",),
            renewed=files.renewed,
        )
        self._port: Any = None
        self._starting: Deferred[None] | None = None

    def _guarded(self, method: Callable[[Any], Any]) -> Callable[[Any, TlsPeer], Any]:
        """`method`, after the asking master was found on the allow-list (removal = revocation)."""

        async def handler(request: Any, peer: TlsPeer) -> Message:
            assert peer.identity is not None
            why = await self.decisions.node_problem("master", peer.identity.id, peer.address)
            if why:
                log.warn("refused {who} from {address}", who=peer.identity.principal, address=peer.address)
                raise NotAllowed(why, hint="an administrator must add it: sector acl master add NAME")
            reply: Message = await method(request)
            return reply

        return handler

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) it listens at."""
        assert self._port is not None
        host = self._port.getHost()
        return host.host, host.port

    def startService(self) -> None:
        """Start the threads, the database and the listener; see `ready`."""
        super().startService()  # type: ignore[no-untyped-call]
        self._pool.start()
        self._starting = ensureDeferred(self._start())
        self._starting.addCallbacks(self.ready.callback, self.ready.errback)

    async def _start(self) -> None:
        await self._store.open()
        await self._pool.run(self._passwords.prepare_thd)
        listen = self._config.listen
        try:
            self._port = self._reactor.listenTCP(
                listen.tls, self._server.listener(), interface=listen.host, backlog=128
            )
        except error.CannotListenError as bad:
            raise cannot_listen(f"{listen.host}:{listen.tls}", bad.socketError) from None
        log.info("security server listens at {host} {port}", host=self.address[0], port=self.address[1])

    def stopService(self) -> Deferred[None]:
        """Fires when port, connections and threads are gone."""
        return ensureDeferred(self._stop())

    async def _stop(self) -> None:
        stopped: Any = MultiService.stopService(self)
        await stopped
        self.ready.addErrback(lambda failure: None)
        if self._starting is not None and not self._starting.called:
            self._starting.cancel()
        if self._port is not None:
            await maybeDeferred(self._port.stopListening)
        self._server.close_all()
        self._pool.stop()
        await self._store.close()
