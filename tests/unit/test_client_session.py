"""A session over restarts and silence of the master, on a simulated clock."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import Clock

from sector import errors
from sector.cli.tls_once import run_once
from sector.client.session import ClientSession
from sector.config import ClientSection
from sector.gmp.api import GmpKey
from sector.gmp.memory import MemoryGmp, MemoryHub
from sector.keys import client_master_key
from sector.model import Address
from sector.resolve import is_refused
from sector.rpc import RpcNode
from sector.wire.admin import Status, StatusInfo
from sector.wire.base import Ok
from sector.wire.files import Mkdir
from sector.wire.login import Session

SECRET = b"S" * 32


class Master:
    """A master that answers Status and Mkdir, and its door."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.hub = MemoryHub(self.clock)
        self.gmp: MemoryGmp | None = None
        self.key_id = 0
        self.logins = 0
        self.resumes = 0
        self.expired = False
        self.id = b"i" * 16
        self.end = 9e9
        self.mkdirs = 0
        self.looks = 0
        self.silent = False
        self.start()

    def start(self) -> None:
        """Come up without any key."""
        self.gmp = self.hub.endpoint("127.0.0.1", 7002)
        rpc = RpcNode(self.gmp)
        rpc.serve(Status, lambda request, caller: StatusInfo("m1", "0", "running", 0, 0, 0, 0, 0, 0, {}))
        rpc.serve(Mkdir, self._mkdir)

    def _mkdir(self, request: Mkdir, caller: Any) -> Ok:
        self.mkdirs += 1
        return Ok()

    def stop(self) -> None:
        """Go without a word."""
        if self.gmp is not None:
            self.gmp.stop()
        self.gmp = None

    def restart_without_a_word(self) -> None:
        """Forget the session and all keys; nothing is said to those who use them."""
        assert self.gmp is not None
        self.gmp.remove_key(self.key_id)
        self.expired, self.id = True, b"j" * 16

    def _granted(self, secret: bytes) -> Session:
        if self.gmp is None:
            raise errors.Unreachable("connection to 127.0.0.1:7001 refused")
        self.key_id += 1
        key = client_master_key(SECRET, "m1", self.key_id)
        self.gmp.add_key(GmpKey(self.key_id, key, "user:alice#00"))
        return Session(
            self.id, secret, "alice", self.end, "m1", Address("127.0.0.1", 7002), self.key_id, ["admin"], []
        )

    async def login(self, user: str, password: str) -> Session:
        if password != "right":
            raise errors.LoginRefused("wrong user name or password")
        self.logins += 1
        self.expired = False
        return self._granted(SECRET)

    async def resume(self, session_id: bytes, secret: bytes) -> Session:
        if self.expired:
            raise errors.SessionExpired("the session has ended")
        self.resumes += 1
        return self._granted(b"")

    async def tunnel(self, session_id: bytes, secret: bytes, gmp: Any, blocked: Any, lost: Any) -> Any:
        raise errors.Unreachable("no tunnel here")

    async def look(self) -> None:
        self.looks += 1
        if self.gmp is None and not self.silent:
            raise errors.Unreachable("connection to 127.0.0.1:7001 refused")

    def session(self, password: str = "right", **fields: Any) -> ClientSession:
        """A client's session."""
        section = ClientSection(user="alice", **fields)
        self.saved: list[ClientSection] = []
        return ClientSession(
            self.clock,
            self.hub.endpoint(),
            self,
            section,
            password=password,
            save=self.saved.append,
            wall=self.clock.seconds,
        )

    def run(self, work: Any, limit_s: float = 300.0) -> Any:
        """Let time pass until `work` is done."""
        outcome: list[Any] = []
        deferred: Deferred[Any] = ensureDeferred(work)
        deferred.addBoth(outcome.append)
        end = self.clock.seconds() + limit_s
        while not outcome:
            assert self.clock.seconds() < end
            self.clock.advance(0.05)
        if hasattr(outcome[0], "raiseException"):
            outcome[0].raiseException()
        return outcome[0]


def test_login_then_resume_from_the_file() -> None:
    """The stored session needs no password, and its key no TLS at all while the master knows it."""
    master = Master()
    session = master.session()
    master.run(session.open())
    assert (master.logins, master.resumes) == (1, 0)
    assert session.roles == ["admin"]
    stored = master.saved[-1]
    assert stored.secret == SECRET.hex()
    second = master.session(
        "",
        session=stored.session,
        secret=stored.secret,
        gmp=stored.gmp,
        key_id=stored.key_id,
        master_id=stored.master_id,
    )
    assert master.run(second.call(Status())).master_id == "m1"
    assert (master.logins, master.resumes) == (1, 0)


def test_wrong_password_is_refused() -> None:
    master = Master()
    with pytest.raises(errors.LoginRefused):
        master.run(master.session("wrong").open())


def test_restart_of_the_master_needs_no_password() -> None:
    """It does not know the key any more: the session is resumed and the call repeated."""
    master = Master()
    session = master.session()
    master.run(session.open())
    master.run(session.call(Status()))
    master.stop()
    master.start()
    assert master.run(session.call(Status())).master_id == "m1"
    assert (master.logins, master.resumes) == (1, 1)


