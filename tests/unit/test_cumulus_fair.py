"""Limits of users and addresses, and who is charged with which weight."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from twisted.internet.task import Clock

from cumulus.errors import S3Error
from cumulus.fair import limits
from cumulus.fair.board import local_board, make_shared, open_shared, places
from cumulus.fair.lane import BACK, LEAD_S, LONG, MOST_TURN, QUANTUM, Flow, Lane
from cumulus.fair.limits import Buckets, Limiter, Limits, Seat
from cumulus.fair.weights import Sharing, parse_weights
from cumulus.http.limits import Throttle
from cumulus.http.pace import IN, Pacer, Transfer
from cumulus.http.settings import HttpSettings
from cumulus.model import User

ALICE = User(id="a" * 64, name="alice", groups=("lab", "ops"), weight=3)


class Now:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


def seat(users: Limits, addresses: Limits, now: Now, peer: str = "10.0.0.1") -> Seat:
    """A connection of a server with these limits."""
    board = local_board()
    return Seat(
        peer, Limiter("address", addresses, board, now), Limiter("user", users, board, now), Sharing()
    )


def test_requests_of_an_address_are_refused_until_tokens_are_there_again() -> None:
    now = Now()
    one = seat(Limits(), Limits(requests=2.0, burst_s=1.5), now)
    assert one.take()
    for _ in range(3):
        one.knock()
    with pytest.raises(S3Error) as refused:
        one.knock()
    assert (refused.value.code, refused.value.headers) == ("SlowDown", [("retry-after", "1")])
    now.s += 0.5
    one.knock()
    with pytest.raises(S3Error):
        one.knock()


def test_a_user_has_his_requests_over_all_his_connections() -> None:
    now, board = Now(), local_board()
    users = Limiter("user", Limits(requests=1.0, burst_s=2.0), board, now)
    seats = [Seat(f"10.0.0.{n}", Limiter("address", Limits(), board, now), users, Sharing()) for n in (1, 2)]
    for one in seats:
        assert one.take()
        one.admit(ALICE)
    with pytest.raises(S3Error, match="You send too many requests"):
        seats[0].admit(ALICE)
    assert users.refused_requests == 1
    seats[0].admit(None)


def test_connections_of_an_address_and_of_a_user_are_counted() -> None:
    now, board = Now(), local_board()
    addresses = Limiter("address", Limits(connections=2), board, now)
    users = Limiter("user", Limits(connections=1), board, now)
    first, second, third = (Seat("10.0.0.1", addresses, users, Sharing()) for _ in range(3))
    assert (first.take(), second.take(), third.take()) == (True, True, False)
    first.admit(ALICE)
    with pytest.raises(S3Error, match="as many connections"):
        second.admit(ALICE)
    first.leave()
    assert third.take()
    second.admit(ALICE)
    second.admit(ALICE)
    second.leave(), third.leave()
    assert board.count(places("address 10.0.0.1")) == board.count(places(f"user {ALICE.id}")) == 0
    second.admit(ALICE)  # a thread that comes late
    assert board.count(places(f"user {ALICE.id}")) == 0


def test_one_network_of_ipv6_is_one_address() -> None:
    """Whoever has an address of it has 2^64: the limits were none for him, and as an anonymous client he had
    as many shares as he liked. IPv4 over IPv6 is the same address as without."""
    now, board = Now(), local_board()
    addresses = Limiter("address", Limits(requests=1.0, connections=2, burst_s=3.0), board, now)
    users = Limiter("user", Limits(), board, now)
    some = [Seat(f"2001:db8::{n:x}", addresses, users, Sharing()) for n in (1, 2, 0xFFFF)]
    other = Seat("2001:db8:0:1::1", addresses, users, Sharing())
    assert [one.take() for one in (*some, other)] == [True, True, False, True]
    assert len({one.owner for one in some}) == 1 and other.owner != some[0].owner
    for one in (some[0], some[1], some[0]):
        one.knock()
    with pytest.raises(S3Error, match="too many requests from your address"):
        some[1].knock()
    other.knock()
    mapped, plain = (Seat(peer, addresses, users, Sharing()) for peer in ("::ffff:10.0.0.1", "10.0.0.1"))
    assert mapped.owner == plain.owner == "address 10.0.0.1"
    some[0].leave(), some[1].leave()
    assert some[2].take()


def test_bytes_over_the_rate_are_rested_for() -> None:
    now = Now()
    one = seat(Limits(rate=1000, burst_s=1.0), Limits(rate=4000, burst_s=1.0), now)
    one.take()
    assert one.took(4000) == 0.0
    assert one.took(1000) == pytest.approx(0.25)
    one.admit(ALICE)
    assert one.took(3000) == pytest.approx(2.0)
    now.s += 2.0
    assert one.took(0) == 0.0
    assert one.turn(1 << 20) == limits.LEAST_TURN


def test_bytes_that_came_before_the_user_was_known_are_his() -> None:
    """Also when the connection is gone meanwhile, as his requests are; not those of a request before that was
    nobody's. The rest is over when its time is."""
    now, board = Now(), local_board()
    addresses = Limiter("address", Limits(), board, now)
    users = Limiter("user", Limits(requests=1.0, rate=1000, burst_s=2.0), board, now)
    gone, other = (Seat("10.0.0.1", addresses, users, Sharing()) for _ in range(2))
    for one in (gone, other):
        assert one.take()
        one.knock()
        assert one.came(4000) == 0.0
    gone.leave()
    gone.admit(ALICE)
    other.admit(None)
    assert other.rest() == 0.0
    other.knock()
    other.came(1000)
    other.admit(ALICE)
    assert other.rest() == pytest.approx(3.0)
    now.s += 0.5
    assert other.rest() == pytest.approx(2.5)
    other.knock()
    assert other.rest() == 0.0
    with pytest.raises(S3Error, match="too many requests"):
        other.admit(ALICE)
    assert board.count(places(f"user {ALICE.id}")) == 1


