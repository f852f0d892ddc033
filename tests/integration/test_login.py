"""Login, resume, join, revocation and administration: a real security server and the master's TLS door on
loopback, with GMP in memory."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from twisted.internet import defer, reactor
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from sector import errors, keys, tunnel
from sector.cli.cluster_dir import ADMIN, ClusterDir
from sector.cli.cluster_run import free_ports
from sector.config import Config, load_config
from sector.gmp.api import GmpKey, Peer
from sector.gmp.memory import MemoryGmp, MemoryHub
from sector.master.admin import register_admin
from sector.master.login import LoginService, make_login_service, make_sessions
from sector.master.security_link import AuditBuffer, SecurityLink
from sector.master.sessions import SessionRow, Sessions, principal_of
from sector.model import Address, Key, Right
from sector.rpc import RpcNode
from sector.security.core import UserRecord
from sector.security.models import NodeRow
from sector.security.service import SecurityService, make_security
from sector.security.sources.database import HashPool, Passwords
from sector.security.store import Database, SecurityStore
from sector.tls import Credentials, TlsCaller, Trust, open_tls, tls_request, tls_resume
from sector.wire import admin
from sector.wire.base import Request
from sector.wire.login import Join, Joined, Login, Resume, RightsOf, Session, Tunnel

HERE = "127.0.0.1"


class MemoryStore:
    """What the master's database keeps of sessions."""

    def __init__(self) -> None:
        self.rows: dict[bytes, SessionRow] = {}

    def session_add(self, row: SessionRow) -> defer.Deferred[None]:
        self.rows[row.id] = row
        return defer.succeed(None)

    def session_all(self) -> defer.Deferred[list[SessionRow]]:
        return defer.succeed(list(self.rows.values()))

    def session_drop(self, ids: list[bytes]) -> defer.Deferred[None]:
        for session_id in ids:
            self.rows.pop(session_id, None)
        return defer.succeed(None)


class Master:
    """The parts of a master that belong to sessions."""

    def __init__(self, config: Config, store: MemoryStore, hub: MemoryHub) -> None:
        self.config = config
        self.gmp: MemoryGmp = hub.endpoint()
        self.sessions: Sessions = make_sessions(config)
        self.link = SecurityLink(config, reactor)
        self.audit = AuditBuffer(self.link, reactor, time.time, "master:master")
        self.closed: list[SessionRow] = []
        self.removed: list[str] = []
        self.rights: dict[str, tuple[Right, ...]] = {}
        self.joins: list[tuple[Join, str]] = []
        self.rpc = RpcNode(self.gmp)
        register_admin(self.rpc, self.sessions, self.link, self.audit)
        self.service: LoginService = make_login_service(
            config,
            reactor,
            self.sessions,
            self.link,
            self.gmp,
            store,
            self.join,
            on_closed=self.closed.extend,
            on_node_removed=self.removed.append,
            on_rights=self.rights.update,
        )

    async def join(self, request: Join, address: str) -> Joined:
        self.joins.append((request, address))
        key = Key(1 << 24 | 5, b"k" * 32, "master:master")
        return Joined("master", Address(*self.gmp.address), key, 1, 1.0, True)

    async def start(self) -> None:
        self.service.startService()
        await self.service.ready

    async def stop(self) -> None:
        await self.audit.stop()
        await self.service.stopService()
        await self.link.stop()
        await self.gmp.stop()