def test_calls_wait_for_the_master_with_patience() -> None:
    """A request that may be repeated outlives the time the master is away; the wait is told once."""
    master = Master()
    session = master.session()
    master.run(session.open())
    master.stop()
    master.clock.callLater(40, master.start)
    told: list[str] = []
    state = master.run(session.call(Status(), patience_s=100, on_wait=told.append))
    assert state.master_id == "m1"
    assert told == ["waiting for the master"]


def test_without_patience_the_error_is_clear() -> None:
    master = Master()
    session = master.session()
    master.run(session.open())
    master.stop()
    with pytest.raises((errors.Unreachable, errors.TimedOut), match="does not answer"):
        master.run(session.call(Status()))


def test_changes_are_not_repeated_when_they_may_have_happened() -> None:
    """A Mkdir whose answer was lost is an error, not a second Mkdir."""
    master = Master()
    session = master.session()
    master.run(session.open())
    master.run(session.call(Status()))
    master.stop()
    master.clock.callLater(15, master.start)
    with pytest.raises((errors.Unreachable, errors.TimedOut)):
        master.run(session.call(Mkdir("/a"), patience_s=100))
    assert master.mkdirs == 0


def test_first_call_after_a_restart_is_sent_again_even_if_it_changes_things() -> None:
    """The key was not known: the request certainly did not arrive."""
    master = Master()
    session = master.session()
    master.run(session.open())
    master.stop()
    master.start()
    master.run(session.call(Mkdir("/a")))
    assert master.mkdirs == 1


def test_expired_session_logs_in_again_only_with_a_password() -> None:
    master = Master()
    session = master.session()
    master.run(session.open())
    master.expired = True
    master.stop()
    master.start()
    master.run(session.call(Status()))
    assert master.logins == 2
    poor = master.session("", session="69" * 16, secret=SECRET.hex())
    master.expired = True
    with pytest.raises(errors.SessionExpired):
        master.run(poor.open())
    with pytest.raises(errors.SessionExpired, match="no session"):
        master.run(master.session("").open())


def test_a_session_may_begin_without_a_password() -> None:
    """By what the caller gives; its refusal is told as it is, and nothing of it is kept in a file."""
    master = Master()
    begun: list[str] = []

    async def begin() -> Session:
        if begun[1:]:
            raise errors.Denied("no longer")
        begun.append("x")
        return await master.login("alice", "right")

    section = ClientSection(user="alice")
    session = ClientSession(
        master.clock, master.hub.endpoint(), master, section, begin=begin, wall=master.clock.seconds
    )
    master.run(session.call(Status()))
    for _ in range(2):
        master.expired = True
        master.stop()
        master.start()
        if begun[1:]:
            with pytest.raises(errors.Denied, match="no longer"):
                master.run(session.call(Status()))
        else:
            master.run(session.call(Status()))
    assert (master.logins, len(begun)) == (2, 2)


def test_a_session_that_has_ended_is_renewed_before_the_next_call() -> None:
    """At once, not after a silence: a new session is another principal on both ends."""
    master = Master()
    master.end = 100.0
    session = master.session()
    master.run(session.call(Status()))
    first = session._key().principal
    master.clock.advance(101.0)
    master.expired = True
    master.id, master.end = b"j" * 16, 9e9
    at = master.clock.seconds()
    assert master.run(session.call(Status())).master_id == "m1"
    assert master.logins == 2 and master.clock.seconds() - at < 1.0
    assert session._key().principal != first and b"j".hex() * 16 in session._key().principal


def test_an_end_by_a_wrong_clock_is_asked_about_once() -> None:
    """A machine whose clock is ahead resumes once, and then goes on with the session."""
    master = Master()
    master.end = 0.5
    session = master.session()
    master.clock.advance(1.0)
    for _ in range(3):
        master.run(session.call(Status()))
    assert (master.logins, master.resumes) == (1, 1)


def test_an_end_while_the_master_is_away_is_left_to_the_call() -> None:
    """Patience counts as for any call."""
    master = Master()
    master.end = 100.0
    session = master.session()
    master.run(session.call(Status()))
    master.clock.advance(101.0)
    master.stop()
    master.clock.callLater(5.0, master.start)
    assert master.run(session.call(Status(), patience_s=30.0)).master_id == "m1"


def test_a_call_is_repeated_when_silence_led_to_a_new_session() -> None:
    """The master forgot the session before its end; what may be repeated is, the rest says what happened."""
    master = Master()
    session = master.session()
    master.run(session.call(Status()))
    master.clock.advance(20.0)
    master.restart_without_a_word()
    assert master.run(session.call(Status())).master_id == "m1"
    assert master.logins == 2


def test_cancelled_calls_end() -> None:
    master = Master()
    session = master.session()
    master.run(session.open())
    master.stop()
    calling = ensureDeferred(session.call(Status(), patience_s=100))
    outcome: list[Any] = []
    calling.addBoth(outcome.append)
    master.clock.advance(0.1)
    calling.cancel()
    master.clock.advance(0.1)
    assert outcome
    assert outcome[0].check(errors.Cancelled)


