"""The master hears of changed rights within 5 s, whatever happens to the security server in between, on a
clock of the test's own (spec/security.md, Sessions 5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.testing import MemoryReactorClock

from sector import errors
from sector.cli.cluster_dir import ClusterDir
from sector.config import load_config
from sector.gmp.memory import MemoryHub
from sector.master import login as door
from sector.master.login import LoginService, make_login_service, make_sessions
from sector.master.sessions import SessionRow
from sector.model import Right
from sector.wire.login import Epochs, RightsOf, Verified, WatchRights


class FakeLink:
    """Answers like the security server; `away` errbacks, `silent` never answers."""

    def __init__(self) -> None:
        self.on_change: list[Any] = []
        self.serial = 1
        self.changed: dict[str, tuple[int, int]] = {}
        self.nodes: dict[str, int] = {}
        self.rights: dict[str, list[Right]] = {}
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
            epoch = self.changed[request.user][1]
            return succeed(Verified(request.user, ["user"], self.rights[request.user], epoch))
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


class World:
    """A master's door on a test clock, with one session of alice (epoch 5)."""

    def __init__(self, path: Path) -> None:
        place = ClusterDir(path / "c")
        place.init(cluster="x", host="127.0.0.1", port_base=7000, slaves=1)
        config = load_config(place.path / "master.toml", "master")
        self.clock = MemoryReactorClock()
        self.link = FakeLink()
        self.store = Store()
        self.gmp = MemoryHub(self.clock).endpoint()
        self.sessions = make_sessions(config, lambda: 1000.0 + self.clock.seconds())
        self.closed: list[SessionRow] = []
        self.removed: list[str] = []
        self.rights: dict[str, tuple[Right, ...]] = {}

        async def join(*_: Any) -> Any:
            raise AssertionError

        link: Any = self.link
        self.service: LoginService = make_login_service(
            config,
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
        self.alice, _ = self.sessions.create(Verified("alice", ["user"], [], 5), "10.0.0.1/32")
        self.gmp.add_key(self.sessions.gmp_key(self.alice))

    def run(self, seconds: float) -> None:
        """Let time pass in small steps."""
        self.clock.pump([0.1] * round(seconds * 10))

    @property
    def alive(self) -> bool:
        return self.alice.key_id in self.gmp._keys


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


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
