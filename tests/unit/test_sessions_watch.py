"""The master hears of changed rights within 5 s, whatever happens to the security server in between, on a
clock of the test's own (spec/security.md, Sessions 5); what ended stays ended, and nothing begins with what
was verified before a change."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure

from sector import errors, keys
from sector.cli.cluster_dir import ClusterDir
from sector.config import load_config
from sector.gmp.memory import MemoryHub
from sector.master import login as door
from sector.master.login import LoginService, make_login_service, make_sessions
from sector.master.sessions import SessionRow
from sector.model import Right
from sector.tls import TlsPeer
from sector.wire.login import (
    ActFor,
    Epochs,
    Login,
    Logout,
    Resume,
    RightsOf,
    Verified,
    Verify,
    Vouch,
    Vouched,
    WatchRights,
)

PEER = TlsPeer("10.0.0.1", None, b"e" * 32)


class FakeLink:
    """Answers like the security server; `away` errbacks. What it is to verify or to vouch for waits in
    `verifying`; `overtaken` are epochs that rose since the last news."""

    def __init__(self) -> None:
        self.on_change: list[Any] = []
        self.serial = 1
        self.changed: dict[str, tuple[int, int]] = {}
        self.nodes: dict[str, int] = {}
        self.rights: dict[str, list[Right]] = {}
        self.overtaken: dict[str, int] = {}
        self.verifying: list[Deferred[Any]] = []
        self.away = False
        self.asked: list[Any] = []

    def call(self, request: Any) -> Deferred[Any]:
        self.asked.append(request)
        if self.away:
            return fail(errors.Unreachable("away"))
        if isinstance(request, WatchRights):
            news = {user: epoch for user, (at, epoch) in self.changed.items() if at > request.serial}
            nodes = {name: 0 for name, at in self.nodes.items() if at > request.serial}
            rights = [right for user in news for right in self.rights.get(user, [])]
            return succeed(Epochs(self.serial, news, rights, nodes))
        if isinstance(request, RightsOf):
            if request.user not in self.rights:
                return fail(errors.NotFound("gone"))
            epoch = self.overtaken.get(request.user, self.changed[request.user][1])
            return succeed(Verified(request.user, ["user"], self.rights[request.user], epoch))
        if isinstance(request, Vouch) and request.again:
            epochs = [self.overtaken.get(name, 5) for name in (request.user, request.service)]
            return succeed(Vouched(request.user, [], *epochs))
        if isinstance(request, Verify | Vouch):
            self.verifying.append(Deferred())
            return self.verifying[-1]
        raise AssertionError(request)

    def change(self, user: str, epoch: int, *rights: Right) -> None:
        """The rights of a user changed; `epoch` as the database would give it."""
        self.serial += 1
        self.changed[user] = (self.serial, epoch)
        self.rights[user] = list(rights)


class Store:
    """Sessions of the database; answers at once."""

    def __init__(self) -> None:
        self.dropped: list[bytes] = []

    def session_add(self, row: SessionRow) -> Deferred[None]:
        return succeed(None)

    def session_all(self) -> Deferred[list[SessionRow]]:
        return succeed([])

    def session_drop(self, ids: list[bytes]) -> Deferred[None]:
        self.dropped.extend(ids)
        return succeed(None)


class Busy(Store):
    """A database whose rows come and go when the test says so; reads wait too while `reads` is a list."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[bytes, SessionRow] = {}
        self.writes: list[tuple[Deferred[None], Callable[[], object]]] = []
        self.reads: list[Deferred[list[SessionRow]]] | None = None

    def session_add(self, row: SessionRow) -> Deferred[None]:
        return self._later(lambda: self.rows.update({row.id: row}))

    def session_all(self) -> Deferred[list[SessionRow]]:
        if self.reads is None:
            return succeed(list(self.rows.values()))
        self.reads.append(Deferred())
        return self.reads[-1]

    def session_drop(self, ids: list[bytes]) -> Deferred[None]:
        return self._later(lambda: [self.rows.pop(one, None) for one in ids])

    def _later(self, change: Callable[[], object]) -> Deferred[None]:
        self.writes.append((Deferred(), change))
        return self.writes[-1][0]

    def commit(self, trouble: Exception | None = None) -> int:
        """Do what waits, or fail with it; how much that was."""
        writes, self.writes = self.writes, []
        for waiting, change in writes:
            if trouble is None:
                change()
            if not waiting.called:
                waiting.callback(None) if trouble is None else waiting.errback(trouble)
        return len(writes)