def test_secrets_are_not_shown() -> None:
    master = Master()
    session = master.session()
    master.run(session.open())
    assert SECRET.hex() not in repr(session) + repr(session.section)


def test_a_missing_security_server_is_not_a_missing_master() -> None:
    """The master answers and says who is away: no second log-in is tried, and nothing is waited for."""
    master = Master()
    session = master.session()
    master.run(session.open())

    def away(request: Mkdir, caller: Any) -> Ok:
        raise errors.SecurityAway("the security server does not answer the master")

    assert master.gmp is not None
    RpcNode(master.gmp).serve(Mkdir, away)
    before = master.clock.seconds()
    with pytest.raises(errors.SecurityAway, match=r"^the security server does not answer"):
        master.run(session.call(Mkdir("/a"), patience_s=60.0))
    assert (master.logins, master.resumes) == (1, 0)
    assert master.clock.seconds() - before < 5


def test_a_master_that_is_gone_is_told_at_once() -> None:
    """Nothing listens where it was: that is said after two seconds, whatever the deadline."""
    master = Master()
    session = master.session()
    master.run(session.open())
    master.run(session.call(Status()))
    master.stop()
    for request in (Status(), Mkdir("/a")):
        before = master.clock.seconds()
        with pytest.raises(errors.Unreachable, match=r"the master does not answer: .* refused"):
            master.run(session.call(request, deadline_s=20.0))
        assert master.clock.seconds() - before < 3


def test_a_master_that_is_only_slow_is_waited_for() -> None:
    """A look that finds somebody there ends no call, and an answer late in the deadline counts."""
    master = Master()
    session = master.session()
    master.run(session.open())

    async def slow(request: Mkdir, caller: Any) -> Ok:
        late: Deferred[None] = Deferred()
        master.clock.callLater(15, late.callback, None)
        await late
        return Ok()

    assert master.gmp is not None
    RpcNode(master.gmp).serve(Mkdir, slow)
    before = master.clock.seconds()
    master.run(session.call(Mkdir("/a"), deadline_s=20.0))
    assert 15 <= master.clock.seconds() - before < 16
    assert master.looks >= 2
    assert (master.logins, master.resumes) == (1, 0)


def test_a_silent_host_is_waited_for_until_the_deadline() -> None:
    """Only a refusal is certain."""
    master = Master()
    session = master.session()
    master.run(session.open())
    master.stop()
    master.silent = True
    before = master.clock.seconds()
    with pytest.raises((errors.Unreachable, errors.TimedOut)):
        master.run(session.call(Status(), deadline_s=8.0))
    assert master.clock.seconds() - before > 7


def test_nothing_is_left_when_calls_are_over() -> None:
    """No timer of a look outlives its session."""
    master = Master()
    session = master.session()
    master.run(session.open())
    master.run(session.call(Status()))
    session.close()
    looks = master.looks
    master.clock.advance(10)
    assert master.looks == looks


def test_only_a_refusal_is_a_refusal() -> None:
    """Somebody who listens, even without a word, is there."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        server.listen()
        assert run_once(lambda reactor: is_refused(reactor, "127.0.0.1", port)) is False
    assert run_once(lambda reactor: is_refused(reactor, "127.0.0.1", port)) is True
    assert run_once(lambda reactor: is_refused(reactor, "no.such.host.invalid", 1)) is False


class Polite(Master):
    """A master that hears of logouts."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[bytes] = []

    async def logout(self, session_id: bytes, secret: bytes) -> None:
        assert secret == SECRET
        self.ended.append(session_id)


def refuse(section: ClientSection) -> None:
    """Settings in a file that this user may not write."""
    raise errors.LocalIO("/etc/sector/client.toml cannot be written: Read-only file system")


def other(section: ClientSection) -> None:
    """Settings in a file of another user."""
    raise errors.Conflict("client.toml is of another user or cluster")


@pytest.mark.parametrize(("save", "ended"), [(None, 1), (refuse, 1), (other, 1), (lambda section: None, 0)])
def test_a_session_that_nobody_can_use_again_is_ended(save: Any, ended: int) -> None:
    """One that is kept in no file: a program in a container that logged in each minute had a thousand after a
    day, and was refused. That the file cannot be written hinders nothing."""
    master = Polite()
    session = master.session()
    session._save = save
    master.run(session.open())
    assert master.run(session.call(Status())).master_id == "m1"
    session.close()
    master.run(session.end())
    master.run(session.end())
    assert len(master.ended) == ended


def test_a_session_that_was_there_before_is_not_ended() -> None:
    """Resumed from a file that cannot be written any more: others may use it."""
    master = Polite()
    first = master.session()
    master.run(first.open())
    stored = master.saved[-1]
    master.restart_without_a_word()
    master.expired = False
    second = master.session(
        "right", session=stored.session, secret=stored.secret, gmp=stored.gmp, key_id=1, master_id="m1"
    )
    second._save = refuse
    master.run(second.renew())
    master.run(second.end())
    assert master.ended == []