class ClusterCase(TestCase):
    """One security server (cheap hashes) and one master's door; user admin and user alice."""

    timeout = 60

    async def setUp(self) -> None:
        self.temp = tempfile.TemporaryDirectory()
        self.place = ClusterDir(Path(self.temp.name) / "c")
        self.place.init(cluster="test", host=HERE, port_base=7000, slaves=2)
        self.ports = free_ports(HERE, 2)
        self.place.set_ports(self.ports, HERE)
        for name in ("argon2_mib = 8", "argon2_passes = 1"):
            key, _, value = name.partition(" = ")
            self.place.edit("security", "security", key, value)
        database = self.place.database()
        cheap = Passwords(HashPool(reactor, 1, 1), mib=8, passes=1)
        database.user_add(
            UserRecord("alice", cheap.hash_thd("wonderland"), ("user",), (), (), 0, 1.0), "test", 1.0
        )
        database.close()
        self.trust = Trust.load(self.place.path / "ca.pem")
        self.hub = MemoryHub(reactor)
        self.store = MemoryStore()
        self.security = await self.start_security()
        self.master = Master(load_config(self.place.path / "master.toml", "master"), self.store, self.hub)
        await self.master.start()

    async def tearDown(self) -> None:
        await self.master.stop()
        await self.security.stopService()
        await deferLater(reactor, 0.05)
        self.temp.cleanup()

    async def start_security(self) -> SecurityService:
        config = load_config(self.place.path / "security.toml", "security")
        service = make_security(
            config, reactor, SecurityStore.in_thread(config.data_dir / "security.db", reactor)
        )
        service.startService()
        await service.ready
        return service

    async def ask(self, request: Request, cert: Credentials | None = None) -> Any:
        return await tls_request(reactor, HERE, self.ports["master"]["tls"], self.trust, request, cert)

    async def login(self, user: str = "alice", password: str = "wonderland") -> Session:
        session: Session = await self.ask(Login(user, password))
        return session

    async def admin_session(self) -> Session:
        return await self.login(ADMIN, self.place.password_file.read_text().strip())

    async def refused(self, kind: type[errors.SectorError], awaitable: Any) -> errors.SectorError:
        try:
            await awaitable
        except kind as error:
            return error
        raise AssertionError(f"{kind.__name__} was not raised")

    def client(self, session: Session) -> tuple[RpcNode, Peer]:
        """A client's GMP endpoint with the key it derives from its secret."""
        gmp = self.hub.endpoint()
        secret = keys.client_master_key(session.secret, session.master_id, session.key_id)
        gmp.add_key(GmpKey(session.key_id, secret, f"master:{session.master_id}"))
        return RpcNode(gmp), Peer(session.gmp.host, session.gmp.port, session.key_id)

    async def until(self, condition: Any, seconds: float = 5.0) -> None:
        deadline = reactor.seconds() + seconds
        while not condition():
            assert reactor.seconds() < deadline, "did not happen in time"
            await deferLater(reactor, 0.02)

    def database(self) -> Database:
        database = self.place.database()
        self.addCleanup(database.close)
        return database