def begun(asking: Coroutine[Any, Any, Any]) -> list[Any]:
    """What a request is answered with, as soon as it is: a reply or a Failure."""
    answers: list[Any] = []
    Deferred.fromCoroutine(asking).addBoth(answers.append)
    return answers


def said(answers: list[Any]) -> Any:
    """The only reply; raises its error."""
    (answer,) = answers
    if isinstance(answer, Failure):
        answer.raiseException()
    return answer


class World:
    """A master's door on a test clock, with one session of alice (epoch 5)."""

    def __init__(self, path: Path, store: Store | None = None) -> None:
        place = ClusterDir(path / "c")
        place.init(cluster="x", host="127.0.0.1", port_base=7000, slaves=1)
        self.config = load_config(place.path / "master.toml", "master")
        self.clock = MemoryReactorClock()
        self.link = FakeLink()
        self.store = store or Store()
        self.start()
        self.alice, self.secret = self.sessions.create(Verified("alice", ["user"], [], 5), "10.0.0.1/32")
        self.gmp.add_key(self.sessions.gmp_key(self.alice))

    def start(self) -> None:
        """A master that knows no more than its database."""
        self.gmp = MemoryHub(self.clock).endpoint()
        self.sessions = make_sessions(self.config, lambda: 1000.0 + self.clock.seconds())
        self.closed: list[SessionRow] = []
        self.removed: list[str] = []
        self.rights: dict[str, tuple[Right, ...]] = {}

        async def join(*_: Any) -> Any:
            raise AssertionError

        link: Any = self.link
        self.service: LoginService = make_login_service(
            self.config,
            self.clock,
            self.sessions,
            link,
            self.gmp,
            self.store,
            join,
            on_closed=self.closed.extend,
            on_node_removed=self.removed.append,
            on_rights=self.rights.update,
        )
        self.service.startService()

    def run(self, seconds: float) -> None:
        """Let time pass in small steps."""
        self.clock.pump([0.1] * round(seconds * 10))

    @property
    def alive(self) -> bool:
        return self.alice.key_id in self.gmp._keys

    @property
    def proof(self) -> bytes:
        return keys.resume_proof(self.secret, PEER.exporter)

    def resume(self) -> list[Any]:
        """Alice's client comes back by itself, as it does when its key is unknown."""
        return begun(self.service.serve_resume(Resume(self.alice.id, self.proof), PEER))

    def login(self) -> list[Any]:
        return begun(self.service.serve_login(Login("alice", "wonderland"), PEER))


class BusyWorld(World):
    """With a busy database that has the row of alice's session."""

    def __init__(self, path: Path) -> None:
        self.disk = Busy()
        super().__init__(path, self.disk)
        self.disk.rows[self.alice.id] = self.alice

    def end(self) -> None:
        """Alice's password changed, and the master heard of it; the row is still there."""
        self.link.change("alice", 9)
        self.run(5)
        assert not self.alive and self.alice.id in self.disk.rows


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def busy(tmp_path: Path) -> BusyWorld:
    return BusyWorld(tmp_path)


def test_a_raised_epoch_ends_sessions_keys_and_rows_within_five_seconds(world: World) -> None:
    world.run(20)
    assert world.alive
    world.link.change("alice", 9)
    world.run(5)
    assert not world.alive and world.closed == [world.alice] and world.store.dropped == [world.alice.id]


def test_a_removed_user_is_out_and_another_user_is_not(world: World) -> None:
    world.link.change("bob", 0)
    world.run(5)
    assert world.alive
    world.link.change("alice", 0)
    world.run(5)
    assert not world.alive


def test_everybody_is_asked_for_when_an_older_database_was_put_back(world: World) -> None:
    world.link.serial = 100
    world.run(5)
    world.link.change("alice", 5, Right("alice", "/older", "r"))
    world.link.serial = 50
    world.run(5)
    assert world.alive and world.sessions.rows()[0].rights == (Right("alice", "/older", "r"),)
    world.link.serial = 40
    del world.link.rights["alice"], world.link.changed["alice"]  # she was not there yet
    world.run(5)
    assert not world.alive


def test_more_rights_reach_the_session_without_ending_it(world: World) -> None:
    world.link.change("alice", 5, Right("alice", "/a", "r"))
    world.run(5)
    assert world.alive and world.sessions.rows()[0].rights == (Right("alice", "/a", "r"),)
    assert world.rights == {"alice": (Right("alice", "/a", "r"),)}


def test_after_an_outage_the_news_arrive_within_five_seconds_of_its_end(world: World) -> None:
    world.run(3)
    world.link.away = True
    world.link.change("alice", 9)
    world.run(60)
    assert world.alive
    world.link.away = False
    world.run(5)
    assert not world.alive


