"""Who may act for whom: the security server's answers, without threads, on a clock of the test's own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from sector.errors import Denied, UsageError
from sector.model import Right
from sector.security import core
from sector.security.core import UserRecord
from sector.security.service import Decisions
from sector.security.store import Database, SecurityStore
from sector.wire import login


def user(name: str, *rights: Right, roles: tuple[str, ...] = ("user",)) -> UserRecord:
    return UserRecord(name, "hash", roles, rights, (), 0, 1.0)


def test_lines_that_repeat_are_counted_for_so_many_subjects() -> None:
    """The rest share one count, so that made-up names cost no memory."""
    few = core.Few(most=2, subjects=3)
    assert [few.next("a", 0.0) for _ in range(4)] == ["write", "write", "last", "no"]
    assert [few.next(name, 1.0) for name in "bcdef"] == ["write", "write", "write", "write", "last"]
    assert len(few._counts) == 4
    assert few.next("a", 61.0) == "write"


class TestVouch(TestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.database = Database(Path(folder.name, "security"))
        self.database.open()
        self.addCleanup(self.database.close)
        self.database.user_add(user("root", roles=("user", "admin")), "x", 1.0)
        passwords: Any = None
        store = SecurityStore(self.database, self.clock, None)
        self.decisions = Decisions(store, passwords, self.clock.seconds, lambda: 5.0)

    async def test_refusals_to_act_for_others_do_not_fill_the_audit_log(self) -> None:
        """So many a minute of each account; what is granted is always there."""
        self.database.user_add(user("svc", Right("svc", "/s3", "rw"), roles=("user", "service")), "x", 1.0)
        self.database.user_add(user("alice", Right("alice", "/s3/a", "rx")), "x", 1.0)

        async def ask(service: str, name: str, again: bool = False) -> str:
            try:
                found = await self.decisions.vouch(login.Vouch(service, name, "10.0.0.1", again))
            except Denied as refused:
                return refused.message
            return f"{found.user} {found.rights}"

        for _ in range(40):
            assert await ask("root", "alice") == "user root has not the role service"
        assert await ask("ghost", "alice") == "user ghost has not the role service"
        expected = f"alice {[Right('alice', '/s3/a', 'r')]}"
        assert [await ask("svc", "alice") for _ in range(40)] == [expected] * 40
        assert await ask("svc", "alice", again=True) == expected
        lines = [(line.who, line.what) for line in self.database.audit()]
        assert lines.count(("user:root", "act for refused")) == 31
        assert lines.count(("user:ghost", "act for refused")) == 1
        assert lines.count(("user:svc", "act for")) == 40
        assert "not listed" in [line.detail for line in self.database.audit() if line.who == "user:root"][-1]
        self.clock.advance(61)
        assert await ask("root", "alice")
        assert [line.who for line in self.database.audit()][-1] == "user:root"

    async def test_more_rights_than_a_message_holds_are_refused(self) -> None:
        for name, letters, first in (("svc", "r", "a"), ("alice", "rw", "b")):
            rights = [Right(name, "/", "rw"), *(Right(name, f"/{first}{i}", letters[0]) for i in range(200))]
            self.database.user_add(user(name, *rights, roles=("user", "service")), "x", 1.0)
        with pytest.raises(UsageError, match="alice by svc has too many"):
            await self.decisions.vouch(login.Vouch("svc", "alice", "10.0.0.1"))