class TestLogin(ClusterCase):
    async def test_a_login_gives_a_session_whose_key_the_master_knows(self) -> None:
        session = await self.admin_session()
        assert len(session.secret) == 32 and session.roles == ["user", "admin"]
        assert abs(session.expires - time.time() - 12 * 3600) < 60
        rpc, peer = self.client(session)
        users = await rpc.call(peer, admin.UserList())
        assert [user.name for user in users.users] == ["admin", "alice"]
        assert session.secret not in b"".join(row.secret_wrapped for row in self.store.rows.values())

    async def test_wrong_password_unknown_user_and_wrong_address_sound_the_same(self) -> None:
        one = await self.refused(errors.LoginRefused, self.login("alice", "wrong"))
        two = await self.refused(errors.LoginRefused, self.login("nobody", "wonderland"))
        assert one.message == two.message and one.hint == two.hint
        assert self.store.rows == {}
        text = " ".join(line.detail for line in self.database().audit(0))
        assert "wrong password" in text and "unknown name" in text and "wonderland" not in text

    async def test_a_restarted_master_knows_the_session_without_a_password(self) -> None:
        session = await self.login()
        await self.master.stop()
        self.master = Master(self.master.config, self.store, self.hub)
        await self.master.start()
        port = self.ports["master"]["tls"]
        again = await tls_resume(reactor, HERE, port, self.trust, session.session_id, session.secret)
        assert again.secret == b"" and again.user == "alice" and again.key_id == session.key_id
        resumed = Session(*[getattr(again, f) for f in again.__struct_fields__])
        assert resumed.session_id == session.session_id
        rpc, peer = self.client(
            Session(
                session.session_id,
                session.secret,
                "alice",
                again.expires,
                again.master_id,
                again.gmp,
                again.key_id,
                [],
                [],
            )
        )
        await self.refused(errors.Denied, rpc.call(peer, admin.UserList()))

    async def test_resume_with_a_wrong_secret_or_of_an_unknown_session_is_refused(self) -> None:
        session = await self.login()
        port = self.ports["master"]["tls"]
        for session_id, secret in ((session.session_id, b"x" * 32), (b"y" * 16, session.secret)):
            await self.refused(
                errors.SessionExpired, tls_resume(reactor, HERE, port, self.trust, session_id, secret)
            )

    async def test_a_stranger_has_to_connect_again_after_each_refusal(self) -> None:
        """One connection was good for any number of guesses."""
        port = self.ports["master"]["tls"]
        for request, kind in (
            (Resume(b"y" * 16, b"p" * 32), errors.SessionExpired),
            (Login("alice", "wrong"), errors.LoginRefused),
        ):
            caller = await open_tls(reactor, HERE, port, self.trust)
            await self.refused(kind, caller.call(request))
            await self.until(lambda caller=caller: not caller.connected)
            await self.refused(errors.Unreachable, caller.call(request))
        assert (await self.login()).user == "alice"

    async def test_another_cluster_key_drops_the_stored_sessions(self) -> None:
        await self.login()
        await self.master.stop()
        (self.place.path / "cluster.key").write_text("11" * 32)
        self.master = Master(self.master.config, self.store, self.hub)
        await self.master.start()
        assert self.store.rows == {} and len(self.master.sessions) == 0

    async def test_the_security_server_may_be_away_and_come_back(self) -> None:
        await self.login()
        await self.security.stopService()
        error = await self.refused(errors.SecurityAway, self.login())
        assert str(self.ports["security"]["tls"]) not in error.message
        self.security = await self.start_security()
        assert (await self.login()).user == "alice"

    async def test_a_failed_store_leaves_no_session(self) -> None:
        self.store.session_add = lambda row: defer.fail(errors.LocalIO("disk"))  # type: ignore[method-assign]
        await self.refused(errors.LocalIO, self.login())
        assert len(self.master.sessions) == 0

    async def test_many_failures_lead_to_a_wait(self) -> None:
        for _ in range(6):
            await self.refused(errors.LoginRefused, self.login("alice", "wrong"))
        error = await self.refused(errors.Busy, self.login())
        assert "try again in" in error.hint


class TestTunnel(ClusterCase):
    async def test_a_tunnel_that_cannot_be_begun_is_refused_and_does_not_count(self) -> None:
        """It counted until the master ended, and its client was told that it was there."""
        session = await self.login()
        gmp: Any = self.master.gmp
        gmp.divert = lambda peer, fd: None
        real, tries = socket.socketpair, [OSError(errno.EMFILE, "Too many open files")]

        def socketpair(*arguments: Any) -> Any:
            if tries:
                raise tries.pop()
            return real(*arguments)

        self.patch(tunnel.socket, "socketpair", socketpair)
        service, port = self.master.service, self.ports["master"]["tls"]

        async def begin() -> TlsCaller:
            caller = await open_tls(reactor, HERE, port, self.trust)
            proof = keys.resume_proof(session.secret, caller.exporter())
            await caller.call(Tunnel(session.session_id, proof))
            return caller

        error = await self.refused(errors.Busy, begin())
        assert "Too many open files" in error.message
        assert service._tunnels == 0 and service.aliases._real == {}
        caller = await begin()
        assert service._tunnels == 1 and len(service.aliases._real) == 1
        caller.close()
        await self.until(lambda: service._tunnels == 0 and service.aliases._real == {})


