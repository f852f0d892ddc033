"""Requests that servers pass on to each other: the choice among servers, and the header that proves it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from s3_world import World

from cumulus.auth import hop, sigv4, times
from cumulus.backends.memory import MemoryStore
from cumulus.errors import S3Error
from cumulus.redirect import REST_S, NoServer, Server, Spread
from cumulus.rest import hops as rest_hops
from cumulus.rest.call import Call, Headers, Reply
from cumulus.rest.hops import KEPT_S, Hops
from cumulus.secrets import Keyring, write_private
from sector.errors import LocalIO

KEY, OTHER, NOW_S = b"k" * 32, b"o" * 32, 1_700_000_000
ONE, TWO, THREE = (Server(False, f"s{n}.test:8888") for n in (1, 2, 3))


def call(**more: Any) -> Call:
    """A request as it came to the first server."""
    fields = {"id": "AB01", "method": "GET", "target": "/b/k?x=1", "headers": Headers([("host", "s3.test")])}
    return Call(**{**fields, "peer": "2001:db8::7", "secure": True, "at_ns": 0, **more})


def passed(sent: Call, value: str, **more: Any) -> Call:
    """The same at the second server, with the header."""
    pairs = [*sent.headers.pairs, (hop.HEADER, value)]
    return replace(
        sent, **{"id": "CD02", "peer": "10.0.0.1", "secure": False, "headers": Headers(pairs), **more}
    )


class Counted:
    """Calls of something."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.count = 0
        self._work = work

    def __call__(self) -> None:
        self.count += 1
        self._work()


# the header ------------------------------------------------------------------------------------------------
def test_who_the_client_is_passes_on() -> None:
    """By any of the keys; from a little earlier or later."""
    sent = call()
    value = hop.header(sent, KEY, NOW_S)
    for now_s in (NOW_S, NOW_S - hop.SKEW_S, NOW_S + hop.SKEW_S):
        assert hop.origin(passed(sent, value), [OTHER, KEY], now_s) == hop.Origin("AB01", "2001:db8::7", True)
    plain = call(secure=False, peer="192.0.2.9")
    found = hop.origin(passed(plain, hop.header(plain, KEY, NOW_S)), [KEY], NOW_S)
    assert found == hop.Origin("AB01", "192.0.2.9", False)


@pytest.mark.parametrize(
    "change",
    [
        {"method": "DELETE"},
        {"target": "/b/other"},
        {"headers": Headers([("host", "evil.test")])},
        {"peer": "10.9.9.9"},
        {"id": "FF"},
        {"secure": False},
    ],
)
def test_the_header_is_for_one_request(change: dict[str, Any]) -> None:
    """Nothing of it may be another one's."""
    sent = call()
    proof = hop.header(sent, KEY, NOW_S).rpartition(";")[2]
    said = hop.header(replace(sent, **change), KEY, NOW_S).rpartition(";")[0]
    other = replace(sent, **change)
    assert hop.origin(passed(other, f"{said};{proof}"), [KEY], NOW_S) is None


def test_what_is_old_or_malformed_is_refused() -> None:
    sent = call()
    value = hop.header(sent, KEY, NOW_S)
    with pytest.raises(S3Error, match="RequestTimeTooSkewed"):
        hop.origin(passed(sent, value), [KEY], NOW_S + hop.SKEW_S + 1)
    assert hop.origin(passed(sent, value), [OTHER], NOW_S) is None
    for wrong in ("", "1", value[:-1], value + "0", value.replace("1;", "2;", 1), f"{value},{value}"):
        with pytest.raises(S3Error, match="AccessDenied"):
            hop.origin(passed(sent, wrong), [KEY], NOW_S)


def claiming(name: str, at_ns: int) -> Call:
    """A request of alice's key that claims to have signed a header; whoever sends it has not the key."""
    stamp = times.basic(at_ns)
    words = (
        f"Credential=ALICE/{stamp[:8]}/us-east-1/s3/aws4_request",
        f"SignedHeaders=host;x-amz-content-sha256;x-amz-date;{name}",
        f"Signature={'0' * 64}",
    )
    headers = {"host": "s3.test", "x-amz-date": stamp, "x-amz-content-sha256": sigv4.EMPTY_SHA256}
    headers["authorization"] = f"{sigv4.ALGORITHM} {','.join(words)}"
    return call(target="/bkt/k", headers=Headers(headers.items()))


