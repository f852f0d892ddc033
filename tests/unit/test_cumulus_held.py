"""Whole replies in memory until their clients take them."""

from __future__ import annotations

import pytest

from cumulus.fair.board import local_board
from cumulus.fair.limits import Limiter, Limits, Seat
from cumulus.fair.weights import Sharing
from cumulus.http.held import LEAST, MOST, SLOW_S, SMALL, Held
from cumulus.model import User

MB = 1 << 20


class Channel:
    """A client that takes what a test says."""

    def __init__(self, name: str, owner: str = "user all") -> None:
        self.peer = name
        self.owner = owner
        self.taken = 1000
        self.aborted = 0

    def abort(self) -> None:
        self.aborted += 1


class Now:
    """A clock that a test moves."""

    s = 100.0

    def __call__(self) -> float:
        return self.s


def test_those_make_room_that_take_next_to_nothing() -> None:
    """The slowest first, after a while; not those that are not slow, nor what has not begun."""
    now = Now()
    held = Held(now, most=10 * SMALL)
    slow, slower, quick, resting, new = (
        Channel(name) for name in ("slow", "slower", "quick", "rests", "new")
    )
    for one in (slow, slower, quick, resting):
        assert held.take(one, 2 * SMALL)
        if one is not resting:
            held.given(one)
    assert not held.take(new, 3 * SMALL), "nobody is known to be slow"
    for one in (slow, slower, quick):
        one.taken += 4 * SMALL  # into buffers of their side
    now.s += SLOW_S
    assert not held.take(new, 3 * SMALL)
    now.s += SLOW_S
    slow.taken += int(LEAST * SLOW_S) // 2
    quick.taken += int(LEAST * SLOW_S)
    assert held.take(new, 3 * SMALL)
    assert (slower.aborted, slow.aborted, held.total) == (1, 0, 9 * SMALL)
    assert held.take(Channel("another"), 2 * SMALL) and slow.aborted == 1
    assert not held.take(Channel("one more"), 2 * SMALL)
    assert not (quick.aborted or resting.aborted or new.aborted)
    held.free(quick)
    held.free(quick)
    assert held.total == 7 * SMALL


def test_small_ones_do_not_count_and_one_alone_has_room() -> None:
    held = Held(Now(), most=SMALL)
    assert held.take(Channel("large"), 5 * SMALL)
    assert not held.take(Channel("next"), SMALL + 1)
    for _ in range(5):
        assert held.take(Channel("small"), SMALL)
    assert held.total == 5 * SMALL


def seat(peer: str, user: str = "") -> Seat:
    """Of a connection from there, over which that user has signed the request under way."""
    board, now = local_board(), Now()
    found = Seat(
        peer, Limiter("address", Limits(), board, now), Limiter("user", Limits(), board, now), Sharing()
    )
    if user:
        found.admit(User(user, user))
    return found


def test_a_reply_is_the_users_who_signed_else_the_addresss() -> None:
    """With a request of nobody over a user's connection, it is the address's."""
    assert seat("10.0.0.1").who == "address 10.0.0.1"
    assert seat("2001:db8::1").who == seat("2001:db8::2:3:4:5").who != seat("2001:db8:0:1::1").who
    both = [seat("10.0.0.1", "a"), seat("10.0.0.2", "a")]
    assert [one.who for one in both] == ["user a"] * 2
    both[0].knock()
    both[1].admit(None)
    assert (both[0].who, seat("10.0.0.2", "b").who) == ("address 10.0.0.1", "user b")


GREEDY = {
    "user": [seat(f"10.1.0.{number}", "greedy") for number in range(64)],
    "network": [seat(f"2001:db8::{number}") for number in range(64)],
}


@pytest.mark.parametrize("whose", GREEDY)
@pytest.mark.parametrize(("renewed_s", "rate"), [(4, 0), (600, LEAST), (600, 4 * LEAST)])
def test_who_has_most_makes_room_for_everybody_else(whose: str, renewed_s: int, rate: int) -> None:
    """Sixty-four connections that ask for all of the memory, whether they read nothing and are made anew
    before that can be known, or read just enough; those of somebody slow who has little stay."""
    now = Now()
    held = Held(now)
    who = [one.who for one in GREEDY[whose]]
    patient = Channel("patient", seat("10.0.0.3").who)
    assert held.take(patient, MB)
    held.given(patient)
    greedy: list[Channel] = []
    served = ended = 0
    for second in range(120):
        now.s += 1
        held.look()
        for one in greedy:
            one.taken += rate
        if second % renewed_s == 0:
            for one in greedy:
                held.free(one)
            greedy = []
        for _ in range(64 - len(greedy)):
            one = Channel("greedy", who[len(greedy)])
            if held.take(one, MB):
                held.given(one)
                greedy.append(one)
        assert held.total > MOST - MB
        for honest, size in (("10.0.0.1", 100 << 10), ("10.0.0.2", 700 << 10)):
            new = Channel("honest", seat(honest).who)
            assert held.take(new, size)
            held.given(new)
            served += 1
            held.free(new)
        ended += sum(one.aborted for one in greedy)
        greedy = [one for one in greedy if not one.aborted]
        assert len(greedy) >= 62, "no more end than have to"
    assert served == 240 and ended >= 120
    assert not patient.aborted


def test_who_has_as_much_ends_nobody_but_those_that_are_slow() -> None:
    """Nobody ends for a reply for which it would not be enough; the greediest loses his largest."""
    now = Now()
    held = Held(now, most=40 * SMALL)
    large, larger, even, small = (
        Channel(name, owner)
        for name, owner in (("large", "a"), ("larger", "a"), ("even", "b"), ("small", "c"))
    )
    for one, count in ((large, 4), (larger, 11), (even, 13), (small, 12)):
        assert held.take(one, count * SMALL)
        held.given(one)
    assert not held.take(Channel("more of small", "c"), 3 * SMALL), "he would have as much as the greediest"
    assert not held.take(Channel("more of the greediest", "a"), 2 * SMALL)
    one, two = Channel("one", "d"), Channel("two", "e")
    assert held.take(one, 10 * SMALL) and (large.aborted, larger.aborted) == (0, 1)
    assert not held.take(two, 14 * SMALL), "nobody has more"
    now.s += SLOW_S
    small.taken += int(LEAST * SLOW_S)
    even.taken += int(LEAST * SLOW_S) - SMALL
    large.taken += int(LEAST * SLOW_S)
    assert not held.take(Channel("more of large", "a"), 10 * SMALL), "even is slow, and has less"
    assert not held.take(two, 33 * SMALL) and not even.aborted, "that would not be enough"
    assert held.take(two, 14 * SMALL), "his first"
    assert even.aborted == 1
    assert not (one.aborted or large.aborted or small.aborted)
    assert held.total == 40 * SMALL