class TestRevocation(ClusterCase):
    async def test_a_removed_user_is_out_within_five_seconds(self) -> None:
        boss, alice = await self.admin_session(), await self.login()
        rpc, peer = self.client(boss)
        started = reactor.seconds()
        await rpc.call(peer, admin.UserRemove("alice"))
        await self.until(lambda: [row.user for row in self.master.closed] == ["alice"])
        assert reactor.seconds() - started < 5
        assert alice.key_id not in self.master.gmp._keys and boss.key_id in self.master.gmp._keys
        assert [row.user for row in self.store.rows.values()] == ["admin"]
        error = await self.refused(errors.LoginRefused, self.login())
        assert "wrong" in error.message

    async def test_a_removed_user_is_out_in_time_beside_many_logins_that_wait(self) -> None:
        """The password checks that waited stood before the change and before the news of it."""
        boss, alice = await self.admin_session(), await self.login()
        rpc, peer = self.client(boss)
        stopped, outcomes = False, [0, 0]

        def slow_thd(passwords: Any, stored: str | None, password: str) -> tuple[bool, str]:
            time.sleep(0.4)
            return True, ""

        async def again_and_again() -> None:
            while not stopped:
                try:
                    await self.login(ADMIN, "any")
                    outcomes[0] += 1
                except errors.Busy:
                    outcomes[1] += 1
                    await deferLater(reactor, 0.5)

        self.patch(Passwords, "_check_thd", slow_thd)
        users = [defer.ensureDeferred(again_and_again()) for _ in range(45)]
        try:
            await deferLater(reactor, 1.5)
            started = reactor.seconds()
            await rpc.call(peer, admin.UserRemove("alice"))
            told = reactor.seconds() - started
            await self.until(lambda: [row.user for row in self.master.closed] == ["alice"], 30)
            assert reactor.seconds() - started < 5 and told < 2
            assert alice.key_id not in self.master.gmp._keys
        finally:
            stopped = True
            await defer.gatherResults(users)
        assert outcomes[0] > 0 and outcomes[1] > 0, outcomes

    async def test_a_node_leaves_the_list_though_rights_cannot_be_fetched(self) -> None:
        """What failed is asked for again, and holds up nothing else."""
        await self.login()
        await self.until(lambda: self.master.service._serial > 0)
        real = self.master.link.call

        def call(request: Request) -> Any:
            failing = isinstance(request, RightsOf)
            return defer.fail(errors.Busy("too many")) if failing else real(request)

        self.patch(self.master.link, "call", call)
        database = self.database()
        database.grant(Right("alice", "/a", "r"), "other master", 2.0)
        database.node_remove("slave", "slave1", "other master", 2.0)
        await self.until(lambda: "slave:slave1" in self.master.removed)

    async def test_a_change_made_elsewhere_is_seen_by_polling(self) -> None:
        """Another master, or `sector up`, changed the database: this master finds out by WatchRights."""
        await self.login()
        await self.until(lambda: self.master.service._serial > 0)
        self.database().user_password("alice", "x", "other master", 2.0)
        await self.until(lambda: len(self.master.closed) == 1)

    async def test_a_grant_reaches_the_live_session_and_does_not_end_it(self) -> None:
        boss, alice = await self.admin_session(), await self.login()
        who = principal_of("alice", alice.session_id)
        assert not self.master.sessions.user_of(who).may("/a/b", "r")
        rpc, peer = self.client(boss)
        await rpc.call(peer, admin.Grant(Right("alice", "/a", "r")))
        await self.until(lambda: self.master.sessions.user_of(who).may("/a/b", "r"))
        assert not self.master.sessions.user_of(who).may("/a/b", "w")
        assert self.master.closed == [] and self.master.rights["alice"] == (Right("alice", "/a", "r"),)

    async def test_a_revoke_ends_the_sessions(self) -> None:
        boss, _ = await self.admin_session(), await self.login()
        rpc, peer = self.client(boss)
        await rpc.call(peer, admin.Grant(Right("alice", "/a", "rw")))
        await rpc.call(peer, admin.Revoke("alice", "/a"))
        await self.until(lambda: [row.user for row in self.master.closed] == ["alice"])
        await self.refused(errors.NotFound, rpc.call(peer, admin.Revoke("alice", "/a")))

    async def test_a_user_changes_his_own_password_with_the_old_one_only(self) -> None:
        alice = await self.login()
        rpc, peer = self.client(alice)
        await self.refused(errors.Denied, rpc.call(peer, admin.UserPasswd("alice", "new password")))
        await self.refused(
            errors.LoginRefused, rpc.call(peer, admin.UserPasswd("alice", "new password", "x"))
        )
        await self.refused(errors.Denied, rpc.call(peer, admin.UserPasswd("admin", "new password", "x")))
        await rpc.call(peer, admin.UserPasswd("alice", "new password", "wonderland"))
        await self.until(lambda: len(self.master.closed) == 1)
        assert (await self.login("alice", "new password")).user == "alice"

    async def test_users_are_no_administrators_and_the_attempt_is_logged(self) -> None:
        alice = await self.login()
        rpc, peer = self.client(alice)
        for request in (
            admin.UserList(),
            admin.UserAdd("eve", "12345678"),
            admin.UserRemove("admin"),
            admin.UserAddresses("alice", ["127.0.0.1"]),
            admin.Grant(Right("alice", "/", "rwx")),
            admin.AclChange("slave", "evil", True),
            admin.AclList("slave"),
        ):
            await self.refused(errors.Denied, rpc.call(peer, request))
        await self.master.audit.stop()
        lines = [(line.who, line.what, line.detail) for line in self.database().audit(0)]
        assert ("user:alice", "denied", "UserAdd") in lines
        assert self.database().audit_check() is None

    async def test_a_user_is_out_and_refused_where_he_is_denied(self) -> None:
        await self.login()
        boss = await self.admin_session()
        rpc, peer = self.client(boss)
        await rpc.call(peer, admin.UserAddresses("alice", ["!127.0.0.0/8"]))
        await self.until(lambda: len(self.master.closed) == 1)
        await self.refused(errors.LoginRefused, self.login())
        listed = {info.name: info.addresses for info in (await rpc.call(peer, admin.UserList())).users}
        assert listed["alice"] == ["!127.0.0.0/8"]
        await rpc.call(peer, admin.UserAddresses("alice", ["127.0.0.1"]))
        assert (await self.login()).user == "alice"
        error = await self.refused(
            errors.Conflict, rpc.call(peer, admin.UserAddresses("admin", ["!127.0.0.1"]))
        )
        assert "sector user allow admin 127.0.0.1" in error.hint

    async def test_the_only_administrator_stays(self) -> None:
        boss = await self.admin_session()
        rpc, peer = self.client(boss)
        await self.refused(errors.Conflict, rpc.call(peer, admin.UserRemove("admin")))