def test_an_outage_does_not_make_the_master_ask_faster(world: World) -> None:
    world.link.away = True
    world.link.asked.clear()
    world.run(60)
    assert 25 <= len(world.link.asked) <= 36


def test_a_node_taken_from_its_list_is_told_once(world: World) -> None:
    world.run(3)
    world.link.serial += 1
    world.link.nodes["slave:slave1"] = world.link.serial
    world.run(20)
    assert world.removed == ["slave:slave1"]


def test_sessions_end_with_their_time(world: World) -> None:
    world.run(3)
    world.clock.advance(12 * 3600)
    world.run(door.EXPIRE_S + 1)
    assert not world.alive and len(world.sessions) == 0


def test_nothing_runs_after_the_stop(world: World) -> None:
    world.run(3)
    world.service.stopService()
    world.link.asked.clear()
    world.run(120)
    assert world.link.asked == [] and world.clock.getDelayedCalls() == []


# who proves nothing ---------------------------------------------------------------------------------
def test_bad_proofs_keep_nobody_from_logging_in_or_resuming(world: World) -> None:
    world.run(3)
    stranger = TlsPeer("192.0.2.1", None, b"x" * 32)
    for number in range(500):
        known = world.alice.id if number % 2 else bytes(16)
        with pytest.raises(errors.SessionExpired):
            said(begun(world.service.serve_resume(Resume(known, bytes(32)), stranger)))
    answers = world.login()
    world.link.verifying[0].callback(Verified("alice", ["user"], [], 5))
    assert said(answers).user == said(world.resume()).user == "alice"


def test_passwords_from_one_network_leave_the_others_their_turn(world: World) -> None:
    world.run(3)
    refused = 0
    for number in range(500):
        peer = TlsPeer(f"2001:db8::{number:x}", None, b"x" * 32)
        answers = begun(world.service.serve_login(Login("alice", "guess"), peer))
        refused += bool(answers) and answers[0].check(errors.Busy) is not None
    asked = len(world.link.verifying)
    assert 0 < asked < 50 and refused == 500 - asked
    answers = world.login()
    world.link.verifying[-1].callback(Verified("alice", ["user"], [], 5))
    assert len(world.link.verifying) == asked + 1 and said(answers).user == "alice"


# what ended stays ended -----------------------------------------------------------------------------
def test_a_session_that_ended_does_not_come_back_while_its_row_waits_to_be_dropped(busy: BusyWorld) -> None:
    busy.run(3)
    busy.end()
    for _ in range(3):
        busy.run(door.RELOAD_S + 1)
        with pytest.raises(errors.SessionExpired):
            said(busy.resume())
        assert not busy.alive and len(busy.sessions) == 0
    assert busy.disk.commit() == 1 and busy.disk.rows == {}


def test_a_session_whose_row_could_not_be_dropped_stays_ended_and_is_dropped_later(busy: BusyWorld) -> None:
    busy.run(3)
    busy.end()
    for _ in range(2):
        assert busy.disk.commit(errors.NoSpace("database or disk is full")) == 1
        busy.run(door.RELOAD_S + 1)
        with pytest.raises(errors.SessionExpired):
            said(busy.resume())
        assert not busy.alive and busy.alice.id in busy.disk.rows
        busy.run(door.EXPIRE_S)
    assert busy.disk.commit() == 1 and busy.disk.rows == {}
    busy.run(2 * door.EXPIRE_S)
    assert busy.disk.commit() == 0 and busy.closed == [busy.alice]


def test_a_read_that_began_before_the_drop_brings_nothing_back(busy: BusyWorld) -> None:
    busy.run(door.RELOAD_S + 1)
    busy.disk.reads = []
    answers = begun(busy.service.serve_resume(Resume(b"?" * 16, busy.proof), PEER))
    busy.end()
    assert busy.disk.commit() == 1 and len(busy.disk.reads) == 1
    busy.run(2 * door.EXPIRE_S)
    busy.disk.reads[0].callback([busy.alice])
    with pytest.raises(errors.SessionExpired):
        said(answers)
    assert not busy.alive and len(busy.sessions) == 0


def test_a_master_that_was_killed_before_the_drop_ends_the_session_again(busy: BusyWorld) -> None:
    busy.run(3)
    busy.end()
    busy.service.stopService()
    busy.link.away = True
    busy.start()
    assert busy.alive  # sessions go on while the security server is away
    busy.link.away = False
    busy.run(5)
    assert not busy.alive and busy.closed == [busy.alice]


