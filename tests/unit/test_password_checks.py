"""What changes while a password is checked, which may take seconds: the user as he is afterwards counts."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from sector.errors import LoginRefused
from sector.model import Right
from sector.security.core import UserRecord
from sector.security.service import Decisions
from sector.security.store import Database, SecurityStore
from sector.wire import admin, login

WHERE = "10.0.0.1"


def user(name: str, *roles: str) -> UserRecord:
    return UserRecord(name, "hash", ("user", *roles), (), (), 0, 1.0)


class Slow:
    """Passwords that are their own hashes; a check is over when the test says so."""

    def __init__(self) -> None:
        self.checks: list[Deferred[tuple[bool, str]]] = []
        self.costs = ""

    def hash(self, password: str) -> Deferred[str]:
        return succeed(password)

    def check(self, record: UserRecord | None, password: str) -> Deferred[tuple[bool, str]]:
        good = record is not None and record.password_hash == password
        self.checks.append(Deferred())
        return self.checks[-1].addCallback(lambda _: (good, self.costs))


class Bench:
    """A security server without threads, with users root and alice."""

    def __init__(self, path: Path) -> None:
        self.database = Database(path)
        self.database.open()
        self.database.user_add(user("root", "admin"), "x", 1.0)
        self.database.user_add(user("alice"), "x", 1.0)
        self.slow = Slow()
        passwords: Any = self.slow
        clock = Clock()
        store = SecurityStore(self.database, clock, None)
        self.decisions = Decisions(store, passwords, clock.seconds, lambda: 5.0)

    def ask(self, asking: Coroutine[Any, Any, Any]) -> list[Any]:
        """The answer, as soon as there is one."""
        answers: list[Any] = []
        Deferred.fromCoroutine(asking).addBoth(answers.append)
        return answers

    def verify(self, name: str = "alice", password: str = "hash") -> list[Any]:
        return self.ask(self.decisions.verify(login.Verify(name, password, WHERE)))

    def checked(self, answers: list[Any]) -> Any:
        """The answer after the first check that waits; raises its error."""
        assert answers == []
        self.slow.checks.pop(0).callback((True, ""))
        if isinstance(answers[0], Failure):
            answers[0].raiseException()
        return answers[0]

    def refused(self, answers: list[Any]) -> tuple[str, str, str]:
        """Message and hint of a refused login, and what the audit log says of it."""
        with pytest.raises(LoginRefused) as refused:
            self.checked(answers)
        return refused.value.message, refused.value.hint, self.database.audit()[-1].detail

    def alice(self) -> UserRecord:
        found = self.database.user("alice")
        assert found is not None
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    found = Bench(tmp_path / "security.db")
    yield found
    assert found.database.audit_check() is None
    found.database.close()


def test_a_user_who_is_removed_meanwhile_is_refused_like_a_wrong_password(bench: Bench) -> None:
    wrong = bench.refused(bench.verify(password="no"))
    answers = bench.verify()
    bench.database.user_remove("alice", "x", 1.0)
    gone = bench.refused(answers)
    assert gone[:2] == wrong[:2] and gone[2] == f"from {WHERE}: unknown name"


def test_a_password_that_is_changed_meanwhile_is_wrong(bench: Bench) -> None:
    wrong = bench.refused(bench.verify(password="no"))
    answers = bench.verify()
    bench.database.user_password("alice", "new", "x", 1.0)
    assert bench.refused(answers) == wrong


def test_a_user_who_came_back_meanwhile_is_another_one(bench: Bench) -> None:
    answers = bench.verify()
    bench.database.user_remove("alice", "x", 1.0)
    bench.database.user_add(UserRecord("alice", "other salt", ("user",), (), (), 0, 1.0), "x", 1.0)
    bench.refused(answers)


def test_a_user_who_is_added_meanwhile_is_not_in(bench: Bench) -> None:
    answers = bench.verify("bob")
    bench.database.user_add(user("bob"), "x", 1.0)
    bench.refused(answers)


def test_rights_that_are_taken_meanwhile_are_not_given(bench: Bench) -> None:
    for path in ("/a", "/b"):
        bench.database.grant(Right("alice", path, "r"), "x", 1.0)
    answers = bench.verify()
    bench.database.revoke("alice", "/a", "x", 1.0)
    told = bench.checked(answers)
    assert (tuple(told.rights), told.rights_epoch) == (bench.alice().rights, bench.alice().rights_epoch)
    assert told.rights == [Right("alice", "/b", "r")]


def test_two_logins_at_once_may_both_renew_the_hash(bench: Bench) -> None:
    bench.slow.costs = "same password, other costs"
    one, two = bench.verify(), bench.verify()
    assert bench.checked(one).user == "alice" and bench.alice().password_hash == bench.slow.costs
    assert bench.checked(two).user == "alice"


def test_the_old_password_sets_no_new_one_over_that_of_an_administrator(bench: Bench) -> None:
    mine = bench.ask(bench.decisions.user_passwd(admin.UserPasswd("alice", "mine", "hash", by="user:alice")))
    bench.ask(bench.decisions.user_passwd(admin.UserPasswd("alice", "reset", by="user:root")))
    with pytest.raises(LoginRefused, match="the old password is wrong"):
        bench.checked(mine)
    assert bench.alice().password_hash == "reset"