class TestJoin(ClusterCase):
    def slave(self, name: str) -> Credentials:
        path = self.place.path
        return Credentials.load(path / "ca.pem", path / f"{name}.pem", path / f"{name}.key")

    def request(self, name: str) -> Join:
        return Join(name, 7, Address(HERE, 1), Address(HERE, 2), "/d", 1, "0.1")

    async def test_a_slave_on_the_list_joins(self) -> None:
        joined = await self.ask(self.request("slave1"), self.slave("slave1"))
        assert joined.master_id == "master"
        assert self.master.joins == [(self.request("slave1"), HERE)]

    async def test_another_name_than_in_the_certificate_or_none_is_refused(self) -> None:
        await self.refused(errors.NotAllowed, self.ask(self.request("slave2"), self.slave("slave1")))
        await self.refused(errors.NotAllowed, self.ask(self.request("slave1")))
        assert self.master.joins == []

    async def test_a_slave_taken_from_the_list_is_refused_and_the_master_hears_of_it(self) -> None:
        boss = await self.admin_session()
        rpc, peer = self.client(boss)
        await self.until(lambda: self.master.service._serial > 0)
        await rpc.call(peer, admin.AclChange("slave", "slave1", False))
        await self.until(lambda: self.master.removed == ["slave:slave1"])  # who asks meanwhile is cut off
        error = await self.refused(errors.NotAllowed, self.ask(self.request("slave1"), self.slave("slave1")))
        assert "allow-list" in error.message and "sector acl slave add slave1" in error.hint

    async def test_a_slave_from_a_wrong_address_is_refused(self) -> None:
        boss = await self.admin_session()
        rpc, peer = self.client(boss)
        await rpc.call(peer, admin.AclChange("slave", "slave1", True, ["10.0.0.0/8"]))
        await self.refused(errors.NotAllowed, self.ask(self.request("slave1"), self.slave("slave1")))
        listed = await rpc.call(peer, admin.AclList("slave"))
        assert [entry.addresses for entry in listed.entries] == [["10.0.0.0/8"], []]

    async def test_an_allow_list_of_thousands_is_told_in_parts(self) -> None:
        """One message has room for some 1,500 names; `acl slave list` and a rebuild need them all."""
        boss = await self.admin_session()
        rpc, peer = self.client(boss)
        many = [f"node{number:05d}.example.org" for number in range(3000)]
        with self.database()._session() as session, session.begin():
            session.add_all(NodeRow(role="slave", name=name, addresses="10.1.0.0/16") for name in many)
        names: list[str] = []
        more = True
        while more:
            page = await rpc.call(peer, admin.AclList("slave", after=names[-1] if names else ""))
            assert page.entries
            names += [entry.name for entry in page.entries]
            more = page.more
        assert names == [*many, "slave1", "slave2"]

    async def test_a_master_taken_from_the_list_is_cut_off(self) -> None:
        self.database().node_remove("master", "master", "test", 1.0)
        error = await self.refused(errors.NotAllowed, self.login())
        assert "master" in error.message

    async def test_slaves_cannot_speak_to_the_security_server(self) -> None:
        asked = tls_request(
            reactor,
            HERE,
            self.ports["security"]["tls"],
            self.trust,
            admin.UserList(),
            self.slave("slave1"),
            "security",
        )
        await self.refused(errors.SectorError, asked)