def test_what_the_database_has_forgotten_is_not_remembered(busy: BusyWorld) -> None:
    busy.run(3)
    busy.end()
    assert busy.service._ended == {busy.alice.id}
    busy.disk.commit()
    busy.run(door.EXPIRE_S + 1)
    assert busy.service._ended == busy.service._dropped == busy.service._undropped == set()


def test_a_logout_is_answered_when_no_restart_would_know_the_session(busy: BusyWorld) -> None:
    answers = begun(busy.service.serve_logout(Logout(busy.alice.id, busy.proof), PEER))
    assert not busy.alive and answers == []
    busy.disk.commit()
    assert said(answers) is not None and busy.disk.rows == {}


def test_who_goes_away_while_his_session_is_stored_leaves_no_row(busy: BusyWorld) -> None:
    login = Deferred.fromCoroutine(busy.service.serve_login(Login("alice", "wonderland"), PEER))
    login.addErrback(lambda failure: None)
    busy.link.verifying[0].callback(Verified("alice", ["user"], [], 5))
    login.cancel()
    busy.disk.commit()
    assert list(busy.disk.rows) == [busy.alice.id] and busy.sessions.rows() == [busy.alice]


# what is under way when something changes -----------------------------------------------------------
@pytest.mark.parametrize("epoch", [0, 9])
def test_a_login_that_was_verified_before_the_change_is_none(world: World, epoch: int) -> None:
    world.run(3)
    answers = world.login()
    world.link.change("alice", epoch)
    world.run(5)
    before = dict(world.gmp._keys)
    world.link.verifying[0].callback(Verified("alice", ["user"], [], 5))
    with pytest.raises(errors.LoginRefused, match="user name or password is wrong"):
        said(answers)
    assert len(world.sessions) == 0 and world.gmp._keys == before and not world.service._hearing


def test_a_login_that_was_verified_after_the_change_or_beside_a_gift_is_one(world: World) -> None:
    world.run(3)
    one, two = world.login(), world.login()
    world.link.change("alice", 9)
    world.run(5)
    world.link.verifying[0].callback(Verified("alice", ["user"], [], 9))
    world.link.change("alice", 9, Right("alice", "/a", "r"))
    world.link.change("bob", 0)
    world.run(5)
    world.link.verifying[1].callback(Verified("alice", ["user"], [], 9))
    assert {said(one).user, said(two).user} == {"alice"} and len(world.sessions) == 2


@pytest.mark.parametrize(("name", "epoch"), [("alice", 0), ("alice", 9), ("svc", 9)])
def test_no_session_for_another_begins_with_what_was_vouched_for_before(
    world: World, name: str, epoch: int
) -> None:
    world.run(3)
    mine, secret = world.sessions.create(Verified("svc", ["user", "service"], [], 5), "10.0.0.1/32")
    proof = keys.resume_proof(secret, PEER.exporter)
    answers = begun(world.service.serve_act_for(ActFor(mine.id, proof, "alice"), PEER))
    world.link.change(name, epoch)
    world.run(5)
    world.link.verifying[0].callback(Vouched("alice", [], 5, 5))
    with pytest.raises(errors.SessionExpired):
        said(answers)
    assert not any(row.via for row in world.sessions.rows())


def test_a_session_that_ends_while_it_is_stored_is_not_given_out(busy: BusyWorld) -> None:
    busy.run(3)
    answers = busy.login()
    busy.link.verifying[0].callback(Verified("alice", ["user"], [], 5))
    assert len(busy.sessions) == 2 and answers == []
    busy.end()
    before = dict(busy.gmp._keys)
    busy.disk.commit()
    with pytest.raises(errors.LoginRefused):
        said(answers)
    assert len(busy.sessions) == 0 and busy.disk.rows == {} and busy.gmp._keys == before


def test_rights_that_are_newer_than_the_news_end_the_session_too(world: World) -> None:
    """A gift is told; until it is fetched the password is another: the answer has the new epoch."""
    world.run(3)
    world.link.overtaken["alice"] = 9
    world.link.change("alice", 5, Right("alice", "/a", "r"))
    world.run(5)
    assert not world.alive and world.closed == [world.alice]


@pytest.mark.parametrize("name", ["alice", "svc"])
def test_so_do_those_of_either_one_in_a_session_for_another(world: World, name: str) -> None:
    world.run(3)
    acting, _ = world.sessions.create(Verified("alice", ["user"], [], 5), "10.0.0.1/32", "svc", 5)
    world.link.overtaken[name] = 9
    world.link.change("svc", 5)
    world.run(5)
    assert acting in world.closed and world.alive == (name == "svc")
