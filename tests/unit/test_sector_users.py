"""Connections of the Sector backend by user: bounded, those least used go, refusals are remembered."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.internet.task import Clock

from cumulus.backends import sector_users
from cumulus.backends.sector_users import REFUSED_S, Refusals, Users
from sector import errors


class Cloud:
    """Connections are names with a number; `slow` lets them begin and end when a test says so."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.ended: list[str] = []
        self.refused: set[str] = set()
        self.slow = False
        self.steps: list[Deferred[None]] = []

    async def _step(self) -> None:
        if self.slow:
            self.steps.append(Deferred())
            await self.steps[-1]

    async def open_as(self, user: str) -> str:
        await self._step()
        if user in self.refused:
            raise errors.Denied(f"no {user}", hint="ask")
        self.opened.append(user)
        return f"{user}{self.opened.count(user)}"

    async def end(self, client: str) -> None:
        await self._step()
        self.ended.append(client)

    def go(self) -> None:
        """One step more."""
        self.steps.pop(0).callback(None)


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


def make(cloud: Cloud, most: int = 2) -> Users:
    return Users(most, cloud, Clock())


def take(users: Users, user: str) -> Deferred[Any]:
    return ensureDeferred(users.take(user))


def now(work: Deferred[Any]) -> Any:
    """The result, which must be there."""
    found: list[Any] = []
    work.addBoth(found.append)
    assert found, "it waits"
    if hasattr(found[0], "raiseException"):
        found[0].raiseException()
    return found[0]


def test_a_user_keeps_his_connection(cloud: Cloud) -> None:
    users = make(cloud)
    for _ in range(3):
        assert now(take(users, "a")) == "a1"
        users.give("a")
    assert cloud.opened == ["a"] and len(users) == 1


def test_the_least_used_goes_when_others_come(cloud: Cloud) -> None:
    users = make(cloud)
    for user in ("a", "b", "a", "c"):
        now(take(users, user))
        users.give(user)
    assert (cloud.opened, cloud.ended) == (["a", "b", "c"], ["b1"])
    assert now(take(users, "a")) == "a1" and now(take(users, "b")) == "b2"
    assert cloud.ended == ["b1", "c1"] and len(users) == 2


def test_what_is_in_use_stays_and_others_wait(cloud: Cloud) -> None:
    users = make(cloud)
    now(take(users, "a"))
    now(take(users, "b"))
    waits = [take(users, "c"), take(users, "d"), take(users, "c")]
    assert cloud.opened == ["a", "b"] and not any(work.called for work in waits)
    users.give("a")
    assert [work.called for work in waits] == [True, False, True] and now(waits[2]) == "c1"
    users.give("c")
    assert not waits[1].called
    users.give("c")
    assert now(waits[1]) == "d1"
    assert cloud.ended == ["a1", "c1"] and len(users) == 2


def test_those_that_end_count_until_they_have(cloud: Cloud) -> None:
    users = make(cloud)
    for user in "ab":
        now(take(users, user))
        users.give(user)
    cloud.slow = True
    first, second = take(users, "c"), take(users, "d")
    assert len(users) == 2 and len(cloud.steps) == 2 and cloud.ended == []
    cloud.slow = False
    cloud.go()
    assert now(first) == "c1" and not second.called
    cloud.go()
    assert now(second) == "d1" and len(users) == 2


def test_a_wait_that_is_cancelled_takes_no_place(cloud: Cloud) -> None:
    users = make(cloud, 1)
    now(take(users, "a"))
    given_up, patient = take(users, "b"), take(users, "c")
    given_up.cancel()
    with pytest.raises(CancelledError):
        now(given_up)
    users.give("a")
    assert now(patient) == "c1" and cloud.opened == ["a", "c"]


def test_an_opening_that_is_cancelled_leaves_nothing(cloud: Cloud) -> None:
    users = make(cloud)
    cloud.slow = True
    one, two = take(users, "a"), take(users, "a")
    one.cancel()
    with pytest.raises(CancelledError):
        now(one)
    cloud.steps.pop(0)
    cloud.go()
    assert now(two) == "a1"
    users.give("a")
    third = take(users, "b")
    third.cancel()
    with pytest.raises(CancelledError):
        now(third)
    assert len(users) == 1


def test_a_refused_user_holds_no_place(cloud: Cloud) -> None:
    users = make(cloud, 1)
    cloud.refused.add("eve")
    for _ in range(3):
        with pytest.raises(errors.Denied, match="no eve"):
            now(take(users, "eve"))
    assert len(users) == 0 and now(take(users, "a")) == "a1"


def test_a_refusal_is_remembered_for_a_while(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = Refusals()
    refusals.note("eve", errors.Denied("no", hint="ask"), 100.0)
    with pytest.raises(errors.Denied, match="no") as told:
        refusals.check("eve", 100.0 + REFUSED_S - 0.1)
    assert told.value.hint == "ask"
    refusals.check("eve", 100.0 + REFUSED_S)
    refusals.check("adam", 100.0)
    monkeypatch.setattr(sector_users, "_REFUSALS", 2)
    for user in ("a", "b", "eve", "c"):
        refusals.note(user, errors.Denied("no"), 100.0)
    assert list(refusals._held) == ["eve", "c"]
    users = make(cloud)
    users.refusals.note("a", errors.Denied("not now"), 0.0)
    with pytest.raises(errors.Denied, match="not now"):
        now(take(users, "a"))
    assert cloud.opened == []


def test_at_the_end_all_are_ended(cloud: Cloud) -> None:
    """Also one that is being opened; who waits hears of it; calls under way may still give back."""
    users = make(cloud, 3)
    now(take(users, "a"))
    now(take(users, "b"))
    cloud.slow = True
    opening, waiting = take(users, "c"), take(users, "d")
    cloud.slow = False
    closing = ensureDeferred(users.close())
    now(closing)
    assert sorted(cloud.ended) == ["a1", "b1"]
    with pytest.raises(errors.Cancelled):
        now(waiting)
    cloud.go()
    with pytest.raises(errors.Cancelled):
        now(opening)
    assert sorted(cloud.ended) == ["a1", "b1", "c1"]
    users.give("a")
    with pytest.raises(errors.Cancelled):
        now(take(users, "a"))
