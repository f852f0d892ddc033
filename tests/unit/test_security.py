"""The security server's decisions, database and password checks."""

from __future__ import annotations

import random
import sqlite3
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet import defer, reactor
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from sector.errors import (
    BadConfig,
    BadPath,
    Busy,
    Conflict,
    Exists,
    LoginRefused,
    NotFound,
    SectorError,
    UsageError,
)
from sector.model import Right
from sector.security import core
from sector.security.core import Backoff, BackoffRule, NodeRecord, UserRecord
from sector.security.service import Decisions
from sector.security.sources.database import HashPool, Passwords
from sector.security.store import Database, SecurityStore
from sector.wire import admin, login


def user(name: str = "alice", *rights: Right, roles: tuple[str, ...] = ("user",)) -> UserRecord:
    return UserRecord(name, "hash", roles, rights, (), 0, 1.0)


@pytest.fixture
def database(tmp_path: Path) -> Any:
    found = Database(tmp_path / "security.db", lambda: 0.0)  # serials count from 1
    found.open()
    yield found
    assert found.audit_check() is None
    found.close()


class TestRules:
    @pytest.mark.parametrize("name", ["alice", "a", "_x", "9to5", "a.b-c_d"])
    def test_names_that_are_good(self, name: str) -> None:
        assert core.check_user_name(name) == name

    @pytest.mark.parametrize("name", ["", "Alice", "a b", "-x", "a/b", "a:b", "a#b", "ä", "x" * 65, "a\n"])
    def test_names_that_are_not(self, name: str) -> None:
        with pytest.raises(UsageError):
            core.check_user_name(name)

    def test_roles_are_known_and_always_have_user(self) -> None:
        assert core.check_roles(["admin"]) == ("user", "admin")
        with pytest.raises(UsageError, match="king"):
            core.check_roles(["king"])

    def test_address_rules_longest_prefix_decides(self) -> None:
        rules = core.check_rules(["10.0.0.0/8", "!10.1.0.0/16", "10.1.2.3"])
        assert core.address_allowed(rules, "10.9.9.9")
        assert not core.address_allowed(rules, "10.1.9.9")
        assert core.address_allowed(rules, "10.1.2.3")
        assert not core.address_allowed(rules, "192.168.0.1")
        assert not core.address_allowed(rules, "::1")

    def test_without_rules_or_with_denials_only_the_rest_may_come(self) -> None:
        assert core.address_allowed((), "::1")
        assert core.address_allowed(("!10.0.0.0/8",), "11.0.0.1")
        assert not core.address_allowed(("!10.0.0.0/8",), "10.0.0.1")
        assert not core.address_allowed(("10.0.0.0/8", "!10.0.0.0/8"), "10.0.0.1")

    def test_rules_of_a_user_come_and_go(self) -> None:
        one = core.with_rules(user(), ["10.0.0.0/8", "!10.1.0.0/16"], [])
        assert one.addresses == ("10.0.0.0/8", "!10.1.0.0/16")
        assert core.with_rules(one, ["!10.0.0.1/8"], []).addresses == ("!10.1.0.0/16", "!10.0.0.0/8")
        assert core.with_rules(one, [], ["!10.1.0.0/16"]).addresses == ("10.0.0.0/8",)
        with pytest.raises(NotFound, match=r"no rule 10\.1\.0\.0/16"):
            core.with_rules(one, [], ["10.1.0.0/16"])
        with pytest.raises(UsageError, match="more than 64"):
            core.with_rules(one, [f"11.0.0.{number}" for number in range(63)], [])

    def test_a_wrong_range_is_named(self) -> None:
        with pytest.raises(UsageError, match=r"10\.0\.0"):
            core.check_rules(["10.0.0"])

    def test_a_node_must_be_on_the_list_and_come_from_its_place(self) -> None:
        entry = NodeRecord("slave", "s1", ("10.0.0.0/8",))
        assert core.node_verdict(entry, "slave", "s1", "10.1.1.1") == ""
        assert "may not come from" in core.node_verdict(entry, "slave", "s1", "11.1.1.1")
        assert "not on the allow-list" in core.node_verdict(None, "slave", "s1", "10.1.1.1")


