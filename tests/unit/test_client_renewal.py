"""Sessions that are renewed: what those who wait for it see, on a simulated clock."""

from __future__ import annotations

from typing import Any

import pytest
from test_client_session import Master
from twisted.internet.defer import CancelledError, Deferred, ensureDeferred

from sector import errors
from sector.clock import pause
from sector.rpc import RpcNode
from sector.wire.admin import Status
from sector.wire.base import Ok
from sector.wire.files import Mkdir
from sector.wire.login import Session


class Slow(Master):
    """A master whose door takes its time."""

    door_s = 0.3

    async def login(self, user: str, password: str) -> Session:
        await pause(self.clock, self.door_s)
        return await super().login(user, password)

    async def resume(self, session_id: bytes, secret: bytes) -> Session:
        await pause(self.clock, self.door_s)
        return await super().resume(session_id, secret)


@pytest.mark.parametrize("gone", [[0], [1], [2], [0, 1]])
def test_a_call_that_is_cancelled_ends_no_other(gone: list[int]) -> None:
    """Not even the one that began to renew the session, on which all of them wait."""
    master = Slow()
    session = master.session()
    master.run(session.call(Status()))
    master.stop()
    master.start()
    outcomes: list[list[Any]] = [[], [], []]
    calls = [ensureDeferred(session.call(Status(), patience_s=180.0)) for _ in outcomes]
    for call, outcome in zip(calls, outcomes, strict=True):
        call.addBoth(outcome.append)
    while len(session._turns) < 3:
        assert master.clock.seconds() < 20
        master.clock.advance(0.01)
    for one in gone:
        calls[one].cancel()
    assert [bool(outcome) for outcome in outcomes] == [one in gone for one in range(3)]
    master.clock.advance(1.0)
    for one, outcome in enumerate(outcomes):
        if one in gone:
            assert outcome[0].check(CancelledError)
        else:
            assert outcome[0].master_id == "m1"
    assert (master.logins, master.resumes) == (1, 1)


def test_a_renewal_that_nobody_waits_for_any_more_counts_all_the_same() -> None:
    """Or fails without a word."""
    for fails in (False, True):
        master = Slow()
        session = master.session("wrong" if fails else "right")
        opening = ensureDeferred(session.open())
        opening.addErrback(lambda failure: failure.trap(CancelledError) and None)
        master.clock.advance(0.1)
        opening.cancel()
        master.clock.advance(1.0)
        assert (session._peer is None) is fails
        assert master.logins == (0 if fails else 1)
        if not fails:
            master.run(session.call(Status()))
            assert master.logins == 1


def test_a_session_that_is_closed_renews_nothing_more() -> None:
    """Who waits for it hears so at once."""
    master = Slow()
    session = master.session()
    outcome: list[Any] = []
    calling = ensureDeferred(session.call(Status(), patience_s=180.0))
    calling.addBoth(outcome.append)
    master.clock.advance(0.1)
    session.close()
    assert outcome and outcome[0].check(errors.Cancelled)
    master.clock.advance(1.0)
    assert master.logins == 0 and not master.clock.getDelayedCalls()