class TestAudit(ClusterCase):
    async def test_lines_wait_while_the_security_server_is_away(self) -> None:
        await self.security.stopService()
        self.master.audit("user:a", "x", "one")
        await deferLater(reactor, 1.3)
        assert len(self.master.audit) == 1
        self.security = await self.start_security()
        await self.master.audit.stop()
        assert len(self.master.audit) == 0
        assert any(line.what == "x" for line in self.database().audit(0))

    async def test_a_connection_that_died_costs_no_line_at_the_end(self) -> None:
        self.master.audit("user:a", "x", "one")
        await deferLater(reactor, 1.3)
        await self.security.stopService()
        self.security = await self.start_security()
        self.master.audit("user:a", "y", "two")
        await self.master.audit.stop()
        assert len(self.master.audit) == 0
        assert any(line.what == "y" for line in self.database().audit(0))


def test_the_administrators_password_is_private() -> None:
    with tempfile.TemporaryDirectory() as temp:
        place = ClusterDir(Path(temp) / "c")
        place.init(cluster="test", host=HERE, port_base=7000, slaves=1)
        for name in ("admin.password", "ca.key", "cluster.key", "slave1.key"):
            assert os.stat(place.path / name).st_mode & 0o777 == 0o600, name
        text = b"".join(
            p.read_bytes() for p in place.path.rglob("*") if p.is_file() and p.name != "admin.password"
        )
        assert place.password_file.read_bytes().strip() not in text