class TestRights:
    def test_a_right_replaces_the_one_on_its_path(self) -> None:
        after, takes = core.with_right(
            user("alice", Right("alice", "/a", "rw")), Right("alice", "/a/", "rwx")
        )
        assert after.rights == (Right("alice", "/a", "rwx"),) and not takes

    def test_less_than_what_counted_there_before_takes_something(self) -> None:
        start = user("alice", Right("alice", "/", "rw"))
        assert core.with_right(start, Right("alice", "/a", "r"))[1]
        assert core.with_right(start, Right("alice", "/a", ""))[1]
        assert not core.with_right(start, Right("alice", "/a", "rwx"))[1]

    def test_paths_are_checked(self) -> None:
        with pytest.raises(BadPath):
            core.with_right(user(), Right("alice", "/a/../b", "r"))

    def test_the_number_of_rights_is_bounded(self) -> None:
        many = user("alice", *(Right("alice", f"/d{i}", "r") for i in range(core.MAX_RIGHTS)))
        with pytest.raises(UsageError):
            core.with_right(many, Right("alice", "/one-more", "r"))
        long = tuple(Right("alice", f"/{i}" + "/n" * 2000, "r") for i in range(4))
        with pytest.raises(UsageError):
            core.with_right(user("alice", *long), Right("alice", "/x" + "/y" * 1000, "r"))

    def test_only_an_existing_right_can_be_taken(self) -> None:
        with pytest.raises(NotFound):
            core.without_right(user(), "/a")


class TestBackoff:
    RULE = BackoffRule(free=3, first_s=1.0, most_s=8.0, forget_s=100.0)

    def test_waits_double_up_to_the_most_and_a_success_ends_them(self) -> None:
        backoff = Backoff(self.RULE)
        waits = []
        for _ in range(9):
            backoff.failed("alice", 10.0)
            waits.append(backoff.wait_s("alice", 10.0))
        assert waits == [0, 0, 0, 1, 2, 4, 8, 8, 8]
        assert backoff.wait_s("bob", 10.0) == 0
        assert backoff.wait_s("alice", 17.0) == 1.0
        backoff.worked("alice")
        assert backoff.wait_s("alice", 10.0) == 0

    def test_it_forgets(self) -> None:
        backoff = Backoff(self.RULE)
        for _ in range(9):
            backoff.failed("alice", 10.0)
        assert backoff.wait_s("alice", 111.0) == 0
        backoff.failed("alice", 111.0)
        assert backoff.wait_s("alice", 111.0) == 0

    def test_memory_is_bounded(self) -> None:
        backoff = Backoff(self.RULE, most=100)
        for number in range(1000):
            backoff.failed(str(number), 1.0)
        assert len(backoff) == 100


class TestAuditChain:
    def lines(self, count: int = 6) -> list[core.AuditRecord]:
        found, before = [], core.GENESIS
        for seq in range(1, count + 1):
            fields = (seq, float(seq), f"user:{seq}", "did", f"thing {seq}")
            before = core.audit_hash(before, *fields)
            found.append(core.AuditRecord(*fields, before))
        return found

    def test_an_untouched_chain_is_good(self) -> None:
        assert core.verify_chain(self.lines()) is None

    @given(st.data())
    def test_any_change_is_found_where_it_is(self, data: st.DataObject) -> None:
        lines = self.lines()
        at = data.draw(st.integers(0, 5))
        how = data.draw(st.sampled_from(["who", "what", "detail", "at", "hash", "remove", "swap", "double"]))
        old = lines[at]
        match how:
            case "remove":
                if at == 5:
                    return  # the end is known only by what follows it
                del lines[at]
            case "swap":
                if at == 5:
                    return
                lines[at], lines[at + 1] = lines[at + 1], lines[at]
            case "double":
                lines.insert(at, old)
                at += 1
                if at == 6:
                    pass
            case _:
                new = {"at": 99.5, "hash": bytes(31) + b"x"}.get(how, "other")
                fields = {f: getattr(old, f) for f in ("seq", "at", "who", "what", "detail", "hash")}
                lines[at] = core.AuditRecord(**{**fields, how: new})
        assert core.verify_chain(lines) == at + 1