class Strict(Master):
    """A master that refuses logins and resumes for a while: `refusals` one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals: list[errors.SectorError] = []
        self.asked: list[tuple[float, str]] = []

    def _admit(self, what: str) -> None:
        self.asked.append((self.clock.seconds(), what))
        if self.refusals:
            raise self.refusals.pop(0)

    async def login(self, user: str, password: str) -> Session:
        self._admit("login")
        return await super().login(user, password)

    async def resume(self, session_id: bytes, secret: bytes) -> Session:
        if not self.expired:
            self._admit("resume")
        else:
            self.asked.append((self.clock.seconds(), "resume"))
        return await super().resume(session_id, secret)

    def close_session(self) -> None:
        """The session is over, which is said to who asks under it."""
        assert self.gmp is not None
        self.expired, self.id = True, b"j" * 16
        old, rpc = self.key_id, RpcNode(self.gmp)

        def judged(request: Any, caller: Any) -> Any:
            if self.key_id == old:
                raise errors.SessionExpired("the session of alice has ended")
            return self._mkdir(request, caller)

        rpc.serve(Mkdir, judged)


NOT_NOW = [
    errors.Busy("many clients log in at once"),
    errors.TimedOut("no answer"),
    errors.Unreachable("connection refused"),
    errors.SecurityAway("the security server does not answer the master"),
]


@pytest.mark.parametrize("how", ["refused", "restarted", "ended"])
@pytest.mark.parametrize("error", NOT_NOW, ids=lambda error: error.code)
def test_patience_counts_while_the_session_is_renewed(error: errors.SectorError, how: str) -> None:
    """Nothing was sent, or it was certainly refused: it is sent whatever it changes, and once."""
    master = Strict()
    if how == "ended":
        master.end = 10.0
    session = master.session()
    master.run(session.call(Status()))
    master.clock.advance(11.0)
    master.end = 9e9
    if how == "restarted":
        master.stop()
        master.start()
        session._answered = False
    elif how == "refused":
        master.close_session()
    master.refusals = [error] * 5
    master.expired = how != "restarted"
    told: list[str] = []
    master.run(session.call(Mkdir("/a"), patience_s=60.0, on_wait=told.append))
    assert master.mkdirs == 1 and not master.refusals
    assert told == ["waiting for the master"]


@pytest.mark.parametrize("error", NOT_NOW, ids=lambda error: error.code)
def test_without_patience_a_renewal_that_fails_is_told_at_once(error: errors.SectorError) -> None:
    master = Strict()
    session = master.session()
    master.run(session.call(Status()))
    master.close_session()
    master.refusals = [error] * 5
    at = master.clock.seconds()
    with pytest.raises(type(error), match=error.message):
        master.run(session.call(Mkdir("/a")))
    assert master.clock.seconds() - at < 1.0 and master.mkdirs == 0


def test_a_session_that_a_master_calls_over_is_not_resumed_again() -> None:
    """Each attempt counts against what a master lets in."""
    master = Strict()
    session = master.session()
    master.run(session.call(Status()))
    master.close_session()
    master.refusals = [errors.Busy("many clients log in at once")] * 4
    del master.asked[:]
    master.run(session.call(Mkdir("/a"), patience_s=60.0))
    assert [what for _, what in master.asked] == ["resume"] + ["login"] * 5
    master.run(session.renew())  # the new one is
    assert [what for _, what in master.asked[6:]] == ["resume"]


def test_a_login_comes_again_when_it_is_told_to() -> None:
    """No sooner, and not all at one time; a command of many at once does not fail for it."""
    waits = []
    for number in range(4):
        master = Strict()
        session = master.session()
        session._rng.seed(number)
        busy = errors.Busy("many clients log in at once", hint="try again in 7.5 s")
        master.refusals = [busy, errors.Busy("too many logins at once", hint="try again in a few seconds")]
        master.run(session.open())
        times = [at for at, _ in master.asked]
        waits.append(round(times[1] - times[0], 1))
        assert 7.5 <= times[1] - times[0] < 10 and 2 < times[2] - times[1] < 5
    assert len(set(waits)) > 1


@pytest.mark.parametrize("hint", ["let old sessions end", "try again in 40 s", "try again later", ""])
def test_a_login_that_would_wait_for_long_is_refused_at_once(hint: str) -> None:
    master = Strict()
    master.refusals = [errors.Busy("no", hint=hint)]
    with pytest.raises(errors.Busy):
        master.run(master.session().open())
    assert len(master.asked) == 1 and master.clock.seconds() < 1


def test_calls_that_are_refused_together_begin_one_session() -> None:
    """However late the last of them hears that theirs is over."""
    master = Strict()
    session = master.session()
    master.run(session.call(Status()))
    master.close_session()
    assert master.gmp is not None
    first, second = master.key_id, Deferred[None]()
    rpc = RpcNode(master.gmp)

    async def judged(request: Mkdir, caller: Any) -> Ok:
        if request.path == "/late" and master.key_id == first:
            await second
            raise errors.SessionExpired("the session of alice has ended")
        if master.key_id == first:
            raise errors.SessionExpired("the session of alice has ended")
        return Ok()

    rpc.serve(Mkdir, judged)
    del master.asked[:]
    late = ensureDeferred(session.call(Mkdir("/late")))
    master.run(session.call(Mkdir("/a")))
    second.callback(None)
    master.run(late)
    assert [what for _, what in master.asked] == ["resume", "login"]