def test_a_limit_is_split_among_processes_by_connections() -> None:
    fd = make_shared(2)
    now = Now()
    limiters = [
        Limiter("user", Limits(requests=8.0, burst_s=1.0), open_shared(fd, 2, column), now)
        for column in (0, 1)
    ]
    where = places("user x")
    for number in (0, 0, 0, 1):
        assert limiters[number].enter(where)
    allowed = [sum(not one.request("x", where) for _ in range(20)) for one in limiters]
    assert allowed == [6, 2]


def test_many_addresses_at_a_time_take_no_room_from_one_another() -> None:
    """With 40,000 clients that had one connection each, two in five newcomers were told that they had the
    eight that they might have; with 6,000 one in sixty that he had two."""
    now, fd = Now(), make_shared(2)
    boards = [open_shared(fd, 2, column) for column in (0, 1)]
    for number in range(40_000):
        where = places(f"address 10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        boards[number % 2].add(where, 1)
    addresses = Limiter("address", Limits(connections=4), boards[0], now)
    users = Limiter("user", Limits(), boards[0], now)
    for number in range(500):
        mine = [Seat(f"192.168.{number >> 8}.{number & 255}", addresses, users, Sharing()) for _ in range(3)]
        assert all(one.take() for one in mine)
    assert addresses.refused_connections == 0


def test_the_table_of_buckets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST", 10)
    buckets = Buckets(1.0)
    for number in range(100):
        buckets.ask(f"10.0.0.{number}", 1.0, 0.0)
    assert len(buckets) == 10


def test_the_limit_of_all_bytes_is_of_all_processes() -> None:
    fd = make_shared(2)
    mine, other = (Throttle(1000, 100.0, open_shared(fd, 2, column)) for column in (0, 1))
    assert mine.took(250, 100.0) == 0.0
    assert other.took(500, 100.0) == pytest.approx(0.5)
    assert mine.took(0, 100.2) == pytest.approx(0.3)
    assert mine.took(100, 110.0) == 0.0


def test_who_is_charged_and_with_which_weight() -> None:
    groups = {"ops": 2, "lab": 4}
    address = ("address 10.0.0.1", 1.0)
    assert Sharing("user", True, groups).of(ALICE, "10.0.0.1") == (f"user {ALICE.id}", 12.0)
    assert Sharing("user", False, groups).of(ALICE, "10.0.0.1") == (f"user {ALICE.id}", 1.0)
    assert Sharing("group", True, groups).of(ALICE, "10.0.0.1") == ("group lab", 4.0)
    assert Sharing("group", True, {}).of(ALICE, "10.0.0.1") == ("group lab", 1.0)
    brought = replace(ALICE, group_weights=(5, 2))
    assert Sharing().of(brought, "") == (f"user {ALICE.id}", 15.0)
    assert Sharing("group").of(brought, "") == ("group lab", 5.0)
    assert Sharing("group", True, {"ops": 6}).of(brought, "") == ("group ops", 6.0), "settings count"
    assert Sharing("address").of(ALICE, "10.0.0.1") == address
    assert Sharing("user").of(None, "10.0.0.1") == address


@pytest.mark.parametrize("text", ["lab", "lab=0", "lab=1001", "=3", "lab=x", "lab=1,lab=2"])
def test_weights_that_are_none_are_refused(text: str) -> None:
    assert parse_weights(" lab=4 , ops=2,") == {"lab": 4, "ops": 2}
    with pytest.raises(ValueError, match="GROUP=WEIGHT"):
        parse_weights(text)


def test_turns_are_long_for_one_alone_and_half_of_the_lead_for_several() -> None:
    """The lead grows with the pace; who has 16 times the share has long turns from the beginning."""
    lane, flows = Lane(local_board(), 0), [Flow("a"), Flow("a"), Flow("b", 8.0)]
    lane.join(flows[0], 100.0)
    assert lane.turn(flows[0], 2 * MOST_TURN) == 2 * MOST_TURN
    for flow in flows[1:]:
        lane.join(flow, 100.0)
    lane.tick(100.0)
    turns = [lane.turn(flow, 2 * MOST_TURN) for flow in flows]
    assert turns == [QUANTUM // 2, QUANTUM // 2, MOST_TURN]
    assert [lane.turn(flow, 1000) for flow in flows] == [1000] * 3
    for step in range(1, 200):
        now = 100.0 + 0.005 * step
        lane.tick(now)
        for flow in flows:
            if not flow.held:
                lane.took(flow, int(200e6 * 0.005 / flow.cost), now)
    turns = [lane.turn(flow, 2 * MOST_TURN) for flow in flows]
    assert turns[0] == turns[1] == pytest.approx(BACK * LEAD_S * 200e6 / flows[0].cost, rel=0.1)
    assert turns[2] == MOST_TURN


def test_short_requests_of_the_only_owner_look_at_nobody() -> None:
    """Until another comes, or a request is a long one."""
    lane, flows = Lane(local_board(), 0), [Flow("a"), Flow("a")]
    for flow in flows:
        lane.join(flow, 100.0)
    lane.tick(100.0)
    assert [lane.alone(flow, 100.0) for flow in flows] == [True, True]
    lane.took(flows[0], LONG, 100.1)
    assert [lane.alone(flow, 100.1) for flow in flows] == [False, True]
    lane.join(Flow("b"), 100.1)
    lane.tick(100.1)
    assert [lane.alone(flow, 100.1) for flow in flows] == [False, False]


def test_an_upload_has_a_long_turn_beside_others_of_its_user() -> None:
    pacer = Pacer(HttpSettings(), Clock())
    seat = pacer.seat("192.0.2.1")
    seat.admit(None)
    first, second = (Transfer(pacer, IN, seat, {}) for _ in range(2))
    pacer.lanes[IN].tick(0.0)
    assert (second.stretch(2 * MOST_TURN), second.turn(2 * MOST_TURN)) == (2 * MOST_TURN, QUANTUM // 2)
    first.end()


def test_a_transfer_goes_on_as_the_one_whose_it_was_found_to_be() -> None:
    """Of a form that is known only in its body."""
    pacer = Pacer(HttpSettings(sharing=Sharing("user")), Clock())
    seat, flows = pacer.seat("192.0.2.1"), dict[int, Flow]()
    seat.admit(None)
    form = Transfer(pacer, IN, seat, flows)
    other = Transfer(pacer, IN, pacer.seat("192.0.2.2"), {})
    assert form.took(1000) == 0.0 and flows[IN].key == "address 192.0.2.1"
    seat.admit(ALICE)
    assert form.took(1000) == 0.0 and flows[IN].key == f"user {ALICE.id}"
    assert len(pacer.lanes[IN]) == 2
    for one in (form, other):
        one.end()
    assert len(pacer.lanes[IN]) == 0