class TestDatabase:
    def test_a_user_comes_back_as_it_went_in(self, database: Database) -> None:
        added = database.user_add(user("alice", Right("alice", "/a", "r")), "x", 1.0)
        assert database.user("alice") == added and added.rights_epoch == 1
        assert database.user("bob") is None
        with pytest.raises(Exists):
            database.user_add(user(), "x", 1.0)

    def test_epochs_rise_over_removal_and_return(self, database: Database) -> None:
        """A user who is removed and added again within one poll of a master must not keep his session."""
        first = database.user_add(user(), "x", 1.0)
        database.user_add(user("root", roles=("user", "admin")), "x", 1.0)
        database.user_remove("alice", "x", 1.0)
        again = database.user_add(user(), "x", 1.0)
        assert again.rights_epoch > first.rights_epoch

    def test_the_epoch_rises_with_what_takes_and_not_with_what_gives(self, database: Database) -> None:
        epochs = [database.user_add(user(), "x", 1.0).rights_epoch]

        def epoch() -> int:
            found = database.user("alice")
            assert found is not None
            return found.rights_epoch

        database.grant(Right("alice", "/a", "r"), "x", 1.0)
        assert epoch() == epochs[0]
        for change in (
            lambda: database.user_password("alice", "new", "x", 1.0),
            lambda: database.grant(Right("alice", "/a", ""), "x", 1.0),
            lambda: database.revoke("alice", "/a", "x", 1.0),
            lambda: database.user_addresses("alice", ["!10.0.0.0/8"], [], "x", 1.0),
        ):
            change()
            epochs.append(epoch())
        assert epochs == sorted(set(epochs))
        database.user_addresses("alice", ["!10.0.0.0/8"], [], "x", 1.0)  # as it was
        assert epoch() == epochs[-1]

    def test_a_refused_change_leaves_no_trace(self, database: Database) -> None:
        database.user_add(user("root", roles=("user", "admin")), "x", 1.0)
        lines = len(database.audit())
        with pytest.raises(Conflict):
            database.user_remove("root", "x", 1.0)
        with pytest.raises(Conflict, match="the only administrator"):
            database.user_addresses("root", ["10.0.0.0/8"], [], "x", 1.0)
        with pytest.raises(NotFound):
            database.user_addresses("nobody", ["10.0.0.0/8"], [], "x", 1.0)
        with pytest.raises(NotFound):
            database.grant(Right("nobody", "/a", "r"), "x", 1.0)
        with pytest.raises(NotFound):
            database.node_remove("slave", "s9", "x", 1.0)
        assert len(database.audit()) == lines

    def test_a_right_on_the_root(self, database: Database) -> None:
        database.user_add(user(), "x", 1.0)
        database.grant(Right("alice", "/", "rwx"), "x", 1.0)
        found = database.user("alice")
        assert found is not None and found.rights == (Right("alice", "/", "rwx"),)
        database.revoke("alice", "/", "x", 1.0)

    def test_changes_come_in_pages_and_name_each_subject_once(self, database: Database) -> None:
        for number in range(150):
            database.node_set(NodeRecord("slave", f"s{number}", ()), "x", 1.0)
        database.node_set(NodeRecord("slave", "s0", ()), "x", 1.0)
        seen: dict[str, int] = {}
        serial = 0
        while True:
            following, found, _ = database.changes(serial)
            if following == serial:
                break
            assert len(found) <= 100 and not set(found) & set(seen)
            serial = following
            seen.update(found)
        assert len(seen) == 150
        database.node_remove("slave", "s0", "x", 1.0)
        assert database.changes(serial)[1] == {"slave:s0": 0}

    def test_changes_carry_the_rights_of_those_users(self, database: Database) -> None:
        database.user_add(user("alice", Right("alice", "/a", "r")), "x", 1.0)
        assert database.changes(0)[2] == [Right("alice", "/a", "r")]

    def test_tampering_with_the_file_is_found(self, tmp_path: Path) -> None:
        path = tmp_path / "s.db"
        database = Database(path)
        database.open()
        for number in range(5):
            database.audit_append([(float(number), "user:a", "did", f"thing {number}")])
        assert database.audit_check() is None
        database.close()
        with sqlite3.connect(path) as raw:
            raw.execute("update audit set detail = 'nothing' where seq = 3")
        raw.close()
        again = Database(path)
        again.open()
        assert again.audit_check() == 3
        again.close()

    def test_the_file_is_private_durable_and_current(self, tmp_path: Path) -> None:
        database = Database(tmp_path / "s.db")
        database.open()
        assert (tmp_path / "s.db").stat().st_mode & 0o777 == 0o600
        with database._engine.connect() as connection:
            settings = [
                connection.exec_driver_sql(f"pragma {p}").scalar() for p in ("journal_mode", "synchronous")
            ]
        assert settings == ["wal", 2]
        database.close()

    def test_migrations_make_what_the_models_say(self, tmp_path: Path) -> None:
        from alembic.autogenerate import compare_metadata
        from alembic.migration import MigrationContext

        from sector.revisions import upgrade
        from sector.security import store
        from sector.security.models import Base

        database = Database(tmp_path / "s.db")
        with database._engine.begin() as connection:
            upgrade(connection, Path(store.__file__).with_name("migrations"))
        with database._engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
        database.close()

    def test_a_file_of_a_newer_version_is_refused_in_one_line(self, tmp_path: Path) -> None:
        database = Database(tmp_path / "s.db")
        database.open()
        with database._engine.begin() as connection:
            connection.exec_driver_sql("update alembic_version set version_num = '9999'")
        with pytest.raises(BadConfig, match="another version"):
            database.open()
        database.close()
        assert (tmp_path / "s.db.9999.bak").exists()

    def test_a_file_that_is_no_database_is_refused_in_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "s.db").write_bytes(b"hello world, not a database at all" * 100)
        database = Database(tmp_path / "s.db")
        with pytest.raises(SectorError, match=r"s\.db"):
            database.open()
        database.close()

    @pytest.mark.timeout(60)
    def test_two_writers_take_turns(self, tmp_path: Path) -> None:
        """`sector up` adds slaves while the security server runs."""
        one, two = Database(tmp_path / "s.db"), Database(tmp_path / "s.db")
        one.open()
        two.open()

        def write(database: Database, name: str) -> None:
            for number in range(20):
                database.node_set(NodeRecord("slave", f"{name}{number}", ()), "x", 1.0)

        threads = [threading.Thread(target=write, args=pair) for pair in ((one, "a"), (two, "b"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(one.nodes("slave")) == 40 and one.audit_check() is None
        one.close()
        two.close()


def cheap_passwords(pool: HashPool) -> Passwords:
    return Passwords(pool, mib=8, passes=1)


class TestHashPool(TestCase):
    timeout = 30

    def setUp(self) -> None:
        self.pool = HashPool(reactor, 2, 4)
        self.pool.start()
        self.gate = threading.Event()
        self.running = 0
        self.most = 0
        self.lock = threading.Lock()

    def tearDown(self) -> None:
        self.gate.set()
        self.pool.stop()

    def work_thd(self, number: int) -> int:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.gate.wait(10)
        with self.lock:
            self.running -= 1
        return number

    async def test_two_run_four_wait_and_the_rest_hear_busy(self) -> None:
        asked = [self.pool.run(self.work_thd, number) for number in range(10)]
        refused = [self.failureResultOf(result, Busy) for result in asked[6:]]
        assert len(refused) == 4
        self.gate.set()
        assert await defer.gatherResults(asked[:6]) == [0, 1, 2, 3, 4, 5]
        assert self.most <= 2

    async def test_who_goes_away_gives_up_his_place(self) -> None:
        asked = [self.pool.run(self.work_thd, number) for number in range(6)]
        asked[5].cancel()
        self.failureResultOf(asked[5], defer.CancelledError)
        again = self.pool.run(self.work_thd, 7)
        self.gate.set()
        assert await again == 7
        await defer.gatherResults(asked[:5])

    async def test_an_error_in_one_check_is_its_own(self) -> None:
        def bad_thd() -> None:
            raise ValueError("x")

        result = self.pool.run(bad_thd)
        with pytest.raises(ValueError):
            await result
        self.gate.set()
        assert await self.pool.run(self.work_thd, 1) == 1


class TestPasswords(TestCase):
    timeout = 60

    def setUp(self) -> None:
        self.pool = HashPool(reactor, 2, 32)
        self.pool.start()
        self.addCleanup(self.pool.stop)

    def record(self, stored: str) -> UserRecord:
        return UserRecord("alice", stored, ("user",), (), (), 1, 1.0)

    async def test_right_and_wrong(self) -> None:
        passwords = cheap_passwords(self.pool)
        stored = await passwords.hash("wonderland")
        assert stored.startswith("$argon2id$v=19$m=8192,t=1,p=1$")
        assert await passwords.check(self.record(stored), "wonderland") == (True, "")
        assert await passwords.check(self.record(stored), "wrong") == (False, "")
        assert await passwords.check(self.record("garbage"), "wonderland") == (False, "")
        assert await passwords.check(None, "wonderland") == (False, "")

    async def test_other_costs_give_a_new_hash_at_login(self) -> None:
        stored = await cheap_passwords(self.pool).hash("wonderland")
        dearer = Passwords(self.pool, mib=16, passes=1)
        good, renewed = await dearer.check(self.record(stored), "wonderland")
        assert good and "m=16384" in renewed
        assert await dearer.check(self.record(renewed), "wonderland") == (True, "")

    async def test_the_default_cost_is_64_mib(self) -> None:
        assert "m=65536" in await Passwords(self.pool).hash("x")

    async def test_an_unknown_name_costs_the_same_time(self) -> None:
        passwords = Passwords(self.pool, mib=32, passes=2)
        stored = await passwords.hash("wonderland")
        await passwords.check(None, "x")

        async def best(record: UserRecord | None) -> float:
            times = []
            for _ in range(7):
                begin = time.perf_counter()
                await passwords.check(record, "wrong password")
                times.append(time.perf_counter() - begin)
            return min(times)

        known, unknown = await best(self.record(stored)), await best(None)
        assert 0.5 < known / unknown < 2.0, (known, unknown)


class Here:
    """Passwords without threads or cost: the hash is the password itself."""

    def hash(self, password: str) -> defer.Deferred[str]:
        return defer.succeed(password)

    def check(self, record: UserRecord | None, password: str) -> defer.Deferred[tuple[bool, str]]:
        return defer.succeed((record is not None and record.password_hash == password, ""))


class TestDecisions(TestCase):
    """The service's answers, on a clock of the test's own and without threads."""

    def setUp(self) -> None:
        self.clock = Clock()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.database = Database(Path(folder.name, "security"))
        self.database.open()
        self.addCleanup(self.database.close)
        self.database.user_add(user("root", roles=("user", "admin")), "x", 1.0)
        passwords: Any = Here()
        store = SecurityStore(self.database, self.clock, None)
        self.decisions = Decisions(store, passwords, self.clock.seconds, lambda: 5.0)

    async def verify(self, name: str, password: str, address: str = "10.0.0.1") -> Any:
        return await self.decisions.verify(login.Verify(name, password, address))

    async def outcome(self, name: str, password: str, address: str = "10.0.0.1") -> str:
        try:
            await self.verify(name, password, address)
        except (LoginRefused, Busy) as error:
            return error.code
        return "in"

    async def test_a_name_under_attack_waits_from_any_address_but_not_for_ever(self) -> None:
        outcomes = [await self.outcome("root", "no", f"10.0.0.{i}") for i in range(8)]
        assert outcomes == ["login_refused"] * 6 + ["busy"] * 2
        assert await self.outcome("root", "hash", "10.9.9.9") == "busy"
        self.clock.advance(8.0)
        assert await self.outcome("root", "hash", "10.9.9.9") == "in"
        assert await self.outcome("root", "no", "10.9.9.9") == "login_refused"

    async def test_an_address_that_tries_names_waits_unknown_names_too(self) -> None:
        outcomes = [await self.outcome(f"user{i}", "no") for i in range(25)]
        assert outcomes.count("login_refused") == 21
        assert await self.outcome("root", "hash") == "busy"
        assert await self.outcome("root", "hash", "10.0.0.2") == "in"

    async def test_all_addresses_of_one_subscriber_wait_together(self) -> None:
        outcomes = [await self.outcome(f"user{i}", "no", f"2001:db8:0:1::{i:x}") for i in range(25)]
        assert outcomes.count("login_refused") == 21
        assert await self.outcome("root", "hash", "2001:db8:0:1:ffff::") == "busy"
        assert await self.outcome("root", "hash", "2001:db8:0:2::") == "in"

    async def test_answers_carry_rights_and_never_hashes(self) -> None:
        await self.decisions.user_add(admin.UserAdd("alice", "wonderland", by="user:root"))
        await self.decisions.grant(admin.Grant(Right("alice", "/a", "rw"), "user:root"))
        answer = await self.verify("alice", "wonderland")
        assert answer.rights == [Right("alice", "/a", "rw")] and "wonderland" not in repr(answer)
        listed = await self.decisions.user_list(admin.UserList())
        assert [entry.name for entry in listed.users] == ["alice", "root"] and not listed.more
        assert "wonderland" not in repr(listed)

    async def test_a_user_outside_of_his_addresses_is_refused_like_a_wrong_password(self) -> None:
        record = UserRecord("bob", "pw", ("user",), (), ("10.0.0.0/8",), 0, 1.0)
        self.database.user_add(record, "x", 1.0)
        assert await self.outcome("bob", "pw", "11.0.0.1") == "login_refused"
        assert await self.outcome("bob", "pw", "10.0.0.1") == "in"

    async def test_every_login_refusal_and_change_is_in_the_audit_log(self) -> None:
        await self.outcome("root", "hash")
        await self.outcome("root", "no")
        await self.decisions.user_add(admin.UserAdd("alice", "12345678", by="user:root"))
        await self.decisions.user_passwd(admin.UserPasswd("alice", "87654321", by="user:root"))
        await self.decisions.grant(admin.Grant(Right("alice", "/a", "r"), "user:root"))
        await self.decisions.revoke(admin.Revoke("alice", "/a", "user:root"))
        await self.decisions.acl_change(admin.AclChange("slave", "s1", True, [], "user:root"))
        await self.decisions.acl_change(admin.AclChange("slave", "s1", False, [], "user:root"))
        await self.decisions.user_remove(admin.UserRemove("alice", "user:root"))
        lines = self.database.audit()
        expected = (
            "login, login refused, user add, user passwd, grant, revoke, acl add, acl remove, user remove"
        )
        assert [line.what for line in lines[1:]] == expected.split(", ")
        assert {line.who for line in lines[3:]} == {"user:root"}
        text = " ".join(line.detail for line in lines)
        assert "12345678" not in text and "87654321" not in text
        assert self.database.audit_check() is None

    async def test_many_users_come_in_pages(self) -> None:
        rng = random.Random(1)
        names = sorted({f"u{rng.randrange(10**6)}" for _ in range(250)})
        for name in names:
            self.database.user_add(user(name), "x", 1.0)
        found: list[str] = []
        while True:
            page = await self.decisions.user_list(admin.UserList(after=found[-1] if found else ""))
            found.extend(entry.name for entry in page.users)
            if not page.more:
                break
        assert found == sorted([*names, "root"])

    async def test_wrong_values_are_refused_before_anything_is_done(self) -> None:
        for request in (
            admin.UserAdd("Bad Name", "12345678"),
            admin.UserAdd("good", ""),
            admin.UserAdd("good", "12345678", ["king"]),
        ):
            with pytest.raises(UsageError):
                await self.decisions.user_add(request)
        for change in (
            admin.AclChange("king", "x", True),
            admin.AclChange("slave", "a b", True),
            admin.AclChange("slave", "a", True, ["nowhere"]),
        ):
            with pytest.raises(UsageError):
                await self.decisions.acl_change(change)
        assert len(self.database.users("", 10)) == 1
