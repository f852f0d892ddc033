"""Whole replies in memory until their clients take them."""

from __future__ import annotations

from cumulus.http.held import LEAST, SLOW_S, SMALL, Held


class Channel:
    """A client that takes what a test says."""

    def __init__(self, name: str) -> None:
        self.peer = name
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