# at the second server --------------------------------------------------------------------------------------
def test_the_second_server_takes_the_clients_address(tmp_path: Path) -> None:
    """Policies and the log have it; a key that was added is known within a second; a forged header is
    refused; a point serves nothing. No answer shows the proof, whatever a client says it has signed."""
    ring = Keyring.create(tmp_path / "secret.key")
    world = World(MemoryStore())
    world.ask("PUT", "/bkt")
    hops = world.gateway.hops = Hops(tmp_path / "secret.key")
    ring.add_newest()

    def ask(key: bytes) -> tuple[Call, Reply]:
        sent = call(method="GET", target="/bkt/k", headers=Headers([("host", "s3.test")]))
        found = passed(sent, hop.header(sent, key, world.clock() // 10**9))
        answer = world.gateway.start(found)
        assert isinstance(answer, Reply) and isinstance(answer.body, bytes)
        return found, answer

    found, answer = ask(OTHER)
    assert (answer.status, b"secret.key" in answer.body, found.peer) == (403, True, "10.0.0.1")
    hops._looked -= 5
    newest = ring.derived(hop.PURPOSE)[0]
    for key in (newest, ring.derived(hop.PURPOSE)[1]):
        found, answer = ask(key)
        assert (answer.status, b"AccessDenied" in answer.body) == (403, True), "anonymous"
        assert (found.id, found.peer, found.secure) == ("AB01", "2001:db8::7", True)
    asked = claiming(hop.HEADER, world.clock())
    value = hop.header(asked, newest, world.clock() // 10**9)
    shown = world.gateway.start(passed(asked, value))
    assert isinstance(shown, Reply) and isinstance(shown.body, bytes)
    assert (shown.status, b"<Code>SignatureDoesNotMatch</Code>" in shown.body) == (403, True)
    for word in (value.rpartition(";")[2], "2001:db8::7"):
        assert word.encode() not in shown.body and word.encode().hex(" ").encode() not in shown.body
    hops._looked -= 5
    file = (tmp_path / "secret.key").read_text()
    (tmp_path / "secret.key").write_text("not a key")
    assert ask(OTHER)[1].status == 403, "the keys stay as they were"
    assert ask(newest)[0].id == "AB01"
    write_private(tmp_path / "secret.key", file)
    sender, older = Hops(tmp_path / "secret.key"), ring.derived(hop.PURPOSE)[1]
    ring.drop_older()
    hops._looked -= 5
    assert ask(OTHER)[1].status == 403
    assert ask(older)[0].id == "AB01", "others go on to sign with it until they have looked"
    hops._left[older] -= KEPT_S
    assert ask(older)[0].id == "CD02"
    world.gateway.hops = Hops(tmp_path / "secret.key")
    sender.look()
    assert ask(sender.keys()[0])[0].id == "AB01", "after the restart of the second server alone"
    ring.add_newest()
    (tmp_path / "secret.key").chmod(0o644)
    sender.look()
    assert sender.keys() == [newest], "not to be used now"
    (tmp_path / "secret.key").chmod(0o600)
    sender.look()
    assert sender.keys() == [ring.derived(hop.PURPOSE)[0], newest]
    ring.path.unlink()
    ring = Keyring.create(tmp_path / "secret.key")
    world.gateway.hops = Hops(tmp_path / "secret.key", point=True)
    found, answer = ask(ring.derived(hop.PURPOSE)[0])
    assert (answer.status, dict(answer.headers)["Retry-After"]) == (503, "5")
    world.close()
    with pytest.raises(LocalIO):
        Hops(tmp_path / "none")


def test_a_key_that_has_left_the_file_is_good_for_two_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where all headers are signed with it, so that no unknown key asks for a look into the file. A new
    key is known within a second though NFS does not show yet that the file has changed."""
    now = [1000.0]
    monkeypatch.setattr(rest_hops, "time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: 0.0))
    ring = Keyring.create(tmp_path / "secret.key")
    hops = Hops(tmp_path / "secret.key")
    loads = Counted(hops._ring.load)
    monkeypatch.setattr(hops._ring, "load", loads)

    def accept(key: bytes) -> str:
        found = passed(call(), hop.header(call(), key, NOW_S))
        hops.accept(found, NOW_S)
        return found.id

    old = ring.derived(hop.PURPOSE)[0]
    for _ in range(60):
        now[0] += 1
        assert accept(old) == "AB01"
    assert loads.count == 0
    ring.add_newest()
    ring.drop_older()
    for _ in range(int(KEPT_S)):
        now[0] += 1
        assert accept(old) == "AB01"
    now[0] += 2
    with pytest.raises(S3Error, match="AccessDenied"):
        accept(old)
    monkeypatch.setattr(hops, "_state", lambda state=hops._state(): state)
    ring.add_newest()
    now[0] += 1
    assert [accept(key) for key in ring.derived(hop.PURPOSE)] == ["AB01", "AB01"]


# the choice ------------------------------------------------------------------------------------------------
def spread(*servers: Server, point: bool = True) -> Spread:
    """With a fixed seed."""
    return Spread(servers, random.Random(1), point=point)


def chosen(ask: Spread, *tried: Server, now_s: float = 0.0) -> Server | None:
    """For a request to the common name."""
    return ask.choose("s3.test", secure=False, tried={one.netloc for one in tried}, now_s=now_s)


def test_equals_take_turns_and_the_least_busy_is_next() -> None:
    ask = spread(ONE, TWO, THREE)
    assert {chosen(ask) for _ in range(3)} == {ONE, TWO, THREE}
    for busy in (ONE, ONE, TWO):
        ask.begun(busy)
    assert {chosen(ask) for _ in range(5)} == {THREE}
    ask.begun(THREE)
    assert {chosen(ask) for _ in range(4)} == {TWO, THREE}
    for _ in range(2):
        ask.ended(ONE)
    assert chosen(ask) == ONE


def test_a_server_that_refuses_is_not_the_least_busy() -> None:
    """A single refusal counts for some seconds, many for longer; where all refuse they take turns."""
    ask = spread(ONE, TWO)
    ask.refused(ONE, 10.0)
    assert {chosen(ask, now_s=10.0 + later) for later in (0.0, 0.5, 1.0, 2.0, 3.0)} == {TWO}
    assert {chosen(ask, now_s=14.0) for _ in range(2)} == {ONE, TWO}
    for _ in range(40):
        ask.refused(ONE, 20.0)
    for _ in range(5):
        ask.begun(TWO)
    assert {chosen(ask, now_s=22.0) for _ in range(2)} == {TWO}
    assert {chosen(ask, now_s=25.0) for _ in range(2)} == {ONE}
    for _ in range(5):
        ask.ended(TWO)
    ask.refused(TWO, 40.0)
    ask.refused(ONE, 40.0)
    assert {chosen(ask, now_s=40.1) for _ in range(2)} == {ONE, TWO}


def test_a_server_that_failed_rests() -> None:
    """Unless no other is left; news is told once."""
    ask = spread(ONE, TWO)
    assert (ask.failed(ONE, 10.0), ask.failed(ONE, 10.0)) == (True, False)
    assert {chosen(ask, now_s=10.1) for _ in range(4)} == {TWO}
    assert chosen(ask, TWO, now_s=10.1) == ONE
    assert {chosen(ask, now_s=10.0 + REST_S) for _ in range(4)} == {ONE, TWO}
    assert (ask.reached(ONE), ask.reached(ONE)) == (True, False)
    with pytest.raises(NoServer):
        chosen(ask, ONE, TWO)
    ask.servers = (THREE,)
    assert chosen(ask) == THREE


def test_own_requests_are_served_unless_it_is_a_point() -> None:
    both = spread(ONE, TWO, point=False)
    assert both.choose("S1.test:8888", secure=False, tried=set(), now_s=0.0) is None
    assert chosen(both) is not None
    ask = spread(ONE, TWO)
    assert {ask.choose("s1.test:8888", secure=False, tried=set(), now_s=0.0) for _ in range(4)} == {TWO}
    with pytest.raises(NoServer):
        spread(ONE).choose("s1.test:8888", secure=False, tried=set(), now_s=0.0)


@pytest.mark.parametrize(
    ("later_s", "good"), [(1.0, True), (KEPT_S - 2, True), (KEPT_S + 2, False), (1e6, False)]
)
@pytest.mark.parametrize("wall_s", [0.0, -3600.0, 3600.0])
def test_where_no_header_came_a_key_is_good_for_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later_s: float, good: bool, wall_s: float
) -> None:
    """The process looks into the file with the next header, which may come a week after the key has left it.
    A clock that is wrong makes that two minutes, or shorter but for who looks each second."""
    now, began = [1000.0], time.time()
    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: began + wall_s + now[0] - 1000.0)
    monkeypatch.setattr(rest_hops, "time", clock)
    ring = Keyring.create(tmp_path / "secret.key")
    idle, busy = Hops(tmp_path / "secret.key"), Hops(tmp_path / "secret.key")
    old = ring.derived(hop.PURPOSE)[0]
    ring.add_newest()
    ring.drop_older()
    now[0] += 1
    busy.look()
    now[0] += later_s - 1

    def accepts(hops: Hops) -> bool:
        found = passed(call(), hop.header(call(), old, NOW_S))
        try:
            hops.accept(found, NOW_S)
        except S3Error:
            return False
        return True

    assert accepts(busy) == good
    if wall_s == 0:
        assert accepts(idle) == good
    elif wall_s > 0:
        assert not (accepts(idle) and not good)
