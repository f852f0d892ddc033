"""Accounts with the role service: sessions for other users, bounded by both users' rights, audited, and over
when the role is (a real security server, the master's TLS door on loopback, GMP in memory)."""

from __future__ import annotations

import os
from typing import Any

from test_login import HERE, ClusterCase, Master
from twisted.internet import defer, reactor

from sector import errors
from sector.client.door import TlsDoor
from sector.config import ClientSection, Config
from sector.master.sessions import principal_of
from sector.model import Right
from sector.security.core import UserRecord
from sector.security.sources.database import HashPool, Passwords
from sector.tls import tls_proved
from sector.wire import admin
from sector.wire.login import ActFor, Session


class ActingCase(ClusterCase):
    """Users admin, alice (rw on /s3/a and /home), and cumulus with the role service (rw on /s3)."""

    async def setUp(self) -> None:
        await super().setUp()
        database = self.place.database()
        cheap = Passwords(HashPool(reactor, 1, 1), mib=8, passes=1).hash_thd("keep out")
        for name, roles, addresses in (
            ("cumulus", ("user", "service"), ()),
            ("homely", ("user",), ("10.0.0.0/8",)),
        ):
            database.user_add(UserRecord(name, cheap, roles, (), addresses, 0, 1.0), "test", 1.0)
        for user, path in (("alice", "/s3/a"), ("alice", "/home"), ("cumulus", "/s3")):
            database.grant(Right(user, path, "rw"), "test", 1.0)
        database.close()
        client = ClientSection(
            masters=[f"{HERE}:{self.ports['master']['tls']}"], ca=str(self.place.path / "ca.pem")
        )
        self.door = TlsDoor(reactor, Config(client=client))

    async def service(self) -> Session:
        return await self.login("cumulus", "keep out")

    async def acting(self, service: Session, user: str = "alice") -> Session:
        return await self.door.act_for(service.session_id, service.secret, user)

    def may(self, session: Session, path: str, what: str = "rw") -> bool:
        view = self.master.sessions.user_of(principal_of(session.user, session.session_id))
        return view.may(path, what)

    def lines(self) -> list[tuple[str, str, str]]:
        return [(line.who, line.what, line.detail) for line in self.database().audit(0)]


class TestActing(ActingCase):
    async def test_the_session_is_the_users_with_what_both_may(self) -> None:
        service = await self.service()
        session = await self.acting(service)
        assert (session.user, session.roles) == ("alice", ["user"])
        assert session.secret not in (b"", service.secret)
        assert self.may(session, "/s3/a/x")
        assert not self.may(session, "/home", "r") and not self.may(session, "/s3/b", "r")
        assert ("user:cumulus", "act for", f"alice from {HERE}") in self.lines()
        rpc, peer = self.client(session)
        await self.refused(errors.Denied, rpc.call(peer, admin.UserList()))

    async def test_an_administrator_is_only_a_user_there(self) -> None:
        service = await self.service()
        session = await self.acting(service, "admin")
        assert session.roles == ["user"]
        rpc, peer = self.client(session)
        await self.refused(errors.Denied, rpc.call(peer, admin.UserList()))
        boss = await self.admin_session()
        told = self.master.service._serial
        rpc2, peer2 = self.client(boss)
        await rpc2.call(peer2, admin.Grant(Right("admin", "/x", "rwx")))
        await self.until(lambda: self.master.service._serial > told)
        await self.refused(errors.Denied, rpc.call(peer, admin.UserList()))

    async def test_all_others_are_refused_and_it_is_in_the_audit_log(self) -> None:
        service, alice, boss = await self.service(), await self.login(), await self.admin_session()
        for session, user, why in (
            (alice, "admin", "user alice has not the role service"),
            (alice, "alice", "user alice has not the role service"),
            (boss, "alice", "user admin has not the role service"),
            (service, "nobody", "there is no user nobody"),
            (service, "homely", f"user homely may not come from {HERE}"),
        ):
            error = await self.refused(errors.Denied, self.acting(session, user))
            assert error.message == why and "\n" not in error.message + error.hint
            assert (f"user:{session.user}", "act for refused", f"{user} from {HERE}: {why}") in self.lines()
        assert {row.user for row in self.master.sessions.rows()} == {"cumulus", "alice", "admin"}

    async def test_such_a_session_cannot_act_for_others(self) -> None:
        service = await self.service()
        error = await self.refused(errors.Denied, self.acting(await self.acting(service, "cumulus")))
        assert "cannot act for others" in error.message

    async def test_the_secret_of_the_service_must_be_proved(self) -> None:
        service = await self.service()
        for session_id, secret in ((service.session_id, b"x" * 32), (os.urandom(16), service.secret)):
            await self.refused(errors.SessionExpired, self.door.act_for(session_id, secret, "alice"))
        port = self.ports["master"]["tls"]
        asked = tls_proved(
            reactor,
            HERE,
            port,
            self.trust,
            b"y" * 32,
            lambda _: ActFor(service.session_id, b"z" * 32, "alice"),
        )
        await self.refused(errors.SessionExpired, asked)
        assert not any(what.startswith("act for") for _, what, _ in self.lines())

    async def test_without_its_line_in_the_audit_log_there_is_no_session(self) -> None:
        service = await self.service()

        def full(_: Any) -> None:
            raise errors.LocalIO("database or disk is full")

        self.security._store.database.audit_append = full  # type: ignore[method-assign]
        await self.refused(errors.LocalIO, self.acting(service))
        await self.refused(errors.LocalIO, self.acting(service, "nobody"))
        await self.security.stopService()
        await self.refused(errors.SecurityAway, self.acting(service))
        assert {row.user for row in self.store.rows.values()} == {"cumulus"}
        self.security = await self.start_security()

    async def test_a_failed_store_leaves_no_session(self) -> None:
        service = await self.service()
        self.store.session_add = lambda row: defer.fail(errors.LocalIO("disk"))  # type: ignore[method-assign]
        await self.refused(errors.LocalIO, self.acting(service))
        assert [row.user for row in self.master.sessions.rows()] == ["cumulus"]

    async def test_a_service_whose_session_ends_while_it_asks_gets_none(self) -> None:
        service = await self.service()
        ask = self.master.link.call

        def slow(request: Any) -> Any:
            self.master.sessions.close([service.session_id])
            return ask(request)

        self.master.link.call = slow  # type: ignore[method-assign]
        await self.refused(errors.SessionExpired, self.acting(service))
        self.master.link.call = ask  # type: ignore[method-assign]
        assert len(self.master.sessions) == 0

    async def test_a_restarted_master_knows_such_a_session(self) -> None:
        session = await self.acting(await self.service())
        await self.master.stop()
        self.master = Master(self.master.config, self.store, self.hub)
        await self.master.start()
        again = await self.door.resume(session.session_id, session.secret)
        assert (again.user, again.roles, again.key_id) == ("alice", ["user"], session.key_id)
        assert self.may(session, "/s3/a") and not self.may(session, "/home", "r")


class TestEnds(ActingCase):
    async def boss(self, *requests: Any) -> None:
        rpc, peer = self.client(await self.admin_session())
        for request in requests:
            await rpc.call(peer, request)

    async def test_with_the_role_its_sessions_for_others_end(self) -> None:
        service = await self.service()
        session, own = await self.acting(service), await self.login()
        await self.boss(admin.UserRoles("cumulus", []))
        await self.until(lambda: len(self.master.closed) == 2)
        assert {row.id for row in self.master.closed} == {service.session_id, session.session_id}
        assert session.key_id not in self.master.gmp._keys and own.key_id in self.master.gmp._keys
        error = await self.refused(errors.Denied, self.acting(await self.service()))
        assert "has not the role" in error.message and "sector user roles cumulus service" in error.hint
        await self.boss(admin.UserRoles("cumulus", ["service"]))
        await self.until(lambda: len(self.master.closed) == 3)
        assert (await self.acting(await self.service())).user == "alice"

    async def test_a_removed_service_or_user_ends_them(self) -> None:
        service = await self.service()
        await self.acting(service)
        await self.boss(admin.UserRemove("alice"))
        await self.until(lambda: [row.user for row in self.master.closed] == ["alice"])
        await self.acting(service, "admin")
        await self.boss(admin.UserRemove("cumulus"))
        await self.until(lambda: {row.user for row in self.master.closed} == {"alice", "cumulus", "admin"})
        assert all(not row.via for row in self.master.sessions.rows())

    async def test_changes_of_both_ones_rights_reach_it(self) -> None:
        session = await self.acting(await self.service())
        await self.boss(admin.Grant(Right("alice", "/s3/b", "r")))
        await self.until(lambda: self.may(session, "/s3/b", "r"))
        await self.boss(admin.Grant(Right("cumulus", "/home", "r")))
        await self.until(lambda: self.may(session, "/home", "r"))
        assert not self.may(session, "/home", "rw") and self.master.closed == []
        await self.boss(admin.Revoke("cumulus", "/home"))
        await self.until(lambda: len(self.master.closed) == 2)

    async def test_a_user_who_cannot_be_renewed_is_out(self) -> None:
        """What the watch tells may be overtaken by another change: then the refusal counts."""
        session = await self.acting(await self.service())
        self.database().user_remove("alice", "test", 2.0)
        await self.master.service._refresh_acting("cumulus", "alice")
        assert [row.id for row in self.master.closed] == [session.session_id]
        await self.master.service._refresh_acting("cumulus", "alice")

    async def test_rights_too_many_for_a_message_end_it_and_no_news_of_others_waits(self) -> None:
        session = await self.acting(await self.service())
        database = self.database()
        for number in range(150):
            database.grant(Right("alice", f"/x/{number}", "r"), "test", 2.0)
            database.grant(Right("cumulus", f"/y/{number}", "r"), "test", 2.0)
        told = self.master.service._serial
        await self.boss(admin.Grant(Right("alice", "/y", "r")))
        await self.boss(admin.Grant(Right("cumulus", "/x", "r")))
        await self.until(lambda: [row.id for row in self.master.closed] == [session.session_id])
        await self.until(lambda: self.master.service._serial > told)
        error = await self.refused(errors.UsageError, self.acting(await self.service()))
        assert "too many directory rights" in error.message

    async def test_a_logout_ends_that_session_alone(self) -> None:
        service = await self.service()
        one, two = await self.acting(service), await self.acting(service)
        await self.refused(errors.SessionExpired, self.door.logout(one.session_id, b"w" * 32))
        await self.door.logout(one.session_id, one.secret)
        assert [row.id for row in self.master.closed] == [one.session_id]
        assert one.session_id not in self.store.rows and self.may(two, "/s3/a")
        await self.refused(errors.SessionExpired, self.door.logout(one.session_id, one.secret))

    async def test_roles_are_set_by_administrators_only_and_one_stays(self) -> None:
        alice = await self.login()
        rpc, peer = self.client(alice)
        await self.refused(errors.Denied, rpc.call(peer, admin.UserRoles("alice", ["service"])))
        rpc, peer = self.client(await self.admin_session())
        await self.refused(errors.Conflict, rpc.call(peer, admin.UserRoles("admin", ["service"])))
        await self.refused(errors.UsageError, rpc.call(peer, admin.UserRoles("alice", ["king"])))
        await self.refused(errors.NotFound, rpc.call(peer, admin.UserRoles("nobody", [])))
